"""Color: brightness, contrast, saturation, hue, the four of torchvision's ColorJitter; grayscale and shuffled channels; and
tone, ops that map each level of a channel to another through one table of 256 entries.

Images are uint8 [H, W, 3] RGB and stay so. Ops with a `curve` method have a table that does not depend on the image; runs of
them in a recipe collapse into one look-up (`tfprep.augment.chain`). Posterize, Solarize, Invert, Equalize and AutoContrast are
bit for bit Pillow's `ImageOps`. Brightness, contrast and saturation blend the image with a plainer one, factor 0 giving the plain
one, 1 the image, more than 1 its exaggeration: bit for bit Pillow's `ImageEnhance`, which torchvision follows, so results
are cut, not rounded, to whole levels. An `amount` of 0.2 draws the factor uniformly from 0.8 to 1.2; a pair (from, to) is
the range of the factor itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tfprep.augment.chain import ToneOp, apply_curve
from tfprep.checks import Range, around, is_number, require_counts, require_probability, require_range, require_whole
from tfprep.fields import Array, ImageArray
from tfprep.optional import cv2

_MOST_FACTOR = 10.0
"""No published policy exceeds a factor of 2 (AutoAugment, RandAugment and TrivialAugment 1.9, SimCLR 1.8). Brightness 10 turns
all levels from 26 of 255 on to white. Larger numbers are percentages or levels by mistake, such as `Brightness(20)`."""
_LUMA = np.array([19595, 38470, 7471], np.float32)
"""Pillow's weights of red, green and blue (ITU-R 601-2) in units of 1/65536; they sum to 65536."""


@dataclass(frozen=True)
class _Blend:
    """An op that blends the image with a plainer one."""

    amount: float | Range = 0.2

    def __post_init__(self) -> None:
        require_range(f"{type(self).__name__}.amount", self.factors, 0, _MOST_FACTOR)

    @cached_property
    def factors(self) -> Range:
        """The range of the factor."""
        return _factors(self.amount)


class Brightness(_Blend, ToneOp):
    """Changes the brightness: v · factor, which blends the image with black. The factor is drawn uniformly from 1 ± `amount`, or
    from a range (from, to)."""

    def curve(self, generator: np.random.Generator) -> Array:
        return blend_curve(0, generator.uniform(*self.factors))


class Contrast(_Blend):
    """Changes the contrast: blends the image with one gray, the rounded mean of its gray version, by a factor as in
    `Brightness`."""

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        mean = int(cv2.mean(gray(image))[0] + 0.5)  # rounded half up, as Pillow's ImageEnhance.Contrast takes it
        return apply_curve(image, blend_curve(mean, generator.uniform(*self.factors)))


class Saturation(_Blend):
    """Changes the saturation: blends the image with its gray version. The factor is as in `Brightness`."""

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        return blend(_repeated(gray(image)), image, generator.uniform(*self.factors))


@dataclass(frozen=True)
class Hue:
    """Turns the hue in HSV (Smith 1978), computed in floats and rounded to whole levels. Grays stay as they are.

    Attributes:
        amount: the turn as a share of the full circle, drawn uniformly from ± this number, or from a range (from, to); at most
            half the circle in either direction.
    """

    amount: float | Range = 0.1

    def __post_init__(self) -> None:
        require_range("Hue.amount", around(0, self.amount), -0.5, 0.5)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        return turn_hue(image, generator.uniform(*around(0, self.amount)))


