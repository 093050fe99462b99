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
    """A dense deformation: a smooth map of the plane onto itself that does not mirror, in coordinates of its input, the size
    unchanged.

    Coordinates come and go as two arrays, x and y, float32 or float64.
    """

    def pull(self, x: Array, y: Array, /) -> tuple[Array, Array]:
        """Where output points come from. This is the definition, as a picture is drawn with it."""
        ...

    def push(self, x: Array, y: Array, /) -> tuple[Array, Array]:
        """Where input points go to: the inverse of `pull`, to a hundredth of a pixel."""
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

    @property
    def mirrors(self) -> bool:
        """Whether the output is a mirror image: what turns to the left in the input turns to the right."""
        matrices = (self.matrix, *(matrix for matrix, _ in self.bends))
        # The Jacobian's determinant is det(M) / depth³, and nothing with a depth of 0 or less is seen.
        return sum(bool(np.linalg.det(matrix) < 0) for matrix in matrices) % 2 == 1

    def push(self, xy: Array) -> Array:
        """Input points float64 [..., 2] to output points. A point that a perspective throws behind the eye becomes NaN."""
        x, y = xy[..., 0], xy[..., 1]
        for matrix, bend in self.bends:
            x, y = bend.push(*project(matrix, x, y))
        return np.stack(project(self.matrix, x, y), axis=-1)

    def pull(self, xy: Array) -> Array:
        """Output points float64 [..., 2] to the input points that they show."""
        return np.stack(self.pull_planes(xy[..., 0], xy[..., 1]), axis=-1)

    def pull_planes(self, x: Array, y: Array) -> tuple[Array, Array]:
        """`pull` for coordinates in two arrays."""
        x, y = project(np.linalg.inv(self.matrix), x, y)
        for matrix, bend in reversed(self.bends):
            x, y = project(np.linalg.inv(matrix), *bend.pull(x, y))
        return x, y


class GeometryOp(Protocol):
    """A frozen dataclass of options, or any function with this signature.

    `size` is the (height, width) that arrives. Without a generator the op takes its unaugmented form, the one that variant
    0 and validation get: `Crop` takes the centre, `Rotate` does nothing. That form is a pure function of the size: a build calls
    the op once for all images of one size. With a generator, the op draws the same number of values whatever the size.
    """

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform: ...


class ColourOp(Protocol):
    """A frozen dataclass of options, or any function with this signature: uint8 [H, W, 3] RGB to the same shape and dtype.

    Called for augmented variants only, with a generator that starts afresh for each image field, so that all images of
    one sample get the same change.
    """

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray: ...


def project(matrix: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Points under a 3 × 3 matrix; NaN where the third coordinate is not positive."""
    (a, b, c), (d, e, f), (g, h, i) = ([float(value) for value in row] for row in matrix)
    if is_affine(matrix):
        return (a * x + b * y + c) / i, (d * x + e * y + f) / i
    depth = g * x + h * y + i
    seen = np.where(depth > 0, depth, np.nan)
    return (a * x + b * y + c) / seen, (d * x + e * y + f) / seen


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
