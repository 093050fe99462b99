"""All geometry of a variant in one resampling of every field.

`warp_sample` takes the one transform that a chain of ops composed to. Chains that keep the axes parallel to the image's
(crops, resizes, flips) go through `tfprep.augment.aligned`; all others are interpolated linearly at each output pixel's
centre (`cv2.warpAffine`, `cv2.warpPerspective`), and antialiased where they shrink: the output is drawn k times larger and
averaged, k = round(1 / s) for the smallest scale s anywhere in the output, at most 16.

| kind   | values                                                    | outside the image, `border="constant"` |
|--------|-----------------------------------------------------------|----------------------------------------|
| image  | linear, or area average where it shrinks; rounded         | 0, or `fill`                           |
| mask   | the source pixel that holds the output pixel's centre     | 0, or `fill`: the void class           |
| map    | as image; floating dtypes are kept unrounded [1]          | 0, or `fill`                           |
| points | mapped; visibility 0 outside                              |                                        |
| boxes  | smallest upright box around the mapped corners, clipped   |                                        |

[1] uint8, uint16 and float32 as they are, all other dtypes in float32, so to 24 bits.

With `border="reflect"` the image is mirrored at its edges, with `"replicate"` its outermost pixels are repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import cv2
import numpy as np

from tfprep.augment.aligned import BORDERS, CV_DTYPES, Aligned, Border, plan_aligned, warp_nearest, warp_smooth
from tfprep.augment.coordinates import warp_boxes, warp_points
from tfprep.augment.transform import Transform, is_affine, scaling, translation
from tfprep.errors import SampleError
from tfprep.fields import RASTER_KINDS, Array, Kind, Sample, Size, raster_size

Fill: TypeAlias = float | tuple[float, ...]

_MASK_DTYPES = frozenset({"uint8", "uint16", "int16"})
_CV_CHANNELS = 4
"""OpenCV fills and averages at most so many channels at once."""
_PROBES = 9
"""Scales of a transform that is not affine are probed on a grid of so many points a side."""


def warp_sample(
    sample: Sample,
    kinds: Mapping[str, Kind],
    transform: Transform,
    *,
    border: Border = "constant",
    fill: Mapping[str, Fill] | None = None,
    size: Size | None = None,
) -> dict[str, Any]:
    """A new sample with every field of `kinds` warped by `transform`; all other fields are passed on as they are.

    `size` is the (height, width) of the input that the transform expects; by default that of the sample's rasters. A raster
    of another size counts as the same picture at another resolution (a JPEG decoded at a quarter, say).
    Raises SampleError where an array does not fit its kind or cannot be warped.
    """
    size = size or raster_size(sample, kinds)
    if size is None:
        warp = _Warp(transform, transform.size, border, None)
    else:
        warp = _snapped(transform, size, _coarsest(sample, kinds, size), border)
    fills = fill or {}
    return {name: _field(name, value, kinds.get(name), warp, fills.get(name, 0)) for name, value in sample.items()}


def scale_of(transform: Transform) -> float:
    """The largest scale anywhere in the output, in any direction: where it is 0.25 or less, nothing is lost when the source
    is decoded at a quarter of its size."""
    return float(_singular_values(transform)[0].max())


@dataclass(frozen=True)
class _View:
    """How rasters of one `size` are drawn: from their own coordinates, by `plan` where the axes stay parallel."""

    size: Size
    transform: Transform
    plan: Aligned | None


@dataclass(frozen=True)
class _Warp:
    """The transform that every field follows, from a picture of `size`; `view` is that of the coarsest raster."""

    transform: Transform
    size: Size
    border: Border
    view: _View | None


def _snapped(transform: Transform, size: Size, grid: Size, border: Border) -> _Warp:
    """The warp of a picture of `size`, snapped to the pixels of a raster of `grid` size."""
    view = _view(transform, size, grid, border)
    if view.plan is None:
        return _Warp(transform, size, border, view)
    back = scaling(grid[1] / size[1], grid[0] / size[0])
    return _Warp(_before(back, view.transform), size, border, view)


def _view(transform: Transform, size: Size, own: Size, border: Border) -> _View:
    local = transform if own == size else _before(scaling(size[1] / own[1], size[0] / own[0]), transform)
    plan = plan_aligned(local, own)
    if plan is None or not plan.mirrors_right(border):
        return _View(own, local, None)
    return _View(own, plan.transform(), plan)


def _before(matrix: Array, transform: Transform) -> Transform:
    return Transform(matrix, transform.size).then(transform)


def _coarsest(sample: Sample, kinds: Mapping[str, Kind], size: Size) -> Size:
    """The size of the raster with the fewest pixels: what is snapped to its grid lies on that of the finer ones, or near."""
    shapes = [np.shape(sample[name])[:2] for name, kind in kinds.items() if kind in RASTER_KINDS and name in sample]
    height, width = min(shapes, key=lambda shape: shape[0] * shape[1], default=size)
    return int(height), int(width)


def _field(name: str, value: Any, kind: Kind | None, warp: _Warp, fill: Fill) -> Any:
    try:
        if kind in RASTER_KINDS:
            return _raster(np.asarray(value), kind == "mask", warp, fill)
        if kind == "points":
            return warp_points(value, warp.transform)
        return warp_boxes(value, warp.transform)[0] if kind == "boxes" else value
    except SampleError as error:
        raise error.located(stage="geometry", field=name) from error
    except (cv2.error, ValueError, MemoryError) as error:
        shape = np.shape(value)
        raise SampleError(f"cannot warp an array of shape {shape}: {error}", stage="geometry", field=name) from error


# --- rasters --------------------------------------------------------------------------------------------------------


def _raster(array: Array, mask: bool, warp: _Warp, fill: Fill) -> Array:
    if array.ndim not in ((2,) if mask else (2, 3)):
        rule = "a mask is [H, W]" if mask else "an image or map is [H, W] or [H, W, C]"
        raise SampleError(f"{rule}; this array has the shape {array.shape}")
    own = (array.shape[0], array.shape[1])
    view = warp.view if warp.view is not None and warp.view.size == own else None
    view = view or _view(warp.transform, warp.size, own, warp.border)
    if view.plan is not None and view.plan.is_identity(own):
        return array
    return (_mask if mask else _smooth)(array, view, warp.border, _fill(fill, array))


def _fill(fill: Fill, array: Array) -> Array:
    """The fill as an array of the raster's dtype: one value, or one a channel."""
    values = np.asarray(fill, array.dtype)
    if values.ndim and values.shape != array.shape[2:]:
        rule = f"fill has {values.size} values, the array has the shape {array.shape}"
        raise SampleError(f"{rule}; give one value, or one a channel")
    return values


