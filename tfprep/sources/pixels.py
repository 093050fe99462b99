"""Pixels of images for which 8-bit RGB would lose something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tfprep import images
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, Kind, Size
from tfprep.sources.source import FieldDecoder, constructor_text

_HIGHEST = {"uint8": 255, "uint16": 65535}
TURNED = (
    "the EXIF orientation of '{name}' turns it. If the labels were drawn on the pixels as they are stored: "
    "pixels={{'{name}': sources.Pixels(exif=\"ignore\", background=(255, 255, 255))}}"
)
"""The end of a message about labels that do not fit an image."""


@dataclass(frozen=True, repr=False)
class Pixels:
    """Keeps an image's own dtype and channels: uint8, uint16 or float32 [H, W, C].

    `Folder`, `Paired` and `Table` take it by field: `pixels={"image": sources.Pixels()}`. It reads 16-bit PNG, TIFF with any
    number of bands (integers or floats, chunky or planar), GeoTIFF, DICOM, RGBA and palettes. `tfprep.images` says how each is
    read.

    Attributes:
        to: The dtype: None for that of the file; "uint8" or "uint16" for `low` to `high` as 0 to the highest number, what is
            outside cut; "float32" for the numbers as they are.
        low, high: The range for `to="uint8"` and `to="uint16"`, in the numbers that DICOM's rescale gives: by default all that
            the file's whole numbers can be (in DICOM by the bits stored). Files of floats have no such range: then both must
            be given. Those of a DICOM window are `center - width / 2`
            and `center + width / 2 - 1` (PS3.3, C.11.2.1.2.1).
        channels: The channels to take, from 0, such as `(3, 2, 1)`; None for all.
        page: The page of a TIFF, or the frame of an animated image or of DICOM, from 0. With None, a file of several is rejected.
        background: The RGB color that transparent pixels are laid over, such as (255, 255, 255). All images then become 8-bit
            RGB, as without `Pixels`. Without it, transparency stays a channel.
        nodata: The value for the pixels that a GeoTIFF marks as no data. With None, an image with such pixels is rejected.
        exif: "apply" the orientation that the file gives, or "ignore" it: for labels that were drawn on the pixels as they are
            stored. With `background` the images still become 8-bit RGB.
        max_pixels: The most pixels of an image, in place of 178,956,970: a larger file may be an attack on memory. Decoding takes
            about 9 bytes of memory for each pixel of RGB.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    to: Literal["uint8", "uint16", "float32"] | None = None
    low: float | None = None
    high: float | None = None
    channels: tuple[int, ...] | None = None
    page: int | None = None
    nodata: float | None = None
    background: tuple[int, int, int] | None = None
    exif: Literal["apply", "ignore"] = "apply"
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        if self.to not in (None, "uint8", "uint16", "float32"):
            raise RecipeError(f"Pixels: to is 'uint8', 'uint16', 'float32' or None; got {self.to!r}")
        if (self.low is not None or self.high is not None) and self.to not in _HIGHEST:
            raise RecipeError(f"Pixels: low and high need to='uint8' or to='uint16'; got to={self.to!r}")
        if (self.low is None) != (self.high is None) or (self.low is not None and not self.low < (self.high or 0)):
            raise RecipeError(f"Pixels: expected low < high, both or neither; got {self.low!r} and {self.high!r}")
        for name, (rule, test) in _RULES.items():
            if (value := getattr(self, name)) is not None and not test(value):
                raise RecipeError(f"Pixels: {name} is {rule}; got {value!r}")
        numeric = ("to", "low", "high", "channels", "page", "nodata")
        given = [name for name in numeric if getattr(self, name) is not None]
        if self.background is not None and given:
            raise RecipeError(f"Pixels: background makes 8-bit RGB of all images; leave out {', '.join(given)}")

    __repr__ = constructor_text


_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "channels": (
        "a tuple of numbers from 0, such as (0, 1, 2)",
        lambda value: bool(value) and all(isinstance(one, int) and one >= 0 for one in value),
    ),
    "page": ("a number from 0", lambda value: isinstance(value, int) and value >= 0),
    "background": (
        "three numbers from 0 to 255",
        lambda value: isinstance(value, tuple) and len(value) == 3 and all(one in range(256) for one in value),
    ),
    "exif": ("'apply' or 'ignore'", lambda value: value in ("apply", "ignore")),
    "max_pixels": ("a number of pixels from 1", lambda value: isinstance(value, int) and value > 0),
}


@dataclass(frozen=True)
class PixelDecoder:
    """Makes a field of `Pixels`."""

    field: str
    pixels: Pixels

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        with images.pixel_limit(self.pixels.max_pixels):
            if self.pixels.background is not None:  # as 8-bit RGB, by Pillow
                height, width = images.image_size(raw[self.field])
            else:
                height, width = images.pixels_size(raw[self.field], self.pixels.page)
            return (width, height) if self._ignored_orientation(raw[self.field]) >= 5 else (height, width)

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Array:
        data = raw[self.field]
        with images.pixel_limit(self.pixels.max_pixels):
            return images.as_stored(self._upright(data), self._ignored_orientation(data))

    def _ignored_orientation(self, data: bytes) -> int:
        return images.file_orientation(data, self.pixels.page) if self.pixels.exif == "ignore" else 1

    def _upright(self, data: bytes) -> Array:
        options = self.pixels
        if options.background is not None:
            return images.decode_image(data, background=options.background)
        numbers = images.decode_numbers(data, options.page, options.nodata)
        array = numbers.pixels
        if options.channels is not None:
            if max(options.channels) >= array.shape[2]:
                raise SampleError(f"there is no channel {max(options.channels)}: the image has {array.shape[2]}")
            array = array[:, :, list(options.channels)]
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise SampleError("the image holds NaN or infinity, not marked as no data; write numbers in their place")
        numbers = numbers._replace(pixels=array)
        if options.to is None or options.to == "float32":
            return np.ascontiguousarray(numbers.upside().astype(options.to or array.dtype, copy=False))
        if options.low is not None and options.high is not None:
            low, high = options.low, options.high
        elif numbers.limits is None:
            raise SampleError(f"floats have no range to make {options.to} of; give low and high")
        else:
            low, high = numbers.limits
        highest = _HIGHEST[options.to]
        scaled = (array.astype(np.float64) - low) * (highest / (high - low))
        whole = np.asarray(np.rint(scaled.clip(0, highest)), options.to)
        # Where low numbers are white, they are turned around last (PS3.3 C.7.6.3.1.2).
        return np.ascontiguousarray(np.asarray(highest - whole, options.to) if numbers.inverted else whole)


def pixel_decoders(pixels: Mapping[str, Pixels]) -> dict[str, FieldDecoder]:
    return {name: PixelDecoder(name, options) for name, options in pixels.items()}


def check_pixels_option(pixels: Any, kinds: Mapping[str, Kind], where: str) -> dict[str, Pixels]:
    """Return the option as a dict. RecipeError unless it gives `Pixels` for fields that are images or maps."""
    if not isinstance(pixels, Mapping) or not all(isinstance(options, Pixels) for options in pixels.values()):
        raise RecipeError(f"{where}: expected pixels to map fields to sources.Pixels(...); got {pixels!r}")
    for name in pixels:
        if kinds.get(name) not in ("image", "map"):
            raise RecipeError(
                f"{where}: pixels={{{name!r}: ...}} names no image and no map; there are {', '.join(kinds)}"
            )
    return dict(pixels)
