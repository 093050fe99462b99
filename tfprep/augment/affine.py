"""Flipping, rotating, scaling: affine ops about the centre of the image that keep its size.

Unaugmented, each does nothing. Angles are degrees, counter-clockwise as seen, as in Pillow, OpenCV and torchvision.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, radians, sin
from typing import Literal

import numpy as np

from tfprep.augment.options import Range, around, require, require_probability, require_range
from tfprep.augment.transform import Transform, about_centre, identity
from tfprep.fields import Size


@dataclass(frozen=True)
class Flip:
    """With probability `p`, the mirror image: left and right exchanged, or with `direction="vertical"` top and bottom."""

    p: float = 0.5
    direction: Literal["horizontal", "vertical"] = "horizontal"

    def __post_init__(self) -> None:
        require_probability("Flip.p", self.p)
        known = self.direction in ("horizontal", "vertical")
        require(known, "Flip.direction is 'horizontal' or 'vertical'", self.direction, "take two Flips for both")

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None or generator.random() >= self.p:
            return identity(size)
        signs = (-1.0, 1.0) if self.direction == "horizontal" else (1.0, -1.0)
        return about_centre(np.diag(signs), size)


@dataclass(frozen=True)
class Rotate:
    """A turn by an angle drawn uniformly from ± `degrees`, or from a range (from, to), the size kept."""

    degrees: float | Range = 10.0

    def __post_init__(self) -> None:
        require_range("Rotate.degrees", around(0, self.degrees), -360, 360)

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        angle = radians(generator.uniform(*around(0, self.degrees)))
        return about_centre(np.array([[cos(angle), sin(angle)], [-sin(angle), cos(angle)]]), size)


@dataclass(frozen=True)
class Scale:
    """A zoom by a factor drawn uniformly from `factor`, the size kept: above 1 the centre fills the image, below 1 the whole
    shrinks and the border shows."""

    factor: Range = (0.8, 1.25)

    def __post_init__(self) -> None:
        require_range("Scale.factor", self.factor, 0.01, 100)

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        factor = generator.uniform(*self.factor)
        return about_centre(np.diag([factor, factor]), size)