def _mask(array: Array, view: _View, border: Border, fill: Array) -> Array:
    if view.plan is not None:
        return warp_nearest(array, view.plan, border, fill)
    narrow = array if array.dtype.name in _MASK_DTYPES else array.astype(np.float64)
    drawn = _draw(narrow, view.transform, cv2.INTER_NEAREST, border, fill)
    return drawn.astype(array.dtype, copy=False)


def _smooth(array: Array, view: _View, border: Border, fill: Array) -> Array:
    if view.plan is not None and not view.plan.resamples:
        return warp_smooth(array, view.plan, border, fill)
    wide = array.astype(array.dtype if array.dtype.name in CV_DTYPES else np.float32, copy=False)
    if array.ndim == 2 or array.shape[2] <= _CV_CHANNELS:
        return _back(_resampled(wide, view, border, fill), array.dtype)
    fills = np.broadcast_to(fill, array.shape[2:])
    parts = [slice(c, c + _CV_CHANNELS) for c in range(0, array.shape[2], _CV_CHANNELS)]
    drawn = [_resampled(np.ascontiguousarray(wide[:, :, part]), view, border, fills[part]) for part in parts]
    return _back(np.concatenate(drawn, axis=2), array.dtype)


def _resampled(array: Array, view: _View, border: Border, fill: Array) -> Array:
    if array.ndim == 3 and array.shape[2] == 2:
        # OpenCV 5 rounds the coordinates of two-channel arrays to 1/32 pixel, those of one, three and four not.
        three = np.concatenate([array, array[:, :, :1]], axis=2)
        return np.ascontiguousarray(_resampled(three, view, border, np.broadcast_to(fill, (2,))[[0, 1, 0]])[:, :, :2])
    if view.plan is not None:
        return warp_smooth(array, view.plan, border, fill)
    return _antialiased(array, view.transform, border, fill)