@dataclass(frozen=True)
class ColorJitter:
    """Changes brightness, contrast, saturation and hue in random order with probability `p`, as torchvision's ColorJitter draws
    them.

    Results differ from those of the four ops one by one by a level where values are rounded, in a fraction of their time. Hue,
    which takes ten times as long as the others, is left out unless asked for.

    Attributes:
        brightness: the factor is drawn uniformly from 1 ± this number, or from a range (from, to); 0 changes nothing.
        contrast: the same for the contrast.
        saturation: the same for the saturation.
        hue: as `Hue.amount`.
        p: probability.
    """

    brightness: float | Range = 0.4
    contrast: float | Range = 0.4
    saturation: float | Range = 0.4
    hue: float | Range = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        require_probability("ColorJitter.p", self.p)
        for name in ("brightness", "contrast", "saturation"):
            require_range(f"ColorJitter.{name}", _factors(getattr(self, name)), 0, _MOST_FACTOR)
        require_range("ColorJitter.hue", around(0, self.hue), -0.5, 0.5)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        happens = generator.random() < self.p
        for name in generator.permutation(["brightness", "contrast", "saturation", "hue"]).tolist() if happens else ():
            amount = getattr(self, name)
            drawn = generator.uniform(*(around(0, amount) if name == "hue" else _factors(amount)))
            if drawn != (name != "hue"):
                image = _jittered(image, name, drawn)
        return image


def _jittered(image: ImageArray, name: str, drawn: float) -> ImageArray:
    if name == "hue":
        return turn_hue(image, drawn)
    if name == "saturation":
        matrix = np.eye(3) * drawn + (1 - drawn) * _LUMA.astype(np.float64) / 65536
        return np.asarray(cv2.transform(image, np.column_stack([matrix, np.full(3, _CUT)])), np.uint8)
    plain = 0 if name == "brightness" else int(np.dot(cv2.mean(image)[:3], _LUMA) / 65536 + 0.5)
    return apply_curve(image, blend_curve(plain, drawn))


_CUT = -0.5 + 1 / 512
"""Added before OpenCV rounds: sums are cut to whole levels, as Pillow and torchvision cut them."""


@dataclass(frozen=True)
class _AtTimes:
    """An op that changes an image with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        require_probability(f"{type(self).__name__}.p", self.p)


@dataclass(frozen=True)
class Grayscale(_AtTimes):
    """Replaces the image with its gray version (ITU-R 601-2, bit for bit Pillow's) with probability `p`.

    It keeps three channels.
    """

    p: float = 0.2

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        if generator.random() >= self.p:
            return image
        return _repeated(gray(image))


def gray(image: ImageArray) -> ImageArray:
    """uint8 [H, W]: Pillow's convert("L"), (19595 R + 38470 G + 7471 B + 32768) >> 16."""
    # All sums stay below 2^24, so float32 holds them exactly.
    weighted = image.reshape(-1, 3).astype(np.float32) @ _LUMA
    return np.asarray(((weighted + 32768) * np.float32(1 / 65536)).astype(np.uint8).reshape(image.shape[:2]))


def _repeated(gray_image: ImageArray) -> ImageArray:
    return np.asarray(cv2.cvtColor(gray_image, cv2.COLOR_GRAY2RGB), np.uint8)


def blend_curve(plain: int, factor: float) -> Array:
    """uint8 [256]: plain + factor · (v - plain), cut to whole levels from 0 to 255."""
    return blend(np.uint8(plain), np.arange(256, dtype=np.uint8), factor)


def blend(plain: Array | np.uint8, values: Array, factor: float) -> Array:
    """uint8 as Pillow's `Image.blend(plain, values, factor)` computes it, in float32 and cut towards zero."""
    low = np.asarray(plain, np.float32)
    mixed = values.astype(np.float32)
    mixed -= low
    mixed *= np.float32(factor)
    mixed += low
    return np.asarray(np.clip(mixed, 0, 255, out=mixed).astype(np.uint8))


def turn_hue(image: ImageArray, share: float) -> ImageArray:
    """The hue of uint8 [H, W, 3] turned by a share of the full circle."""
    hsv = cv2.cvtColor(image.astype(np.float32) * np.float32(1 / 255), cv2.COLOR_RGB2HSV)
    hue: Array = hsv[:, :, 0]
    hue += np.float32(360 * (share % 1))
    hue[hue >= 360] -= 360
    return np.asarray(np.rint(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB) * 255).astype(np.uint8))


