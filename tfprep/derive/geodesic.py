"""Geodesic distance: how far a path through the image is, where crossing an edge costs as much as a detour.

The definition, after Criminisi, Sharp and Blake, 'GeoS', ECCV 2008, and Wang et al., 'DeepIGeoS', PAMI 2019: over all paths of
steps between 8-neighbors from a pixel to a seed, the least sum of √(|Δs|² + (γ · |ΔI|)²) a step, with |Δs| the step's length in
pixels (1 or √2), |ΔI| the Euclidean distance between the two pixels' colors, levels divided by 255, and γ the edge weight
in pixels. With γ = 0 it is the length of the shortest chain of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, sqrt
from typing import ClassVar

import numpy as np

from tfprep.checks import require_count, require_distance, require_positive
from tfprep.derive.inputs import image_of, points_of
from tfprep.fields import Array, Kind, Sample


@dataclass(frozen=True)
class GeodesicDistance:
    """Measures the geodesic distance to the points of the field `points`: float32 [H, W], cut at `truncate_px`.

    The points are an annotation, or clicks derived before this. By default no path is cut.

    `edge_weight_px` is γ. Points [N, 3] or wider count where their third column is `only`, or with None wherever it is not 0;
    points outside the image and NaN do not count. Without a point, every pixel is at `truncate_px`, by default at the length that
    no path exceeds: max(H, W) - 1 steps, each across the strongest edge. With γ = 100 and 1,000 pixels that is 173,000: too large
    for float16, so give `truncate_px` to store the map in it.

    Raster scans (Toivanen 1996) down and up the image, repeated until nothing changes, which is the exact minimum over all
    paths; `scans` stops after that number of pairs.
    """

    kind: ClassVar[Kind] = "map"
    follows: ClassVar[frozenset[str]] = frozenset({"crop", "flip"})
    inputs: ClassVar[tuple[str, ...]] = ("points", "image")

    points: str = "points"
    image: str = "image"
    edge_weight_px: float = 100.0
    truncate_px: float | None = None
    only: float | None = None
    scans: int | None = None

    def __post_init__(self) -> None:
        require_distance("GeodesicDistance.edge_weight_px", self.edge_weight_px)
        if self.truncate_px is not None:
            require_positive("GeodesicDistance.truncate_px", self.truncate_px)
        if self.scans is not None:
            require_count("GeodesicDistance.scans", self.scans, 1)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        image = image_of(sample, self.image)
        seeds = self._seeds(points_of(sample, self.points), image.shape[:2])
        most = self.truncate_px
        if most is None:  # a path of as few steps as possible, with black next to white at each: none shorter is longer
            long, short = int(max(image.shape[:2])), int(min(image.shape[:2]))
            edge = self.edge_weight_px * sqrt(float(image.shape[2]))
            most = (long - short) * hypot(1, edge) + (short - 1) * hypot(sqrt(2), edge)
        distance = geodesic_distance(image, seeds, self.edge_weight_px, self.scans) if seeds.any() else np.inf
        return np.broadcast_to(np.minimum(distance, most), image.shape[:2]).astype(np.float32)

    def _seeds(self, points: Array, shape: tuple[int, ...]) -> Array:
        counted = np.isfinite(points[:, :2]).all(1)
        if points.shape[1] > 2:
            counted &= points[:, 2] == self.only if self.only is not None else points[:, 2] != 0
        columns, rows = np.floor(points[counted, :2]).astype(np.int64).T
        within = (rows >= 0) & (rows < shape[0]) & (columns >= 0) & (columns < shape[1])
        seeds = np.zeros(shape, bool)
        seeds[rows[within], columns[within]] = True
        return seeds


def geodesic_distance(image: Array, seeds: Array, edge_weight_px: float, scans: int | None = None) -> Array:
    """float64 [H, W]: to the nearest True of `seeds`, through uint8 [H, W, C]."""
    costs = _Costs(image, edge_weight_px)
    distance = np.where(seeds, 0.0, np.inf)
    count = 0
    while scans is None or count < scans:
        before = distance.copy()
        _scan(distance, costs)
        _scan(distance[::-1], costs.upside_down())
        count += 1
        if np.array_equal(before, distance):
            break
    return distance


class _Costs:
    """The cost of a step from each pixel: `right` [H, W - 1] along its row, and from the row above straight `down`
    [H - 1, W], and `slant`ed to the right or left [H - 1, W - 1]; `along` sums up each row."""

    def __init__(self, image: Array, weight: float) -> None:
        colors = image.astype(np.float64) * (weight / 255)
        self.right = _cost(colors[:, 1:] - colors[:, :-1], 1)
        self.down = _cost(colors[1:] - colors[:-1], 1)
        self.slant_right = _cost(colors[1:, 1:] - colors[:-1, :-1], 2)
        self.slant_left = _cost(colors[1:, :-1] - colors[:-1, 1:], 2)
        self.along = np.pad(np.cumsum(self.right, axis=1), ((0, 0), (1, 0)))

    def upside_down(self) -> _Costs:
        """Those of the image seen from below: rows in reverse, the slants exchanged."""
        other = object.__new__(_Costs)
        other.right, other.down, other.along = self.right[::-1], self.down[::-1], self.along[::-1]
        other.slant_right, other.slant_left = self.slant_left[::-1], self.slant_right[::-1]
        return other


def _cost(difference: Array, squared_length: float) -> Array:
    return np.asarray(np.sqrt(squared_length + np.square(difference).sum(2)))


def _scan(distance: Array, costs: _Costs) -> None:
    """One scan downwards, in place: each row from the row above, then along itself both ways."""
    for row in range(len(distance)):
        line = distance[row]
        if row:
            above = distance[row - 1]
            np.minimum(line, above + costs.down[row - 1], out=line)
            np.minimum(line[1:], above[:-1] + costs.slant_right[row - 1], out=line[1:])
            np.minimum(line[:-1], above[1:] + costs.slant_left[row - 1], out=line[:-1])
        # Within a row, with A the sum of costs up to a pixel, the least of line[k] + |A[j] - A[k]| is a running minimum of
        # line - A from the left and of line + A from the right.
        along = costs.along[row]
        from_left = np.minimum.accumulate(line - along) + along
        from_right = np.minimum.accumulate((line + along)[::-1])[::-1] - along
        # Only where a path is really shorter: adding and subtracting A changes the last bits, and those would change for ever.
        shorter = np.minimum(from_left, from_right)
        np.copyto(line, shorter, where=shorter < line - 1e-9)
