"""Tone: ops that map each level of a channel to another through one table of 256 entries.

Images are uint8 [H, W, 3] RGB and stay so. Ops with a `curve` method have a table that does not depend on the image; runs of
them in a recipe collapse into one look-up (`tfprep.augment.chain`). Posterize, Solarize, Invert, Equalize and AutoContrast
are bit for bit Pillow's `ImageOps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import cv2
import numpy as np

from tfprep.augment.colour import apply_curve
from tfprep.checks import Range, require, require_probability, require_range
from tfprep.fields import Array, ImageArray

Curve: TypeAlias = Callable[[Array], Array]
"""From the histogram of a channel, int64 [256], to its table, uint8 [256]."""
_LEVELS = np.arange(256)
_FLOAT32_COUNTS = 1 << 24
"""OpenCV counts in float32, which is exact up to this number of pixels."""


@dataclass(frozen=True)
class Gamma:
    """Applies v → round(255 · (v / 255)^γ).

    Attributes:
        gamma: γ is drawn log-uniformly from this range; below 1 the image becomes brighter, above 1 darker.
    """

    gamma: Range = (0.8, 1.25)

    def __post_init__(self) -> None:
        require_range("Gamma.gamma", self.gamma, 0.01, 100)

    def curve(self, generator: np.random.Generator) -> Array:
        gamma = np.exp(generator.uniform(*np.log(self.gamma)))
        return np.asarray(np.rint(255 * (_LEVELS / 255) ** gamma), np.uint8)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        return apply_curve(image, self.curve(generator))


@dataclass(frozen=True)
class Posterize:
    """Keeps only the highest bits of each level.

    Attributes:
        bits: their number is drawn uniformly from this range of 1 to 8, both ends included.
    """

    bits: tuple[int, int] = (4, 8)

    def __post_init__(self) -> None:
        require_range("Posterize.bits", self.bits, 1, 8)
        whole = all(isinstance(end, int) for end in self.bits)
        require(whole, "Posterize.bits are whole numbers", self.bits, "for example (4, 8)")

    def curve(self, generator: np.random.Generator) -> Array:
        bits = int(generator.integers(self.bits[0], self.bits[1], endpoint=True))
        return (_LEVELS & (256 - (1 << (8 - bits)))).astype(np.uint8)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        return apply_curve(image, self.curve(generator))


@dataclass(frozen=True)
class Solarize:
    """Inverts the levels from a threshold on (v → 255 - v).

    Attributes:
        threshold: it is drawn uniformly from this range of 0 to 256.
    """

    threshold: Range = (128, 256)

    def __post_init__(self) -> None:
        require_range("Solarize.threshold", self.threshold, 0, 256)

    def curve(self, generator: np.random.Generator) -> Array:
        threshold = generator.uniform(*self.threshold)
        return np.where(threshold <= _LEVELS, 255 - _LEVELS, _LEVELS).astype(np.uint8)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        return apply_curve(image, self.curve(generator))


@dataclass(frozen=True)
class Invert:
    """Replaces the image with its negative, v → 255 - v, with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        require_probability("Invert.p", self.p)

    def curve(self, generator: np.random.Generator) -> Array:
        return (255 - _LEVELS if generator.random() < self.p else _LEVELS).astype(np.uint8)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        return apply_curve(image, self.curve(generator))


@dataclass(frozen=True)
class ToneCurve:
    """Bends the tone curve of each channel, as film and white balance do: v → round(v + s · 4 · v (255 - v) / 255²).

    Black and white stay.

    Attributes:
        shift: s is drawn uniformly from ± this number of levels, for each channel.
    """

    shift: float = 20.0

    def __post_init__(self) -> None:
        require(0 <= self.shift <= 63, "ToneCurve.shift is from 0 to 63 levels", self.shift, "for example 20")

    def curve(self, generator: np.random.Generator) -> Array:
        shifts = generator.uniform(-self.shift, self.shift, 3)
        bow = 4 * _LEVELS * (255 - _LEVELS) / 255**2
        return np.rint(_LEVELS[:, None] + bow[:, None] * shifts).astype(np.uint8)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        return apply_curve(image, self.curve(generator))


@dataclass(frozen=True)
class Equalize:
    """Flattens the histogram of each channel with probability `p`: Pillow's `ImageOps.equalize`."""

    p: float = 1.0

    def __post_init__(self) -> None:
        require_probability("Equalize.p", self.p)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        return _by_histogram(image, _equalizing) if generator.random() < self.p else image


@dataclass(frozen=True)
class AutoContrast:
    """Stretches each channel to the full range with probability `p`: Pillow's `ImageOps.autocontrast` without cutoff."""

    p: float = 1.0

    def __post_init__(self) -> None:
        require_probability("AutoContrast.p", self.p)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        return _by_histogram(image, _stretching) if generator.random() < self.p else image


@dataclass(frozen=True)
class Clahe:
    """Equalises the lightness L of CIELAB adaptively with limited contrast (CLAHE, Zuiderveld 1994), by OpenCV.

    Attributes:
        clip: the clip limit is drawn uniformly from this range.
        tiles: the image is divided into this number of tiles in each direction.
    """

    clip: Range = (1.0, 4.0)
    tiles: int = 8

    def __post_init__(self) -> None:
        require_range("Clahe.clip", self.clip, 0.1, 100)
        require(
            isinstance(self.tiles, int) and 1 <= self.tiles <= 64, "Clahe.tiles is from 1 to 64", self.tiles, "take 8"
        )

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
        lab[:, :, 0] = cv2.createCLAHE(generator.uniform(*self.clip), (self.tiles, self.tiles)).apply(lab[:, :, 0])
        return np.asarray(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB), np.uint8)


def histogram(image: ImageArray, channel: int) -> Array:
    """int64 [256]."""
    if image[:, :, 0].size > _FLOAT32_COUNTS:
        return np.bincount(image[:, :, channel].ravel(), minlength=256)
    return np.asarray(cv2.calcHist([image], [channel], None, [256], [0, 256])).ravel().astype(np.int64)


def _by_histogram(image: ImageArray, curve: Curve) -> ImageArray:
    return apply_curve(image, np.stack([curve(histogram(image, channel)) for channel in range(3)], axis=1))


def _equalizing(counts: Array) -> Array:
    """Pillow's: the step is the number of pixels, but for those of the highest level, over 255."""
    used = np.flatnonzero(counts)
    step = int(counts.sum() - counts[used[-1]]) // 255
    if len(used) <= 1 or not step:
        return _LEVELS.astype(np.uint8)
    below = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return np.asarray(np.minimum((step // 2 + below) // step, 255), np.uint8)


def _stretching(counts: Array) -> Array:
    used = np.flatnonzero(counts)
    low, high = int(used[0]), int(used[-1])
    if high <= low:
        return _LEVELS.astype(np.uint8)
    scale = 255.0 / (high - low)
    return np.asarray(np.clip(np.trunc(_LEVELS * scale - low * scale), 0, 255), np.uint8)