def _factors(amount: float | Range) -> Range:
    factors = around(1, amount)
    return (max(0.0, factors[0]), factors[1]) if is_number(amount) else factors


_LEVELS = np.arange(256)


@dataclass(frozen=True)
class Gamma(ToneOp):
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


@dataclass(frozen=True)
class Posterize(ToneOp):
    """Keeps only the highest bits of each level.

    Attributes:
        bits: their number is drawn uniformly from this range of 1 to 8, both ends included.
    """

    bits: tuple[int, int] = (4, 8)

    def __post_init__(self) -> None:
        require_counts("Posterize.bits", self.bits, 1, 8)

    def curve(self, generator: np.random.Generator) -> Array:
        bits = int(generator.integers(self.bits[0], self.bits[1], endpoint=True))
        return (_LEVELS & (256 - (1 << (8 - bits)))).astype(np.uint8)


@dataclass(frozen=True)
class Solarize(ToneOp):
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


class Invert(_AtTimes, ToneOp):
    """Replaces the image with its negative, v → 255 - v, with probability `p`."""

    def curve(self, generator: np.random.Generator) -> Array:
        return (255 - _LEVELS if generator.random() < self.p else _LEVELS).astype(np.uint8)


@dataclass(frozen=True)
class _ByHistogram(_AtTimes):
    """An op that maps the levels of each channel by their histogram, with probability `p`."""

    p: float = 1.0

    def levels(self, counts: Array) -> Array:
        """The table uint8 [256] for a channel with these `counts` of pixels by level, int64 [256]."""
        raise NotImplementedError

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        if generator.random() >= self.p:
            return image
        counts = [np.bincount(image[:, :, channel].ravel(), minlength=256) for channel in range(3)]
        return apply_curve(image, np.stack([self.levels(of_channel) for of_channel in counts], axis=1))


class Equalize(_ByHistogram):
    """Flattens the histogram of each channel with probability `p`: Pillow's `ImageOps.equalize`."""

    def levels(self, counts: Array) -> Array:
        """Pillow's: the step is the number of pixels, but for those of the highest level, over 255."""
        used = np.flatnonzero(counts)
        step = int(counts.sum() - counts[used[-1]]) // 255
        if len(used) <= 1 or not step:
            return _LEVELS.astype(np.uint8)
        below = np.concatenate([[0], np.cumsum(counts)[:-1]])
        return np.asarray(np.minimum((step // 2 + below) // step, 255), np.uint8)


class AutoContrast(_ByHistogram):
    """Stretches each channel to the full range with probability `p`: Pillow's `ImageOps.autocontrast` without cutoff."""

    def levels(self, counts: Array) -> Array:
        used = np.flatnonzero(counts)
        low, high = int(used[0]), int(used[-1])
        if high <= low:
            return _LEVELS.astype(np.uint8)
        scale = 255.0 / (high - low)
        return np.asarray(np.clip(np.trunc(_LEVELS * scale - low * scale), 0, 255), np.uint8)


@dataclass(frozen=True)
class Clahe:
    """Equalizes the lightness L of CIELAB adaptively with limited contrast (CLAHE, Zuiderveld 1994), by OpenCV.

    Attributes:
        clip: the clip limit is drawn uniformly from this range.
        tiles: the image is divided into this number of tiles in each direction.
    """

    clip: Range = (1.0, 4.0)
    tiles: int = 8

    def __post_init__(self) -> None:
        require_range("Clahe.clip", self.clip, 0.1, 100)
        require_whole("Clahe.tiles", self.tiles, 1, 64, example=8)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
        lab[:, :, 0] = cv2.createCLAHE(generator.uniform(*self.clip), (self.tiles, self.tiles)).apply(lab[:, :, 0])
        return np.asarray(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB), np.uint8)
