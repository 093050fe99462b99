"""The exact Euclidean distance transform, the same bytes each time, with the cases that OpenCV leaves undefined.

`cv2.distanceTransform(DIST_L2, DIST_MASK_PRECISE)` (Felzenszwalb and Huttenlocher, 'Distance Transforms of Sampled
Functions', 2012) is exact to a few 1e-6 pixels, but its last bits depend on where its output happens to lie in memory.
Squared distances are whole numbers, so rounding them and taking the root again gives the float32 nearest to the true
distance; above 1,024 pixels float32 no longer tells neighbouring distances apart, and the last bit stays open.
Of an array without a zero OpenCV returns garbage; that never reaches it. Distances are between pixel centres.
"""

from __future__ import annotations

from math import hypot

import cv2
import numpy as np

from tfprep.fields import Array

ERROR_PX = 1e-4
"""More than the error of a distance and less than the gap between two different ones: for comparing with a threshold."""


def distance_to(region: Array, absent_px: float | None = None) -> Array:
    """float32 [H, W]: from each pixel to the nearest pixel of the bool [H, W] `region`, 0 inside it.

    Where the region is empty, every pixel is at `absent_px`, by default the image's diagonal.
    """
    if not region.any():
        far = hypot(*region.shape) if absent_px is None else absent_px
        return np.full(region.shape, far, np.float32)
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
