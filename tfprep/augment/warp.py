"""All geometry of a variant in one resampling of every field.

`warp_sample` takes the one transform that a chain of ops composed to. Chains that keep the axes parallel to the image's
(crops, resizes, flips) go through `tfprep.augment.aligned`. All others are interpolated linearly at each output pixel's
center (`cv2.warpAffine`, `cv2.warpPerspective`, or `cv2.remap` where a bend is in the chain), and antialiased where they
shrink: the output is drawn k times larger and averaged, k = ceil(1 / s) for the smallest scale s in it (1 from s = 0.95 on), at
most 16 and 64 million pixels.

| kind   | values                                                    | outside the image, `border="constant"` |
|--------|-----------------------------------------------------------|----------------------------------------|
| image  | linear, or area average where it shrinks; rounded         | 0, or `fill`                           |
| mask   | the source pixel that holds the output pixel's center     | `fill`: the void class; needed         |
| map    | as image; floating dtypes are kept unrounded [1]          | 0, or `fill`                           |
| points | mapped; visibility 0 outside; `flip_indices` in a mirror  |                                        |
| boxes  | smallest upright box around the mapped corners, clipped   | dropped if nothing of it is visible    |

[1] uint8, uint16 and float32 as they are, all other dtypes in float32, so to 24 bits.

With `border="reflect"` the image is mirrored at its edges, with `"replicate"` its outermost pixels are repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, hypot, inf, isqrt
from typing import Any, TypeAlias

import numpy as np

from tfprep.augment.aligned import (
    CV_DTYPES,
    Aligned,
    Border,
    cv_border,
    plan_aligned,
    same_depth,
    warp_nearest,
    warp_smooth,
)
from tfprep.augment.transform import Transform, exchange_rows, is_affine, scaling, translation, warp_boxes, warp_points
from tfprep.errors import SampleError
from tfprep.fields import RASTER_KINDS, Array, Kind, Sample, Size, raster_size
from tfprep.images.pillow import MAX_PIXELS
from tfprep.optional import cv2

Fill: TypeAlias = float | tuple[float, ...]

_CV_CHANNELS = 4
"""The most channels that OpenCV fills and averages at once."""
_MOST_OVERSAMPLING = 16
_PLAIN_SCALE = 0.95
"""From this scale on, images are only interpolated linearly: that loses 5 % of the frequencies, and no aliasing is visible."""
_REDUCTIONS = (8, 4, 2)
"""libjpeg-turbo scales to any eighth, but has fast code for these only: 3/8 is slower than 1/2, 7/8 slower than the whole."""
_ROUNDING_PX = 1e-6
_ROUNDING_SHARE = 1e-6
"""Of a box whose side at the image's edge is moved past it by a rounding error."""
_MOST_SIDE = 32_000
"""OpenCV warps only into images of less than 32,767 pixels a side."""
_MOST_PIXELS = 1 << 26
"""Of an enlarged image that is averaged: 200 MB of 8-bit RGB."""


