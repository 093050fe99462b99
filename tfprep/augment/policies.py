"""Policies: ops made of ops. A policy belongs to the geometry or to the colour ops of a recipe, and so do the ops inside it.

Each op inside draws from its own generator, so that the draws of one op do not change those of another. The colour ops of a
geometry policy inside (RandAugment, TrivialAugment) are applied too, after the derived inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfprep.augment.transform import ColourOp, Transform, identity
from tfprep.checks import require, require_probability


@dataclass(frozen=True)
class Maybe:
    """Applies `op` with probability `p`. Unaugmented, it takes the op's unaugmented form."""

    op: Any
    p: float = 0.5

    def __post_init__(self) -> None:
        require_probability("Maybe.p", self.p)

    def __call__(self, target: Any, generator: np.random.Generator | None, /) -> Any:
        if generator is None:
            return self.op(target, None)
        happens, (inner,) = self._draw(generator)
        return self.op(target, inner) if happens else _unchanged(target)

    def colour_ops(self, generator: np.random.Generator) -> tuple[ColourOp, ...]:
        """The colour ops of the op inside, if it is applied; from the same draws as its geometry."""
        happens, (inner,) = self._draw(generator)
        return colour_half(self.op, inner) if happens else ()

    def _draw(self, generator: np.random.Generator) -> tuple[bool, list[np.random.Generator]]:
        return generator.random() < self.p, children(generator, 1)


@dataclass(frozen=True)
class OneOf:
    """Applies one of `ops`, drawn uniformly or in proportion to `weights`.

    Unaugmented, it takes the first op's unaugmented form.
    """

    ops: Sequence[Any]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        _require_ops("OneOf", self.ops, self.weights)

    def __call__(self, target: Any, generator: np.random.Generator | None, /) -> Any:
        if generator is None:
            return self.ops[0](target, None)
        op, inner = self._draw(generator)
        return op(target, inner)

    def colour_ops(self, generator: np.random.Generator) -> tuple[ColourOp, ...]:
        """The colour ops of the op that is applied; from the same draws as its geometry."""
        return colour_half(*self._draw(generator))

    def _draw(self, generator: np.random.Generator) -> tuple[Any, np.random.Generator]:
        chosen = int(generator.choice(len(self.ops), p=_shares(self.weights)))
        return self.ops[chosen], children(generator, len(self.ops))[chosen]


@dataclass(frozen=True)
class SomeOf:
    """Applies several different ops of a list. Unaugmented, it takes all of them in their unaugmented form.

    Attributes:
        ops: the ops to draw from.
        count: how many are applied, or a range (from, to) from which their number is drawn.
        shuffle: apply them in a random order instead of that of the list.
    """

    ops: Sequence[Any]
    count: int | tuple[int, int] = 2
    shuffle: bool = False

    def __post_init__(self) -> None:
        _require_ops("SomeOf", self.ops, None)
        low, high = self._counts()
        rule = f"SomeOf.count is from 0 to the number of ops, {len(self.ops)}"
        require(0 <= low <= high <= len(self.ops), rule, self.count, "for example 1")

    def __call__(self, target: Any, generator: np.random.Generator | None, /) -> Any:
        if generator is None:
            return apply_each(target, [(op, None) for op in self.ops])
        return apply_each(target, self._draw(generator))

    def colour_ops(self, generator: np.random.Generator) -> tuple[ColourOp, ...]:
        """The colour ops of the ops that are applied, in their order; from the same draws as their geometry."""
        return tuple(colour for op, inner in self._draw(generator) for colour in colour_half(op, inner))

    def _draw(self, generator: np.random.Generator) -> list[tuple[Any, np.random.Generator]]:
        low, high = self._counts()
        chosen = generator.permutation(len(self.ops))[: generator.integers(low, high, endpoint=True)]
        inner = children(generator, len(self.ops))
        order = chosen if self.shuffle else np.sort(chosen)
        return [(self.ops[number], inner[number]) for number in order]

    def _counts(self) -> tuple[int, int]:
        return self.count if isinstance(self.count, tuple) else (self.count, self.count)


def apply_each(target: Any, steps: Sequence[tuple[Any, np.random.Generator | None]]) -> Any:
    """Applies ops in order: on a size, their transforms are composed; on an image, they run one after the other."""
    if not isinstance(target, tuple):
        for op, generator in steps:
            target = op(target, generator)
        return target
    whole = identity(target)
    for op, generator in steps:
        whole = whole.then(op(whole.size, generator))
    return whole


def colour_half(op: Any, generator: np.random.Generator) -> tuple[ColourOp, ...]:
    """The colour ops of a geometry op that has any (RandAugment, TrivialAugment, and policies with them inside)."""
    colour_ops = getattr(op, "colour_ops", None)
    return tuple(colour_ops(generator)) if callable(colour_ops) else ()


def children(generator: np.random.Generator, count: int) -> list[np.random.Generator]:
    """Independent generators keyed by draws from `generator`."""
    keys = generator.integers(0, 1 << 64, (count, 2), np.uint64)
    return [np.random.Generator(np.random.Philox(key=key)) for key in keys]


def _unchanged(target: Any) -> Transform | Any:
    return identity(target) if isinstance(target, tuple) else target


def _shares(weights: Sequence[float] | None) -> Any:
    return None if weights is None else np.asarray(weights, np.float64) / np.sum(weights)


def _require_ops(name: str, ops: Sequence[Any], weights: Sequence[float] | None) -> None:
    several = isinstance(ops, Sequence) and len(ops) > 0 and all(callable(op) for op in ops)
    require(several, f"{name}.ops is a list of ops", ops, f"for example {name}([Flip(), Rotate()])")
    if weights is not None:
        fits = len(weights) == len(ops) and all(weight >= 0 for weight in weights) and sum(weights) > 0
        require(fits, f"{name}.weights has one number, at least 0, for each op", weights, "leave it out for equal ones")
