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

Where the paper is silent: an object without a pixel d_margin away from its boundary is clicked where it is
thickest; fewer clicks come where no pixel meets the conditions; the image's edge is not a boundary; equally far pixels are
taken in row order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from tfprep.checks import require, require_classes, require_count, require_counts, require_distance, require_positive
from tfprep.derive.distance import ERROR_PX, box_of, depth_in, distance_to
from tfprep.derive.inputs import classes_of, mask_of, merged, points_of, size_of
from tfprep.errors import SampleError
from tfprep.fields import Array, Kind, Sample

ClickDtype: TypeAlias = Literal["uint8", "uint16", "float32"]
_HIGHEST = {"uint8": 255.0, "uint16": 65535.0, "float32": float("inf")}


@dataclass(frozen=True)
class ClickPoints:
    """Draws the clicks as coordinates: float32 [N, 4], x and y of a pixel's center, 1 for positive or 0 for negative, and the
    number of the set.

    Where the target is absent (a crop may lose it) there are no positive clicks, and no band for strategies 1 and 3. The
    defaults are the paper's, but for `sets`.

    Attributes:
        mask: the field of class numbers.
        target: the class whose pixels are the object.
        n_pos: range of the number of positive clicks, [1, N_pos].
        n_neg1: range of the number of negative clicks of strategy 1, [0, N_neg1].
        n_neg2: range of the number of negative clicks on each other object in strategy 2, [0, N_neg2].
        n_neg3: number of negative clicks of strategy 3, N_neg3.
        step_px: least distance between two clicks, d_step.
        margin_px: least distance of a click from the boundary, d_margin.
        band_px: width of the band of background around the object, d.
        strategies: one of these is drawn for each set; () gives no negative clicks.
        sets: number of sets. The paper draws 15 for an object; here each variant has its own sets.
        background: the class that is not an object in strategy 2; all other classes are. None makes it one of them.
        void: pixels of this class are never clicked and belong to no object.
    """

    kind: ClassVar[Kind] = "scalar"
    follows: ClassVar[frozenset[str]] = frozenset()
    inputs: ClassVar[tuple[str, ...]] = ("mask",)

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
        own = type(self).__name__
        for name in ("n_pos", "n_neg1", "n_neg2"):
            require_counts(f"{own}.{name}", getattr(self, name))
        require_count(f"{own}.n_neg3", self.n_neg3)
        require_count(f"{own}.sets", self.sets, 1)
        for name in ("step_px", "margin_px", "band_px"):
            require_distance(f"{own}.{name}", getattr(self, name))
        require_classes(self, "target", "background", "void")
        known = isinstance(self.strategies, tuple) and set(self.strategies) <= {1, 2, 3}
        require(known, f"{own}.strategies is a tuple of 1, 2 and 3", self.strategies, "for example (1, 2, 3)")
        require(self.void != self.target, f"{own}.void is not the target's class", self.void, "leave void out")

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        tables = [np.zeros((0, 4))]
        for number in range(self.sets):
            for positive, clicks in zip((1, 0), self.draw(mask, generator), strict=True):
                tables.append(np.pad(clicks[:, ::-1] + 0.5, ((0, 0), (0, 2)), constant_values=positive))
                tables[-1][:, 3] = number
        return np.concatenate(tables).astype(np.float32)

    def draw(self, mask: Array, generator: np.random.Generator) -> tuple[Array, Array]:
        """The clicked pixels, positive and negative: (row, column) int64 [N, 2] each."""
        inside = mask == self.target
        count = int(generator.integers(*self.n_pos, endpoint=True))
        positive = _spread(_deep(inside, self.margin_px), count, self.step_px, generator, _NONE)
        strategy = generator.choice(self.strategies) if self.strategies else 0
        if strategy == 1:
            count, window = int(generator.integers(*self.n_neg1, endpoint=True)), box_of(inside, ceil(self.band_px))
            if window is None:
                return positive, _NONE
            band, distance = self._band(inside[window], mask[window])
            clicks = _spread(band & (distance > self.margin_px - ERROR_PX), count, self.step_px, generator, _NONE)
            return positive, clicks + [side.start for side in window]
        if strategy == 2:
            return positive, self._on_others(mask, generator)
        return positive, self._around(inside, mask, generator) if strategy == 3 else _NONE

    def _on_others(self, mask: Array, generator: np.random.Generator) -> Array:
        """Strategy 2."""
        clicks = _NONE
        for other in classes_of(mask):
            if other in (self.target, self.background, self.void):
                continue
            count = int(generator.integers(*self.n_neg2, endpoint=True))
            deep = _deep(mask == other, self.margin_px)
            clicks = np.concatenate([clicks, _spread(deep, count, self.step_px, generator, clicks)])
        return clicks

    def _around(self, inside: Array, mask: Array, generator: np.random.Generator) -> Array:
        """Strategy 3: farthest points first, on squared distances."""
        # A pixel wider than the band, so that all of G that bounds it is in the window.
        window = box_of(inside, ceil(self.band_px) + 1)
        if window is None or not self.n_neg3:
            return _NONE
        band, distance = self._band(inside[window], mask[window])
        free = np.argwhere(band)
        if not len(free):
            return _NONE
        fixed = inside[window] | (distance > self.band_px - ERROR_PX)
        to_fixed = np.square(distance_to(fixed)[free[:, 0], free[:, 1]].astype(np.float64))
        clicks = [free[generator.integers(len(free))]]
        while len(clicks) < self.n_neg3:
            np.minimum(to_fixed, np.square(free - clicks[-1]).sum(1), out=to_fixed)
            farthest = int(np.argmax(to_fixed))
            if to_fixed[farthest] <= 0:
                break
            clicks.append(free[farthest])
        return np.asarray(clicks + np.array([side.start for side in window]))

    def _band(self, inside: Array, mask: Array) -> tuple[Array, Array]:
        """Gᶜ, background nearer than d to the object, and the distance to it."""
        distance = distance_to(inside)
        band = ~inside & (distance < self.band_px - ERROR_PX)
        return (band if self.void is None else band & (mask != self.void)), distance


