"""Transforms: what a geometry op returns, how ops compose, and boxes and points under them; the protocols of ops.

Coordinates are those of `tfprep.fields`: continuous, pixel centers at half-integers. A matrix maps (x, y, 1) of the input
to (x', y', 1) of the output; affine or perspective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfprep.errors import RecipeError, SampleError
from tfprep.fields import EFFECTS, Array, ImageArray, Size


@dataclass(frozen=True, eq=False)
class Transform:
    """A 3 × 3 float64 `matrix` from input to output coordinates and the (height, width) `size` of the output.

    `bends` come before it, in order: each a matrix and then the bend that follows it (`OffsetGrid`). Chains of matrices only,
    the common case, have none and are one matrix.
    """

    matrix: Array
    size: Size
    bends: tuple[tuple[Array, Any], ...] = ()

    def then(self, after: object) -> Transform:
        """This transform followed by `after`. Raises SampleError where a user's function returned something else."""
        if not isinstance(after, Transform):
            rule = f"a function of (size, generator) returns a Transform, this one returned {type(after).__name__}"
            raise SampleError(f"{rule}; augment.Custom takes a function of a whole sample", stage="geometry")
        if not after.bends:
            return Transform(after.matrix @ self.matrix, after.size, self.bends)
        (first, bend), *rest = after.bends
        return Transform(after.matrix, after.size, (*self.bends, (first @ self.matrix, bend), *rest))

    @property
    def mirrors(self) -> bool:
        """Return True if the output is a mirror image: what turns to the left in the input turns to the right."""
        matrices = (self.matrix, *(matrix for matrix, _ in self.bends))
        # The Jacobian's determinant is det(M) / depth³, and nothing with a depth of 0 or less is seen.
        return sum(bool(np.linalg.det(matrix) < 0) for matrix in matrices) % 2 == 1

    def push(self, xy: Array) -> Array:
        """Input points float64 [..., 2] to output points; NaN for a point that a perspective moves to the back of the viewer."""
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


class Window(NamedTuple):
    """A transform by whole pixels: the output shows `height` x `width` pixels from the row `top` and the column `left` on, and
    is mirrored. The window may exceed the image."""

    top: int
    left: int
    height: int
    width: int
    flip_rows: bool = False
    flip_columns: bool = False

    def then(self, after: Window) -> Window:
        """This window followed by `after`, which counts in its pixels."""
        down = self.height - after.top - after.height if self.flip_rows else after.top
        right = self.width - after.left - after.width if self.flip_columns else after.left
        flips = self.flip_rows != after.flip_rows, self.flip_columns != after.flip_columns
        return Window(self.top + down, self.left + right, after.height, after.width, *flips)

    def is_inside(self, size: Size) -> bool:
        """Return True if it shows no pixel outside of an image of this (height, width)."""
        top, left, height, width = self[:4]
        return top >= 0 and left >= 0 and top + height <= size[0] and left + width <= size[1]

    def transform(self) -> Transform:
        down = [0, -1, self.top + self.height] if self.flip_rows else [0, 1, -self.top]
        right = [-1, 0, self.left + self.width] if self.flip_columns else [1, 0, -self.left]
        return Transform(np.array([right, down, [0, 0, 1]], np.float64), (self.height, self.width))


class WindowOp:
    """A geometry op that moves by whole pixels: `window` says all, and a loader cuts rows by it without a transform."""

    def window(self, size: Size, generator: np.random.Generator | None, /) -> Window:
        raise NotImplementedError

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        return self.window(size, generator).transform()


class GeometryOp(Protocol):
    """A frozen dataclass of options, or any function with this signature.

    Its attribute `effects`, where it has one, is the part of `tfprep.fields.EFFECTS` that it may cause; without one, all of it.
    `size` is the (height, width) that arrives. Without a generator the op takes its unaugmented form, the one that variant
    0 and validation get: `Crop` takes the center, `Rotate` does nothing. That form is a pure function of the size: a build calls
    the op once for all images of one size. With a generator, the op draws the same number of values whatever the size.

    An op with a true attribute `uncovers` may show pixels outside of an image of any size: a recipe with masks then says which
    number void pixels have. Where another op does so, such as a crop larger than the image, the sample is rejected.
    """

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform: ...


