"""Gaussian heatmaps of keypoints."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal

import numpy as np

from tfprep.checks import require, require_count, require_positive
from tfprep.derive.inputs import points_of, size_of
from tfprep.fields import EFFECTS, Array, Kind, Sample

REACH = 6
"""Gaussians are drawn to this many standard deviations; farther away they are below 2e-8 and count as 0."""


@dataclass(frozen=True)
class Heatmaps:
    """Draws a Gaussian around each point: [H, W, K], with the value `exp(-|c - p|² / 2σ²)` at a pixel's center c.

    Points that are NaN leave no trace. Where rows stand for left and right (key points of a body), `Recipe.flip_indices`
    exchanges them in mirror images.

    Attributes:
        points: the field of points [N, 2] or [N, 3]: x, y and visibility.
        sigma_px: σ.
        channels: K. Point i is drawn in channel i mod K, several in one channel joined by maximum, so that 17 key points of
            several people are `channels=17` and all points in one map are `channels=1`. None gives each point its own channel;
            all samples must then have the same number of points.
        min_visibility: points of less visibility leave no trace (COCO: 0 not labeled, 1 hidden, 2 visible; geometry sets 0 for
            points outside the image).
        like: the field whose size the map has.
        dtype: "float32", or "uint8" as round(255 · value).
    """

    kind: ClassVar[Kind] = "map"
    inputs: ClassVar[tuple[str, ...]] = ("points", "like")

    points: str = "points"
    sigma_px: float = 2.0
    channels: int | None = None
    min_visibility: float = 1
    like: str = "image"
    dtype: Literal["float32", "uint8"] = "float32"

    def __post_init__(self) -> None:
        require_positive("Heatmaps.sigma_px", self.sigma_px)
        if self.channels is not None:
            require_count("Heatmaps.channels", self.channels, 1)
        require(self.dtype in ("float32", "uint8"), "Heatmaps.dtype is 'float32' or 'uint8'", self.dtype, "choose one")

    @property
    def follows(self) -> frozenset[str]:
        """A mirror image exchanges left and right points, and so their channels."""
        return EFFECTS if self.channels == 1 else EFFECTS - {"flip"}

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        points = points_of(sample, self.points)
        channels = len(points) if self.channels is None else self.channels
        maps = np.zeros((*size_of(sample, self.like), channels), np.float32)
        for number, point in enumerate(points):
            if np.isfinite(point[:2]).all() and (len(point) < 3 or point[2] >= self.min_visibility):
                stamp_gaussian(maps[:, :, number % channels], point[0], point[1], self.sigma_px)
        return maps if self.dtype == "float32" else np.rint(maps * 255).astype(np.uint8)


def stamp_gaussian(heatmap: Array, x: float, y: float, sigma_px: float) -> None:
    """Draws a Gaussian around (x, y) into float32 [H, W] in place, joined by maximum."""
    rows = _window(y, sigma_px, heatmap.shape[0])
    columns = _window(x, sigma_px, heatmap.shape[1])
    down = np.exp(np.square(np.arange(rows.start, rows.stop) + 0.5 - y) / (-2 * sigma_px**2))
    right = np.exp(np.square(np.arange(columns.start, columns.stop) + 0.5 - x) / (-2 * sigma_px**2))
    window = heatmap[rows, columns]
    np.maximum(window, np.outer(down, right).astype(np.float32), out=window)


def _window(center: float, sigma_px: float, length: int) -> slice:
    reach = ceil(REACH * sigma_px)
    start = min(max(int(center) - reach, 0), length)
    return slice(start, max(start, min(int(center) + reach + 1, length)))
