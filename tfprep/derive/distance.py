"""Distance maps of a mask's classes, and the weight map of U-Net.

All distances are Euclidean, in pixels, between pixel centers, and exact. The pixels of a class need not be connected. Several
classes give one channel each.

`cv2.distanceTransform(DIST_L2, DIST_MASK_PRECISE)` (Felzenszwalb and Huttenlocher, 'Distance Transforms of Sampled Functions',
2012) is exact to a few 1e-6 pixels, but its last bits depend on the address of its output. Squared distances are whole numbers,
so rounding them and taking the root again gives the float32 nearest to the true distance; above 1,024 pixels float32 no longer
tells neighboring distances apart, and the last bit stays open. OpenCV returns garbage for an array without a zero, so it is
never called with one.

The weights are those of Ronneberger, Fischer and Brox, MICCAI 2015, equation 2:
w(x) = w_c(x) + w₀ · exp(-(d₁(x) + d₂(x))² / 2σ²), with d₁, d₂ the distances from x to the nearest and to the second nearest
cell. They make a network learn the narrow gaps between touching cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, hypot
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np

from tfprep.checks import require, require_class, require_classes, require_number, require_positive
from tfprep.derive.inputs import counted_from_0, mask_of
from tfprep.fields import Array, Kind, Sample
from tfprep.optional import cv2

Targets: TypeAlias = int | tuple[int, ...]
DistanceDtype: TypeAlias = Literal["uint8", "uint16", "float16", "float32"]
_HIGHEST = {"uint8": 255, "uint16": 65535}


@dataclass(frozen=True)
class _OfClasses:
    """A map of one class of a mask, [H, W], or [H, W, K] for a tuple of K classes."""

    kind: ClassVar[Kind] = "map"
    follows: ClassVar[frozenset[str]] = frozenset({"crop", "flip"})
    inputs: ClassVar[tuple[str, ...]] = ("mask",)

    mask: str = "mask"
    target: Targets = 1
    truncate_px: float | None = field(default=None, kw_only=True)
    normalize: bool = field(default=False, kw_only=True)
    dtype: DistanceDtype = field(default="float32", kw_only=True)
    void: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        name, targets = type(self).__name__, self.target if isinstance(self.target, tuple) else (self.target,)
        require(len(targets) > 0, f"{name}.target names at least one class", self.target, "for example target=1")
        for target in targets:
            require_class(f"{name}.target", target)
        require_classes(self, "void")
        if self.truncate_px is not None:
            require_positive(f"{name}.truncate_px", self.truncate_px)
        dtypes = get_args(DistanceDtype)
        require(self.dtype in dtypes, f"{name}.dtype is one of {dtypes}", self.dtype, "choose one")
        rule = f"{name}.normalize divides by truncate_px"
        require(not self.normalize or self.truncate_px is not None, rule, None, "give truncate_px, for example 20")

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        if not isinstance(self.target, tuple):
            return self.channel(mask, self.target)
        return np.stack([self.channel(mask, target) for target in self.target], axis=2)

    def channel(self, mask: Array, target: int) -> Array:
        """The map of one class."""
        raise NotImplementedError


@dataclass(frozen=True)
class Distance(_OfClasses):
    """Measures the distance of every pixel to a class of a mask: [H, W], or [H, W, K] for a tuple of K classes.

    Where there is nothing to measure to (the class is absent, or covers all and has no boundary), every pixel in question
    is at `truncate_px`, or without truncation at the image's diagonal.

    Attributes:
        mask: the field of class numbers.
        target: the class, or a tuple of K classes.
        to: "class" measures to the nearest pixel of the class and gives 0 inside. "inside" measures from a pixel of the class to
            the nearest pixel of any other and gives 0 outside. "boundary" measures to the nearest boundary pixel from both
            sides; a boundary pixel belongs to the class and has one of its 4 neighbors in another. The image's edge is not a
            boundary.
        truncate_px: greater distances become this one; None keeps them.
        normalize: divide by `truncate_px`, so that it becomes the highest value of the dtype (255, 65535 or 1.0).
        dtype: "uint8", "uint16", "float16" or "float32"; whole numbers are rounded to nearest.
        void: pixels of this class belong neither to the class nor to another: no distance is measured to them, and they make
            no boundary.
    """

    to: Literal["class", "inside", "boundary"] = "class"

    def __post_init__(self) -> None:
        known = self.to in ("class", "inside", "boundary")
        require(known, "Distance.to is 'class', 'inside' or 'boundary'", self.to, "choose one")
        super().__post_init__()
        if self.dtype in _HIGHEST and not self.normalize:
            fits = self.truncate_px is not None and self.truncate_px <= _HIGHEST[self.dtype]
            rule = f"Distance in {self.dtype} needs truncate_px of at most {_HIGHEST[self.dtype]}, or normalize"
            require(fits, rule, self.truncate_px, "or take dtype='float32'")

    def channel(self, mask: Array, target: int) -> Array:
        inside = mask == target
        whole = inside if self.void is None else inside | (mask == self.void)
        if self.to == "class":
            distance = distance_to(inside, within_px=self.truncate_px)
        elif self.to == "boundary":
            distance = distance_to(inner_boundary(whole) & inside, within_px=self.truncate_px)
        else:
            distance = depth_in(whole, self.truncate_px)
            distance[~inside] = 0
            if self.truncate_px is not None:
                distance = np.minimum(distance, np.float32(self.truncate_px))
        if self.normalize and self.truncate_px is not None:
            distance *= np.float32(_HIGHEST.get(self.dtype, 1) / self.truncate_px)
        return _as(distance, self.dtype)


@dataclass(frozen=True)
class SignedDistance(_OfClasses):
    """Measures the distance of every pixel to the outline of a class: negative inside, positive outside; [H, W], or [H, W, K].

    A class that covers all has - `truncate_px` everywhere, an absent one + `truncate_px` ("edge"); without truncation that
    is the image's diagonal.

    Attributes:
        mask: the field of class numbers.
        target: the class, or a tuple of K classes.
        outline: where zero is, with d the distance of a pixel to the nearest pixel on the other side. "edge" is half-way
            between the pixels: d - 0.5 outside, 0.5 - d inside. "inner" is on the outermost pixels of the class: d outside,
            1 - d inside. This is φ of Kervadec et al., 'Boundary loss for highly unbalanced segmentation', MIDL 2019 (their
            `one_hot2dist`), where an absent class gives 0 everywhere, so that its loss vanishes.
        truncate_px: distances are cut at ± this; None keeps them.
        normalize: divide by `truncate_px`, to -1 to 1 in floating dtypes.
        dtype: "float16" and "float32" hold d. "uint8" and "uint16" need `truncate_px` and hold 128 + 127 · d / truncate_px and
            32768 + 32767 · d / truncate_px, rounded, so that zero is 128 or 32768.
        void: pixels of this class are on no side: no distance is measured to them, and they are at 0.
    """

    outline: Literal["edge", "inner"] = "edge"

    def __post_init__(self) -> None:
        known = self.outline in ("edge", "inner")
        require(known, "SignedDistance.outline is 'edge' or 'inner'", self.outline, "choose one")
        super().__post_init__()
        if self.dtype in _HIGHEST:
            rule = f"SignedDistance in {self.dtype} needs truncate_px"
            require(self.truncate_px is not None, rule, None, "for example truncate_px=20, or dtype='float32'")

    def channel(self, mask: Array, target: int) -> Array:
        inside = mask == target
        outside = ~inside if self.void is None else ~(inside | (mask == self.void))
        if inside.any() and outside.any():
            # Cut a pixel later than asked, so that the outline's half pixel does not shorten what is cut.
            cut = None if self.truncate_px is None else self.truncate_px + 1
            to_inside = distance_to(inside, within_px=cut)
            to_outside = depth_in(inside) if self.void is None else distance_to(outside, within_px=cut)
            out_by, in_by = (0.5, 0.5) if self.outline == "edge" else (0.0, 1.0)
            signed = np.where(inside, in_by - to_outside, to_inside - out_by)
        else:
            far = hypot(*mask.shape) if self.truncate_px is None else self.truncate_px
            level = -far if inside.any() else far if self.outline == "edge" else 0
            signed = np.full(mask.shape, level, np.float32)
        if self.void is not None:
            signed[mask == self.void] = 0
        if self.truncate_px is None:
            return _as(signed, self.dtype)
        np.clip(signed, -self.truncate_px, self.truncate_px, out=signed)
        if self.dtype in _HIGHEST:
            half = _HIGHEST[self.dtype] // 2
            return _as(signed * np.float32(half / self.truncate_px) + np.float32(half + 1), self.dtype)
        return _as(signed / np.float32(self.truncate_px) if self.normalize else signed, self.dtype)


def _as(distance: Array, dtype: DistanceDtype) -> Array:
    return distance.astype(dtype) if dtype.startswith("float") else np.rint(distance).astype(dtype)


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
    outside = np.logical_not(region[box]).view(np.uint8)
    distance = np.asarray(cv2.distanceTransform(outside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE))
    np.multiply(distance, distance, out=distance)
    np.rint(distance, out=distance)
    np.sqrt(distance, out=distance)
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


def inner_boundary(region: Array) -> Array:
    """bool [H, W]: the pixels of `region` with one of their 4 neighbors outside it. The image's edge is not a boundary."""
    inside, cross = region.view(np.uint8), np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], np.uint8)
    eroded = cv2.erode(inside, cross, borderType=cv2.BORDER_CONSTANT, borderValue=1)
    return np.asarray(inside != eroded)


