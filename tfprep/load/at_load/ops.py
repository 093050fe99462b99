"""Ops at load: what is drawn anew in every epoch while batches are made, and one-hot labels.

- Geometry: `RandomFlip`, `RandomCrop`, `RandomResizedCrop`, `CenterCrop`, `Resize`. All images, masks, maps, boxes and points of
  a sample follow, as they do in a build; labels, scalars and text stay as they are.
- Color, of images alone: `ColorJitter`, `Grayscale`, `Solarize`, `RandomErasing`.
- Mixing of two samples: `MixUp`, `CutMix`; and `OneHotLabels`.

Every random number is a function of (seed, epoch, position in the epoch), so that it does not depend on the number of hosts or
threads, and a resumed run draws the same ones.

The partner of a sample in `MixUp` and `CutMix` is the next sample of the same global batch, and the first one for the last: in
a shuffled order a random sample. A host also reads the first sample of the next host's part.

With training=False each op takes its unaugmented form, as ops of `tfprep.augment` do for variant 0: the crop is the center,
nothing is flipped, colored, erased or mixed, and labels are one-hot where they are in training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tfprep import augment
from tfprep.augment.chain import apply_curve
from tfprep.augment.color import blend_curve
from tfprep.augment.transform import Transform, scaling, translation
from tfprep.checks import (
    Range,
    around,
    is_number,
    require,
    require_count,
    require_pixels,
    require_probability,
    require_range,
)
from tfprep.errors import LoaderError, RecipeError, SampleError
from tfprep.fields import ImageArray, Size
from tfprep.optional import cv2


@contextmanager
def _as_loader_error() -> Iterator[None]:
    """Ops of `tfprep.augment` check their options as parts of a recipe."""
    try:
        yield
    except RecipeError as error:
        raise LoaderError(str(error)) from None


class _Checked:
    """An op of `tfprep.augment`, whose wrong options are errors of a loader here."""

    def __post_init__(self) -> None:
        with _as_loader_error():
            super().__post_init__()  # type: ignore[misc] # of the op, which comes behind this class


# --- geometry: from the (height, width) that arrives and draws, None for the unaugmented form, to a transform ---------------


@dataclass(frozen=True)
class RandomFlip(_Checked, augment.Flip):
    """With probability `p`, the mirror image: left and right exchanged, or with `direction="vertical"` top and bottom.

    The arguments are those of `augment.Flip`.
    """

    draws: ClassVar[int] = 1


@dataclass(frozen=True)
class RandomCrop(_Checked, augment.Crop):
    """A window of `height` x `width` pixels at a random position, uniformly distributed. No image may be smaller."""

    draws: ClassVar[int] = 2

    def __call__(self, size: Size, generator: Any, /) -> Transform:
        self.check_size(size)
        if generator is not None:
            return super().__call__(size, generator)
        top, left = (size[0] - self.height) // 2, (size[1] - self.width) // 2
        return Transform(translation(-left, -top), (self.height, self.width))

    def check_size(self, size: Size) -> None:
        """SampleError where an image of this size is smaller than the window."""
        if size[0] < self.height or size[1] < self.width:
            raise SampleError(
                f"{size[0]} x {size[1]} pixels are fewer than RandomCrop({self.height}, {self.width}) leaves; store images of "
                "at least that size, or choose a smaller crop"
            )


@dataclass(frozen=True)
class RandomResizedCrop(_Checked, augment.RandomResizedCrop):
    """A window of random area and aspect, resized to `height` x `width`: the augmentation of most networks on ImageNet.

    The window is drawn as torchvision draws it: an area from `scale` times the image's, an aspect (width / height) log-uniformly
    from `ratio`. It is averaged by area where it shrinks and interpolated linearly where it grows. A JPEG is decoded at 1/2,
    1/4 or 1/8 where the window is so large that nothing is lost. Store images larger than the output: a short side of 256 to 512
    pixels. With training=False it is the central window whose sides are `eval_fraction` of the largest of that aspect.

    `sizes` grow while the network trains (progressive resizing): `sizes={0: 128, 6: 160, 12: (224, 224)}` delivers 128 x 128
    pixels from epoch 0 on, 160 x 160 from epoch 6, 224 x 224 from epoch 12 and in evaluation. All batches of an epoch have one
    shape.
    """

    height: int = 0
    width: int = 0
    sizes: Any = None
    draws: ClassVar[int] = 40

    def __post_init__(self) -> None:
        if self.sizes is None:
            if self.height == 0 or self.width == 0:
                raise LoaderError(
                    "RandomResizedCrop takes height and width, RandomResizedCrop(224, 224), or sizes by epoch"
                )
            super().__post_init__()
            return
        rule = "RandomResizedCrop(sizes={0: 128, 6: (160, 192)}): pixels by the epoch from which they hold, the first one 0"
        try:
            epochs = dict(self.sizes)
        except (TypeError, ValueError):
            epochs = {}
        if not all(isinstance(epoch, int) and not isinstance(epoch, bool) for epoch in epochs) or 0 not in epochs:
            raise LoaderError(f"{rule}, not {self.sizes!r}")
        if self.height or self.width or min(epochs) < 0:
            raise LoaderError(f"{rule}, and no other height and width; not {self}")
        sizes = {epoch: size if isinstance(size, tuple) else (size, size) for epoch, size in sorted(epochs.items())}
        if any(len(size) != 2 for size in sizes.values()):
            raise LoaderError(f"{rule}, not {self.sizes!r}")
        object.__setattr__(self, "sizes", tuple(sizes.items()))
        _ = self.forms

    @property
    def forms(self) -> dict[int, RandomResizedCrop]:
        """The op of one size by the epoch from which it holds."""
        if self.sizes is None:
            return {0: self}
        return {
            epoch: RandomResizedCrop(height, width, self.scale, self.ratio, self.eval_fraction)
            for epoch, (height, width) in self.sizes
        }


@dataclass(frozen=True)
class CenterCrop(_Checked, augment.CenterCrop):
    """The center, `height` x `width` pixels, in training too; a smaller image is padded by the recipe's `border` and `fill`."""

    draws: ClassVar[int] = 0


