"""Derived inputs of a mask, pixel by pixel: boundaries, one-hot classes, single objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import cv2
import numpy as np

from tfprep.checks import require, require_class, require_count, require_distance
from tfprep.derive.edt import ERROR_PX, distance_to
from tfprep.derive.inputs import classes_of, mask_of
from tfprep.derive.unet import components
from tfprep.errors import SampleError
from tfprep.fields import Array, Kind, Sample

_CROSS = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))


@dataclass(frozen=True)
class Boundaries:
    """Marks the boundaries between a mask's classes (or instances): uint8 [H, W], 1 on a boundary, else 0.

    - "thick": every pixel that has one of its 4 neighbours in another class.
    - "inner": those of them that are not of the class `background`.
    - "outer": the pixels of `background` next to another class, and where two others touch both sides: what
      scikit-image's `find_boundaries(mode="outer")` gives.

    With `width_px` above 0 the boundary grows by all pixels within that distance. Pixels of the class `void` bound nothing and
    are no object.
    """

    kind: ClassVar[Kind] = "mask"

    mask: str = "mask"
    mode: Literal["thick", "inner", "outer"] = "thick"
    width_px: float = 0
    background: int = 0
    void: int | None = None

    def __post_init__(self) -> None:
        known = self.mode in ("thick", "inner", "outer")
        require(known, "Boundaries.mode is 'thick', 'inner' or 'outer'", self.mode, "choose one")
        require_distance("Boundaries.width_px", self.width_px)
        require_class("Boundaries.background", self.background)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        edge = thick_boundaries(mask, self.void)
        if self.mode == "inner":
            edge &= mask != self.background
        if self.mode == "outer":
            edge &= (mask == self.background) | _touching_others(mask, self.background, self.void)
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

    classes: int
    mask: str = "mask"
    ignore: int | None = None

    def __post_init__(self) -> None:
        require_count("OneHot.classes", self.classes, 1)
        if self.ignore is not None:
            require_class("OneHot.ignore", self.ignore)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        if mask.max(initial=0) >= self.classes:
            self._check(mask)
        channels = [
            np.zeros(mask.shape, np.uint8) if number == self.ignore else (mask == number).view(np.uint8)
            for number in range(self.classes)
        ]
        return np.asarray(cv2.merge(channels)).reshape(*mask.shape, self.classes)

    def _check(self, mask: Array) -> None:
        for number in classes_of(mask):
            if number >= self.classes and number != self.ignore:
                rule = f"{self.mask!r} holds the class {number}, OneHot has {self.classes} classes"
                raise SampleError(f"{rule} and ignores {self.ignore}", stage="derive")


@dataclass(frozen=True)
class OneObject:
    """Draws one object of a class at random: a mask with 1 for it, 2, 3, … for all others, 0 and 255 for no object.

    Objects are the 8-connected parts of each class. uint8, or uint16 for more than 254 objects. Where there is none to draw, no
    pixel is 1. `Clicks(mask=..., target=1)` then simulates a user who selects this object.

    Attributes:
        mask: the field of class numbers.
        target: the class of which one object is drawn, each with the same probability.
        min_px: smaller objects, in pixels, are not drawn.
        background: the class that becomes 0.
        void: the class that becomes 255.
    """

    kind: ClassVar[Kind] = "mask"

    mask: str = "mask"
    target: int = 1
    min_px: int = 1
    background: int | None = 0
    void: int | None = None

    def __post_init__(self) -> None:
        require_class("OneObject.target", self.target)
        require_count("OneObject.min_px", self.min_px, 1)

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
        return _narrow(numbered, mask == self.void if self.void is not None else None)


def thick_boundaries(mask: Array, void: int | None = None) -> Array:
    """bool [H, W]: pixels with one of their 4 neighbours in another class; pairs with `void` do not count."""
    edge = np.zeros(mask.shape, bool)
    for axis in (0, 1):
        first, second = (slice(None, -1), slice(1, None))
        one, other = (mask[first], mask[second]) if axis == 0 else (mask[:, first], mask[:, second])
        differ = one != other
        if void is not None:
            differ &= (one != void) & (other != void)
        view = edge if axis == 0 else edge.T
        differ = differ if axis == 0 else differ.T
        view[:-1] |= differ
        view[1:] |= differ
    return edge


def _touching_others(mask: Array, background: int, void: int | None) -> Array:
    """bool [H, W]: pixels of an object with two different objects among themselves and their 8 neighbours."""
    none = mask == background if void is None else (mask == background) | (mask == void)
    # float32 holds every class, and numbers below and above all of them.
    numbers, square = mask.astype(np.float32), np.ones((3, 3), np.uint8)
    highest = cv2.dilate(np.where(none, np.float32(-1), numbers), square)
    lowest = cv2.erode(np.where(none, np.float32(1 << 16), numbers), square)
    return np.asarray(~none & (highest != lowest))


def _narrow(numbered: Array, void: Array | None) -> Array:
    dtype = np.uint8 if numbered.max(initial=0) < 255 else np.uint16
    if dtype is np.uint16:
        numbered = numbered + (numbered >= 255)
    narrow = numbered.astype(dtype)
    if void is not None:
        narrow[void] = 255
    return narrow
