"""Warps whose axes stay parallel to the image's: crops, resizes, flips, quarter turns, and any chain of them.

Each axis of the output is planned separately:

- An axis that is shifted by whole pixels is sliced, bit for bit.
- An axis that shrinks is *snapped*: the window is moved to whole pixels of the source and of the output, by at most half a pixel
  at either end, and averaged by area (`cv2.INTER_AREA`). The snapped transform replaces the drawn one for every field, so that
  masks, boxes and points follow exactly.
- An axis that grows, or is shifted by part of a pixel, is interpolated linearly between pixel centers; the outermost half pixel
  is repeated. Where the output shows a window of whole pixels, that is the window's outermost half pixel, as if the window were
  cut out first: so does torchvision, and OpenCV takes a quarter of the time.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from tfprep.augment.transform import Transform, Window
from tfprep.fields import Array, Size
from tfprep.optional import CV_CHANNELS, HAS_OPENCV, cv2

Border: TypeAlias = Literal["constant", "reflect", "replicate"]


def cv_border(border: Border) -> int:
    """Return OpenCV's number. Its BORDER_REFLECT mirrors at the image's edge, not at the center of the edge pixel."""
    numbers = {"constant": cv2.BORDER_CONSTANT, "reflect": cv2.BORDER_REFLECT, "replicate": cv2.BORDER_REPLICATE}
    return numbers[border]


CV_DTYPES = frozenset(map(np.dtype, ("uint8", "uint16", "float32")))
"""The dtypes that OpenCV 5 interpolates without rounding coordinates to 1/32 pixel first."""
_MOST_FLOAT_PIXELS = 1 << 20
"""Of a window that is averaged as float32: 12 MB of RGB."""
_TINY_PX = 1e-6
"""Displacements below this over a whole image are rounding errors of composed matrices."""


class Axis(NamedTuple):
    """One axis of the output: its pixels `out_from` to `out_to` show source pixels `from_` to `to`; of the `length` pixels
    the rest is border.

    Before it is mirrored (if `flip`), output = `scale` · source + `shift`. `grows` where it is interpolated between pixels
    instead of snapped, and is a `window` where the whole output shows just the source pixels `from_` to `to`.
    """

    from_: int
    to: int
    out_from: int
    out_to: int
    length: int
    scale: float
    shift: float
    flip: bool
    grows: bool
    window: bool = False

    @property
    def shrinks(self) -> bool:
        return not self.grows and self.to - self.from_ != self.out_to - self.out_from

    @property
    def padding(self) -> tuple[int, int]:
        return self.out_from, self.length - self.out_to

    def nearest(self) -> Array | slice:
        """For each output pixel inside the image the source pixel that holds its center."""
        if not self.grows and not self.shrinks:
            return slice(self.from_, self.to)
        count, window = self.out_to - self.out_from, self.to - self.from_
        if self.shrinks:
            return np.asarray(self.from_ + (2 * np.arange(count) + 1) * window // (2 * count))
        centers = (np.arange(self.out_from, self.out_to) + 0.5 - self.shift) / self.scale
        return np.asarray(np.clip(np.floor(centers).astype(np.intp), self.from_, self.to - 1))


class Aligned(NamedTuple):
    """The plan of a whole warp: the output's rows and columns, and if they come from the source's columns and rows."""

    rows: Axis
    columns: Axis
    transposed: bool

    def transform(self) -> Transform:
        """The transform after snapping."""
        (down, below), (across, right) = _line(self.rows), _line(self.columns)
        axes = [[0, across], [down, 0]] if self.transposed else [[across, 0], [0, down]]
        matrix = np.array([[*axes[0], right], [*axes[1], below], [0, 0, 1]], np.float64)
        return Transform(matrix, (self.rows.length, self.columns.length))

    def is_identity(self, size: Size) -> bool:
        is_upright = not self.transposed and (self.rows.length, self.columns.length) == size
        return is_upright and _line(self.rows) == _line(self.columns) == (1.0, 0.0)

    def mirrors_right(self, border: Border) -> bool:
        """Return True if padding what is seen equals padding the image: a mirror deeper than the window would show too little."""
        if border != "reflect":
            return True
        return all(max(axis.padding) <= axis.out_to - axis.out_from for axis in (self.rows, self.columns))


def plan_aligned(transform: Transform, size: Size) -> Aligned | None:
    """The plan for an image of `size`, or None where axes do not stay parallel or nothing of the image is seen."""
    *axes, (*depth, unit) = transform.matrix.tolist()  # NumPy takes three times as long for one number at a time
    if transform.bends or any(depth):
        return None
    (xx, xy, x), (yx, yy, y) = axes if unit == 1 else [[value / unit for value in axis] for axis in axes]
    transposed = max(size) * max(abs(xx), abs(yy)) < _TINY_PX
    if not transposed and max(size) * max(abs(xy), abs(yx)) >= _TINY_PX:
        return None
    height, width = reversed(size) if transposed else size
    rows = _axis(yx if transposed else yy, y, height, transform.size[0])
    columns = _axis(xy if transposed else xx, x, width, transform.size[1])
    if rows is None or columns is None:
        return None
    if rows.grows or columns.grows:
        windows = _as_window(rows, height), _as_window(columns, width)
        if all(axis.window or not axis.grows for axis in windows):
            rows, columns = windows
    return Aligned(rows, columns, transposed)


def warp_smooth(array: Array, plan: Aligned, border: Border, fill: Array, reduced: int = 1) -> Array:
    """An image or a map [H, W] or [H, W, C], of a dtype that OpenCV resizes, resampled.

    With `reduced` = k, pixel i of the array shows the pixels k·i to k·(i + 1) that the plan counts in; both axes shrink.
    """
    rows, columns = (plan.columns, plan.rows) if plan.transposed else (plan.rows, plan.columns)
    array = _shrunk(array, rows, columns, reduced)
    if rows.grows or columns.grows:
        array = _grown(array, rows, columns)
    return _finished(_padded(array, rows, columns, border, fill), plan)


def warp_nearest(array: Array, plan: Aligned, border: Border, fill: Array) -> Array:
    """A mask [H, W]: each output pixel takes the source pixel that holds its center."""
    rows, columns = (plan.columns, plan.rows) if plan.transposed else (plan.rows, plan.columns)
    array = _taken(_taken(array, rows.nearest(), 0), columns.nearest(), 1)
    return _finished(_padded(array, rows, columns, border, fill), plan)


# --- planning -------------------------------------------------------------------------------------------------------


def _axis(slope: float, shift: float, size: int, length: int) -> Axis | None:
    flip = bool(slope < 0)
    scale, shift = abs(slope), length - shift if flip else shift
    if abs(scale - 1) * size < _TINY_PX:
        start = _round(shift)
        if abs(shift - start) >= _TINY_PX:
            return _linear(1.0, shift, size, length, flip)
        out_from, out_to = max(0, start), min(length, size + start)
        if out_from >= out_to:
            return None
        return Axis(out_from - start, out_to - start, out_from, out_to, length, 1.0, float(start), flip, grows=False)
    if scale > 1:
        return _linear(scale, shift, size, length, flip)
    out_from, out_to = max(0, _round(shift)), min(length, _round(size * scale + shift))
    from_ = to = 0
    if out_from < out_to:  # never, where the scale is 0
        from_, to = max(0, _round((out_from - shift) / scale)), min(size, _round((out_to - shift) / scale))
    if to <= from_:
        return None
    out_to = min(out_to, out_from + to - from_)
    scale = (out_to - out_from) / (to - from_)
    return Axis(from_, to, out_from, out_to, length, scale, out_from - scale * from_, flip, grows=False)


def _linear(scale: float, shift: float, size: int, length: int, flip: bool) -> Axis | None:
    out_from, out_to = max(0, ceil(shift - 0.5)), min(length, ceil(size * scale + shift - 0.5))
    if out_from >= out_to:
        return None
    from_ = max(0, floor((out_from - shift) / scale) - 1)
    to = min(size, ceil((out_to - shift) / scale) + 1)
    return Axis(from_, to, out_from, out_to, length, scale, shift, flip, grows=True)


def _as_window(axis: Axis, size: int) -> Axis:
    """The axis as a `window`, if it is enlarged, and begins and ends between two pixels of an image of this size."""
    if not axis.grows or axis.scale == 1:
        return axis
    start, stop = (round((end - axis.shift) / axis.scale, 6) for end in (0, axis.length))
    if start % 1 or stop % 1 or start < 0 or stop > size:
        return axis
    return axis._replace(from_=int(start), to=int(stop), window=True)


def _round(value: float) -> int:
    """To the nearest whole number. A rounding error of a composed matrix must not decide what happens to halves."""
    return floor(value + 0.5 + _TINY_PX)


def _line(axis: Axis) -> tuple[float, float]:
    """Slope and shift with the mirror included."""
    return (-axis.scale, axis.length - axis.shift) if axis.flip else (axis.scale, axis.shift)


# --- doing ----------------------------------------------------------------------------------------------------------


def _shrunk(array: Array, rows: Axis, columns: Axis, reduced: int) -> Array:
    """The window, cut out, and averaged along the axes that shrink. It need not begin and end between two pixels of the array."""
    height = rows.out_to - rows.out_from if rows.shrinks else rows.to - rows.from_
    width = columns.out_to - columns.out_from if columns.shrinks else columns.to - columns.from_
    top, left = rows.from_ // reduced, columns.from_ // reduced
    window = array[top : -(-rows.to // reduced), left : -(-columns.to // reduced)]
    if reduced == 1 or not any(end % reduced for end in (rows.from_, rows.to, columns.from_, columns.to)):
        return window if window.shape[:2] == (height, width) else same_depth(_area(window, (width, height)), array)
    down = _averaged(window, top, rows.from_ / reduced, rows.to / reduced, height)
    both = _averaged(_transposed(down), left, columns.from_ / reduced, columns.to / reduced, width)
    exact = both if array.dtype.kind == "f" else np.rint(both, out=both)
    return _transposed(exact.astype(array.dtype))


def _area(window: Array, size: tuple[int, int]) -> Array:
    """The window averaged by area to `size` (width, height).

    OpenCV sums 8 bits up as float32, a value at a time, and rounds in the end. Of float32 it does the same in 5/6 of the time.
    Sides that are whole multiples have code of their own, which is faster, and rounds halves up; so has a side that grows.
    """
    height, width = window.shape[:2]
    other_code = (width % size[0] == 0 and height % size[1] == 0) or width < size[0] or height < size[1]
    if window.dtype != np.uint8 or other_code or height * width > _MOST_FLOAT_PIXELS:
        return cv2.resize(window, size, interpolation=cv2.INTER_AREA)
    wide: Array = cv2.resize(window.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    return cv2.convertScaleAbs(wide)


def _averaged(array: Array, top: int, start: float, stop: float, count: int) -> Array:
    """float32: the rows from `start` to `stop` averaged to `count`, a row that is partly inside counting for that part.

    `array` begins with row `top`.
    """
    edges = np.linspace(start, stop, count + 1)
    low, high = edges[:-1, None], edges[1:, None]
    first = np.floor(edges[:-1]).astype(np.intp)
    index = first[:, None] + np.arange(int((np.ceil(edges[1:]) - first).max()))
    weights = np.clip(np.minimum(index + 1, high) - np.maximum(index, low), 0, None)
    weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    index = np.minimum(index - top, len(array) - 1)  # the weight of an index beyond the last row is 0
    total, part = (np.empty((count, *array.shape[1:]), np.float32) for _ in range(2))
    for number in range(index.shape[1]):
        weight = weights[:, number].reshape(-1, *(1,) * (array.ndim - 1))
        np.multiply(array[index[:, number]], weight, out=part if number else total)
        if number:
            total += part
    return total


def _transposed(array: Array) -> Array:
    return same_depth(cv2.transpose(array), array)


def _grown(array: Array, rows: Axis, columns: Axis) -> Array:
    """Interpolated linearly along the axes that grow; OpenCV's coordinates count from the center of the first pixel."""
    size = (columns.out_to - columns.out_from, rows.out_to - rows.out_from)
    if rows.window or columns.window:
        # Of 8 bits OpenCV rounds the weights, too.
        wide = array.astype(np.float32) if array.dtype == np.uint8 else array
        enlarged = cv2.resize(wide, size, interpolation=cv2.INTER_LINEAR)
        return same_depth(cv2.convertScaleAbs(enlarged) if array.dtype == np.uint8 else enlarged, array)
    down, right = _centered(rows), _centered(columns)
    matrix = np.array([[right[0], 0, right[1]], [0, down[0], down[1]]])
    return same_depth(cv2.warpAffine(array, matrix, size, borderMode=cv2.BORDER_REPLICATE), array)