@dataclass(frozen=True)
class _DistanceMaps:
    """A pair of maps for each set of clicks, [H, W, 2 · sets]."""

    kind: ClassVar[Kind] = "map"
    channels: ClassVar[tuple[str, ...]] = ("positive", "negative")
    follows: ClassVar[frozenset[str]] = frozenset({"crop", "flip"})

    truncate_px: float = field(default=255, kw_only=True)
    dtype: ClickDtype = field(default="uint8", kw_only=True)

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_positive(f"{name}.truncate_px", self.truncate_px)
        require(self.dtype in _HIGHEST, f"{name}.dtype is one of {tuple(_HIGHEST)}", self.dtype, "choose one")
        rule = f"{name} in {self.dtype} needs truncate_px of at most {_HIGHEST[self.dtype]:g}"
        require(self.truncate_px <= _HIGHEST[self.dtype], rule, self.truncate_px, "or take dtype='float32'")

    def maps(self, shape: tuple[int, ...], kinds: list[Array]) -> Array:
        """A map for the clicked pixels of each kind."""
        maps = [click_map(shape, clicks, self.truncate_px) for clicks in kinds]
        if self.dtype != "float32":
            maps = [np.rint(each, out=each).astype(self.dtype) for each in maps]
        return merged(maps)


@dataclass(frozen=True)
class Clicks(_DistanceMaps, ClickPoints):
    """Draws two maps for each set, [H, W, 2 · sets]: the distance to the nearest positive and to the nearest negative click.

    The clicks and their options are those of `ClickPoints`. A map without clicks is at `truncate_px` everywhere. To store the
    clicks themselves too, derive `ClickPoints` first and then `ClickMaps` from them.

    Attributes:
        truncate_px: greater distances become this one; the paper's is 255.
        dtype: "uint8", "uint16" or "float32"; whole numbers are rounded to nearest.
    """

    def __post_init__(self) -> None:
        ClickPoints.__post_init__(self)
        super().__post_init__()

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        return self.maps(mask.shape, [clicks for _ in range(self.sets) for clicks in self.draw(mask, generator)])