@dataclass(frozen=True)
class Resize(_Checked, augment.Resize):
    """The whole image resized, in training too: the arguments are those of `augment.Resize`.

    `[Resize(shorter=256), CenterCrop(224, 224)]` is the usual evaluation of a network on ImageNet.
    """

    draws: ClassVar[int] = 0


@dataclass(frozen=True)
class Buckets:
    """Sizes of batches, (height, width) in pixels: the loader's option `bucket` for pictures of different aspect ratios.

    A sample belongs to the size whose aspect ratio is nearest to its own, by the height and width in the index; of two that are
    equally near, to the taller. All samples of a batch are of one size: resized, keeping their aspect, until they cover it, and
    cut to it, in training at a random place.
    (NovelAI's aspect ratio bucketing; `aspect_ratio_grouping` of detectron2.)
    """

    sizes: tuple[Size, ...]

    def __post_init__(self) -> None:
        listed = self.sizes if isinstance(self.sizes, Sequence) else ()
        sizes = [tuple(size) if isinstance(size, Sequence) else size for size in listed]
        with _as_loader_error():
            require(
                bool(sizes),
                "Buckets takes a list of one size at least",
                self.sizes,
                "for example [(512, 768), (640, 640)]",
            )
            for size in sizes:
                pair = isinstance(size, tuple) and len(size) == 2
                require(pair, "Buckets takes sizes (height, width)", size, "for example (512, 768)")
                for side in size:
                    require_pixels("A side of Buckets", side)
            ratios = [height / width for height, width in sizes]
            require(
                len(set(ratios)) == len(ratios), "Buckets differ in their aspect ratios", sizes, "leave one of two out"
            )
        object.__setattr__(self, "sizes", tuple(sizes))

    @property
    def forms(self) -> tuple[Covering, ...]:
        return tuple(Covering(*size) for size in self.sizes)


