"""What a shard's records add up to: field specs, pixel sums, class counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from tfprep.build.receipt import Moments
from tfprep.errors import SampleError
from tfprep.fields import Array, FieldSpec


def merge_specs(before: Mapping[str, FieldSpec], after: Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
    """Specs that hold for both: a size that differs becomes None. SampleError where kind, dtype or rank differ."""
    return {name: _merge_spec(name, before.get(name), after.get(name)) for name in {**before, **after}}


def _merge_spec(name: str, before: FieldSpec | None, after: FieldSpec | None) -> FieldSpec:
    if before is None or after is None or before == after:
        return before or after  # type: ignore[return-value]
    if (before.kind, before.dtype, len(before.shape)) != (after.kind, after.dtype, len(after.shape)):
        was = f"{before.dtype} {list(before.shape)}"
        raise SampleError(
            f"it is {after.dtype} {list(after.shape)}, in other records {was}; a field has one dtype and rank in a dataset",
            stage="encode",
            field=name,
        )
    shape = tuple(a if a == b else None for a, b in zip(before.shape, after.shape, strict=True))
    return FieldSpec(before.kind, shape, before.dtype)


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