def _centered(axis: Axis) -> tuple[float, float]:
    if not axis.grows:
        return 1.0, 0.0
    return axis.scale, axis.scale * (axis.from_ + 0.5) + axis.shift - axis.out_from - 0.5


def _taken(array: Array, index: Array | slice, axis: int) -> Array:
    if isinstance(index, slice):
        return array[index] if axis == 0 else array[:, index]
    return array.take(index, axis)


def _padded(array: Array, rows: Axis, columns: Axis, border: Border, fill: Array) -> Array:
    (top, bottom), (left, right) = rows.padding, columns.padding
    if not (top or bottom or left or right):
        return array
    if border == "constant":
        padded = np.empty((rows.length, columns.length, *array.shape[2:]), array.dtype)
        padded[...] = fill
        padded[top : rows.length - bottom, left : columns.length - right] = array
        return padded
    return np.pad(array, ((top, bottom), (left, right), *[(0, 0)] * (array.ndim - 2)), _NUMPY_BORDERS[border])


_NUMPY_BORDERS: dict[Border, Literal["symmetric", "edge"]] = {"reflect": "symmetric", "replicate": "edge"}


def _finished(array: Array, plan: Aligned) -> Array:
    """Turned and mirrored as planned, in memory of its own order."""
    if plan.transposed:
        array = np.ascontiguousarray(array.swapaxes(0, 1))
    return np.ascontiguousarray(mirrored(array, plan.rows.flip, plan.columns.flip))


def cut(array: Array, window: Window) -> Array:
    """An image, mask or map [H, W] or [H, W, C] cut to a window inside of it, and mirrored: a view where it is not."""
    top, left, height, width, flip_rows, flip_columns = window
    return mirrored(array[top : top + height, left : left + width], flip_rows, flip_columns)


def mirrored(array: Array, flip_rows: bool, flip_columns: bool) -> Array:
    """[H, W] or [H, W, C] with top and bottom, left and right exchanged; itself if neither."""
    if not (flip_rows or flip_columns):
        return array
    if array.dtype not in CV_DTYPES or array.shape[2:] > (CV_CHANNELS,) or not HAS_OPENCV:
        return array[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]
    return same_depth(cv2.flip(array, (-1 if flip_rows else 1) if flip_columns else 0), array)


def same_depth(result: Array, array: Array) -> Array:
    """OpenCV drops a last axis of length 1."""
    return result[:, :, None] if array.ndim == 3 and result.ndim == 2 else result