@dataclass(frozen=True)
class Covering:
    """The image resized until it covers `height` x `width`, and cut to it."""

    height: int
    width: int
    draws: ClassVar[int] = 2

    def __call__(self, size: Size, generator: Any, /) -> Transform:
        scale = max(self.height / size[0], self.width / size[1])
        room = [int(scale * side - to + 1e-6) for side, to in zip(size, (self.height, self.width), strict=True)]
        if generator is None:
            top, left = room[0] // 2, room[1] // 2
        else:
            top, left = (int(draw * (most + 1)) for draw, most in zip(generator.random(2), room, strict=True))
        return Transform(translation(-left, -top) @ scaling(scale, scale), (self.height, self.width))


# --- color: from uint8 [H, W, 3] RGB and draws to the same ------------------------------------------------------------------


@dataclass(frozen=True)
class ColorJitter:
    """With probability `p`, other brightness, contrast and saturation, in random order, as torchvision's ColorJitter draws them.

    An amount of 0.4 draws the factor uniformly from 0.6 to 1.4; a pair (from, to) is the range of the factor itself, and 0
    changes nothing. Hue, which costs ten times as much, belongs into the recipe's `color`.
    """

    brightness: float | Range = 0.4
    contrast: float | Range = 0.4
    saturation: float | Range = 0.4
    p: float = 1.0
    draws: ClassVar[int] = 5

    def __post_init__(self) -> None:
        with _as_loader_error():
            require_probability("ColorJitter.p", self.p)
            for name in ("brightness", "contrast", "saturation"):
                require_range(f"ColorJitter.{name}", _factors(getattr(self, name)), 0, _MOST_FACTOR)

    def __call__(self, image: ImageArray, generator: Any, /) -> ImageArray:
        happens, order = generator.random() < self.p, _ORDERS[int(generator.random() * len(_ORDERS))]
        for name in order if happens else ():
            factor = generator.uniform(*_factors(getattr(self, name)))
            if factor != 1:
                image = _changed(image, name, factor)
        return image


_MOST_FACTOR = 10.0
_LUMA = np.array([0.299, 0.587, 0.114])
_CUT = -0.5 + 1 / 512
"""Added before OpenCV rounds: sums are cut to whole levels, as Pillow and torchvision cut them."""


def _factors(amount: float | Range) -> Range:
    low, high = around(1, amount)
    return (low, high) if isinstance(amount, tuple) else (max(0.0, low), high)


def _changed(image: ImageArray, name: str, factor: float) -> ImageArray:
    if name == "saturation":
        matrix = np.eye(3) * factor + (1 - factor) * _LUMA
        return np.asarray(cv2.transform(image, np.column_stack([matrix, np.full(3, _CUT)])), np.uint8)
    if name == "brightness":
        return apply_curve(image, blend_curve(0, factor))
    mean = float(np.dot(cv2.mean(image)[:3], _LUMA))
    return apply_curve(image, blend_curve(int(mean + 0.5), factor))


_ORDERS = list(permutations(("brightness", "contrast", "saturation")))


@dataclass(frozen=True)
class Grayscale(_Checked, augment.Grayscale):
    """With probability `p`, the image's gray version, in three channels."""

    draws: ClassVar[int] = 1


@dataclass(frozen=True)
class Solarize:
    """With probability `p`, levels from `threshold` on are inverted (v becomes 255 - v), as BYOL and DINO do."""

    p: float = 0.2
    threshold: int = 128
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        with _as_loader_error():
            require_probability("Solarize.p", self.p)
            level = (
                isinstance(self.threshold, int) and not isinstance(self.threshold, bool) and 0 <= self.threshold <= 256
            )
            require(level, "Solarize.threshold is a level from 0 to 256", self.threshold, "for example 128")

    def __call__(self, image: ImageArray, generator: Any, /) -> ImageArray:
        if generator.random() >= self.p:
            return image
        levels = np.arange(256)
        return apply_curve(image, np.where(levels < self.threshold, levels, 255 - levels).astype(np.uint8))


