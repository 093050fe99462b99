"""Geometry ops that are one matrix: resizing and cropping, which set the size of the output; flipping, turning, zooming,
shearing, shifting and perspective about the center of the image, which keep it.

Each is a frozen dataclass; called with the (height, width) that arrives and a generator (or None for the unaugmented form)
it returns a Transform. Pixels outside the image are filled as the recipe's border says. Ops that keep the size do nothing
unaugmented. Angles are degrees, counter-clockwise as seen, as in Pillow, OpenCV and torchvision. An op that may show pixels
outside of images of any size has the attribute `uncovers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, exp, log, radians, sin, sqrt, tan
from typing import Any, ClassVar, Literal

import numpy as np

from tfprep.augment.transform import Transform, Window, WindowOp, about_center, identity, scaling, translation
from tfprep.checks import Range, around, require, require_number, require_pixels, require_probability, require_range
from tfprep.errors import RecipeError
from tfprep.fields import Size
from tfprep.optional import cv2

_ATTEMPTS = 10
"""Tries of torchvision's RandomResizedCrop before it falls back to a central crop."""


@dataclass(frozen=True)
class Resize:
    """Resizes the whole image, in the same way for every variant.

    - `Resize(height, width)`: exactly that size; the aspect may change.
    - `Resize(shorter=n)`, `Resize(longer=n)`: that side becomes n, the other follows, rounded, at least 1.
    - with `pad=True` (a letterbox): the largest size of the same aspect that fits into (height, width), or into n × n for
      `longer=n`, in the center of an output of exactly that size; an odd pixel of padding is at the bottom or right.
    - with `enlarge=False` an image that is smaller already keeps its size, with `pad` inside the padding.
    """

    effects: ClassVar[frozenset[str]] = frozenset({"resize"})

    height: int | None = None
    width: int | None = None
    shorter: int | None = None
    longer: int | None = None
    pad: bool = False
    enlarge: bool = True

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
        if not self.enlarge and all(exact) and not self.pad:
            raise RecipeError(f"enlarge=False is for shorter, longer or pad, which keep the aspect; got {self}")

    @property
    def uncovers(self) -> bool:
        return self.pad

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if self.shorter is not None:
            scale = self.shorter / min(size) if self.enlarge else min(1.0, self.shorter / min(size))
            content = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
            height, width = content
        else:
            height, width = self.height or self.longer or 1, self.width or self.longer or 1
            room = (height, width) if self.enlarge else (min(height, size[0]), min(width, size[1]))
            content = _fit(size, room) if self.pad or self.longer is not None else room
            height, width = (height, width) if self.pad else content
        left, top = (width - content[1]) // 2, (height - content[0]) // 2
        matrix = translation(left, top) @ scaling(content[1] / size[1], content[0] / size[0])
        return Transform(matrix, (height, width))


@dataclass(frozen=True)
class CenterCrop(WindowOp):
    """Cuts out the center, `height` × `width` pixels, as torchvision's CenterCrop does.

    An image that is smaller is padded on both sides, with an odd pixel of padding at the bottom or right.
    """

    effects: ClassVar[frozenset[str]] = frozenset({"crop"})

    height: int
    width: int

    def __post_init__(self) -> None:
        for side in ("height", "width"):
            require_pixels(f"{type(self).__name__}.{side}", getattr(self, side))

    def window(self, size: Size, generator: np.random.Generator | None, /) -> Window:
        return Window(_center(size[0], self.height), _center(size[1], self.width), self.height, self.width)


