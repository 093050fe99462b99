"""Instances: boxes around them and their classes; centres and offsets after Cheng et al., 'Panoptic-DeepLab', CVPR 2020.

An instance's centre is the mean of its pixels' centres, so it may lie outside a curved one. Instances are the numbers 1, 2, …
of a mask; `background` and `void` are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfprep.checks import require_count, require_positive
from tfprep.derive.heatmaps import stamp_gaussian
from tfprep.derive.inputs import mask_of
from tfprep.fields import Array, Kind, Sample


@dataclass(frozen=True)
class InstanceCenters:
    """Draws a Gaussian around each instance's centre, joined by maximum: float32 [H, W]. The paper's σ is 8 pixels."""

    kind: ClassVar[Kind] = "map"

    mask: str = "mask"
    sigma_px: float = 8.0
    background: int = 0
    void: int | None = None

    def __post_init__(self) -> None:
        require_positive("InstanceCenters.sigma_px", self.sigma_px)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        heatmap = np.zeros(mask.shape, np.float32)
        for x, y in centres(_instances(mask, self.background, self.void)):
            if np.isfinite(x):
                stamp_gaussian(heatmap, x, y, self.sigma_px)
        return heatmap


@dataclass(frozen=True)
class InstanceOffsets:
    """Points from each pixel of an instance to its centre: float32 [H, W, 2], down and right in pixels, the order (y, x) of the
    paper's code; 0 where there is no instance."""

    kind: ClassVar[Kind] = "map"

    mask: str = "mask"
    background: int = 0
    void: int | None = None

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        numbered = _instances(mask_of(sample, self.mask), self.background, self.void)
        offsets = np.zeros((*numbered.shape, 2), np.float32)
        rows, columns = np.nonzero(numbered)
        x, y = centres(numbered)[numbered[rows, columns]].T
        offsets[rows, columns, 0], offsets[rows, columns, 1] = y - rows - 0.5, x - columns - 0.5
        return offsets


@dataclass(frozen=True)
class InstanceBoxes:
    """Gives the smallest box around the pixels of each instance: float32 [N, 4], x0, y0, x1, y1, in the order of their numbers.

    Instances of fewer than `min_px` pixels are left out. After a rotation these boxes are tighter than boxes of mapped corners.
    """

    kind: ClassVar[Kind] = "boxes"

    mask: str = "mask"
    min_px: int = 1
    background: int = 0
    void: int | None = None

    def __post_init__(self) -> None:
        require_count("InstanceBoxes.min_px", self.min_px, 1)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        numbered = _instances(mask_of(sample, self.mask), self.background, self.void)
        rows, columns = np.nonzero(numbered)
        numbers, index, counts = np.unique(numbered[rows, columns], return_inverse=True, return_counts=True)
        boxes = np.empty((len(numbers), 4))
        for column, positions in enumerate((columns, rows)):
            boxes[:, column], boxes[:, column + 2] = np.inf, -np.inf
            np.minimum.at(boxes[:, column], index, positions)
            np.maximum.at(boxes[:, column + 2], index, positions + 1)
        return boxes[counts >= self.min_px].astype(np.float32)


@dataclass(frozen=True)
class InstanceClasses:
    """Gives the class that most pixels of each instance have in the mask `classes`: int64 [N], the lower of equals.

    The order is that of `InstanceBoxes` with the same options.
    """

    kind: ClassVar[Kind] = "label"

    mask: str = "mask"
    classes: str = "classes"
    min_px: int = 1
    background: int = 0
    void: int | None = None

    def __post_init__(self) -> None:
        require_count("InstanceClasses.min_px", self.min_px, 1)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        numbered = _instances(mask_of(sample, self.mask), self.background, self.void)
        classes = mask_of(sample, self.classes).astype(np.int64)
        width = int(classes.max(initial=0)) + 1
        pairs, counts = np.unique(numbered * width + classes, return_counts=True)
        majority = []
        for number in np.unique(pairs // width):
            of_it = pairs // width == number
            if number and counts[of_it].sum() >= self.min_px:
                majority.append(pairs[of_it][counts[of_it].argmax()] % width)
        return np.array(majority, np.int64)


@dataclass(frozen=True)
class OneInstance:
    """Draws one instance at random: a mask with 1 for it, 2 for all others, 0 for background and 255 for void, uint8.

    `Clicks(mask=..., target=1)` then simulates a user who selects this object. Where there is none to draw, no pixel is 1.

    Attributes:
        mask: the field that numbers the instances.
        min_px: smaller instances, in pixels, are not drawn.
        classes: the field of class numbers, if only instances of the class `target` are drawn: those with most pixels in it.
        target: that class.
        background: the number that is no instance.
        void: the number of regions that are neither instance nor background.
    """

    kind: ClassVar[Kind] = "mask"

    mask: str = "instances"
    min_px: int = 1
    classes: str | None = None
    target: int = 1
    background: int = 0
    void: int | None = None

    def __post_init__(self) -> None:
        require_count("OneInstance.min_px", self.min_px, 1)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        numbered = _instances(mask, self.background, self.void)
        numbers, counts = np.unique(numbered[numbered > 0], return_counts=True)
        numbers = numbers[counts >= self.min_px]
        if self.classes is not None:
            of_class = mask_of(sample, self.classes) == self.target
            numbers = numbers[[bool(of_class[numbered == number].mean() > 0.5) for number in numbers]]
        drawn = np.where(numbered > 0, 2, 0).astype(np.uint8)
        if self.void is not None:
            drawn[mask == self.void] = 255
        if len(numbers):
            drawn[numbered == numbers[generator.integers(len(numbers))]] = 1
        return drawn


def centres(numbered: Array) -> Array:
    """float64 [N + 1, 2]: x, y of the centre of each number; NaN for 0 and those that do not occur."""
    rows, columns = np.nonzero(numbered)
    numbers = numbered[rows, columns]
    counts = np.bincount(numbers)
    with np.errstate(invalid="ignore"):
        return np.stack([np.bincount(numbers, along) / counts + 0.5 for along in (columns, rows)], axis=1)


def _instances(mask: Array, background: int, void: int | None) -> Array:
    """The mask with 0 for all that is no instance."""
    none = mask == background if void is None else (mask == background) | (mask == void)
    return np.where(none, 0, mask.astype(np.int64) + 1)
