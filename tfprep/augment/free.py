"""Warps that turn, shear, bend or view in perspective. Each output pixel is interpolated at its centre in the source."""

from __future__ import annotations

from math import hypot
from typing import Any

import cv2
import numpy as np

from tfprep.augment.aligned import BORDERS, Border, same_depth
from tfprep.augment.transform import Transform, is_affine, translation
from tfprep.fields import Array

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
    """Interpolate each output pixel at its centre in the source."""
    height, width = transform.size
    # OpenCV's coordinates count from the centre of the first pixel.
    matrix = translation(-0.5, -0.5) @ transform.matrix @ translation(0.5, 0.5)
    channels = array.shape[2] if array.ndim == 3 else 1
    value = tuple(float(one) for one in np.broadcast_to(fill, (channels,)))
    options: dict[str, Any] = {"borderMode": BORDERS[border], "borderValue": value}
    array = np.ascontiguousarray(array)
    if maps is None and _looks_back(transform):
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


def _looks_back(transform: Transform) -> bool:
    """Whether part of the output lies behind the eye of a perspective, where OpenCV would draw the image upside down."""
    if is_affine(transform.matrix):
        return False
    height, width = transform.size
    corners = (
        np.array([[0, 0, 1], [width, 0, 1], [0, height, 1], [width, height, 1]]) @ np.linalg.inv(transform.matrix).T
    )
    return bool((corners[:, 2] <= 0).any())


def singular_values(transform: Transform) -> tuple[Array, Array]:
    """The largest and smallest scale, at one point of an affine transform, on a grid of output points of any other."""
    if not transform.bends and is_affine(transform.matrix):
        (a, b), (c, d) = (transform.matrix[:2, :2] / transform.matrix[2, 2]).tolist()
        half, rest = hypot(a + d, c - b) / 2, hypot(a - d, b + c) / 2  # a tenth of the time of a general SVD
        return np.array([half + rest]), np.array([abs(half - rest)])
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
