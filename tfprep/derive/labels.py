"""Derived inputs of a mask: boundaries, one-hot classes, single objects; boxes around instances and their classes; centers and
offsets after Cheng et al., 'Panoptic-DeepLab', CVPR 2020.

An instance's center is the mean of its pixels' centers, so it may be outside a curved one. Instances are the numbers 1, 2, …
of a mask; `background` and `void` are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from tfprep.checks import require, require_classes, require_count, require_distance, require_positive
from tfprep.derive.distance import ERROR_PX, boxes_of, components, distance_to
from tfprep.derive.heatmaps import stamp_gaussian
from tfprep.derive.inputs import classes_of, counted_from_0, mask_of, merged
from tfprep.errors import SampleError
from tfprep.fields import EFFECTS, Array, Kind, Sample
from tfprep.optional import cv2


@dataclass(frozen=True)
class Boundaries:
    """Marks the boundaries between a mask's classes (or instances): uint8 [H, W], 1 on a boundary, else 0.

    - "thick": every pixel that has one of its 4 neighbors in another class.
    - "inner": those of them that are not of the class `background`.
    - "outer": the pixels of `background` next to another class, and where two others touch both sides: what
      scikit-image's `find_boundaries(mode="outer")` gives.

    With `width_px` above 0 the boundary grows by all pixels within that distance. Pixels of the class `void` bound nothing and
    are not objects.
    """

    kind: ClassVar[Kind] = "mask"
    follows: ClassVar[frozenset[str]] = frozenset({"crop", "flip"})
    inputs: ClassVar[tuple[str, ...]] = ("mask",)

    mask: str = "mask"
    mode: Literal["thick", "inner", "outer"] = "thick"
    width_px: float = 0
    background: int = 0
    void: int | None = None

    def __post_init__(self) -> None:
        known = self.mode in ("thick", "inner", "outer")
        require(known, "Boundaries.mode is 'thick', 'inner' or 'outer'", self.mode, "choose one")
        require_distance("Boundaries.width_px", self.width_px)
        require_classes(self, "background", "void")

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        edge = np.zeros(mask.shape, bool)
        for numbers, marks in ((mask, edge), (mask.T, edge.T)):
            differ = numbers[:-1] != numbers[1:]
            if self.void is not None:
                differ &= (numbers[:-1] != self.void) & (numbers[1:] != self.void)
            marks[:-1] |= differ
            marks[1:] |= differ
        if self.mode == "inner":
            edge &= mask != self.background
        if self.mode == "outer":
            # Also pixels of an object with two different objects among themselves and their 8 neighbors.
            none = (mask == self.background) | (mask == self.background if self.void is None else mask == self.void)
            square = np.ones((3, 3), np.uint8)  # and float64, which holds every number of an object
            highest = cv2.dilate(np.where(none, -np.inf, mask), square)
            lowest = cv2.erode(np.where(none, np.inf, mask), square)
            edge &= (mask == self.background) | (~none & (highest != lowest))
        if self.width_px > 0 and edge.any():
            edge = distance_to(edge) < self.width_px + ERROR_PX
        return edge.astype(np.uint8)


@dataclass(frozen=True)
class OneHot:
    """Gives each class a channel: uint8 [H, W, classes] with 1 in the channel of the pixel's class. Pixels of the class
    `ignore` are 0 in all channels.

    Raises SampleError where the mask holds another number.
    """

    kind: ClassVar[Kind] = "map"
    follows: ClassVar[frozenset[str]] = frozenset({"crop", "flip"})
    inputs: ClassVar[tuple[str, ...]] = ("mask",)

    classes: int
    mask: str = "mask"
    ignore: int | None = None

    def __post_init__(self) -> None:
        require_count("OneHot.classes", self.classes, 1)
        require_classes(self, "ignore")

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        for number in classes_of(mask) if mask.dtype.kind == "i" or mask.max(initial=0) >= self.classes else ():
            if number >= self.classes and number != self.ignore:
                rule = f"{self.mask!r} holds the class {number}, OneHot has {self.classes} classes"
                raise SampleError(f"{rule} and ignores {self.ignore}", stage="derive")
        channels = [
            np.zeros(mask.shape, np.uint8) if number == self.ignore else (mask == number).view(np.uint8)
            for number in range(self.classes)
        ]
        return merged(channels)


@dataclass(frozen=True)
class OneObject:
    """Draws one object of a class at random: a mask with 1 for it, 2, 3, … for all others, 0 and 255 for no object.

    Objects are the 8-connected parts of each class. uint8, or uint16 for more than 254 objects. Where there is none to draw, no
    pixel is 1. `Clicks(mask=..., target=1)` then simulates a user who selects this object.

    Attributes:
        mask: the field of class numbers.
        target: the class; one of its objects is drawn, each with the same probability.
        min_px: smaller objects, in pixels, are not drawn.
        background: the class that becomes 0.
        void: the class that becomes 255.
    """

    kind: ClassVar[Kind] = "mask"
    follows: ClassVar[frozenset[str]] = EFFECTS
    inputs: ClassVar[tuple[str, ...]] = ("mask",)

    mask: str = "mask"
    target: int = 1
    min_px: int = 1
    background: int | None = 0
    void: int | None = None

    def __post_init__(self) -> None:
        require_classes(self, "target", "background", "void")
        require_count("OneObject.min_px", self.min_px, 1)
        is_object = self.target not in (self.background, self.void)
        require(
            is_object, "OneObject.target is neither background nor void", self.target, "background=None has objects"
        )

    @property
    def marks_void(self) -> int | None:
        """The number of void pixels in the new mask."""
        return None if self.void is None else 255

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        numbered = np.zeros(mask.shape, np.int64)
        candidates: list[int] = []
        count = 1
        for label in classes_of(mask):
            if label in (self.background, self.void):
                continue
            objects = components(mask == label)
            sizes = np.bincount(objects.ravel())[1:]
            if label == self.target:
                candidates = [count + 1 + number for number, size in enumerate(sizes) if size >= self.min_px]
            numbered[objects > 0] = objects[objects > 0] + count
            count += len(sizes)
        if candidates:
            numbered[numbered == candidates[generator.integers(len(candidates))]] = 1
        highest = numbered.max(initial=0)
        if highest > 65534:
            raise SampleError(f"{self.mask!r} has {count - 1} objects, uint16 numbers up to 65534", stage="derive")
        narrow = (numbered + (numbered >= 255)).astype(np.uint8 if highest < 255 else np.uint16)
        if self.void is not None:
            narrow[mask == self.void] = 255
        return narrow


@dataclass(frozen=True)
class _OfInstances:
    """A derived input of the instances of a mask."""

    inputs: ClassVar[tuple[str, ...]] = ("mask",)

    mask: str = "mask"
    min_px: int = field(default=1, kw_only=True)
    background: int = field(default=0, kw_only=True)
    void: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_count(f"{type(self).__name__}.min_px", self.min_px, 1)
        require_classes(self, "background", "void")

    def numbered(self, sample: Sample, min_px: int = 1) -> Array:
        """The mask, int64, with 0 for all that is not an instance of at least `min_px` pixels."""
        mask = mask_of(sample, self.mask)
        none = (mask == self.background) | (mask == (self.background if self.void is None else self.void))
        numbered = np.where(none, 0, counted_from_0(mask).astype(np.int64) + 1)
        if min_px > 1:
            numbered[np.bincount(numbered.ravel())[numbered] < min_px] = 0
        return numbered


@dataclass(frozen=True)
class InstanceCenters(_OfInstances):
    """Draws a Gaussian around each instance's center, joined by maximum: float32 [H, W]. The paper's σ is 8 pixels."""

    kind: ClassVar[Kind] = "map"
    follows: ClassVar[frozenset[str]] = EFFECTS

    sigma_px: float = 8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("InstanceCenters.sigma_px", self.sigma_px)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        numbered = self.numbered(sample, self.min_px)
        heatmap = np.zeros(numbered.shape, np.float32)
        for x, y in centers(numbered):
            if np.isfinite(x):
                stamp_gaussian(heatmap, x, y, self.sigma_px)
        return heatmap


@dataclass(frozen=True)
class InstanceOffsets(_OfInstances):
    """Points from each pixel of an instance to its center: float32 [H, W, 2], down and right in pixels, the order (y, x) of the
    paper's code; 0 where there is no instance."""

    kind: ClassVar[Kind] = "map"
    follows: ClassVar[frozenset[str]] = frozenset({"crop"})

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        numbered = self.numbered(sample, self.min_px)
        offsets = np.zeros((*numbered.shape, 2), np.float32)
        rows, columns = np.nonzero(numbered)
        x, y = centers(numbered)[numbered[rows, columns]].T
        offsets[rows, columns, 0], offsets[rows, columns, 1] = y - rows - 0.5, x - columns - 0.5
        return offsets


