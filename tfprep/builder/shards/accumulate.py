"""Sums over the records of a shard: pixels and class counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from tfprep.builder.receipts import Moments
from tfprep.fields import Array

_CV_CHANNELS = 4
"""Number of channels that OpenCV's statistics take at once."""
_FEW = 64
"""Numbers that are counted one by one: for a label among a thousand classes, `bincount` would make a thousand zeros a sample."""


def image_moments(image: Array) -> Moments:
    """Return the sums of an image [H, W, C]: exact for uint8, to within rounding of float64 for other dtypes.

    OpenCV adds whole numbers and divides them at the end; multiplied back and rounded, they are exact.
    """
    groups = [
        cv2.meanStdDev(image[:, :, first : first + _CV_CHANNELS]) for first in range(0, image.shape[2], _CV_CHANNELS)
    ]
    pixels = image.shape[0] * image.shape[1]
    means, deviations = ([value for group in groups for value in group[part].ravel().tolist()] for part in (0, 1))
    sums = [m * pixels for m in means]
    squares = [(s * s + m * m) * pixels for m, s in zip(means, deviations, strict=True)]
    if image.dtype.kind == "f":
        return Moments(pixels, tuple(sums), tuple(squares))
    return Moments(pixels, tuple(map(round, sums)), tuple(map(round, squares)))


def class_counts(value: Any, classes: int) -> Counter[int]:
    """Count how often each class occurs in a label (or several), or in the pixels of a mask; other numbers are left out."""
    numbers = np.asarray(value).reshape(-1)
    if numbers.size <= _FEW:
        return Counter(number for number in numbers.tolist() if 0 <= number < classes)
    counts = np.bincount(numbers.astype(np.int64), minlength=classes)[:classes]
    return Counter({number: int(counts[number]) for number in np.flatnonzero(counts).tolist()})


def add_counts(before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(before, after, strict=True)) if before else tuple(after)
