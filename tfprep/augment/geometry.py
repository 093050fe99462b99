"""Resizing and cropping: the ops that set the size of the output.

Each is a frozen dataclass; called with the (height, width) that arrives and a generator (or None for the unaugmented form)
it returns a Transform. What lies outside the image is filled as the recipe's border says.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

from tfprep.augment.transform import Transform, scaling, translation
from tfprep.checks import Range, require, require_pixels, require_range
from tfprep.errors import RecipeError
from tfprep.fields import Size

_ATTEMPTS = 10
"""How often torchvision's RandomResizedCrop tries before it falls back to a central crop."""


@dataclass(frozen=True)
class Resize:
    """Resizes the whole image, in the same way for every variant.

    - `Resize(height, width)`: exactly that size; the aspect may change.
    - `Resize(shorter=n)`, `Resize(longer=n)`: that side becomes n, the other follows, rounded, at least 1.
    - with `pad=True` (a letterbox): the largest size of the same aspect that fits into (height, width), or into n × n for
      `longer=n`, in the centre of an output of exactly that size; an odd pixel of padding is at the bottom or right.
    """

    height: int | None = None
    width: int | None = None
    shorter: int | None = None
    longer: int | None = None
    pad: bool = False

    def __post_init__(self) -> None:
        exact = (self.height is not None, self.width is not None)
        ways = [all(exact), self.shorter is not None, self.longer is not None]
        if sum(ways) != 1 or exact[0] != exact[1]:
            raise RecipeError(
                f"Resize takes either height and width, or shorter, or longer, got {self}; for example Resize(224, 224)"
            )
        for name in ("height", "width", "shorter", "longer"):
            if getattr(self, name) is not None:
                require_pixels(f"Resize.{name}", getattr(self, name))
        if self.pad and self.shorter is not None:
            raise RecipeError(f"pad needs a size to pad to, got {self}; give longer, or height and width")

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        content = self._content(size)
        height, width = self._output(content)
        left, top = (width - content[1]) // 2, (height - content[0]) // 2
        matrix = translation(left, top) @ scaling(content[1] / size[1], content[0] / size[0])
        return Transform(matrix, (height, width))

    def _content(self, size: Size) -> Size:
        """The size of the image itself, without padding."""
        if self.height is not None and self.width is not None:
            return _fit(size, (self.height, self.width)) if self.pad else (self.height, self.width)
        if self.longer is not None:
            return _fit(size, (self.longer, self.longer))
        assert self.shorter is not None
        scale = self.shorter / min(size)
        return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))

    def _output(self, content: Size) -> Size:
        if not self.pad:
            return content
        if self.height is not None and self.width is not None:
            return self.height, self.width
        assert self.longer is not None
        return self.longer, self.longer


@dataclass(frozen=True)
class CenterCrop:
    """Cuts out the centre, `height` × `width` pixels, as torchvision's CenterCrop does.

    An image that is smaller is padded on both sides, with an odd pixel of padding at the bottom or right.
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        require_pixels("CenterCrop.height", self.height)
        require_pixels("CenterCrop.width", self.width)

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        top, left = _centre(size[0], self.height), _centre(size[1], self.width)
        return Transform(translation(-left, -top), (self.height, self.width))


@dataclass(frozen=True)
class Crop:
    """Cuts out a window of `height` × `width` pixels at a random position; unaugmented, at the centre.

    Positions are whole pixels and equally likely. Along a side where the image is smaller than the window it is padded on both
    sides, as by `CenterCrop`.
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        require_pixels("Crop.height", self.height)
        require_pixels("Crop.width", self.width)

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return CenterCrop(self.height, self.width)(size, None)
        down, right = generator.random(2)
        top, left = _window_start(size[0], self.height, down), _window_start(size[1], self.width, right)
        return Transform(translation(-left, -top), (self.height, self.width))


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cuts out a window of random area and aspect and resizes it to `height` × `width`, as torchvision's RandomResizedCrop does.

    After Szegedy et al., 'Going Deeper with Convolutions', CVPR 2015.

    Up to ten times, an area is drawn uniformly from `scale` times the image's, an aspect (width / height) log-uniformly
    from `ratio`; the first window that fits is taken, at any position with the same probability. If none fits, the largest
    central window with the nearest allowed aspect is taken. Windows are whole pixels.

    Unaugmented: the central window of the output's aspect whose sides are `eval_fraction` of the largest; 0.875 is the
    usual evaluation, 'resize to 256, crop 224 from the centre'.
    """

    height: int
    width: int
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    eval_fraction: float = 0.875

    def __post_init__(self) -> None:
        require_pixels("RandomResizedCrop.height", self.height)
        require_pixels("RandomResizedCrop.width", self.width)
        require_range("RandomResizedCrop.scale", self.scale, 0, 1)
        require_range("RandomResizedCrop.ratio", self.ratio, 1e-3, 1e3)
        require(self.scale[1] > 0, "RandomResizedCrop.scale ends above 0", self.scale, "for example (0.08, 1.0)")
        rule = "RandomResizedCrop.eval_fraction is above 0 and at most 1"
        require(0 < self.eval_fraction <= 1, rule, self.eval_fraction, "for example 0.875, or 1 for the whole")

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        top, left, height, width = self._evaluation(size) if generator is None else self._draw(size, generator)
        matrix = scaling(self.width / width, self.height / height) @ translation(-left, -top)
        return Transform(matrix, (self.height, self.width))

    def _draw(self, size: Size, generator: np.random.Generator) -> tuple[int, int, int, int]:
        low, high = log(self.ratio[0]), log(self.ratio[1])
        for area, aspect, down, right in generator.random((_ATTEMPTS, 4)):
            pixels = size[0] * size[1] * (self.scale[0] + area * (self.scale[1] - self.scale[0]))
            ratio = exp(low + aspect * (high - low))
            width, height = round(sqrt(pixels * ratio)), round(sqrt(pixels / ratio))
            if 0 < width <= size[1] and 0 < height <= size[0]:
                return _window_start(size[0], height, down), _window_start(size[1], width, right), height, width
        return self._fallback(size)

    def _fallback(self, size: Size) -> tuple[int, int, int, int]:
        ratio = min(max(size[1] / size[0], self.ratio[0]), self.ratio[1])
        height, width = min(size[0], max(1, round(size[1] / ratio))), min(size[1], max(1, round(size[0] * ratio)))
        return (size[0] - height) // 2, (size[1] - width) // 2, height, width

    def _evaluation(self, size: Size) -> tuple[int, int, int, int]:
        unit = self.eval_fraction * min(size[0] / self.height, size[1] / self.width)
        height, width = max(1, round(unit * self.height)), max(1, round(unit * self.width))
        return (size[0] - height) // 2, (size[1] - width) // 2, height, width


def _fit(size: Size, box: Size) -> Size:
    """The largest whole size of the same aspect inside `box`."""
    scale = min(box[0] / size[0], box[1] / size[1])
    height, width = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    return min(height, box[0]), min(width, box[1])


def _centre(length: int, window: int) -> int:
    """Where a central window begins, rounded as torchvision rounds; negative where it is longer than the image."""
    return round((length - window) / 2) if length >= window else -((window - length) // 2)


def _window_start(length: int, window: int, draw: float) -> int:
    """Where a window begins for a `draw` from [0, 1): every start is equally likely. It is central where it does not fit."""
    return int(draw * (length - window + 1)) if length >= window else _centre(length, window)
