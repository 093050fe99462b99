"""Distance maps of a mask's classes.

All distances are Euclidean, in pixels, between pixel centres, and exact (`tfprep.derive.edt`). The pixels of a class need
not be connected. Several classes give one channel each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import hypot
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np

from tfprep.checks import require, require_class, require_positive
from tfprep.derive.edt import depth_in, distance_to, inner_boundary
from tfprep.derive.inputs import mask_of
from tfprep.fields import Array, Kind, Sample

Targets: TypeAlias = int | tuple[int, ...]
DistanceDtype: TypeAlias = Literal["uint8", "uint16", "float16", "float32"]
_HIGHEST = {"uint8": 255, "uint16": 65535}


@dataclass(frozen=True)
class Distance:
    """Measures the distance of every pixel to a class of a mask: [H, W], or [H, W, K] for a tuple of K classes.

    Where there is nothing to measure to (the class is absent, or covers all and has no boundary), every pixel in question
    is at `truncate_px`, or without truncation at the image's diagonal.

    Attributes:
        mask: the field of class numbers.
        target: the class, or a tuple of K classes.
        to: "class" measures to the nearest pixel of the class and gives 0 inside. "inside" measures from a pixel of the class to
            the nearest pixel of any other and gives 0 outside. "boundary" measures to the nearest boundary pixel from both
            sides; a boundary pixel belongs to the class and has one of its 4 neighbours in another. The image's edge is no
            boundary.
        truncate_px: greater distances become this one; None keeps them.
        normalise: divide by `truncate_px`, so that it becomes the highest value of the dtype (255, 65535 or 1.0).
        dtype: "uint8", "uint16", "float16" or "float32"; whole numbers are rounded to nearest.
        void: pixels of this class belong neither to the class nor to another: no distance is measured to them, and they make
            no boundary.
    """

    kind: ClassVar[Kind] = "map"

    mask: str = "mask"
    target: Targets = 1
    to: Literal["class", "inside", "boundary"] = "class"
    truncate_px: float | None = None
    normalise: bool = False
    dtype: DistanceDtype = "float32"
    void: int | None = None

    def __post_init__(self) -> None:
        require(self.to in _REGIONS, "Distance.to is 'class', 'inside' or 'boundary'", self.to, "choose one")
        _check("Distance", self)
        if self.dtype in _HIGHEST and not self.normalise:
            fits = self.truncate_px is not None and self.truncate_px <= _HIGHEST[self.dtype]
            rule = f"Distance in {self.dtype} needs truncate_px of at most {_HIGHEST[self.dtype]}, or normalise"
            require(fits, rule, self.truncate_px, "or take dtype='float32'")

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        return _channels(self.target, lambda target: self._one(mask, target))

    def _one(self, mask: Array, target: int) -> Array:
        distance = _REGIONS[self.to](mask == target, _void(mask, self.void), self.truncate_px)
        if self.normalise and self.truncate_px is not None:
            distance *= np.float32(_HIGHEST.get(self.dtype, 1) / self.truncate_px)
        return _as(distance, self.dtype)


@dataclass(frozen=True)
class SignedDistance:
    """Measures the distance of every pixel to the outline of a class: negative inside, positive outside; [H, W], or [H, W, K].

    A class that covers all has - `truncate_px` everywhere, an absent one + `truncate_px` ("edge"); without truncation that
    is the image's diagonal.

    Attributes:
        mask: the field of class numbers.
        target: the class, or a tuple of K classes.
        outline: where zero lies, with d the distance of a pixel to the nearest pixel on the other side. "edge" is half-way
            between the pixels: d - 0.5 outside, 0.5 - d inside. "inner" is on the outermost pixels of the class: d outside,
            1 - d inside. This is φ of Kervadec et al., 'Boundary loss for highly unbalanced segmentation', MIDL 2019 (their
            `one_hot2dist`), where an absent class gives 0 everywhere, so that its loss vanishes.
        truncate_px: distances are cut at ± this; None keeps them.
        normalise: divide by `truncate_px`, to -1 to 1 in floating dtypes.
        dtype: "float16" and "float32" hold d. "uint8" and "uint16" need `truncate_px` and hold 128 + 127 · d / truncate_px and
            32768 + 32767 · d / truncate_px, rounded, so that zero is 128 or 32768.
        void: pixels of this class lie on no side: no distance is measured to them, and they are at 0.
    """

    kind: ClassVar[Kind] = "map"

    mask: str = "mask"
    target: Targets = 1
    outline: Literal["edge", "inner"] = "edge"
    truncate_px: float | None = None
    normalise: bool = False
    dtype: DistanceDtype = "float32"
    void: int | None = None

    def __post_init__(self) -> None:
        require(
            self.outline in ("edge", "inner"), "SignedDistance.outline is 'edge' or 'inner'", self.outline, "choose one"
        )
        _check("SignedDistance", self)
        if self.dtype in _HIGHEST:
            rule = f"SignedDistance in {self.dtype} needs truncate_px"
            require(self.truncate_px is not None, rule, None, "for example truncate_px=20, or dtype='float32'")

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        return _channels(self.target, lambda target: self._one(mask, target))

    def _one(self, mask: Array, target: int) -> Array:
        signed = self._signed(mask == target, _void(mask, self.void))
        if self.truncate_px is None:
            return _as(signed, self.dtype)
        np.clip(signed, -self.truncate_px, self.truncate_px, out=signed)
        if self.dtype in _HIGHEST:
            half = _HIGHEST[self.dtype] // 2
            return _as(signed * np.float32(half / self.truncate_px) + np.float32(half + 1), self.dtype)
        return _as(signed / np.float32(self.truncate_px) if self.normalise else signed, self.dtype)

    def _signed(self, inside: Array, void: Array | None) -> Array:
        outside = ~inside if void is None else ~(inside | void)
        if not inside.any() or not outside.any():
            return self._one_sided(inside, void)
        # Cut a pixel later than asked, so that the outline's half pixel does not shorten what is cut.
        cut = None if self.truncate_px is None else self.truncate_px + 1
        to_inside = distance_to(inside, within_px=cut)
        to_outside = depth_in(inside) if void is None else distance_to(outside, within_px=cut)
        out_by, in_by = (0.5, 0.5) if self.outline == "edge" else (0.0, 1.0)
        signed = np.where(inside, in_by - to_outside, to_inside - out_by)
        return signed if void is None else np.where(void, np.float32(0), signed)

    def _one_sided(self, inside: Array, void: Array | None) -> Array:
        """The class is absent or covers all that is not void."""
        far = hypot(*inside.shape) if self.truncate_px is None else self.truncate_px
        level = -far if inside.any() else far if self.outline == "edge" else 0
        signed = np.full(inside.shape, level, np.float32)
        if void is not None:
            signed[void] = 0
        return signed


def _to_class(inside: Array, void: Array | None, truncate_px: float | None) -> Array:
    return distance_to(inside, within_px=truncate_px)


def _to_outside(inside: Array, void: Array | None, truncate_px: float | None) -> Array:
    outside_only = inside if void is None else inside | void
    depth = depth_in(outside_only, truncate_px)
    if void is not None:
        depth[void] = 0
    return depth if truncate_px is None else np.minimum(depth, np.float32(truncate_px))


def _to_boundary(inside: Array, void: Array | None, truncate_px: float | None) -> Array:
    whole = inside if void is None else inside | void
    return distance_to(inner_boundary(whole) & inside, within_px=truncate_px)


_REGIONS = {"class": _to_class, "inside": _to_outside, "boundary": _to_boundary}


def _check(name: str, options: Distance | SignedDistance) -> None:
    targets = options.target if isinstance(options.target, tuple) else (options.target,)
    require(len(targets) > 0, f"{name}.target names at least one class", options.target, "for example target=1")
    for target in targets:
        require_class(f"{name}.target", target)
    if options.void is not None:
        require_class(f"{name}.void", options.void)
    if options.truncate_px is not None:
        require_positive(f"{name}.truncate_px", options.truncate_px)
    require(
        options.dtype in get_args(DistanceDtype),
        f"{name}.dtype is one of {get_args(DistanceDtype)}",
        options.dtype,
        "choose one",
    )
    rule = f"{name}.normalise divides by truncate_px"
    require(not options.normalise or options.truncate_px is not None, rule, None, "give truncate_px, for example 20")


def _channels(target: Targets, one: Callable[[int], Array]) -> Array:
    return np.stack([one(each) for each in target], axis=2) if isinstance(target, tuple) else one(target)


def _void(mask: Array, void: int | None) -> Array | None:
    return None if void is None else np.asarray(mask == void)


def _as(distance: Array, dtype: DistanceDtype) -> Array:
    return distance.astype(dtype) if dtype.startswith("float") else np.rint(distance).astype(dtype)
