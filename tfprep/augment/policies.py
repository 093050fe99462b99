"""Policies: ops made of ops. A policy belongs to the geometry or to the color ops of a recipe, and so do the ops inside it.

Each op inside draws from its own generator, so that the draws of one op do not change those of another. The color ops of a
geometry policy inside (RandAugment, TrivialAugment) are applied too, after the derived inputs.

RandAugment and TrivialAugment are as their papers define them. RandAugment (Cubuk et al., NeurIPS 2020) applies n ops drawn
uniformly, all with one magnitude m; TrivialAugment (Müller and Hutter, ICCV 2021) one op with a magnitude drawn uniformly.
Both take 14 ops. `Magnitudes` is the table of how strong each is at the highest magnitude; the sign of signed ops is drawn.

| op               | RandAugment (AutoAugment's ranges)     | TrivialAugment "wide"     | at the lowest   |
|------------------|----------------------------------------|---------------------------|-----------------|
| ShearX, ShearY   | ± 0.3 (tangent of the angle)           | ± 0.99                    | 0               |
| TranslateX, Y    | ± 150/331 of the width, height         | ± 32 pixels               | 0               |
| Rotate           | ± 30°                                  | ± 135°                    | 0               |
| Brightness, Color, Contrast, Sharpness | factor 1 ± 0.9   | 1 ± 0.99                  | 1               |
| Posterize        | 4 bits                                 | 2 bits                    | 8 bits          |
| Solarize         | threshold 0                            | threshold 0               | 255             |
| AutoContrast, Equalize, Identity | no magnitude           | no magnitude              |                 |

Turns and shears are about the center, shifts by whole pixels. In a recipe both are *geometry* ops: masks, boxes
and points follow. The geometric ops drawn join the chain's one resampling, the color ops drawn come after it, in their
order, before the recipe's own (`color_ops`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, degrees, inf
from typing import Any, ClassVar

import numpy as np

from tfprep.augment.color import AutoContrast, Brightness, Contrast, Equalize, Posterize, Saturation, Solarize
from tfprep.augment.geometry import Rotate, Shear, Translate
from tfprep.augment.optics import Sharpness
from tfprep.augment.transform import ColorOp, Transform, effects_of, identity
from tfprep.checks import (
    is_number,
    require,
    require_count,
    require_probability,
    require_whole,
)
from tfprep.fields import Size


class Policy:
    """Applies the ops that a policy draws."""

    @property
    def _inside(self) -> Sequence[Any]:
        own: Any = self
        return own.ops if hasattr(own, "ops") else [own.op]

    @property
    def effects(self) -> frozenset[str]:
        """Those of any op inside."""
        return frozenset().union(*map(effects_of, self._inside))

    @property
    def uncovers(self) -> bool:
        return any(getattr(op, "uncovers", False) for op in self._inside)

    @property
    def any_image(self) -> bool:
        """Return True if each op inside is one of geometry only, a user's, or one that can change any image."""
        return all(map(_takes_any_image, self._inside))

    def drawn(self, generator: np.random.Generator | None) -> list[tuple[Any, np.random.Generator | None]]:
        """The ops to apply, each with its own generator; without a generator, those of the unaugmented form."""
        raise NotImplementedError

    def __call__(self, target: Any, generator: np.random.Generator | None, /) -> Any:
        return apply_each(target, self.drawn(generator))

    def color_ops(self, generator: np.random.Generator) -> tuple[ColorOp, ...]:
        """The color ops of the ops that are applied, in their order; from the same draws as their geometry."""
        halves = ((getattr(op, "color_ops", None), inner) for op, inner in self.drawn(generator))
        return tuple(color for half, inner in halves if callable(half) for color in half(inner))


