"""Images opened by Pillow: which formats, what their headers say, and the limits that a file must keep before it is read, and an
image's header before any of its pixels is decoded.

Pillow has settings that belong to the whole process. A package that has changed one with which images decode to other pixels is
an error (`check_settings`).
"""

from __future__ import annotations

import importlib.util
import io
import logging
import re
import sys
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np
from PIL import Image, UnidentifiedImageError

from tfprep.errors import BuildError, SampleError
from tfprep.fields import ImageArray, Size

_HAS_AVIF = importlib.util.find_spec("PIL.AvifImagePlugin") is not None  # from Pillow 11.3 on
FORMATS = ("PNG", "GIF", "BMP", "PPM", "JPEG", "TIFF", "WEBP", "JPEG2000", "DIB", *(("AVIF",) if _HAS_AVIF else ()))
"""The formats that Pillow may open. EPS, which starts Ghostscript, and formats without a signature, which take text for an
image, are left out. The first five are loaded already; Pillow imports all its plugins for the others."""
JPEG_START, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_PNG_ORIENTATION = b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp"
_EXIF_ORIENTATION = 0x0112
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_BITS = 256, 257, 258
_J2K_START, _J2K_BITS_AT = b"\xff\x4f\xff\x51", 42
"""The beginning of a codestream of JPEG 2000, and where the bits of its first component are, less 1 (ITU-T T.800, A.5.1)."""
_PPM_HEADER = re.compile(rb"P[2356]{gap}\d+{gap}\d+{gap}(\d+)".replace(b"{gap}", rb"(?:\s|#[^\r\n]*[\r\n])+"))
"""The numbers at the beginning of a PGM or PPM; the last one is that of white. A comment ends with CR or LF."""
_CHANNELS = dict.fromkeys(("RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "LA", "PA", "I", "F"), 4) | {"I;16": 2}
"""Bytes a pixel in Pillow's memory, which keeps four channels for three."""
_OPAQUE = 255
_STRIP_PIXELS = 1 << 20
"""Pixels that are converted at once, so that copies for the conversion need a few megabytes whatever the image's size."""


logging.getLogger("PIL.TiffImagePlugin").setLevel(logging.CRITICAL)  # what it logs of a file, it raises too
_SETTINGS: tuple[tuple[str, str, Any], ...] = (
    ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", False),
    ("PIL.GifImagePlugin", "LOADING_STRATEGY", 0),
)
"""Module, name and value of the settings that decide which pixels are decoded; the values are Pillow's own."""


def check_settings() -> None:
    """Raise BuildError if a package has changed a setting of Pillow with which images decode to other pixels."""
    for module, name, value in _SETTINGS:
        present = getattr(sys.modules.get(module), name, value)
        if present != value:
            raise BuildError(
                f"a package has set {module}.{name} to {present!r}, with which damaged or animated "
                f"images decode to other pixels. Set it back after the import of that package: {module}.{name} = {value!s}"
            )


class DecoderWarnings(list[str]):
    """The warnings of decoders, each once: files that are damaged and can be decoded.

    Attributes:
        turned: Whether the last image was turned upright by its EXIF orientation.
    """

    turned = False


_warned: ContextVar[DecoderWarnings | None] = ContextVar("_warned", default=None)


@contextmanager
def decoder_warnings() -> Iterator[DecoderWarnings]:
    """Yield a list to which the warnings of decoders are added."""
    found = DecoderWarnings()
    token = _warned.set(found)
    try:
        yield found
    finally:
        _warned.reset(token)


def warn(text: str) -> None:
    """Add to the list of `decoder_warnings`."""
    found = _warned.get()
    if found is not None and text not in found:
        found.append(text)


def note_turned(turned: bool) -> None:
    """Note for `decoder_warnings` that an image was turned upright, or that this was taken back."""
    found = _warned.get()
    if found is not None:
        found.turned = turned


@contextmanager
def _python_warnings() -> Iterator[None]:
    """Add the warnings of Pillow to the list of `decoder_warnings`, if there is one: builds decode in one thread."""
    if _warned.get() is None:
        yield
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `check_pixels` has the limit
        yield
    for warning in caught:
        warn(str(warning.message))


def is_jpeg(data: bytes) -> bool:
    """Return True if the bytes begin as a JPEG does."""
    return data[:3] == JPEG_START


@contextmanager
def opened(data: bytes, *, frames: bool = False) -> Iterator[Image.Image]:
    """The image, its header read and checked. Whatever Pillow raises while it is read becomes a SampleError."""
    if not data:
        raise SampleError("the file is empty (0 bytes)")
    check_settings()
    jpeg = is_jpeg(data)
    try:
        with _python_warnings(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            # The larger of what the pixels take in the file's depth and what they take as Pillow holds them.
            in_file = 0 if jpeg else len(image.getbands()) * bits_per_channel(image, data) // 8
            in_memory = 3 if jpeg or image.mode == "RGB" else _CHANNELS.get(image.mode, 1)
            check_pixels(image.height, image.width, max(in_file, in_memory))
            count = 1 if frames or jpeg else getattr(image, "n_frames", 1)
            if count > 1:
                rule = f"{image.format} holds {count} frames, expected one image"
                raise SampleError(f"{rule}; choose one with sources.Pixels(page=0)")
            # Pillow shows a PNG without its last chunk, which TensorFlow refuses, and the coarse part of a JPEG 2000.
            ends = {"PNG": PNG_END in data[-65536:], "JPEG2000": data.endswith(JPEG_END)}
            if not ends.get(image.format or "", True):
                raise SampleError(f"not a whole image: the end of the {image.format} is missing")
            if image.format == "JPEG2000":
                at = data.find(_J2K_START) + _J2K_BITS_AT
                bits = (data[at : at + 1] or b"\7")[0] % 128 + 1
                if bits > 8 and (bits, image.mode) != (16, "I;16"):
                    rule = (
                        f"JPEG 2000 of {len(image.getbands())} x {bits} bits, of which Pillow would make other numbers"
                    )
                    raise SampleError(f"{rule}; save it as TIFF or PNG of 16 bits")
            if image.format == "PNG" and _warned.get() is not None and not has_right_checksums(data):
                warn("a checksum of the PNG is wrong: it is damaged")  # Pillow does not look at those of pixels
            yield image
    except UnidentifiedImageError as error:
        raise SampleError(f"not an image: no known format begins with the bytes {data[:8]!r}") from error
    except Image.DecompressionBombError as error:
        raise SampleError(f"{error} If it is none, say how many it may have: sources.Pixels(max_pixels=...)") from error
    except (OSError, ValueError, SyntaxError, EOFError, ArithmeticError, LookupError, TypeError, RuntimeError) as error:
        raise SampleError(f"not a whole image: {error or type(error).__name__}") from error


def has_right_checksums(data: bytes) -> bool:
    """Return True if each chunk of a PNG, up to its last one, is followed by the CRC-32 of its type and content."""
    view, at = memoryview(data), 8
    while at + 12 <= len(data):  # length, type and checksum have four bytes each
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if zlib.crc32(view[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return False
        if data[at + 4 : at + 8] == b"IEND":
            return True
        at = end + 4
    return False


def upright_size(image: Image.Image, data: bytes) -> Size:
    """(height, width) of the image turned upright, from its header."""
    # Some versions of Pillow turn a TIFF upright themselves: its tags say how it is stored.
    tags = getattr(image, "tag_v2", {})
    width, height = tags.get(_TIFF_WIDTH, image.width), tags.get(_TIFF_HEIGHT, image.height)
    return (width, height) if pillow_orientation(image, data) >= 5 else (height, width)


def pillow_orientation(image: Image.Image, data: bytes) -> int:
    """The EXIF orientation that is still to be applied, 1 to 8."""
    # Pillow decodes a whole PNG to look for EXIF after its pixels: three quarters of the time of decoding it.
    if image.format == "PNG" and not any(map(data.__contains__, _PNG_ORIENTATION)):
        return 1
    return known_orientation(image.getexif().get(_EXIF_ORIENTATION, 1))


def known_orientation(value: Any) -> int:
    """An orientation as it is applied: numbers from 1 to 8 mean something, all else 1."""
    return int(value) if value in range(1, 9) else 1


def bits_per_channel(image: Image.Image, data: bytes) -> int:
    """Bits a channel of a PNG or TIFF, 8 or 16 of a PPM; 8 for all other formats."""
    if image.format == "PNG":
        return data[24] if len(data) > 24 else 8
    if image.format == "PPM":
        return 16 if (white_level(image, data) or 0) > 255 else 8
    bits = getattr(image, "tag_v2", {}).get(_TIFF_BITS, (8,))
    return int(max(bits, default=8)) if isinstance(bits, tuple) else int(bits)


def white_level(image: Image.Image, data: bytes) -> int | None:
    """The number that stands for white in a file of PPM or of few bits; None where it is the highest of the array's type."""
    if image.format == "PPM":
        header = _PPM_HEADER.match(data)
        return int(header[1]) if header else None
    bits = bits_per_channel(image, data)
    return (1 << bits) - 1 if bits < 8 else None


Color: TypeAlias = "tuple[int, int, int]"
WHITE: Color = (255, 255, 255)


def rgb_pixels(image: Image.Image, background: Color | None = WHITE) -> ImageArray:
    """uint8 [H, W, 3] as the pixels are in a file of 8 bits a channel: transparent pixels are laid over the background. Without
    one, an image that is transparent somewhere raises SampleError."""
    if image.mode == "F":
        raise SampleError("an image of 32-bit floats has no defined range; convert it to 8 or 16 bits first")
    image.load()
    transparent = image.has_transparency_data
    if image.mode == "RGB" and not transparent:
        return np.asarray(image)
    if image.height * image.width <= _STRIP_PIXELS:
        return _rgb_strip(image, transparent, background)
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        pixels[top : top + rows] = _rgb_strip(strip, transparent, background)
    return pixels


def _rgb_strip(image: Image.Image, transparent: bool, background: Color | None) -> ImageArray:
    if transparent:
        rgba = image.convert("RGBA")
        if background is None and np.asarray(rgba.getchannel("A")).min() < _OPAQUE:
            raise SampleError(
                "transparent pixels, which 8-bit RGB cannot hold: save the file without; an image may be laid over a color by "
                "pixels={'image': sources.Pixels(background=(255, 255, 255))}, or kept by sources.Pixels()"
            )
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, background or WHITE), rgba)
    return np.asarray(image.convert("RGB"))


MAX_PIXELS = 178_956_970
"""Twice Pillow's `MAX_IMAGE_PIXELS`, where Pillow itself refuses an image."""
MAX_BYTES = 3 * MAX_PIXELS
"""Bytes of the decoded pixels, 537 MB: `MAX_PIXELS` of 8-bit RGB, and accordingly fewer with more channels or bits."""

MAX_FILE_BYTES = 1 << 30
"""Size of a raw file, 1 GiB: an image within `MAX_BYTES`, uncompressed, and as much again of metadata. A worker that reads such a
file and decodes the largest image needs 2.7 GB."""


def check_file_size(size: int, most_bytes: int = MAX_FILE_BYTES) -> None:
    """Raises SampleError where a file's size in bytes exceeds `most_bytes`."""
    if size > most_bytes:
        raise SampleError(
            f"the file has {size:,} bytes, more than the limit of {most_bytes:,}; cut the image or map into smaller ones"
        )


def check_page(what: str, count: int, page: int | None) -> None:
    """Raises SampleError where a file of several images needs a page to be chosen, or does not have that page."""
    if page is None and count > 1:
        raise SampleError(f"{what}, expected one image; choose one with page=0")
    if page is not None and page >= count:
        raise SampleError(f"there is no page {page}: the file has {count}")


_limit: ContextVar[int] = ContextVar("_limit", default=MAX_PIXELS)


@contextmanager
def pixel_limit(most: int | None) -> Iterator[None]:
    """Decode images of up to `most` pixels, and of three times the number of bytes; None: of `MAX_PIXELS`, Pillow's own limit.

    A build decodes in one thread, so that Pillow's limit, which belongs to the process, is not raised for others.
    """
    token, of_pillow = _limit.set(most or MAX_PIXELS), Image.MAX_IMAGE_PIXELS
    if most:
        Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = of_pillow
        _limit.reset(token)


def check_pixels(height: int, width: int, bytes_per_pixel: int = 3) -> None:
    """Checks a size from a header. Raises SampleError where it exceeds the limit of pixels or bytes, or is empty."""
    most = _limit.get()
    if height * width > most:
        raise SampleError(
            f"{width} x {height} pixels are more than the limit of {most:,}; the file may be hostile. If it is not: "
            f"sources.Pixels(max_pixels={height * width})"
        )
    if height * width * bytes_per_pixel > 3 * most:
        raise SampleError(
            f"{width} x {height} pixels of {bytes_per_pixel} bytes are more than the limit of {3 * most:,} bytes; "
            "store fewer channels or bits, or a smaller image"
        )
    if height < 1 or width < 1:
        raise SampleError(f"an image of {width} x {height} pixels")
