"""The form of a stored field: its kind, dtype and rank, an image's channels and the numbers of a point. A dataset has one form
for each field.

Records may differ all the same: for example one mask of 16 bits among thousands of 8 bits. No shard can know which of them is
the exception, so each shard counts its samples by form. When all shards are built, the most common form becomes the dataset's,
and the shards that hold another one are built again without those samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import add
from typing import Any, TypeAlias

import numpy as np

from tfprep.errors import SampleError
from tfprep.fields import Array, FieldSpec
from tfprep.optional import cv2


@dataclass(frozen=True)
class FieldForm:
    """The number of samples of a shard that have a form, and the spec that holds for all that were written (None if none was)."""

    samples: int
    spec: FieldSpec | None


FieldForms: TypeAlias = Mapping[str, Mapping[str, FieldForm]]
"""By field, then by the form's name."""


@lru_cache(1000)  # the fields of a shard have few specs, unless sizes differ
def form_of(spec: FieldSpec) -> str:
    """Return the form's name, such as `image of uint8 [H, W, 3]` or `map of float32 [H, W, C]`."""
    axes = ["H", "W", "C", *(f"D{axis}" for axis in range(3, len(spec.shape)))][: len(spec.shape)]
    if spec.kind == "image":  # statistics and batches are by channel
        axes[2:3] = map(str, spec.shape[2:3])
    elif spec.kind == "points":  # x and y, or visible too
        axes[-1:] = map(str, spec.shape[-1:])
    return f"{spec.kind} of {spec.dtype} [{', '.join(axes)}]"


def merge(before: FieldSpec | None, after: FieldSpec | None) -> FieldSpec | None:
    """Return the spec that holds for two specs of one form: a side that differs becomes None."""
    if before is None or after is None or before == after:
        return before or after
    shape = tuple(a if a == b else None for a, b in zip(before.shape, after.shape, strict=True))
    return FieldSpec(before.kind, shape, before.dtype)


def of_variants(variants: Iterable[Mapping[str, FieldSpec]]) -> dict[str, FieldSpec]:
    """Return the specs that hold for all variants of one sample. Raises SampleError if their forms differ."""
    whole: dict[str, FieldSpec] = {}
    for specs in variants:
        for name, spec in specs.items():
            before = whole.setdefault(name, spec)
            if before is spec or before == spec:
                continue
            if form_of(before) != form_of(spec):
                reason = f"its variants differ: {form_of(before)} and {form_of(spec)}"
                raise SampleError(reason, stage="encode", field=name)
            whole[name] = merge(before, spec) or spec
    return whole


def check_expected(specs: Mapping[str, FieldSpec], expected: Mapping[str, str]) -> None:
    """Raise SampleError if a field does not have the form that most of the dataset's records have."""
    for name, form in expected.items():
        if name in specs and form_of(specs[name]) != form:
            reason = (
                f"it is {form_of(specs[name])}, most samples have {form}; a field has one dtype and rank in a dataset, an "
                "image one number of channels, and points one of columns"
            )
            raise SampleError(reason, stage="encode", field=name)


def count_forms(forms: dict[str, dict[str, FieldForm]], specs: Mapping[str, FieldSpec], *, written: bool) -> None:
    """Count one more sample in `forms`."""
    for name, spec in specs.items():
        form, of_field = form_of(spec), forms.setdefault(name, {})
        before = of_field.get(form, FieldForm(0, None))
        whole = before.spec if before.spec == spec or not written else merge(before.spec, spec)
        of_field[form] = FieldForm(before.samples + 1, whole)


def most_common(shards: Iterable[FieldForms]) -> dict[str, str]:
    """Return the form that most samples have, by field; of two that are equally common, the first by name."""
    totals: dict[str, Counter[str]] = {}
    for forms in shards:
        for name, of_field in forms.items():
            totals.setdefault(name, Counter()).update({form: counts.samples for form, counts in of_field.items()})
    return {name: min(total, key=lambda form: (-total[form], form)) for name, total in totals.items()}


def expected_of(forms: FieldForms, common: Mapping[str, str]) -> dict[str, str]:
    """Return what a shard with these forms must expect: the common form of each field in which it holds another."""
    return {name: common[name] for name, of_field in forms.items() if set(of_field) != {common[name]}}


# --- pixels and classes ------------------------------------------------------------------------------------------------


_CV_CHANNELS = 4
"""Number of channels that OpenCV's statistics take at once."""
_CV_DTYPES = ("uint8", "uint16", "float32", "float64")
"""Those that all versions of OpenCV take statistics of."""
_FEW = 64
"""Numbers that are counted one by one: for a label among a thousand classes, `bincount` would make a thousand zeros a sample."""


@dataclass(frozen=True)
class Moments:
    """Sums over the pixels of an image field, by channel. Those of whole numbers are exact, so the order of adding does not
    matter; those of floats are added in the order of samples and shards, which is always the same."""

    pixels: int = 0
    sums: tuple[float, ...] = ()
    squares: tuple[float, ...] = ()

    def plus(self, other: Moments) -> Moments:
        if not self.pixels or not other.pixels:
            return self if self.pixels else other
        sums, squares = map(add, self.sums, other.sums), map(add, self.squares, other.squares)
        return Moments(self.pixels + other.pixels, tuple(sums), tuple(squares))


def image_moments(image: Array) -> Moments:
    """Return the sums of an image [H, W, C]: exact for uint8, to within rounding of float64 for other dtypes.

    OpenCV adds whole numbers and divides them at the end; multiplied back and rounded, they are exact. Of four channels of 8 bits
    it adds several pixels at a time, of three it does not: a fourth makes it three times as fast.
    """
    channels, is_whole = image.shape[2], image.dtype.kind in "biu"
    if image.dtype.name not in _CV_DTYPES:
        image = image.astype(np.float64)
    if channels == 3 and image.dtype == np.uint8:
        image = cv2.cvtColor(image, cv2.COLOR_RGB2RGBA)
    pixels, groups = image.shape[0] * image.shape[1], []
    for first in range(0, image.shape[2], _CV_CHANNELS):
        groups.append(np.hstack(cv2.meanStdDev(image[:, :, first : first + _CV_CHANNELS])))
    means, deviations = np.concatenate(groups)[:channels].T
    sums = np.stack([means, deviations * deviations + means * means]) * pixels
    exact = np.rint(sums).astype(np.int64) if is_whole else sums
    return Moments(pixels, *map(tuple, exact.tolist()))


def class_counts(value: Any, classes: int) -> dict[int, int]:
    """Count how often each class occurs in a label (or several), or in the pixels of a mask; other numbers are left out."""
    numbers = np.asarray(value).reshape(-1)
    if numbers.size > _FEW:
        numbers = numbers[(numbers >= 0) & (numbers < classes)]  # void may be -1, or 2^32 - 1
        counts = np.bincount(numbers.astype(np.int64), minlength=classes)
        return {number: int(counts[number]) for number in np.flatnonzero(counts).tolist()}
    return Counter(number for number in numbers.tolist() if 0 <= number < classes)