def effects_of(op: Any) -> frozenset[str]:
    """Return what a geometry op may do to a frame; all `tfprep.fields.EFFECTS` if it does not say. RecipeError for others."""
    if not (effects := frozenset(getattr(op, "effects", EFFECTS))) <= EFFECTS:
        rule = f"the attribute effects of a geometry op holds names of {', '.join(sorted(EFFECTS))}"
        raise RecipeError(f"{rule}; that of {op!r} is {op.effects!r}: for example frozenset({{'crop'}})")
    return effects


class ColorOp(Protocol):
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
    return Transform(translation(0, 0), size)


def translation(x: float, y: float) -> Array:
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])


def scaling(x: float, y: float) -> Array:
    return np.diag([x, y, 1.0])


def about_center(linear: Array, size: Size) -> Transform:
    """A 2 × 2 `linear` map about the center of the image, the size kept."""
    height, width = size
    matrix = np.eye(3)
    matrix[:2, :2] = linear
    return Transform(translation(width / 2, height / 2) @ matrix @ translation(-width / 2, -height / 2), size)


def warp_points(points: Array, transform: Transform) -> Array:
    """float32 [..., 2] or [..., 3] to the same: x, y mapped; with a third column, visibility becomes 0 outside the output. Its
    edges are inside: what is on the left one is on the right one in a mirror image.

    Coordinates outside the output are kept as they are mapped; a point that a perspective moves to the back of the viewer is NaN.
    """
    shape = np.shape(points)
    table = np.reshape(points, (-1, shape[-1])) if len(shape) == 3 else points
    table = _table(table, (2, 3), "points are [N, 2] or [N, 3]: x, y, visible, or [N, K, 2] or [N, K, 3]")
    moved = table.astype(np.float32)
    moved[:, :2] = transform.push(table[:, :2])
    if table.shape[1] == 3:
        inside = (moved[:, :2] >= 0) & (moved[:, :2] <= transform.size[::-1])
        moved[~inside.all(1), 2] = 0
    return moved.reshape(shape)


def exchange_rows(points: Array, flip_indices: Sequence[int]) -> Array:
    """The points of a mirror image: row i is what row `flip_indices[i]` was, in every `len(flip_indices)` rows. The rows are the
    N of [N, 2] or [N, 3], and the K of each object of [N, K, 2] or [N, K, 3].

    Raises SampleError where their number is not a multiple of it. Without indices the points keep their rows.
    """
    if not flip_indices:
        return points
    if points.shape[-2] % len(flip_indices):
        rule = f"flip_indices has {len(flip_indices)} rows for each object"
        raise SampleError(f"{rule}; {points.shape[-2]} points are not a multiple of it", stage="geometry")
    return points.reshape(-1, len(flip_indices), points.shape[-1])[:, list(flip_indices)].reshape(points.shape)


def warp_boxes(boxes: Array, transform: Transform) -> tuple[Array, Array]:
    """float32 [N, 4] to the smallest upright boxes around the mapped ones, cut at the output's edges, and how much of each
    is visible: the cut box's area as a share of the whole one's, float64 [N]; 0 if it has no area in float32.

    A box that is wholly outside shrinks to no area at the edge, visible 0. A bend curves the sides of a box: it is
    refitted to points along them, too.
    """
    table = _table(boxes, (4,), "boxes are [N, 4]: x0, y0, x1, y1")
    count = _ALONG_BENT_SIDES if transform.bends else 1  # points evenly along each side, from its corner on
    corners, share = table[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 1, 2), (np.arange(count) / count)[:, None]
    sides = corners * (1 - share) + np.roll(corners, -1, axis=1) * share
    outline = transform.push(sides.reshape(len(table), 4 * count, 2))
    unseen = np.isnan(outline)
    low, high = np.where(unseen, np.inf, outline).min(1), np.where(unseen, -np.inf, outline).max(1)
    height, width = transform.size
    cut = np.clip(np.concatenate([low, high], 1), 0, [width, height, width, height])
    area, stored = np.prod(cut[:, 2:] - cut[:, :2], axis=1), cut.astype(np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        visible = np.nan_to_num(area / np.prod(high - low, axis=1))
    visible[(stored[:, 2:] <= stored[:, :2]).any(axis=1)] = 0
    stored[visible <= 0, 2:] = stored[visible <= 0, :2]
    return stored, visible


_ALONG_BENT_SIDES = 8
"""Points along each side of a box to which it is refitted after a bend."""


def _table(value: Array, columns: tuple[int, ...], rule: str) -> Array:
    table = np.asarray(value, np.float64)
    if table.ndim != 2 or table.shape[1] not in columns:
        raise SampleError(f"{rule}; this array has the shape {table.shape}", stage="geometry")
    return table