_REACH = 6.0
"""Beyond d₁ + d₂ = 6σ the second term is below w₀ · 2e-8 and counts as 0, so that each cell needs only its surroundings."""


@dataclass(frozen=True)
class UNetWeights:
    """Computes the weight of each pixel: float32 [H, W].

    Distances are between pixel centers, 0 inside a cell. With fewer than two cells the second term is 0.

    Attributes:
        mask: the field that numbers the cells 1, 2, … on a background of 0.
        w0: w₀; the paper's is 10.
        sigma_px: σ; the paper's is about 5 pixels.
        balance: w_c balances background and cells: each pixel weighs total / (2 · pixels of its side), so that both sides sum to
            the same, or 1 where one side is empty. False makes w_c 1.
        instances: False takes all that is not 0 for foreground, and its 8-connected parts for the cells.
        inside: draw the second term everywhere. False draws it on the background only, as published code does.
        void: the number of regions that are neither cell nor background, such as 255 in Pascal VOC: their pixels weigh 0.
    """

    kind: ClassVar[Kind] = "map"
    follows: ClassVar[frozenset[str]] = frozenset({"crop", "flip"})
    inputs: ClassVar[tuple[str, ...]] = ("mask",)
    background: ClassVar[int] = 0

    mask: str = "mask"
    w0: float = 10.0
    sigma_px: float = 5.0
    balance: bool = True
    instances: bool = True
    inside: bool = False
    void: int | None = None

    def __post_init__(self) -> None:
        require_number("UNetWeights.w0", self.w0, 0, example=10)
        require_positive("UNetWeights.sigma_px", self.sigma_px)
        require_classes(self, "void")

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = counted_from_0(mask_of(sample, self.mask))
        void = np.zeros(mask.shape, bool) if self.void is None else mask == self.void
        mask = np.where(void, 0, mask).astype(mask.dtype) if void.any() else mask
        cells = mask if self.instances else components(mask > 0)
        nearest, second = two_nearest(cells, _REACH * self.sigma_px)
        with np.errstate(over="ignore"):
            gaps = np.exp(np.square(nearest + second) / np.float32(-2 * self.sigma_px**2))
        weights = np.float32(self.w0) * np.asarray(gaps)
        if not self.inside:
            weights[cells > 0] = 0
        inside, total = int((cells > 0).sum()), int((~void).sum())
        if self.balance and 0 < inside < total:
            shares = np.array([total / (2 * (total - inside)), total / (2 * inside)], np.float32)
            weights += shares[(cells > 0).view(np.uint8)]
        else:
            weights += np.float32(1)
        weights[void] = 0
        return np.asarray(weights)