@dataclass(frozen=True)
class Maybe(Policy):
    """Applies `op` with probability `p`. Unaugmented, it takes the op's unaugmented form."""

    op: Any
    p: float = 0.5

    def __post_init__(self) -> None:
        require_probability("Maybe.p", self.p)

    def drawn(self, generator: np.random.Generator | None) -> list[tuple[Any, np.random.Generator | None]]:
        if generator is None:
            return [(self.op, None)]
        happens, (inner,) = generator.random() < self.p, children(generator, 1)
        return [(self.op, inner)] if happens else []


@dataclass(frozen=True)
class OneOf(Policy):
    """Applies one of `ops`, drawn uniformly or in proportion to `weights`.

    Unaugmented, it takes the first op's unaugmented form.
    """

    ops: Sequence[Any]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        _require_ops("OneOf", self.ops, self.weights)

    def drawn(self, generator: np.random.Generator | None) -> list[tuple[Any, np.random.Generator | None]]:
        if generator is None:
            return [(self.ops[0], None)]
        shares = None if self.weights is None else np.asarray(self.weights, np.float64) / np.sum(self.weights)
        chosen = int(generator.choice(len(self.ops), p=shares))
        return [(self.ops[chosen], children(generator, len(self.ops))[chosen])]


@dataclass(frozen=True)
class SomeOf(Policy):
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
        counts, rule = self._counts(), f"SomeOf.count is from 0 to the number of ops, {len(self.ops)}"
        whole = len(counts) == 2 and all(isinstance(count, int) for count in counts)
        require(whole and 0 <= counts[0] <= counts[1] <= len(self.ops), rule, self.count, "for example 1")

    def drawn(self, generator: np.random.Generator | None) -> list[tuple[Any, np.random.Generator | None]]:
        if generator is None:
            return [(op, None) for op in self.ops]
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


def _takes_any_image(op: Any) -> bool:
    geometry_only = hasattr(op, "effects") and not hasattr(op, "color_ops")
    return getattr(op, "any_image", geometry_only or not type(op).__module__.startswith("tfprep.augment."))


def children(generator: np.random.Generator, count: int) -> list[np.random.Generator]:
    """Independent generators keyed by draws from `generator`."""
    keys = generator.integers(0, 1 << 64, (count, 2), np.uint64)
    return [np.random.Generator(np.random.Philox(key=key)) for key in keys]


def _require_ops(name: str, ops: Sequence[Any], weights: Sequence[float] | None) -> None:
    several = isinstance(ops, Sequence) and len(ops) > 0 and all(callable(op) for op in ops)
    require(several, f"{name}.ops is a list of ops", ops, f"for example {name}([Flip(), Rotate()])")
    if weights is not None:
        listed = isinstance(weights, Sequence | np.ndarray) and all(map(is_number, weights))
        fits = listed and len(weights) == len(ops) and all(0 <= weight < inf for weight in weights) and any(weights)
        require(fits, f"{name}.weights has one number, at least 0, for each op", weights, "leave it out for equal ones")


MAGNITUDES = 31
"""Magnitudes are whole numbers from 0 to 30."""
GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
TONAL = ("Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize")
OPS = ("Identity", *GEOMETRIC, *TONAL)


@dataclass(frozen=True)
class Magnitudes:
    """The strength of each op at magnitude 30; `translate_px`, where given, replaces `translate` (a share)."""

    shear: float = 0.3
    translate: float = 150 / 331
    translate_px: float | None = None
    rotate: float = 30.0
    factor: float = 0.9
    posterize: int = 4

    def geometry(self, name: str, magnitude: float, sign: int, size: Size) -> Any:
        share = sign * magnitude / (MAGNITUDES - 1)
        if name == "Rotate":
            return Rotate((self.rotate * share,) * 2)
        if name.startswith("Shear"):
            angle, still = (degrees(atan(self.shear * share)),) * 2, (0.0, 0.0)
            return Shear(angle, still) if name == "ShearX" else Shear(still, angle)
        length = size[1] if name == "TranslateX" else size[0]
        most = self.translate if self.translate_px is None else min(1.0, self.translate_px / length)
        shift, still = (most * share,) * 2, (0.0, 0.0)
        return Translate(shift, still) if name == "TranslateX" else Translate(still, shift)

    def color(self, name: str, magnitude: float, sign: int) -> Any:
        share = magnitude / (MAGNITUDES - 1)
        if name in _FACTORS:
            return _FACTORS[name]((1 + sign * self.factor * share,) * 2)
        if name == "Posterize":
            return Posterize((8 - round((8 - self.posterize) * share),) * 2)
        if name == "Solarize":
            return Solarize((255 * (MAGNITUDES - 1 - magnitude) / (MAGNITUDES - 1),) * 2)
        return AutoContrast() if name == "AutoContrast" else Equalize()


