"""Derived inputs of an image: edges and gradients. They are computed before the color ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tfprep.checks import require, require_number
from tfprep.derive.inputs import image_of
from tfprep.fields import Array, Kind, Sample
from tfprep.optional import cv2


@dataclass(frozen=True)
class Canny:
    """Marks edges: uint8 [H, W], 1 on an edge, else 0.

    Canny's detector (PAMI 1986) by OpenCV, on the gray image (ITU-R 601-2), with `|gx| + |gy|` as the length of a gradient.

    Attributes:
        image: the field to look at.
        low: lower threshold of the hysteresis, in the units of OpenCV's Sobel gradients.
        high: upper threshold.
        aperture: size of the Sobel kernels, 3, 5 or 7 pixels.
    """

    kind: ClassVar[Kind] = "mask"
    follows: ClassVar[frozenset[str]] = frozenset({"crop", "flip"})
    inputs: ClassVar[tuple[str, ...]] = ("image",)

    image: str = "image"
    low: float = 100
    high: float = 200
    aperture: int = 3

    def __post_init__(self) -> None:
        require_number("Canny.low", self.low, 0, example=100)
        require_number("Canny.high", self.high, 0, example=200)
        require(self.low <= self.high, "Canny.high is at least low", self.high, f"for example {2 * self.low:g}")
        require(self.aperture in (3, 5, 7), "Canny.aperture is 3, 5 or 7", self.aperture, "choose one")

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        edges = cv2.Canny(_gray(image_of(sample, self.image)), self.low, self.high, apertureSize=self.aperture)
        return np.asarray(edges // 255)


@dataclass(frozen=True)
class Sobel:
    """Computes gradients of the gray image by Sobel's 3 × 3 kernels divided by 8: float32, in levels a pixel.

    The image is reflected at its edge.

    Attributes:
        image: the field to look at.
        of: "magnitude" gives the Euclidean length [H, W], "both" the derivatives to the right and down [H, W, 2].
    """

    kind: ClassVar[Kind] = "map"
    inputs: ClassVar[tuple[str, ...]] = ("image",)

    image: str = "image"
    of: Literal["magnitude", "both"] = "magnitude"

    def __post_init__(self) -> None:
        require(self.of in ("magnitude", "both"), "Sobel.of is 'magnitude' or 'both'", self.of, "choose one")

    @property
    def follows(self) -> frozenset[str]:
        """A mirror image turns directions."""
        return frozenset({"crop", "flip"} if self.of == "magnitude" else {"crop"})

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        gray = _gray(image_of(sample, self.image))
        right = np.asarray(cv2.Sobel(gray, cv2.CV_32F, 1, 0, scale=1 / 8, borderType=cv2.BORDER_REFLECT))
        down = np.asarray(cv2.Sobel(gray, cv2.CV_32F, 0, 1, scale=1 / 8, borderType=cv2.BORDER_REFLECT))
        return np.hypot(right, down) if self.of == "magnitude" else np.stack([right, down], axis=2)


def _gray(image: Array) -> Array:
    return np.asarray(image[:, :, 0] if image.shape[2] == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))
