"""Flipping, turning, zooming, shearing, shifting and perspective: ops about the centre of the image that keep its size.

Unaugmented, each does nothing. Angles are degrees, counter-clockwise as seen, as in Pillow, OpenCV and torchvision.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, radians, sin, tan
from typing import Literal

import numpy as np

from tfprep.augment.transform import Transform, about_centre, identity, translation
from tfprep.checks import Range, around, require, require_probability, require_range
from tfprep.fields import Array, Size


@dataclass(frozen=True)
class Flip:
    """Mirrors the sample with probability `p`.

    In a mirror image a left hand is a right hand: `Recipe.flip_indices` exchanges the rows of such points.

    Attributes:
        p: probability, 0 to 1.
        direction: "horizontal" exchanges left and right, "vertical" top and bottom.
    """

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
    """Turns the sample about its centre and keeps the size.

    Attributes:
        degrees: the angle is drawn uniformly from ± this number, or from a range (from, to); counter-clockwise.
    """

    degrees: float | Range = 10.0

    def __post_init__(self) -> None:
        require_range("Rotate.degrees", around(0, self.degrees), -360, 360)

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        angle = radians(generator.uniform(*around(0, self.degrees)))
        return about_centre(np.array([[cos(angle), sin(angle)], [-sin(angle), cos(angle)]]), size)


@dataclass(frozen=True)
class Rotate90:
    """Turns the sample by 0, 90, 180 or 270 degrees, each with the same probability, without interpolation.

    A quarter turn exchanges height and width: put a `Crop` or `Resize` after it where all outputs must have one size.
    """

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        height, width = size
        turns = [
            np.eye(3),
            np.array([[0.0, 1, 0], [-1, 0, width], [0, 0, 1]]),
            np.array([[-1.0, 0, width], [0, -1, height], [0, 0, 1]]),
            np.array([[0.0, -1, height], [1, 0, 0], [0, 0, 1]]),
        ]
        turn = int(generator.integers(4))
        return Transform(turns[turn], size if turn % 2 == 0 else (width, height))


@dataclass(frozen=True)
class Scale:
    """Zooms about the centre and keeps the size.

    Attributes:
        factor: the factor is drawn uniformly from this range. Above 1 the centre fills the image; below 1 the whole image
            shrinks and the border shows.
    """

    factor: Range = (0.8, 1.25)

    def __post_init__(self) -> None:
        require_range("Scale.factor", self.factor, 0.01, 100)

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        factor = generator.uniform(*self.factor)
        return about_centre(np.diag([factor, factor]), size)


@dataclass(frozen=True)
class Shear:
    """Slants the sample: a point at (x, y) from the centre moves to (x + tan(a) · y, y + tan(b) · x).

    Angles lie between -80 and 80 degrees, and tan(a) · tan(b) stays below 1, beyond which the image would turn over.

    Attributes:
        x_degrees: a is drawn uniformly from ± this number, or from a range (from, to).
        y_degrees: b, in the same way.
    """

    x_degrees: float | Range = 10.0
    y_degrees: float | Range = 0.0

    def __post_init__(self) -> None:
        for name in ("x_degrees", "y_degrees"):
            require_range(f"Shear.{name}", around(0, getattr(self, name)), -80, 80)
        steepest = [max(tan(radians(abs(end))) for end in around(0, of)) for of in (self.x_degrees, self.y_degrees)]
        rule = "the tangents of Shear's greatest x_degrees and y_degrees multiply to less than 1"
        require(steepest[0] * steepest[1] < 1, rule, (self.x_degrees, self.y_degrees), "for example 20 and 20")

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        along = [tan(radians(generator.uniform(*around(0, of)))) for of in (self.x_degrees, self.y_degrees)]
        return about_centre(np.array([[1.0, along[0]], [along[1], 1.0]]), size)


@dataclass(frozen=True)
class Translate:
    """Shifts the sample, to the right and down where the shift is positive.

    Attributes:
        x: the shift as a share of the width, drawn uniformly from ± this number, or from a range (from, to).
        y: the shift as a share of the height, in the same way.
        whole: shift by whole pixels, so that no pixel is interpolated.
    """

    x: float | Range = 0.1
    y: float | Range = 0.1
    whole: bool = True

    def __post_init__(self) -> None:
        require_range("Translate.x", around(0, self.x), -1, 1)
        require_range("Translate.y", around(0, self.y), -1, 1)

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        x = generator.uniform(*around(0, self.x)) * size[1]
        y = generator.uniform(*around(0, self.y)) * size[0]
        return Transform(translation(round(x), round(y)) if self.whole else translation(x, y), size)


@dataclass(frozen=True)
class Perspective:
    """Views the sample in a random perspective, as torchvision's RandomPerspective does, but without showing a border.

    The corners of the output show points drawn uniformly from inside the image.

    Attributes:
        distortion: the greatest distance of these points from the image's corners, as a share of half the width and height;
            0 (nothing) to 0.6. From 2/3 on the four points may not span a view.
    """

    distortion: float = 0.3

    def __post_init__(self) -> None:
        rule = "Perspective.distortion is from 0 to 0.6"
        require(0 <= self.distortion <= 0.6, rule, self.distortion, "for example 0.3")

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        height, width = size
        corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
        inwards = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) * (width, height)
        seen = corners + inwards * (generator.random((4, 2)) * self.distortion / 2)
        return Transform(homography(seen, corners), size)


def homography(source: Array, target: Array) -> Array:
    """The 3 × 3 matrix that maps four points [4, 2] onto four others, its last entry 1."""
    rows = []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -u * x, -u * y])
        rows.append([0, 0, 0, x, y, 1, -v * x, -v * y])
    return np.append(np.linalg.solve(np.array(rows), target.reshape(-1)), 1.0).reshape(3, 3)