@dataclass(frozen=True)
class InstanceBoxes(_OfInstances):
    """Gives the smallest box around the pixels of each instance: float32 [N, 4], x0, y0, x1, y1, in the order of their numbers.

    After a rotation these boxes are tighter than boxes of mapped corners.
    """

    kind: ClassVar[Kind] = "boxes"
    follows: ClassVar[frozenset[str]] = EFFECTS

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        boxes = [(x.start, y.start, x.stop, y.stop) for _, (y, x) in boxes_of(self.numbered(sample, self.min_px))]
        return np.array(boxes, np.float32).reshape(-1, 4)


@dataclass(frozen=True)
class InstanceClasses(_OfInstances):
    """Gives the class that most pixels of each instance have in the mask `classes`: int64 [N], the lower of equals.

    The order is that of `InstanceBoxes` with the same options.
    """

    kind: ClassVar[Kind] = "label"
    follows: ClassVar[frozenset[str]] = EFFECTS
    inputs: ClassVar[tuple[str, ...]] = ("mask", "classes")

    classes: str = "classes"

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        classes = counted_from_0(mask_of(sample, self.classes)).astype(np.int64)
        width = int(classes.max(initial=0)) + 1
        pairs, counts = np.unique(self.numbered(sample, self.min_px) * width + classes, return_counts=True)
        of_each = (pairs // width == number for number in np.unique(pairs // width) if number)
        return np.array([pairs[of_it][counts[of_it].argmax()] % width for of_it in of_each], np.int64)


@dataclass(frozen=True)
class OneInstance(_OfInstances):
    """Draws one instance at random: a mask with 1 for it, 2 for all others, 0 for background and 255 for void, uint8.

    `Clicks(mask=..., target=1)` then simulates a user who selects this object. Where there is none to draw, no pixel is 1.

    Attributes:
        mask: the field that numbers the instances.
        min_px: smaller instances, in pixels, are not drawn.
        classes: the field of class numbers, if only instances of the class `target` are drawn: those with most pixels in it.
        target: that class.
        background: the number that is not an instance.
        void: the number of regions that are neither instance nor background.
    """

    kind: ClassVar[Kind] = "mask"
    follows: ClassVar[frozenset[str]] = EFFECTS
    inputs: ClassVar[tuple[str, ...]] = ("mask", "classes")

    mask: str = "instances"
    classes: str | None = field(default=None, kw_only=True)
    target: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_classes(self, "target")

    marks_void = OneObject.marks_void

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        numbered = self.numbered(sample)
        numbers, counts = np.unique(numbered[numbered > 0], return_counts=True)
        numbers = numbers[counts >= self.min_px]
        if self.classes is not None:
            of_class = mask_of(sample, self.classes) == self.target
            numbers = numbers[[bool(of_class[numbered == number].mean() > 0.5) for number in numbers]]
        drawn = np.where(numbered > 0, 2, 0).astype(np.uint8)
        if self.void is not None:
            drawn[mask_of(sample, self.mask) == self.void] = 255
        if len(numbers):
            drawn[numbered == numbers[generator.integers(len(numbers))]] = 1
        return drawn


def centers(numbered: Array) -> Array:
    """float64 [N + 1, 2]: x, y of the center of each number; NaN for 0 and those that do not occur."""
    rows, columns = np.nonzero(numbered)
    numbers = numbered[rows, columns]
    counts = np.bincount(numbers)
    with np.errstate(invalid="ignore"):
        return np.stack([np.bincount(numbers, along) / counts + 0.5 for along in (columns, rows)], axis=1)
