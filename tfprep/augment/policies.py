"""Policies: ops made of ops. They stand among geometry ops or among colour ops, with ops of that list inside.

Each op inside draws from a generator of its own, so that what one draws does not shift what the others draw. Unaugmented, all
geometry policies do nothing but take the unaugmented form of the ops inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfprep.augment.options import require, require_probability
from tfprep.augment.transform import Transform, identity


@dataclass(frozen=True)
class Maybe:
    """`op` with probability `p`. Unaugmented: the op's own unaugmented form."""

    op: Any
    p: float = 0.5

    def __post_init__(self) -> None:
        require_probability("Maybe.p", self.p)

    def __call__(self, target: Any, generator: np.random.Generator | None, /) -> Any:
        if generator is None:
            return self.op(target, None)
        happens, (inner,) = generator.random() < self.p, children(generator, 1)
        return self.op(target, inner) if happens else _unchanged(target)


@dataclass(frozen=True)
class OneOf:
    """One of `ops`, each as likely, or in proportion to `weights`. Unaugmented: the first one's unaugmented form."""

    ops: Sequence[Any]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        _require_ops("OneOf", self.ops, self.weights)

    def __call__(self, target: Any, generator: np.random.Generator | None, /) -> Any:
        if generator is None:
            return self.ops[0](target, None)
        chosen = int(generator.choice(len(self.ops), p=_shares(self.weights)))
        return self.ops[chosen](target, children(generator, len(self.ops))[chosen])


@dataclass(frozen=True)
class SomeOf:
    """`count` different ones of `ops`, or a number drawn from (from, to), in the order given or with `shuffle` in any order.
    Unaugmented: all of them in their unaugmented form."""

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
        low, high = self._counts()
        chosen = generator.permutation(len(self.ops))[: generator.integers(low, high, endpoint=True)]
        inner = children(generator, len(self.ops))
        order = chosen if self.shuffle else np.sort(chosen)
        return apply_each(target, [(self.ops[number], inner[number]) for number in order])

    def _counts(self) -> tuple[int, int]:
        return self.count if isinstance(self.count, tuple) else (self.count, self.count)


def apply_each(target: Any, steps: Sequence[tuple[Any, np.random.Generator | None]]) -> Any:
    """Ops in order: on a size, their transforms composed; on an image, one after the other."""
    if not isinstance(target, tuple):
        for op, generator in steps:
            target = op(target, generator)
        return target
    whole = identity(target)
    for op, generator in steps:
        whole = whole.then(op(whole.size, generator))
    return whole


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