def _back(array: Array, dtype: np.dtype[Any]) -> Array:
    """To the raster's own dtype, rounded where that is not a floating one."""
    if array.dtype == dtype:
        return array
    return (array if dtype.kind == "f" else np.rint(array)).astype(dtype)


def _antialiased(array: Array, transform: Transform, border: Border, fill: Array) -> Array:
    """Drawn k × k times larger and averaged where the transform shrinks."""
    height, width = transform.size
    k = _oversampling(transform)
    if k == 1:
        return _draw(array, transform, cv2.INTER_LINEAR, border, fill)
    larger = transform.then(Transform(scaling(k, k), (k * height, k * width)))
    drawn = _draw(array, larger, cv2.INTER_LINEAR, border, fill)
    return _depth(cv2.resize(drawn, (width, height), interpolation=cv2.INTER_AREA), array)


def _draw(array: Array, transform: Transform, interpolation: int, border: Border, fill: Array) -> Array:
    """Each output pixel from the source at its centre. OpenCV's coordinates count from the centre of the first pixel."""
    height, width = transform.size
    matrix = translation(-0.5, -0.5) @ transform.matrix @ translation(0.5, 0.5)
    channels = array.shape[2] if array.ndim == 3 else 1
    value = tuple(float(one) for one in np.broadcast_to(fill, (channels,)))
    options: dict[str, Any] = {"flags": interpolation, "borderMode": BORDERS[border], "borderValue": value}
    array = np.ascontiguousarray(array)
    if is_affine(matrix):
        return _depth(cv2.warpAffine(array, matrix[:2] / matrix[2, 2], (width, height), **options), array)
    return _depth(cv2.warpPerspective(array, matrix, (width, height), **options), array)


def _depth(result: Array, array: Array) -> Array:
    """OpenCV drops a last axis of length 1."""
    return result[:, :, None] if array.ndim == 3 and result.ndim == 2 else result


# --- scales ---------------------------------------------------------------------------------------------------------


def _oversampling(transform: Transform) -> int:
    smallest = float(_singular_values(transform)[1].min())
    return max(1, min(_MOST_OVERSAMPLING, round(1 / smallest))) if smallest > 0 else _MOST_OVERSAMPLING


_MOST_OVERSAMPLING = 16


def _singular_values(transform: Transform) -> tuple[Array, Array]:
    """The largest and smallest scale, at one point of an affine transform, on a grid of output points of any other."""
    if not transform.bends and is_affine(transform.matrix):
        values = np.linalg.svd(transform.matrix[:2, :2] / transform.matrix[2, 2], compute_uv=False)
        return values[:1], values[1:]
    values = 1 / np.linalg.svd(_pull_slopes(transform), compute_uv=False)
    return values[:, 1], values[:, 0]


def _pull_slopes(transform: Transform) -> Array:
    """The Jacobian of output to input at a grid of output points, [N, 2, 2], by differences over one pixel."""
    height, width = transform.size
    x, y = np.meshgrid(np.linspace(0.5, width - 0.5, _PROBES), np.linspace(0.5, height - 0.5, _PROBES))
    points = np.stack([x.ravel(), y.ravel()], 1)
    steps = [np.array([0.5, 0.0]), np.array([0.0, 0.5])]
    slopes = np.stack([transform.pull(points + step) - transform.pull(points - step) for step in steps], 2)
    return np.asarray(slopes[np.isfinite(slopes).all((1, 2))])