@dataclass(frozen=True)
class ClickMaps(_DistanceMaps):
    """Draws the maps of `Clicks`, [H, W, 2 · sets], from existing clicks: a field of `ClickPoints`, or an annotator's.

    Attributes:
        points: the field of clicks [N, 3] or [N, 4]: x, y, 1 for positive or 0 for negative, and the number of the set, 0 where
            it is left out. Clicks outside the image and NaN are left out; one on its edge counts for the outermost pixel.
        truncate_px: greater distances become this one.
        sets: number of sets.
        like: the field whose size the maps have.
        dtype: "uint8", "uint16" or "float32"; whole numbers are rounded to nearest.
    """

    inputs: ClassVar[tuple[str, ...]] = ("points", "like")

    points: str = "clicks"
    sets: int = field(default=1, kw_only=True)
    like: str = field(default="mask", kw_only=True)

    def __post_init__(self) -> None:
        require_count("ClickMaps.sets", self.sets, 1)
        super().__post_init__()

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        points, (height, width) = points_of(sample, self.points), size_of(sample, self.like)
        if points.shape[1] not in (3, 4):
            rule = f"clicks are [N, 3] or [N, 4]; {self.points!r} is {list(points.shape)}"
            raise SampleError(f"{rule}: add 1 (positive) or 0 (negative)", stage="derive", field=self.points)
        table = np.pad(points, ((0, 0), (0, max(0, 4 - points.shape[1]))))
        within = (table[:, :2] >= 0).all(1) & (table[:, :2] <= [width, height]).all(1)
        unknown = within & ~(np.isin(table[:, 2], (0, 1)) & np.isin(table[:, 3], np.arange(self.sets)))
        if unknown.any():
            sign, number = table[unknown][0, 2:4]
            rule = f"a click is 1 (positive) or 0 (negative), of set 0 to {self.sets - 1}"
            raise SampleError(
                f"{rule}; {self.points!r} holds {sign:g} and set {number:g}: give ClickMaps(sets=...)", stage="derive"
            )
        kinds = []
        for number in range(self.sets):
            for positive in (1, 0):
                chosen = table[within & (table[:, 2] == positive) & (table[:, 3] == number)]
                kinds.append(np.minimum(chosen[:, 1::-1], [height - 1, width - 1]).astype(np.int64))
        return self.maps((height, width), kinds)


_NONE = np.zeros((0, 2), np.int64)


def click_map(shape: tuple[int, ...], clicks: Array, truncate_px: float) -> Array:
    """float32 [H, W]: the distance to the nearest of the clicks (row, column) [N, 2], cut at `truncate_px`."""
    if len(clicks) > _FEW:
        clicked = np.zeros(shape, bool)
        clicked[clicks[:, 0], clicks[:, 1]] = True
        return distance_to(clicked, within_px=truncate_px)
    distance = np.full(shape, np.float32(truncate_px) ** 2, np.float32)
    down = np.square(np.arange(shape[0]) - clicks[:, :1]).astype(np.float32)
    right = np.square(np.arange(shape[1]) - clicks[:, 1:]).astype(np.float32)
    for top in range(0, shape[0], _ROWS):
        block = distance[top : top + _ROWS]
        for row, column in zip(down[:, top : top + _ROWS], right, strict=True):
            np.minimum(block, row[:, None] + column, out=block)
        np.sqrt(block, out=block)
    return distance


_FEW = 16
"""Up to this number of clicks, the minimum over all of them is faster than a distance transform."""
_ROWS = 32
"""Rows are computed in blocks that stay in the processor's cache."""


def _deep(region: Array, margin_px: float) -> Array:
    """The pixels at least `margin_px` away from every pixel outside the region; where it has none, its deepest pixels."""
    depth = depth_in(region, np.inf)
    deep = region & (depth > margin_px - ERROR_PX)
    return deep if deep.any() else region & (depth == depth.max(initial=0))


def _spread(allowed: Array, count: int, step_px: float, generator: np.random.Generator, taken: Array) -> Array:
    """Up to `count` random pixels of `allowed`, at least `step_px` from each other and from those `taken`: [N, 2]."""
    free = np.flatnonzero(allowed)
    clicks = np.concatenate([taken, np.zeros((count, 2), np.int64)])
    for number in range(len(taken), len(clicks)):
        click = _apart(free, allowed.shape[1], clicks[:number], step_px, generator)
        if click is None:
            return clicks[len(taken) : number]
        clicks[number] = click
    return clicks[len(taken) :]


def _apart(free: Array, width: int, clicks: Array, step_px: float, generator: np.random.Generator) -> Array | None:
    """One of the pixels `free` (row · width + column), all that are far enough from the clicks as likely; None without one."""
    least = max(step_px * step_px, 1)
    for _ in range(_TRIES if len(free) else 0):
        pixel = np.array(divmod(int(free[generator.integers(len(free))]), width))
        if (np.square(clicks - pixel).sum(1) >= least).all():
            return pixel
    pixels = np.stack(np.divmod(free, width), axis=1)
    for click in clicks:
        pixels = pixels[np.square(pixels - click).sum(1) >= least]
    return np.asarray(pixels[generator.integers(len(pixels))]) if len(pixels) else None


_TRIES = 8
"""Most pixels are far enough from the few clicks: only after this number of failures are all pixels tested."""
