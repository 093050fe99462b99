"""Clicks of a simulated user and the maps of distance to them: Xu et al., 'Deep Interactive Object Selection', CVPR 2016.

Section 3.1, transformation: with the clicks S of one kind, u(p) = min over s in S of |p - s|, Euclidean, in pixels, cut at
255; with no clicks u is 255 everywhere. Section 3.2, simulation, for an object of pixels O:

- Positive clicks: n in [1, N_pos] pixels of O, at least d_margin from its boundary and at least d_step from each other.
- Negative clicks by one of three strategies, each as likely. G holds O and all pixels at least d away from O, so its
  complement Gᶜ is the band of background around the object.
  1. n in [0, N_neg1] pixels of Gᶜ under the same two conditions.
  2. n in [0, N_neg2] pixels of each other object of the image under the same two conditions.
  3. N_neg3 pixels of Gᶜ that surround the object: the first at random, each next one where the distance to G and to all
     clicks so far is largest.

What the paper leaves open is settled so: an object without a pixel d_margin away from its boundary is clicked where it is
thickest; fewer clicks come where no pixel meets the conditions; the image's edge is no boundary; equally far pixels are
taken in row order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from tfprep.derive.edt import ERROR_PX, distance_to
from tfprep.derive.options import (
    mask_of,
    points_of,
    require,
    require_class,
    require_count,
    require_distance,
    require_positive,
    size_of,
)
from tfprep.fields import Array, Kind, Sample

ClickDtype: TypeAlias = Literal["uint8", "uint16", "float32"]
_HIGHEST = {"uint8": 255.0, "uint16": 65535.0, "float32": float("inf")}


@dataclass(frozen=True)
class ClickPoints:
    """The clicks as coordinates: float32 [N, 4], x, y of the pixel's centre, 1 for positive or 0 for negative, the set's number.

    The object is every pixel of the class `target` in `mask`. Options, with the paper's symbol and value as the default:
    `n_pos` [1, N_pos] = (1, 5); `n_neg1` [0, N_neg1] = (0, 10); `n_neg2` [0, N_neg2] = (0, 5); `n_neg3` N_neg3 = 10;
    `step_px` d_step = 10; `margin_px` d_margin = 5; `band_px` d = 40; `strategies`: those among which one is drawn for each
    set, () for no negative clicks. The paper draws 15 sets an object; `sets` is 1 here, as each variant has sets of its own.

    The other objects of strategy 2 are the other classes, but for `background`. Pixels of the class `void` are never
    clicked and belong to no object.

    Where the target is absent (a crop may lose it) there are no positive clicks, and no band for strategies 1 and 3.
    """

    kind: ClassVar[Kind] = "scalar"

    mask: str = "mask"
    target: int = 1
    n_pos: tuple[int, int] = (1, 5)
    n_neg1: tuple[int, int] = (0, 10)
    n_neg2: tuple[int, int] = (0, 5)
    n_neg3: int = 10
    step_px: float = 10
    margin_px: float = 5
    band_px: float = 40
    strategies: tuple[int, ...] = (1, 2, 3)
    sets: int = 1
    background: int | None = 0
    void: int | None = None

    def __post_init__(self) -> None:
        require_class("Clicks.target", self.target)
        for name in ("n_pos", "n_neg1", "n_neg2"):
            _require_counts(f"Clicks.{name}", getattr(self, name))
        require_count("Clicks.n_neg3", self.n_neg3)
        require_count("Clicks.sets", self.sets, 1)
        for name in ("step_px", "margin_px", "band_px"):
            require_distance(f"Clicks.{name}", getattr(self, name))
        for name in ("background", "void"):
            if getattr(self, name) is not None:
                require_class(f"Clicks.{name}", getattr(self, name))
        known = isinstance(self.strategies, tuple) and set(self.strategies) <= {1, 2, 3}
        require(known, "Clicks.strategies is a tuple of 1, 2 and 3", self.strategies, "for example (1, 2, 3)")
        require(self.void != self.target, "Clicks.void is not the target's class", self.void, "leave void out")

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        parts = [np.zeros((0, 4))]
        for number in range(self.sets):
            for positive, clicks in zip((1, 0), self.draw(mask, generator), strict=True):
                parts.append(np.pad(clicks[:, ::-1] + 0.5, ((0, 0), (0, 2)), constant_values=positive))
                parts[-1][:, 3] = number
        return np.concatenate(parts).astype(np.float32)

    def draw(self, mask: Array, generator: np.random.Generator) -> tuple[Array, Array]:
        """The clicked pixels, positive and negative: (row, column) int64 [N, 2] each."""
        inside = mask == self.target
        positive = self._positive(inside, generator)
        strategy = generator.choice(self.strategies) if self.strategies else 0
        if strategy == 1:
            return positive, self._in_band(inside, mask, generator)
        if strategy == 2:
            return positive, self._on_others(mask, generator)
        return positive, self._around(inside, mask, generator) if strategy == 3 else _NONE

    def _positive(self, inside: Array, generator: np.random.Generator) -> Array:
        count = _count(self.n_pos, generator)
        return _spread(_deep(inside, self.margin_px), count, self.step_px, generator, _NONE)

    def _in_band(self, inside: Array, mask: Array, generator: np.random.Generator) -> Array:
        """Strategy 1."""
        count = _count(self.n_neg1, generator)
        distance = distance_to(inside)
        band = self._band(inside, mask, distance) & (distance > self.margin_px - ERROR_PX)
        return _spread(band, count, self.step_px, generator, _NONE)

    def _on_others(self, mask: Array, generator: np.random.Generator) -> Array:
        """Strategy 2."""
        clicks = _NONE
        for other in np.unique(mask):
            if other in (self.target, self.background, self.void):
                continue
            count = _count(self.n_neg2, generator)
            deep = _deep(mask == other, self.margin_px)
            clicks = np.concatenate([clicks, _spread(deep, count, self.step_px, generator, clicks)])
        return clicks

    def _around(self, inside: Array, mask: Array, generator: np.random.Generator) -> Array:
        """Strategy 3: farthest points first, on squared distances."""
        distance = distance_to(inside)
        free = np.argwhere(self._band(inside, mask, distance))
        if not len(free) or not self.n_neg3:
            return _NONE
        fixed = inside | (distance > self.band_px - ERROR_PX)
        to_fixed = np.square(distance_to(fixed, np.inf)[free[:, 0], free[:, 1]].astype(np.float64))
        clicks = [free[generator.integers(len(free))]]
        while len(clicks) < self.n_neg3:
            np.minimum(to_fixed, np.square(free - clicks[-1]).sum(1), out=to_fixed)
            farthest = int(np.argmax(to_fixed))
            if to_fixed[farthest] <= 0:
                break
            clicks.append(free[farthest])
        return np.array(clicks)

    def _band(self, inside: Array, mask: Array, distance: Array) -> Array:
        """Gᶜ: background nearer than d to the object; empty where there is no object."""
        if not inside.any():
            return np.zeros_like(inside)
        band = ~inside & (distance < self.band_px - ERROR_PX)
        return band if self.void is None else band & (mask != self.void)


@dataclass(frozen=True)
class Clicks(ClickPoints):
    """Two maps a set, [H, W, 2 · sets]: the distance in pixels to the nearest positive and to the nearest negative click.

    The clicks and their options are those of `ClickPoints`; distances are cut at `truncate_px`, the paper's 255, and rounded
    to nearest in whole-number dtypes. A map without clicks is at `truncate_px` everywhere. To store the clicks themselves
    too, derive `ClickPoints` first and then `ClickMaps` from them.
    """

    kind: ClassVar[Kind] = "map"

    truncate_px: float = 255
    dtype: ClickDtype = "uint8"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_maps("Clicks", self)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        kinds = [clicks for _ in range(self.sets) for clicks in self.draw(mask, generator)]
        return _maps(mask.shape, kinds, self)


@dataclass(frozen=True)
class ClickMaps:
    """The maps of `Clicks`, [H, W, 2 · sets], from clicks that are there: a field of `ClickPoints`, or an annotator's.

    `points` are [N, 3] or [N, 4]: x, y, 1 for positive or 0 for negative, and the set's number, 0 where it is left out. Clicks
    outside the image and NaN are left out. The maps' size is that of the field `like`.
    """

    kind: ClassVar[Kind] = "map"

    points: str = "clicks"
    truncate_px: float = 255
    sets: int = 1
    like: str = "mask"
    dtype: ClickDtype = "uint8"

    def __post_init__(self) -> None:
        require_count("ClickMaps.sets", self.sets, 1)
        _check_maps("ClickMaps", self)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        points, (height, width) = points_of(sample, self.points), size_of(sample, self.like)
        table = np.pad(points, ((0, 0), (0, max(0, 4 - points.shape[1]))))
        within = (table[:, :2] >= 0).all(1) & (table[:, :2] < [width, height]).all(1)
        kinds = []
        for number in range(self.sets):
            for positive in (1, 0):
                chosen = table[within & (table[:, 2] == positive) & (table[:, 3] == number)]
                kinds.append(chosen[:, 1::-1].astype(np.int64))
        return _maps((height, width), kinds, self)


_NONE = np.zeros((0, 2), np.int64)


def click_map(shape: tuple[int, ...], clicks: Array, truncate_px: float) -> Array:
    """float32 [H, W]: the distance to the nearest of the clicks (row, column) [N, 2], cut at `truncate_px`."""
    clicked = np.zeros(shape, bool)
    clicked[clicks[:, 0], clicks[:, 1]] = True
    return np.asarray(np.minimum(distance_to(clicked, truncate_px), np.float32(truncate_px)))


def _maps(shape: tuple[int, ...], kinds: list[Array], options: Clicks | ClickMaps) -> Array:
    maps = np.stack([click_map(shape, clicks, options.truncate_px) for clicks in kinds], axis=2)
    return maps if options.dtype == "float32" else np.rint(maps).astype(options.dtype)


def _deep(region: Array, margin_px: float) -> Array:
    """The pixels at least `margin_px` away from every pixel outside the region; where it has none, its deepest pixels."""
    if not region.any():
        return region
    depth = distance_to(~region, np.inf) * region
    deep = region & (depth > margin_px - ERROR_PX)
    return deep if deep.any() else depth == depth.max()


def _count(between: tuple[int, int], generator: np.random.Generator) -> int:
    return int(generator.integers(between[0], between[1], endpoint=True))


def _spread(allowed: Array, count: int, step_px: float, generator: np.random.Generator, taken: Array) -> Array:
    """Up to `count` random pixels of `allowed`, at least `step_px` from each other and from those `taken`: [N, 2]."""
    free = np.argwhere(allowed)
    for click in taken:
        free = _beyond(free, click, step_px)
    clicks: list[Array] = []
    while len(clicks) < count and len(free):
        clicks.append(free[generator.integers(len(free))])
        free = _beyond(free, clicks[-1], step_px)
    return np.array(clicks, np.int64).reshape(-1, 2)


def _beyond(pixels: Array, click: Array, step_px: float) -> Array:
    squared = np.square(pixels - click).sum(1)
    return np.asarray(pixels[(squared >= step_px * step_px) & (squared > 0)])


def _require_counts(name: str, value: tuple[int, int]) -> None:
    pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(end, int) for end in value)
    require(pair and 0 <= value[0] <= value[1], f"{name} is a range (from, to) of counts", value, "for example (1, 5)")


def _check_maps(name: str, options: Clicks | ClickMaps) -> None:
    require_positive(f"{name}.truncate_px", options.truncate_px)
    require(options.dtype in _HIGHEST, f"{name}.dtype is one of {tuple(_HIGHEST)}", options.dtype, "choose one")
    rule = f"{name} in {options.dtype} needs truncate_px of at most {_HIGHEST[options.dtype]:g}"
    require(options.truncate_px <= _HIGHEST[options.dtype], rule, options.truncate_px, "or take dtype='float32'")
