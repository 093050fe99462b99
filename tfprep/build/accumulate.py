"""What a shard's records add up to: pixel sums, class counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from tfprep.build.receipt import Moments
from tfprep.fields import Array


def image_moments(image: Array) -> Moments:
    """Sums of a uint8 image [H, W, C]. OpenCV adds whole numbers; what it divides is multiplied back and rounded."""
    mean, deviation = cv2.meanStdDev(image)
    pixels = image.shape[0] * image.shape[1]
    squares = (deviation[:, 0] ** 2 + mean[:, 0] ** 2) * pixels
    return Moments(pixels, _whole(mean[:, 0] * pixels), _whole(squares))


def class_counts(value: Any, classes: Sequence[str]) -> tuple[int, ...]:
    """How often each class occurs in a label (or several), or in the pixels of a mask; other numbers are not counted."""
    numbers = np.asarray(value).reshape(-1)
    counts = np.bincount(numbers.astype(np.int64), minlength=len(classes))
    return tuple(int(count) for count in counts[: len(classes)])


def add_counts(before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(before, after, strict=True)) if before else tuple(after)


def _whole(values: Array) -> tuple[int, ...]:
    return tuple(int(value) for value in np.rint(values))
