"""The weight map of U-Net: Ronneberger, Fischer and Brox, MICCAI 2015, equation 2.

w(x) = w_c(x) + w₀ · exp(-(d₁(x) + d₂(x))² / 2σ²), with d₁, d₂ the distances from x to the nearest and to the second nearest
cell. It makes a network learn the narrow gaps between touching cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import cv2
import numpy as np

from tfprep.checks import require_not_negative, require_positive
from tfprep.derive.edt import distance_to
from tfprep.derive.inputs import mask_of
from tfprep.fields import Array, Kind, Sample

_REACH = 6.0
"""Beyond d₁ + d₂ = 6σ the second term is below w₀ · 2e-8 and counts as 0, so that each cell needs only its surroundings."""


@dataclass(frozen=True)
class UNetWeights:
    """Computes the weight of each pixel: float32 [H, W].

    Distances are between pixel centres, 0 inside a cell. With fewer than two cells the second term is 0.

    Attributes:
        mask: the field that numbers the cells 1, 2, … on a background of 0.
        w0: w₀; the paper's is 10.
        sigma_px: σ; the paper's is about 5 pixels.
        balance: w_c balances background and cells: each pixel weighs total / (2 · pixels of its side), so that both sides sum to
            the same, or 1 where one side is empty. False makes w_c 1.
        instances: False takes all that is not 0 for foreground, and its 8-connected parts for the cells.
        inside: draw the second term everywhere. False draws it on the background alone, as published code does.
        void: the number of regions that are neither cell nor background, such as 255 in Pascal VOC: their pixels weigh 0.
    """

    kind: ClassVar[Kind] = "map"

    mask: str = "mask"
    w0: float = 10.0
    sigma_px: float = 5.0
    balance: bool = True
    instances: bool = True
    inside: bool = False
    void: int | None = None

    def __post_init__(self) -> None:
        require_not_negative("UNetWeights.w0", self.w0)
        require_positive("UNetWeights.sigma_px", self.sigma_px)

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        mask = mask_of(sample, self.mask)
        void = np.zeros(mask.shape, bool) if self.void is None else mask == self.void
        mask = np.where(void, 0, mask).astype(mask.dtype) if void.any() else mask
        cells = mask if self.instances else components(mask > 0)
        nearest, second = two_nearest(cells, _REACH * self.sigma_px)
        with np.errstate(over="ignore"):
            gaps = np.exp(np.square(nearest + second) / np.float32(-2 * self.sigma_px**2))
        weights = np.float32(self.w0) * np.asarray(gaps)
        if not self.inside:
            weights[cells > 0] = 0
        weights += _balance(cells > 0, ~void) if self.balance else np.float32(1)
        weights[void] = 0
        return np.asarray(weights)


def two_nearest(cells: Array, reach_px: float) -> tuple[Array, Array]:
    """float32 [H, W] twice: the distances to the nearest and to the second nearest cell, infinite beyond `reach_px`.

    Each cell is transformed inside its bounding box widened by the reach: the work grows with the cells' surroundings, not
    with their number times the image.
    """
    nearest = np.full(cells.shape, np.inf, np.float32)
    second = nearest.copy()
    for number, box in _boxes(cells):
        window = _widened(box, ceil(reach_px), cells.shape)
        distance = distance_to(cells[window] == number)
        distance[distance > reach_px] = np.inf
        first, other = nearest[window], second[window]
        np.minimum(other, np.maximum(first, distance), out=other)
        np.minimum(first, distance, out=first)
    return nearest, second


def components(region: Array) -> Array:
    """int32 [H, W]: the 8-connected parts of a bool [H, W] numbered from 1."""
    return np.asarray(cv2.connectedComponents(region.astype(np.uint8), connectivity=8)[1])


def _boxes(cells: Array) -> list[tuple[int, tuple[slice, slice]]]:
    """Each cell's number and bounding box."""
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


def _widened(box: tuple[slice, slice], by: int, shape: tuple[int, ...]) -> tuple[slice, slice]:
    rows, columns = (
        slice(max(0, side.start - by), min(length, side.stop + by)) for side, length in zip(box, shape, strict=True)
    )
    return rows, columns


def _balance(foreground: Array, counted: Array) -> Array:
    inside, total = int(foreground.sum()), int(counted.sum())
    outside = total - inside
    if not inside or not outside:
        return np.ones(foreground.shape, np.float32)
    shares = np.array([total / (2 * outside), total / (2 * inside)], np.float32)
    return np.asarray(shares[foreground.view(np.uint8)])
