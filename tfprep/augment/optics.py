"""Effects of lenses, sensors and files on an image: sharpness, blur, noise, JPEG artifacts, a part missing.

Images are uint8 [H, W, 3] RGB and stay so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, exp, log, prod, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np

from tfprep import images
from tfprep.augment.color import blend
from tfprep.checks import (
    Range,
    around,
    require,
    require_counts,
    require_probability,
    require_range,
    require_whole,
)
from tfprep.fields import Array, ImageArray
from tfprep.optional import cv2

_REACH = 4.0


@dataclass(frozen=True)
class Sharpness:
    """Blends the image with its smooth version: bit for bit Pillow's `ImageEnhance.Sharpness`.

    The smooth version is a 3 × 3 filter with 5 in the middle and 1 around; the outermost pixels stay as they are.

    Attributes:
        amount: the factor is drawn uniformly from 1 ± this number, or from a range (from, to); 0 is smooth, 1 the image, 2
            sharpened.
    """

    amount: float | Range = 0.5

    def __post_init__(self) -> None:
        require_range("Sharpness.amount", around(1, self.amount), -10, 10)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        # Pillow's ImageFilter.SMOOTH: (sum of the 3 × 3 pixels + 4 times the middle) / 13, rounded; never half-way, so any
        # rounding will do.
        smooth = image if min(image.shape[:2]) < 3 else np.asarray(cv2.filter2D(image, -1, _SMOOTH), np.uint8)
        for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]) if smooth is not image else ():
            smooth[edge] = image[edge]
        return blend(smooth, image, generator.uniform(*around(1, self.amount)))


@dataclass(frozen=True)
class Blur:
    """Blurs the image with a Gaussian that reaches 4 σ; the image is mirrored at the middle of its outermost pixels.

    Attributes:
        sigma_px: the standard deviation in pixels is drawn uniformly from this range. Below 0.05 nothing happens.
    """

    sigma_px: Range = (0.1, 2.0)

    def __post_init__(self) -> None:
        require_range("Blur.sigma_px", self.sigma_px, 0, 100)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        sigma = generator.uniform(*self.sigma_px)
        if sigma < 0.05:
            return image
        # Faster than cv2.GaussianBlur, and rounded once: that one takes 8-bit weights and is off by up to 1.6 levels.
        kernel = cv2.getGaussianKernel(2 * ceil(_REACH * sigma) + 1, sigma, cv2.CV_32F)
        return np.asarray(cv2.sepFilter2D(image, -1, kernel, kernel, borderType=cv2.BORDER_REFLECT_101), np.uint8)


@dataclass(frozen=True)
class Noise:
    """Adds Gaussian noise: round(v + σ n), cut at 0 and 255.

    n is one of the 65,536 quantiles of the standard normal distribution, drawn with 16 bits, and so within ± 4.3.

    Attributes:
        sigma: the standard deviation in levels is drawn uniformly from this range.
        gray: add the same noise to all channels instead of independent noise to each.
    """

    sigma: Range = (2.0, 12.0)
    gray: bool = False

    def __post_init__(self) -> None:
        require_range("Noise.sigma", self.sigma, 0, 255)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        sigma = np.float32(generator.uniform(*self.sigma))
        shape = (*image.shape[:2], 1) if self.gray else image.shape
        count = prod(shape)
        draws = generator.integers(0, 1 << 64, -(-count // 4), np.uint64).astype("<u8").view("<u2")[:count]
        # Levels are whole numbers, so rounding v + σ n is adding the rounded σ n.
        noise = np.rint(sigma * _normal_quantiles()).astype(np.int16).take(draws).reshape(shape)
        return np.asarray(cv2.add(image, np.broadcast_to(noise, image.shape).copy(), dtype=cv2.CV_8U), np.uint8)


@dataclass(frozen=True)
class JpegArtifacts:
    """Writes the image as a JPEG and reads it again.

    Attributes:
        quality: a whole number from 1 to 100, drawn uniformly from this range, both ends included.
        subsampling: of the chroma channels.
    """

    quality: tuple[int, int] = (30, 90)
    subsampling: Literal["444", "422", "420"] = "420"

    def __post_init__(self) -> None:
        require_counts("JpegArtifacts.quality", self.quality, 1, 100)
        known = self.subsampling in ("444", "422", "420")
        require(known, "JpegArtifacts.subsampling is '444', '422' or '420'", self.subsampling, "choose one")

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        quality = int(generator.integers(self.quality[0], self.quality[1], endpoint=True))
        return images.decode_image(images.encode_jpeg(image, quality, self.subsampling))


@dataclass(frozen=True)
class Erasing:
    """With probability `p` one rectangle of noise, uniform from 0 to 255, or with `level` of that level: Zhong et al., 'Random
    Erasing Data Augmentation', AAAI 2020. Its share of the area is drawn uniformly from `area`, its aspect (height / width)
    log-uniformly from `aspect`, up to ten times until it fits, and any place is as likely."""

    p: float = 0.5
    area: Range = (0.02, 0.33)
    aspect: Range = (0.3, 3.3)
    level: int | None = None

    @property
    def any_image(self) -> bool:
        """Return True if images of any type and number of channels can be changed: noise is for 8 bits."""
        return self.level is not None

    def __post_init__(self) -> None:
        require_probability("Erasing.p", self.p)
        require_range("Erasing.area", self.area, 0, 1)
        require_range("Erasing.aspect", self.aspect, 1e-3, 1e3)
        if self.level is not None:
            require_whole("Erasing.level", self.level, 0, 255)

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        happens, draws = generator.random() < self.p, generator.random((10, 4))
        height, width = image.shape[:2]
        low, high = log(self.aspect[0]), log(self.aspect[1])
        for area, aspect, down, right in draws if happens else ():
            pixels = height * width * (self.area[0] + area * (self.area[1] - self.area[0]))
            ratio = exp(low + aspect * (high - low))
            tall, wide = round(sqrt(pixels * ratio)), round(sqrt(pixels / ratio))
            if 0 < tall < height and 0 < wide < width:
                top, left = int(down * (height - tall + 1)), int(right * (width - wide + 1))
                changed: ImageArray = image.copy()
                window = changed[top : top + tall, left : left + wide]
                window[...] = generator.integers(0, 256, window.shape, np.uint8) if self.level is None else self.level
                return changed
        return image


_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / np.float32(13)


@cache
def _normal_quantiles() -> Array:
    """float32 [65536]: the standard normal's quantiles at (k + 1/2) / 65536."""
    normal = NormalDist()
    upper = [normal.inv_cdf((k + 0.5) / 65536) for k in range(32768, 65536)]
    return np.array([-value for value in reversed(upper)] + upper, np.float32)