def two_nearest(cells: Array, reach_px: float) -> tuple[Array, Array]:
    """float32 [H, W] twice: the distances to the nearest and to the second nearest cell, infinite beyond `reach_px`.

    Each cell is transformed inside its bounding box widened by the reach: the work grows with the cells' surroundings, not
    with their number times the image.
    """
    nearest = np.full(cells.shape, np.inf, np.float32)
    second = nearest.copy()
    for number, box in boxes_of(cells):
        window = tuple(
            slice(max(0, side.start - ceil(reach_px)), min(length, side.stop + ceil(reach_px)))
            for side, length in zip(box, cells.shape, strict=True)
        )
        distance = distance_to(cells[window] == number)
        distance[distance > reach_px] = np.inf
        first, other = nearest[window], second[window]
        np.minimum(other, np.maximum(first, distance), out=other)
        np.minimum(first, distance, out=first)
    return nearest, second


def components(region: Array) -> Array:
    """int32 [H, W]: the 8-connected parts of a bool [H, W] numbered from 1."""
    return np.asarray(cv2.connectedComponents(region.astype(np.uint8), connectivity=8)[1])


def boxes_of(cells: Array) -> list[tuple[int, Box]]:
    """The number of each cell, ascending, and the smallest window that holds it; 0 is not a cell."""
    rows, columns = np.nonzero(cells)
    if not len(rows):
        return []
    numbers, index = np.unique(cells[rows, columns], return_inverse=True)
    low = np.full((len(numbers), 2), np.iinfo(np.intp).max)
    high = np.zeros((len(numbers), 2), np.intp)
    for axis, positions in enumerate((rows, columns)):
        np.minimum.at(low[:, axis], index, positions)
        np.maximum.at(high[:, axis], index, positions + 1)
    return [
        (int(number), (slice(int(a[0]), int(b[0])), slice(int(a[1]), int(b[1]))))
        for number, a, b in zip(numbers, low, high, strict=True)
    ]
