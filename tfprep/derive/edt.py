"""The exact Euclidean distance transform, the same bytes each time, with the cases that OpenCV leaves undefined.

`cv2.distanceTransform(DIST_L2, DIST_MASK_PRECISE)` (Felzenszwalb and Huttenlocher, 'Distance Transforms of Sampled
Functions', 2012) is exact to a few 1e-6 pixels, but its last bits depend on the address of its output.
Squared distances are whole numbers, so rounding them and taking the root again gives the float32 nearest to the true
distance; above 1,024 pixels float32 no longer tells neighbouring distances apart, and the last bit stays open.
OpenCV returns garbage for an array without a zero, so it is never called with one. Distances are between pixel centres.
"""

from __future__ import annotations

from math import ceil, hypot
from typing import TypeAlias

import cv2
import numpy as np

from tfprep.fields import Array

Box: TypeAlias = tuple[slice, slice]
"""Rows and columns of a window."""
ERROR_PX = 1e-4
"""More than the error of a distance and less than the gap between two different ones: for comparing with a threshold."""


def distance_to(region: Array, absent_px: float | None = None, *, within_px: float | None = None) -> Array:
    """float32 [H, W]: from each pixel to the nearest pixel of the bool [H, W] `region`, 0 inside it.

    With `within_px` longer distances are cut to it, and only the surroundings of the region are computed. Where the region is
    empty, every pixel is at `absent_px`, by default `within_px`, or the image's diagonal.
    """
    box = box_of(region, ceil(max(region.shape) if within_px is None else within_px))
    if box is None:
        far = within_px if absent_px is None else absent_px
        return np.full(region.shape, hypot(*region.shape) if far is None else far, np.float32)
    distance = _transform(region[box])
    if within_px is not None:
        np.minimum(distance, np.float32(within_px), out=distance)
    if distance.shape == region.shape:
        return distance
    whole = np.full(region.shape, within_px, np.float32)
    whole[box] = distance
    return whole


def depth_in(region: Array, absent_px: float | None = None) -> Array:
    """float32 [H, W]: from each pixel of the bool [H, W] `region` to the nearest pixel outside it, 0 outside.

    Where there is no pixel outside, every one is at `absent_px`, by default the image's diagonal.
    """
    depth = np.zeros(region.shape, np.float32)
    box = box_of(region, 1)
    if box is not None:
        far = hypot(*region.shape) if absent_px is None else absent_px
        # One pixel around the region holds the nearest outside of every pixel in it; at the image's edge there is none.
        depth[box] = distance_to(np.logical_not(region[box]), far)
    return depth


def box_of(region: Array, widened: int = 0) -> Box | None:
    """The smallest window that holds all of a bool [H, W], widened by `widened` pixels; None where it is empty."""
    left, top, width, height = cv2.boundingRect(region.view(np.uint8))
    if not width:
        return None
    rows = slice(max(0, top - widened), min(region.shape[0], top + height + widened))
    return rows, slice(max(0, left - widened), min(region.shape[1], left + width + widened))


def _transform(region: Array) -> Array:
    others = np.logical_not(region).view(np.uint8)
    distance = np.asarray(cv2.distanceTransform(others, cv2.DIST_L2, cv2.DIST_MASK_PRECISE))
    np.multiply(distance, distance, out=distance)
    np.rint(distance, out=distance)
    return np.sqrt(distance, out=distance)


def inner_boundary(region: Array) -> Array:
    """bool [H, W]: the pixels of `region` with one of their 4 neighbours outside it. The image's edge is no boundary."""
    inside = region.view(np.uint8)
    eroded = cv2.erode(inside, _CROSS, borderType=cv2.BORDER_CONSTANT, borderValue=1)
    return np.asarray(inside != eroded)


_CROSS = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