def warp_sample(
    sample: Sample,
    kinds: Mapping[str, Kind],
    transform: Transform,
    *,
    border: Border = "constant",
    fill: Mapping[str, Fill | None] | None = None,
    size: Size | None = None,
    reduced: int = 1,
    min_visible: float = 0.0,
    row_fields: Mapping[str, Sequence[str]] | None = None,
    flip_indices: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """A new sample with every field of `kinds` warped by `transform`; all other fields are passed on as they are.

    `size` is the (height, width) of the input that the transform expects; by default that of the sample's rasters. A raster
    of another size counts as the same picture at another resolution. A raster of ceil(size / `reduced`) was decoded at
    1 / `reduced` (`tfprep.images.decode_image`): its pixels are exactly `reduced` pixels wide, and the geometry of every field is
    the same as without.

    Boxes that are wholly outside the output, or with a smaller share of their area inside than `min_visible`, are dropped, and
    with them the rows of the fields that `row_fields` names for their field: `{"boxes": ["labels"]}`.

    Where the transform mirrors, the rows of points that `flip_indices` names are exchanged: `{"points": (0, 2, 1)}` keeps row 0
    the nose, row 1 the left eye and row 2 the right eye of a face, of every three rows.

    Raises SampleError where an array does not fit its kind or cannot be warped, and where a mask without `fill`, or a field whose
    `fill` is None, would show pixels outside the image.
    """
    shapes = [np.shape(sample[name])[:2] for name, kind in kinds.items() if kind in RASTER_KINDS and name in sample]
    size = size or raster_size(sample, kinds) or transform.size
    coarsest: _View | None = None
    if shapes:
        # The raster with the fewest pixels: what is snapped to its grid is on that of the finer ones, or near.
        own = (shape for shape in shapes if shape != _reduced_size(size, reduced))
        height, width = min(own, key=lambda shape: shape[0] * shape[1], default=size)
        # Kept for a transform that never changes: variant 0 has one for all images of one size. Bends hold maps of all pixels.
        snapped = _snapped if transform.matrix.flags.writeable or transform.bends else _kept_snapped
        transform, coarsest = snapped(transform, size, (int(height), int(width)), border)
    fills, flips = fill or {}, flip_indices if flip_indices and transform.mirrors else {}
    warped, visible = dict(sample), dict[str, Array]()
    for name, value in sample.items():
        kind = kinds.get(name)
        try:
            if kind in RASTER_KINDS:
                array, is_mask = np.asarray(value), kind == "mask"
                view = coarsest
                if view is None or view.size != array.shape[:2]:
                    # A mask is never reduced: it is not a JPEG.
                    known = coarsest.plan if coarsest is not None and coarsest.size == size else None
                    view = _view(transform, size, array.shape[:2], border, 1 if is_mask else reduced, known)
                warped[name] = _raster(array, is_mask, view, border, fills.get(name, None if is_mask else 0))
            elif kind == "points":
                warped[name] = exchange_rows(warp_points(value, transform), flips.get(name, ()))
            elif kind == "boxes":
                warped[name], visible[name] = warp_boxes(value, transform)
        except SampleError as error:
            raise error.located(stage="geometry", field=name) from error
        except (cv2.error, ValueError) as error:
            rule = f"cannot warp an array of shape {np.shape(value)}"
            if getattr(error, "code", None) == cv2.Error.StsNoMem:  # no fault of the sample
                raise MemoryError(f"{rule}: {error}") from error
            raise SampleError(f"{rule}: {error}", stage="geometry", field=name) from error
    return warped | _only_visible(warped, kinds, visible, min_visible, row_fields or {}) if visible else warped


def reduction_for(transform: Transform) -> int:
    """8, 4, 2 or 1: the most that an image may be reduced when it is decoded, so that `transform` enlarges it nowhere.

    It is the argument `reduced` of `tfprep.images.decode_image` and of `warp_sample`, and depends on the transform only.
    """
    # A scale of exactly 1/k, out of a product of matrices, may come a rounding error above it.
    scale = scales_of(transform)[0] * (1 - 1e-9)
    for factor in _REDUCTIONS:
        if scale * factor <= 1:
            return factor
    return 1


@dataclass(frozen=True, eq=False)
class _View:
    """The way to draw rasters of one `size`: from their own coordinates, by `plan` where the axes stay parallel."""

    size: Size
    transform: Transform
    plan: Aligned | None
    reduced: int = 1
    """Pixels of the picture, in which the plan counts, that each pixel of the raster shows a side."""

    @cached_property
    def uncovers(self) -> bool:
        """Return True if pixels outside of the raster are seen. Without bends the corners tell, as the output is convex."""
        height, width = self.transform.size
        count = 2 if not self.transform.bends else max(height, width)
        x, y = (np.linspace(0.5, length - 0.5, count) for length in (width, height))
        edges = np.concatenate([np.array([x, np.full(count, end)]) for end in y[[0, -1]]], axis=1)
        if self.transform.bends:
            edges = np.concatenate([edges, *(np.array([np.full(count, end), y]) for end in x[[0, -1]])], axis=1)
        seen = np.array(self.transform.pull_planes(*edges))
        return not bool(((seen > -_ROUNDING_PX) & (seen < np.array(self.size[::-1])[:, None] + _ROUNDING_PX)).all())

    @cached_property
    def oversampling(self) -> int:
        """The factor by which images and maps are drawn larger before they are averaged."""
        smallest = scales_of(self.transform)[1]
        if smallest >= _PLAIN_SCALE:
            return 1
        height, width = self.transform.size
        affordable = min(_MOST_OVERSAMPLING, _MOST_SIDE // max(height, width), isqrt(_MOST_PIXELS // (height * width)))
        # A scale of 1/2 that a rounding error made smaller is not averaged from three.
        return max(1, min(affordable, ceil(1 / max(smallest, 1e-6) - 1e-6)))

    @cached_property
    def larger(self) -> Transform:
        k = self.oversampling
        height, width = self.transform.size
        return self.transform if k == 1 else self.transform.then(Transform(scaling(k, k), (k * height, k * width)))

    @cached_property
    def maps(self) -> tuple[Array, Array]:
        """Of a transform with bends: where each pixel of the larger output comes from; shared by images and maps."""
        return source_maps(self.larger)

    @cached_property
    def mask_maps(self) -> tuple[Array, Array]:
        """The same for masks, which are drawn at the output's size."""
        return self.maps if self.oversampling == 1 else source_maps(self.transform)


def _snapped(transform: Transform, size: Size, grid: Size, border: Border) -> tuple[Transform, _View]:
    """The transform that every field of a picture of `size` follows, snapped to the pixels of a raster of `grid` size, and the
    way to draw that raster."""
    matrices = (transform.matrix, *(matrix for matrix, _ in transform.bends))
    if not all(0 < abs(_determinant(each)) < inf for each in matrices) or min(transform.size) < 1:  # OpenCV would draw
        rule = "a geometry op returns a size of at least 1 x 1 and a matrix that can be inverted"
        raise SampleError(f"{rule}, not {transform}", stage="geometry")
    most = max(MAX_PIXELS, size[0] * size[1])
    if transform.size[0] * transform.size[1] > most:  # of an image that is long and thin
        made = f"{transform.size[1]} x {transform.size[0]} pixels of an image of {size[1]} x {size[0]}"
        raise SampleError(f"the geometry makes {made}, more than {most:,}; add a crop", stage="geometry")
    view = _view(transform, size, grid, border)
    if view.plan is None:
        return transform, view
    snapped = view.transform if grid == size else _before(scaling(grid[1] / size[1], grid[0] / size[0]), view.transform)
    return snapped, view


def _determinant(matrix: Array) -> float:
    (a, b, c), (d, e, f), (g, h, i) = matrix.tolist()  # a tenth of the time of NumPy's, which is for any size
    return float(a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g))


_kept_snapped = lru_cache(256)(_snapped)


def _view(
    transform: Transform, size: Size, own: Size, border: Border, reduced: int = 1, plan: Aligned | None = None
) -> _View:
    """`plan`: that of the snapped transform for a raster of `size`, where it is known."""
    if own != size and own == _reduced_size(size, reduced):  # planned on the pixels of the whole picture
        local, plan = _before(scaling(reduced, reduced), transform), plan or plan_aligned(transform, size)
        if plan is None or not plan.mirrors_right(border) or not (plan.rows.shrinks and plan.columns.shrinks):
            return _View(own, local, None)
        return _View(own, local, plan, reduced)
    local = transform if own == size else _before(scaling(size[1] / own[1], size[0] / own[0]), transform)
    plan = plan_aligned(local, own)
    if plan is None or not plan.mirrors_right(border):
        return _View(own, local, None)
    return _View(own, plan.transform(), plan)


def _reduced_size(size: Size, reduced: int) -> Size:
    return -(-size[0] // reduced), -(-size[1] // reduced)


def _before(matrix: Array, transform: Transform) -> Transform:
    return Transform(matrix, transform.size).then(transform)


_ROWS = frozenset({"label", "points", "scalar"})
"""The kinds of fields that may have a row for each box."""


def _only_visible(
    warped: Sample,
    kinds: Mapping[str, Kind],
    visible: Mapping[str, Array],
    min_visible: float,
    row_fields: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """The boxes of which a share is `visible` that is large enough, and the rows of the fields that belong to them."""
    kept: dict[str, Any] = {}
    for name, shares in visible.items():
        seen = (shares > 0) & (shares >= min_visible - _ROUNDING_SHARE)
        if name not in row_fields and not seen.all():  # also a box without an area that was only mirrored
            rows_of = {
                each: np.shape(warped[each])[:1] for each, kind in kinds.items() if kind in _ROWS and each in warped
            }
            if unknown := [each for each, rows in rows_of.items() if rows == seen.shape]:
                rule = f"boxes that are not visible are dropped, and {unknown} may have a row for each of {name!r}"
                raise SampleError(
                    f"{rule}; write row_fields={{{name!r}: {unknown}}}, or [] if not", stage="geometry", field=name
                )
        check_rows(warped, kinds, name, row_fields.get(name, ()))
        for field in (name, *(field for field in row_fields.get(name, ()) if kinds.get(field) != "mask")):
            rows = np.asarray(warped[field])
            kept[field] = rows[seen if len(rows) == len(seen) else np.repeat(seen, len(rows) // len(seen))]
    return kept


def check_rows(sample: Sample, kinds: Mapping[str, Kind], boxes: str, row_fields: Sequence[str]) -> None:
    """Raise SampleError unless each of these fields has a row, or one number of points, for each of the boxes."""
    count = len(sample[boxes])
    for field in (field for field in row_fields if kinds.get(field) != "mask"):
        shape, is_points = np.shape(sample[field]), kinds.get(field) == "points"
        if shape[:1] != (count,) and not (is_points and count and shape and not shape[0] % count):
            rule = f"{field!r} has {'the same number of rows' if is_points else 'one row'} for each of {boxes!r}"
            raise SampleError(f"{rule}: {count} boxes, {list(shape)}", field=field)


# --- rasters --------------------------------------------------------------------------------------------------------


def _raster(array: Array, mask: bool, view: _View, border: Border, fill: Fill | None) -> Array:
    if array.ndim not in ((2,) if mask else (2, 3)):
        rule = "a mask is [H, W]" if mask else "an image or map is [H, W] or [H, W, C]"
        raise SampleError(f"{rule}; this array has the shape {array.shape}")
    if view.plan is not None and view.plan.is_identity(view.size):
        return array
    if fill is None and border == "constant" and view.uncovers:
        rule = "the geometry shows pixels outside of the image, and no number is known for them in this"
        raise SampleError(
            f"{rule} {'mask' if mask else 'map'}; name the field and a number in the recipe's fill, as in fill={{'mask': 255}}, "
            "or write border='reflect'"
        )
    values = _filling(fill, array.dtype) if fill else np.zeros((), array.dtype)  # one value, or one per channel
    if values.ndim and values.shape != array.shape[2:]:
        rule = f"fill has {values.size} values, the array has the shape {array.shape}"
        raise SampleError(f"{rule}; give one value, or one per channel")
    if not mask:
        return _smooth(array, view, border, values)
    if view.plan is not None:
        return warp_nearest(array, view.plan, border, values)
    maps = view.mask_maps if view.transform.bends else None
    # As words of 8 or 16 bits: of other types OpenCV rounds coordinates, and float64 does not hold all numbers of 64 bits.
    word = f"u{min(array.dtype.itemsize, 2)}"
    words = np.moveaxis(np.ascontiguousarray(array)[..., None].view(word), 2, 0)
    fills = values.reshape(1).view(word)
    drawn = [
        draw(each, view.transform, maps, cv2.INTER_NEAREST, border, outside)
        for each, outside in zip(words, fills, strict=True)
    ]
    return np.stack(drawn, axis=2).view(array.dtype)[:, :, 0]


def _filling(fill: Fill, dtype: np.dtype[Any]) -> Array:
    exact = np.asarray(fill)
    with np.errstate(invalid="ignore"):
        values = exact.astype(dtype)
    if dtype.kind in "biu" and (values != exact).any():
        raise SampleError(f"fill is {fill}, which {dtype} does not hold; give a whole number of its range")
    return values


def _smooth(array: Array, view: _View, border: Border, fill: Array) -> Array:
    if (plan := view.plan) and not (plan.rows.shrinks or plan.rows.grows or plan.columns.shrinks or plan.columns.grows):
        return warp_smooth(array, plan, border, fill)
    wide = array.astype(array.dtype if array.dtype in CV_DTYPES else np.float32, copy=False)
    if array.ndim == 2 or array.shape[2] <= _CV_CHANNELS:
        return _back(_resampled(wide, view, border, fill), array.dtype)
    fills = np.broadcast_to(fill, array.shape[2:])
    groups = [slice(c, c + _CV_CHANNELS) for c in range(0, array.shape[2], _CV_CHANNELS)]
    drawn = [_resampled(np.ascontiguousarray(wide[:, :, group]), view, border, fills[group]) for group in groups]
    return _back(np.concatenate(drawn, axis=2), array.dtype)


def _resampled(array: Array, view: _View, border: Border, fill: Array) -> Array:
    if array.ndim == 3 and array.shape[2] == 2:
        # OpenCV 5 rounds the coordinates of two-channel arrays to 1/32 pixel, those of one, three and four not.
        three = np.concatenate([array, array[:, :, :1]], axis=2)
        return np.ascontiguousarray(_resampled(three, view, border, np.broadcast_to(fill, (2,))[[0, 1, 0]])[:, :, :2])
    if view.plan is not None:
        return warp_smooth(array, view.plan, border, fill, view.reduced)
    maps = view.maps if view.transform.bends else None
    drawn = draw(array, view.larger, maps, cv2.INTER_LINEAR, border, fill)
    if view.oversampling == 1:
        return drawn
    height, width = view.transform.size
    return same_depth(cv2.resize(drawn, (width, height), interpolation=cv2.INTER_AREA), array)


def _back(array: Array, dtype: np.dtype[Any]) -> Array:
    """To the raster's own dtype, rounded where that is one of whole numbers."""
    if array.dtype == dtype or dtype.kind not in "biu":
        return array.astype(dtype, copy=False)
    with np.errstate(invalid="ignore"):
        whole = np.rint(array).astype(dtype)
    if dtype.kind != "b":  # the highest of 32 and 64 bits is 1 more in float32, which would wrap
        whole[array >= np.iinfo(dtype).max] = np.iinfo(dtype).max
    return whole


_PROBES = 9
"""Scales of a transform that is not affine are probed on a grid with this number of points a side."""


def draw(
    array: Array,
    transform: Transform,
    maps: tuple[Array, Array] | None,
    interpolation: int,
    border: Border,
    fill: Array,
) -> Array:
    """Interpolate each output pixel at its center in the source."""
    height, width = transform.size
    # OpenCV's coordinates count from the center of the first pixel.
    matrix = translation(-0.5, -0.5) @ transform.matrix @ translation(0.5, 0.5)
    channels = array.shape[2] if array.ndim == 3 else 1
    value = tuple(float(number) for number in np.broadcast_to(fill, (channels,)))
    options: dict[str, Any] = {"borderMode": cv_border(border), "borderValue": value}
    array = np.ascontiguousarray(array)
    if maps is None and not is_affine(transform.matrix):
        corners = np.array([[0, 0, 1], [width, 0, 1], [0, height, 1], [width, height, 1]])
        if ((corners @ np.linalg.inv(transform.matrix).T)[:, 2] <= 0).any():
            # Part of the output is at the back of the viewer, where OpenCV would draw the image upside down.
            maps = source_maps(transform)
    if maps is not None:
        return same_depth(cv2.remap(array, *maps, interpolation, **options), array)
    if is_affine(matrix):
        affine = matrix[:2] / matrix[2, 2]
        return same_depth(cv2.warpAffine(array, affine, (width, height), flags=interpolation, **options), array)
    return same_depth(cv2.warpPerspective(array, matrix, (width, height), flags=interpolation, **options), array)


def source_maps(transform: Transform) -> tuple[Array, Array]:
    """float32 [H, W] twice: x and y, in OpenCV's count, that each output pixel shows; far outside where it shows nothing."""
    height, width = transform.size
    x, y = np.meshgrid(np.arange(width, dtype=np.float32) + 0.5, np.arange(height, dtype=np.float32) + 0.5)
    right, down = transform.pull_planes(x, y)
    lost = np.isnan(right)
    if lost.any():
        right[lost] = down[lost] = _NOWHERE_PX
    return (right - 0.5).astype(np.float32, copy=False), (down - 0.5).astype(np.float32, copy=False)


_NOWHERE_PX = -1e4
"""A coordinate far outside every image, for output pixels that show nothing."""


def scales_of(transform: Transform) -> tuple[float, float]:
    """The largest and the smallest scale anywhere in the output, in any direction, from 1e-6 and up to 1.

    Where the largest is 0.25 or less, nothing is lost if the source is decoded at a quarter of its size. A transform that is not
    affine is probed on a grid of output points.
    """
    (a, b, _), (c, d, _), (*depth, unit) = transform.matrix.tolist()
    if not (transform.bends or any(depth)):
        half, rest = hypot(a + d, c - b) / 2, hypot(a - d, b + c) / 2  # a tenth of the time of a general SVD
        return max((half + rest) / abs(unit), 1e-6), min(abs(half - rest) / abs(unit), 1.0)
    # The Jacobian of output to input at a grid of output points, [N, 2, 2], by differences over one pixel.
    height, width = transform.size
    x, y = np.meshgrid(np.linspace(0.5, width - 0.5, _PROBES), np.linspace(0.5, height - 0.5, _PROBES))
    points = np.stack([x.ravel(), y.ravel()], 1)
    steps = [np.array([0.5, 0.0]), np.array([0.0, 0.5])]
    slopes = np.stack([transform.pull(points + step) - transform.pull(points - step) for step in steps], 2)
    values = 1 / np.linalg.svd(slopes[np.isfinite(slopes).all((1, 2))], compute_uv=False)
    return float(values[:, 1].max(initial=1e-6)), float(values[:, 0].min(initial=1))