_FACTORS: dict[str, Any] = {"Brightness": Brightness, "Color": Saturation, "Contrast": Contrast, "Sharpness": Sharpness}
NARROW = Magnitudes()
WIDE = Magnitudes(shear=0.99, translate_px=32, rotate=135.0, factor=0.99, posterize=2)


class Automatic:
    """Applies the ops that RandAugment and TrivialAugment draw."""

    uncovers: ClassVar[bool] = True
    magnitudes: Magnitudes
    effects: ClassVar[frozenset[str]] = frozenset({"crop", "warp"})

    def draw(self, generator: np.random.Generator) -> list[tuple[str, int, int]]:
        """The ops: the name of each, its magnitude from 0 to 30, and its sign, 1 or -1."""
        raise NotImplementedError

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        # The ops' ranges are single values: nothing is left to draw.
        still = np.random.Generator(np.random.Philox(key=0))
        drawn = [] if generator is None else self.draw(generator)
        ops = [self.magnitudes.geometry(name, m, sign, size) for name, m, sign in drawn if name in GEOMETRIC]
        whole = apply_each(size, [(op, still) for op in ops])
        assert isinstance(whole, Transform)
        return whole

    def color_ops(self, generator: np.random.Generator) -> tuple[ColorOp, ...]:
        """The color ops of the draws that `__call__` makes with an equal generator in its initial state."""
        tonal = (drawn for drawn in self.draw(generator) if drawn[0] in TONAL)
        return tuple(self.magnitudes.color(*op) for op in tonal)


@dataclass(frozen=True)
class RandAugment(Automatic):
    """Applies `n` ops of magnitude `m` (Cubuk et al., NeurIPS 2020).

    Attributes:
        n: the number of ops; 2 is the paper's best for ImageNet and ResNet-50.
        m: the magnitude of all of them, 0 to 30; the paper's best is 9.
        magnitudes: how strong each op is at magnitude 30.
    """

    n: int = 2
    m: int = 9
    magnitudes: Magnitudes = NARROW

    def __post_init__(self) -> None:
        require_count("RandAugment.n", self.n)
        require_whole("RandAugment.m", self.m, 0, MAGNITUDES - 1, example=9)

    def draw(self, generator: np.random.Generator) -> list[tuple[str, int, int]]:
        numbers, signs = generator.integers(len(OPS), size=self.n), generator.integers(2, size=self.n)
        return [(OPS[drawn], self.m, 1 - 2 * int(sign)) for drawn, sign in zip(numbers, signs, strict=True)]


@dataclass(frozen=True)
class TrivialAugment(Automatic):
    """Applies one op with a magnitude drawn from 0 to 30 (Müller and Hutter, ICCV 2021).

    Attributes:
        magnitudes: how strong each op is at magnitude 30; the paper's wide ones.
    """

    magnitudes: Magnitudes = WIDE

    def draw(self, generator: np.random.Generator) -> list[tuple[str, int, int]]:
        number, magnitude, sign = (int(generator.integers(high)) for high in (len(OPS), MAGNITUDES, 2))
        return [(OPS[number], magnitude, 1 - 2 * sign)]