@dataclass(frozen=True)
class RandomErasing(_Checked, augment.Erasing):
    """With probability `p` one rectangle of the image filled with `level` (Zhong et al., 'Random Erasing', AAAI 2020).

    Its share of the area is drawn uniformly from `area`, its aspect (height / width) log-uniformly from `aspect`, up to ten times
    until it fits. Images of any dtype; masks and maps stay as they are.
    """

    level: int = 0
    draws: ClassVar[int] = 41

    def __post_init__(self) -> None:
        super().__post_init__()
        with _as_loader_error():
            whole = isinstance(self.level, int) and 0 <= self.level <= 255
            require(whole, "RandomErasing.level is a whole number from 0 to 255", self.level, "for example 0")


# --- mixing and labels --------------------------------------------------------------------------------------------------


class _Encodes:
    """An op whose labels are vectors."""

    def __post_init__(self) -> None:
        op: Any = self
        name = type(self).__name__
        with _as_loader_error():
            if isinstance(op, Mixing):
                holds = is_number(op.alpha) and 0 < op.alpha <= 1000
                require(holds, f"{name}.alpha is a number above 0, at most 1000", op.alpha, "for example 0.2")
                require_probability(f"{name}.p", op.p)
            if op.classes is not None:
                require_count(f"{name}.classes", op.classes, 1)


@dataclass(frozen=True)
class MixUp(_Encodes):
    """A weighted sum of two samples: w a + (1 - w) b, images, maps and one-hot labels alike (Zhang et al., 'mixup: Beyond
    Empirical Risk Minimization', ICLR 2018), with w from Beta(`alpha`, `alpha`), rounded to a 256th.

    Labels become float32 [classes]. Whole-number rasters are rounded half up, exactly; floats are computed in float32. `p` is
    the share of samples that are mixed. `classes` is needed where the dataset does not name its classes.
    """

    alpha: float = 0.2
    p: float = 1.0
    classes: int | None = None


@dataclass(frozen=True)
class CutMix(_Encodes):
    """A box of the sample replaced by the partner's pixels there (Yun et al., 'CutMix', ICCV 2019): as high and wide as
    sqrt(1 - w) of the image, w from Beta(`alpha`, `alpha`), its center anywhere, cut off at the borders.

    Labels become float32 [classes], by the areas that are left. Masks and maps are replaced like the image. `p` is the share
    of samples that are mixed. `classes` is needed where the dataset does not name its classes.
    """

    alpha: float = 1.0
    p: float = 1.0
    classes: int | None = None


@dataclass(frozen=True)
class OneHotLabels(_Encodes):
    """Labels as float32 [classes]: 1 for the sample's class, 0 for all others, as `CategoricalCrossentropy` takes them.

    `MixUp` and `CutMix` need no `OneHotLabels`: their labels are such vectors. `classes` is needed where the dataset does not
    name its classes.
    """

    classes: int | None = None


Cut: TypeAlias = RandomFlip | RandomCrop
"""Ops that move pixels and compute none."""
Geometry: TypeAlias = RandomFlip | RandomCrop | RandomResizedCrop | CenterCrop | Resize
Placed: TypeAlias = Geometry | Covering
Color: TypeAlias = ColorJitter | Grayscale | Solarize | RandomErasing
Mixing: TypeAlias = MixUp | CutMix
Encoding: TypeAlias = MixUp | CutMix | OneHotLabels
"""Ops whose labels are vectors."""
AtLoadOp: TypeAlias = Geometry | Color | Encoding