@dataclass(frozen=True)
class Crop(CenterCrop):
    """Cuts out a window of `height` × `width` pixels at a random position; unaugmented, at the center.

    Positions are whole pixels and equally likely. Along a side where the image is smaller than the window it is padded on both
    sides, as by `CenterCrop`.
    """

    def window(self, size: Size, generator: np.random.Generator | None, /) -> Window:
        if generator is None:
            return super().window(size, None)
        down, right = generator.random(2).tolist()
        top, left = _window_start(size[0], self.height, down), _window_start(size[1], self.width, right)
        return Window(top, left, self.height, self.width)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cuts out a window of random area and aspect and resizes it to `height` × `width`, as torchvision's RandomResizedCrop does.

    After Szegedy et al., 'Going Deeper with Convolutions', CVPR 2015.

    Up to ten times, an area is drawn uniformly from `scale` times the image's, an aspect (width / height) log-uniformly
    from `ratio`; the first window that fits is taken, at any position with the same probability. If none fits, the largest
    central window with the nearest allowed aspect is taken. Windows are whole pixels.

    Unaugmented: the central window of the output's aspect whose sides are `eval_fraction` of the largest; 0.875 is the
    usual evaluation, 'resize to 256, crop 224 from the center'.

    In a loader, `sizes` may grow while the network trains (progressive resizing): `sizes={0: 128, 6: 160, 12: (224, 224)}`
    delivers 128 x 128 pixels from epoch 0 on, 160 x 160 from epoch 6, 224 x 224 from epoch 12 and in evaluation. All batches of
    an epoch have one shape.
    """

    effects: ClassVar[frozenset[str]] = frozenset({"crop", "resize"})

    height: int = 0
    width: int = 0
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    eval_fraction: float = 0.875
    sizes: Any = None

    def __post_init__(self) -> None:
        if self.sizes is not None:
            object.__setattr__(self, "sizes", _sizes_by_epoch(self))
            _ = self.forms
            return
        require_pixels("RandomResizedCrop.height", self.height)
        require_pixels("RandomResizedCrop.width", self.width)
        require_range("RandomResizedCrop.scale", self.scale, 0, 1)
        require_range("RandomResizedCrop.ratio", self.ratio, 1e-3, 1e3)
        require(self.scale[1] > 0, "RandomResizedCrop.scale ends above 0", self.scale, "for example (0.08, 1.0)")
        require_number("RandomResizedCrop.eval_fraction", self.eval_fraction, 0, 1, above=True, example=0.875)

    @property
    def forms(self) -> dict[int, RandomResizedCrop]:
        """The op of one size by the epoch from which it holds."""
        if self.sizes is None:
            return {0: self}
        return {
            epoch: RandomResizedCrop(height, width, self.scale, self.ratio, self.eval_fraction)
            for epoch, (height, width) in self.sizes
        }

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            unit = self.eval_fraction * min(size[0] / self.height, size[1] / self.width)
            height, width = max(1, round(unit * self.height)), max(1, round(unit * self.width))
            top, left = (size[0] - height) // 2, (size[1] - width) // 2
        else:
            top, left, height, width = self._draw(size, generator)
        across, down = self.width / width, self.height / height
        matrix = np.array([[across, 0, -left * across], [0, down, -top * down], [0, 0, 1]])
        return Transform(matrix, (self.height, self.width))

    def _draw(self, size: Size, generator: np.random.Generator) -> tuple[int, int, int, int]:
        low, high = log(self.ratio[0]), log(self.ratio[1])
        for area, aspect, down, right in generator.random((_ATTEMPTS, 4)).tolist():  # Python's numbers are faster
            pixels = size[0] * size[1] * (self.scale[0] + area * (self.scale[1] - self.scale[0]))
            ratio = exp(low + aspect * (high - low))
            width, height = round(sqrt(pixels * ratio)), round(sqrt(pixels / ratio))
            if 0 < width <= size[1] and 0 < height <= size[0]:
                return _window_start(size[0], height, down), _window_start(size[1], width, right), height, width
        ratio = min(max(size[1] / size[0], self.ratio[0]), self.ratio[1])
        height, width = min(size[0], max(1, round(size[1] / ratio))), min(size[1], max(1, round(size[0] * ratio)))
        return (size[0] - height) // 2, (size[1] - width) // 2, height, width


def _sizes_by_epoch(op: RandomResizedCrop) -> tuple[tuple[int, Size], ...]:
    """The option `sizes`, in order. Raises RecipeError."""
    rule = "RandomResizedCrop.sizes gives pixels by the epoch from which they hold, the first one 0, in place of height and width"
    numbers = isinstance(op.sizes, Mapping) and all(type(epoch) is int and epoch >= 0 for epoch in op.sizes)
    example = "for example sizes={0: 128, 6: (160, 192)}"
    require(numbers and 0 in op.sizes and not op.height and not op.width, rule, op.sizes, example)
    sizes = {epoch: size if isinstance(size, tuple) else (size, size) for epoch, size in sorted(op.sizes.items())}
    require(all(len(size) == 2 for size in sizes.values()), rule, op.sizes, example)
    return tuple(sizes.items())


def _fit(size: Size, box: Size) -> Size:
    """The largest whole size of the same aspect inside `box`."""
    scale = min(box[0] / size[0], box[1] / size[1])
    height, width = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    return min(height, box[0]), min(width, box[1])


def _center(length: int, window: int) -> int:
    """The beginning of a central window, rounded as torchvision rounds; negative where it is longer than the image."""
    return round((length - window) / 2) if length >= window else -((window - length) // 2)


def _window_start(length: int, window: int, draw: float) -> int:
    """The beginning of a window for a `draw` from [0, 1): every start is equally likely. It is central where it does not fit."""
    return int(draw * (length - window + 1)) if length >= window else _center(length, window)


@dataclass(frozen=True)
class Flip(WindowOp):
    """Mirrors the sample with probability `p`.

    In a mirror image a left hand is a right hand: `Recipe.flip_indices` exchanges the rows of such points.

    Attributes:
        p: probability, 0 to 1.
        direction: "horizontal" exchanges left and right, "vertical" top and bottom.
    """

    effects: ClassVar[frozenset[str]] = frozenset({"flip"})

    p: float = 0.5
    direction: Literal["horizontal", "vertical"] = "horizontal"

    def __post_init__(self) -> None:
        require_probability("Flip.p", self.p)
        known = self.direction in ("horizontal", "vertical")
        require(known, "Flip.direction is 'horizontal' or 'vertical'", self.direction, "take two Flips for both")

    def window(self, size: Size, generator: np.random.Generator | None, /) -> Window:
        flips = generator is not None and generator.random() < self.p
        is_vertical = self.direction == "vertical"
        return Window(0, 0, *size, flips and is_vertical, flips and not is_vertical)


@dataclass(frozen=True)
class Rotate:
    """Turns the sample about its center and keeps the size.

    Attributes:
        degrees: the angle is drawn uniformly from ± this number, or from a range (from, to); counter-clockwise.
    """

    effects: ClassVar[frozenset[str]] = frozenset({"crop", "warp"})
    uncovers: ClassVar[bool] = True

    degrees: float | Range = 10.0

    def __post_init__(self) -> None:
        require_range("Rotate.degrees", around(0, self.degrees), -360, 360)

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        angle = radians(generator.uniform(*around(0, self.degrees)))
        return about_center(np.array([[cos(angle), sin(angle)], [-sin(angle), cos(angle)]]), size)


@dataclass(frozen=True)
class Rotate90:
    """Turns the sample by 0, 90, 180 or 270 degrees, each with the same probability, without interpolation.

    A quarter turn exchanges height and width: put a `Crop` or `Resize` after it where all outputs must have one size.
    """

    effects: ClassVar[frozenset[str]] = frozenset({"warp"})

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        height, width = size
        turns = [
            np.eye(3),
            np.array([[0.0, 1, 0], [-1, 0, width], [0, 0, 1]]),
            np.array([[-1.0, 0, width], [0, -1, height], [0, 0, 1]]),
            np.array([[0.0, -1, height], [1, 0, 0], [0, 0, 1]]),
        ]
        turn = int(generator.integers(4))
        return Transform(turns[turn], size if turn % 2 == 0 else (width, height))


@dataclass(frozen=True)
class Scale:
    """Zooms about the center and keeps the size.

    Attributes:
        factor: the factor is drawn uniformly from this range. Above 1 the center fills the image; below 1 the whole image
            shrinks and the border shows.
    """

    effects: ClassVar[frozenset[str]] = frozenset({"crop", "resize"})

    factor: Range = (0.8, 1.25)

    def __post_init__(self) -> None:
        require_range("Scale.factor", self.factor, 0.01, 100)

    @property
    def uncovers(self) -> bool:
        return self.factor[0] < 1

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        factor = generator.uniform(*self.factor)
        return about_center(np.diag([factor, factor]), size)


@dataclass(frozen=True)
class Shear:
    """Slants the sample: a point at (x, y) from the center moves to (x + tan(a) · y, y + tan(b) · x).

    Angles are between -80 and 80 degrees, and tan(a) · tan(b) stays below 1, beyond which the image would turn over.

    Attributes:
        x_degrees: a is drawn uniformly from ± this number, or from a range (from, to).
        y_degrees: b, in the same way.
    """

    effects: ClassVar[frozenset[str]] = frozenset({"crop", "warp"})
    uncovers: ClassVar[bool] = True

    x_degrees: float | Range = 10.0
    y_degrees: float | Range = 0.0

    def __post_init__(self) -> None:
        for name in ("x_degrees", "y_degrees"):
            require_range(f"Shear.{name}", around(0, getattr(self, name)), -80, 80)
        steepest = [max(tan(radians(abs(end))) for end in around(0, of)) for of in (self.x_degrees, self.y_degrees)]
        rule = "the tangents of Shear's greatest x_degrees and y_degrees multiply to less than 1"
        require(steepest[0] * steepest[1] < 1, rule, (self.x_degrees, self.y_degrees), "for example 20 and 20")

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        along = [tan(radians(generator.uniform(*around(0, of)))) for of in (self.x_degrees, self.y_degrees)]
        return about_center(np.array([[1.0, along[0]], [along[1], 1.0]]), size)


@dataclass(frozen=True)
class Translate:
    """Shifts the sample, to the right and down where the shift is positive.

    Attributes:
        x: the shift as a share of the width, drawn uniformly from ± this number, or from a range (from, to).
        y: the shift as a share of the height, in the same way.
        whole: shift by whole pixels, so that no pixel is interpolated.
    """

    uncovers: ClassVar[bool] = True

    x: float | Range = 0.1
    y: float | Range = 0.1
    whole: bool = True

    def __post_init__(self) -> None:
        require_range("Translate.x", around(0, self.x), -1, 1)
        require_range("Translate.y", around(0, self.y), -1, 1)

    @property
    def effects(self) -> frozenset[str]:
        """Between pixels, values are interpolated."""
        return frozenset({"crop"} if self.whole else {"crop", "warp"})

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        x = generator.uniform(*around(0, self.x)) * size[1]
        y = generator.uniform(*around(0, self.y)) * size[0]
        return Transform(translation(round(x), round(y)) if self.whole else translation(x, y), size)


@dataclass(frozen=True)
class Perspective:
    """Views the sample in a random perspective, as torchvision's RandomPerspective does, but without showing a border.

    The corners of the output show points drawn uniformly from inside the image.

    Attributes:
        distortion: the greatest distance of these points from the image's corners, as a share of half the width and height;
            0 (nothing) to 0.6. From 2/3 on the four points may not span a view.
    """

    effects: ClassVar[frozenset[str]] = frozenset({"crop", "warp"})

    distortion: float = 0.3

    def __post_init__(self) -> None:
        require_number("Perspective.distortion", self.distortion, 0, 0.6, example=0.3)

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        height, width = size
        corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
        inwards = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) * (width, height)
        seen = corners + inwards * (generator.random((4, 2)) * self.distortion / 2)
        return Transform(cv2.getPerspectiveTransform(seen.astype(np.float32), corners), size)
