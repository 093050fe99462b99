"""How the files of a field of images become pixels, where 8-bit RGB would lose something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tfprep import images
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, Kind, Size
from tfprep.sources.source import FieldDecoder

_HIGHEST = {"uint8": 255, "uint16": 65535}


@dataclass(frozen=True)
class Pixels:
    """Keeps an image's own dtype and channels: uint8, uint16 or float32 [H, W, C].

    `Folder`, `Paired` and `Table` take it by field: `pixels={"image": sources.Pixels()}`. It reads 16-bit PNG, TIFF with any
    number of bands (integers or floats, chunky or planar), GeoTIFF, DICOM, RGBA and palettes. `tfprep.images` says how each is
    read.

    Attributes:
        to: The dtype: None for that of the file; "uint8" or "uint16" for `low` to `high` as 0 to the highest number, what lies
            outside cut; "float32" for the numbers as they are.
        low, high: The range for `to="uint8"` and `to="uint16"`: by default all that the file's whole numbers can be. Files of
            floats have no such range: then both must be given, or `window`.
        window: In DICOM, (centre, width) in place of `low` and `high`, or "file" for the window that each file gives.
        channels: The channels to take, from 0, such as `(3, 2, 1)`; None for all.
        page: The page of a TIFF, or the frame of an animated image or of DICOM, from 0. With None, a file of several is a reject.
        background: The RGB colour that transparent pixels are laid over, such as (255, 255, 255). All images then become 8-bit
            RGB, as without `Pixels`. Without it, transparency stays a channel.
        nodata: The value for the pixels that a GeoTIFF marks as no data. With None, an image with such pixels is a reject.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    to: Literal["uint8", "uint16", "float32"] | None = None
    low: float | None = None
    high: float | None = None
    window: tuple[float, float] | Literal["file"] | None = None
    channels: tuple[int, ...] | None = None
    page: int | None = None
    nodata: float | None = None
    background: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        if self.to not in (None, "uint8", "uint16", "float32"):
            raise RecipeError(f"Pixels: to is 'uint8', 'uint16', 'float32' or None; got {self.to!r}")
        ranged = (self.low is not None) + (self.high is not None) + (self.window is not None)
        if ranged and self.to not in _HIGHEST:
            raise RecipeError(f"Pixels: low, high and window need to='uint8' or to='uint16'; got to={self.to!r}")
        if self.window is not None and ranged > 1:
            raise RecipeError("Pixels: window stands in place of low and high; leave them out")
        if (self.low is None) != (self.high is None) or (self.low is not None and not self.low < (self.high or 0)):
            raise RecipeError(f"Pixels: expected low < high, both or neither; got {self.low!r} and {self.high!r}")
        if self.window not in (None, "file") and not _is_window(self.window):
            raise RecipeError(f"Pixels: window is (centre, width) with a width above 0, or 'file'; got {self.window!r}")
        if self.channels is not None and not (
            self.channels and all(isinstance(c, int) and c >= 0 for c in self.channels)
        ):
            raise RecipeError(f"Pixels: channels are numbers from 0, such as (0, 1, 2); got {self.channels!r}")
        if self.page is not None and not (isinstance(self.page, int) and self.page >= 0):
            raise RecipeError(f"Pixels: page is a number from 0; got {self.page!r}")

        if self.background is not None:
            others = [name for name, value in vars(self).items() if value is not None and name != "background"]
            if others:
                raise RecipeError(f"Pixels: background makes 8-bit RGB of all images; leave out {', '.join(others)}")
            if not _is_colour(self.background):
                raise RecipeError(f"Pixels: background is three numbers from 0 to 255; got {self.background!r}")

    def __repr__(self) -> str:
        given = {name: value for name, value in vars(self).items() if value is not None}
        return f"sources.Pixels({', '.join(f'{name}={value!r}' for name, value in given.items())})"


@dataclass(frozen=True)
class PixelDecoder:
    """Makes a field of `Pixels`."""

    field: str
    pixels: Pixels

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        return images.pixels_size(raw[self.field], self.pixels.page)

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Array:
        options, data = self.pixels, raw[self.field]
        if options.background is not None:
            return images.decode_image(data, narrow=False, background=options.background)
        array = images.decode_pixels(data, options.page, options.nodata)
        if options.channels is not None:
            if max(options.channels) >= array.shape[2]:
                raise SampleError(f"there is no channel {max(options.channels)}: the image has {array.shape[2]}")
            array = array[:, :, list(options.channels)]
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise SampleError("the image holds NaN or infinity; say what its pixels without data become, or repair it")
        return np.ascontiguousarray(_converted(array, _with_window(options, data)))


def pixel_decoders(pixels: Mapping[str, Pixels]) -> dict[str, FieldDecoder]:
    return {name: PixelDecoder(name, one) for name, one in pixels.items()}


def check_pixels_option(pixels: Any, kinds: Mapping[str, Kind], where: str) -> dict[str, Pixels]:
    """Return the option as a dict. RecipeError unless it gives `Pixels` for fields that are images or maps."""
    if not isinstance(pixels, Mapping) or not all(isinstance(one, Pixels) for one in pixels.values()):
        raise RecipeError(f"{where}: expected pixels to map fields to sources.Pixels(...); got {pixels!r}")
    for name in pixels:
        if kinds.get(name) not in ("image", "map"):
            raise RecipeError(
                f"{where}: pixels={{{name!r}: ...}} names no image and no map; there are {', '.join(kinds)}"
            )
    return dict(pixels)


def _with_window(options: Pixels, data: bytes) -> Pixels:
    """The options with the window as low and high: PS3.3 C.11.2.1.2.1, the linear function."""
    if options.window is None:
        return options
    centre, width = images.dicom_window(data) if options.window == "file" else options.window
    if width <= 1:
        raise SampleError(f"a window of the width {width:g}; it must be above 1")
    return replace(options, window=None, low=centre - 0.5 - (width - 1) / 2, high=centre - 0.5 + (width - 1) / 2)


def _converted(array: Array, options: Pixels) -> Array:
    if options.to is None or (options.low is None and array.dtype == options.to):
        return array
    if options.to == "float32":
        return array.astype(np.float32)
    highest, (low, high) = _HIGHEST[options.to], _range(array, options)
    scaled = (array.astype(np.float64) - low) * (highest / (high - low))
    return np.asarray(np.rint(scaled.clip(0, highest)), options.to)


def _range(array: Array, options: Pixels) -> tuple[float, float]:
    if options.low is not None and options.high is not None:
        return options.low, options.high
    if array.dtype.kind == "f":
        raise SampleError(f"floats have no range to make {options.to} of; give low and high, or window")
    return 0.0, float(np.iinfo(array.dtype).max)


def _is_colour(colour: Any) -> bool:
    return isinstance(colour, tuple) and len(colour) == 3 and all(c in range(256) for c in colour)


def _is_window(window: Any) -> bool:
    numbers = isinstance(window, tuple) and len(window) == 2 and all(isinstance(value, int | float) for value in window)
    return numbers and window[1] > 0
