"""What a geometry op returns, how ops compose, and what ops and colour functions look like.

Coordinates are those of `tfprep.fields`: continuous, pixel centres at half-integers. A matrix maps (x, y, 1) of the input
to (x', y', 1) of the output; affine or perspective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tfprep.fields import Array, ImageArray, Size


class Bend(Protocol):
    """A dense deformation: a smooth map of the plane onto itself, in coordinates of its input, the size unchanged."""

    def pull(self, xy: Array, /) -> Array:
        """Where each output point [..., 2] comes from. This is the definition, as a picture is drawn with it."""
        ...

    def push(self, xy: Array, /) -> Array:
        """Where each input point [..., 2] goes to: the inverse of `pull`, to a hundredth of a pixel."""
        ...


@dataclass(frozen=True, eq=False)
class Transform:
    """A 3 × 3 float64 `matrix` from input to output coordinates and the (height, width) `size` of the output.

    `bends` come before it, in order: each a matrix and then the bend that follows it. Chains of matrices alone, the common
    case, have none and are one matrix.
    """

    matrix: Array
    size: Size
    bends: tuple[tuple[Array, Bend], ...] = ()

    def then(self, after: Transform) -> Transform:
        """This transform followed by `after`."""
        if not after.bends:
            return Transform(after.matrix @ self.matrix, after.size, self.bends)
        (first, bend), *rest = after.bends
        return Transform(after.matrix, after.size, (*self.bends, (first @ self.matrix, bend), *rest))

    def push(self, xy: Array) -> Array:
        """Input points float64 [..., 2] to output points. A point that a perspective throws behind the eye becomes NaN."""
        for matrix, bend in self.bends:
            xy = bend.push(project(matrix, xy))
        return project(self.matrix, xy)

    def pull(self, xy: Array) -> Array:
        """Output points float64 [..., 2] to the input points that they show."""
        xy = project(np.linalg.inv(self.matrix), xy)
        for matrix, bend in reversed(self.bends):
            xy = project(np.linalg.inv(matrix), bend.pull(xy))
        return xy


class GeometryOp(Protocol):
    """A frozen dataclass of options, or any function with this signature.

    `size` is the (height, width) that arrives. Without a generator the op takes its unaugmented form, the one that variant
    0 and validation get: `Crop` takes the centre, `Rotate` does nothing. Where it takes one, it draws the same number of
    values whatever the size.
    """

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform: ...


class ColourOp(Protocol):
    """A frozen dataclass of options, or any function with this signature: uint8 [H, W, 3] RGB to the same shape and dtype.

    Called for augmented variants only, with a generator that starts afresh for each image field, so that all images of
    one sample get the same change.
    """

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray: ...


def project(matrix: Array, xy: Array) -> Array:
    """Points [..., 2] under a 3 × 3 matrix; NaN where the third coordinate is not positive."""
    moved = xy @ matrix[:2, :2].T + matrix[:2, 2]
    if is_affine(matrix):
        return np.asarray(moved / matrix[2, 2])
    depth = xy @ matrix[2, :2] + matrix[2, 2]
    return np.asarray(moved / np.where(depth > 0, depth, np.nan)[..., None])


def is_affine(matrix: Array) -> bool:
    return not matrix[2, :2].any()


def identity(size: Size) -> Transform:
    return Transform(np.eye(3), size)


def translation(x: float, y: float) -> Array:
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])


def scaling(x: float, y: float) -> Array:
    return np.diag([x, y, 1.0])


def about_centre(linear: Array, size: Size) -> Transform:
    """A 2 × 2 `linear` map about the centre of the image, the size kept."""
    height, width = size
    matrix = np.eye(3)
    matrix[:2, :2] = linear
    return Transform(translation(width / 2, height / 2) @ matrix @ translation(-width / 2, -height / 2), size)
