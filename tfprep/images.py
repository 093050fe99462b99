"""Image bytes to and from arrays, and the limits that protect against hostile files.

What is converted, and how:

- the EXIF orientation is applied;
- images become uint8 [H, W, 3] RGB: grayscale is repeated, a palette is looked up, CMYK is converted as Pillow does it,
  16 bits become 8 by round(v / 257), transparency is laid over white;
- masks keep their numbers: a palette image gives its indices, 1 bit gives 0 and 1, 16 bits stay uint16.

What is refused, with a SampleError: bytes that are not a whole image, several frames, more pixels than `MAX_PIXELS`, a mask
of several channels. JPEG goes through simplejpeg (libjpeg-turbo, bit-identical to Pillow), all else through Pillow, but for
16-bit colour PNG, which Pillow would cut to 8 bits: OpenCV reads it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from tfprep.errors import SampleError
from tfprep.fields import Array, ImageArray, Size

MAX_PIXELS = 200_000_000
"""Larger images are refused before a pixel is decoded: 200 megapixels are 600 MB of RGB."""

_JPEG_START = b"\xff\xd8\xff"
_EXIF_ORIENTATION = 0x0112
_PNG_GRAY_ALPHA = 4
_TRANSPOSE = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
    7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda a: a.transpose(1, 0, 2)[::-1],
}


def is_jpeg(data: bytes) -> bool:
    return data[:3] == _JPEG_START


def image_size(data: bytes) -> Size:
    """(height, width) of the upright image (or `.npy` array), from its header alone."""
    if data[:6] == b"\x93NUMPY":
        return _npy_size(data)
    if is_jpeg(data):
        height, width, _ = _jpeg_header(data)
        return (width, height) if exif_orientation(data) >= 5 else (height, width)
    with _opened(data) as image:
        return (image.width, image.height) if _pil_orientation(image) >= 5 else (image.height, image.width)


def decode_image(data: bytes, *, min_size: Size | None = None) -> ImageArray:
    """The upright image as uint8 [H, W, 3] RGB.

    With `min_size` (height, width), a JPEG may be decoded smaller, by a factor of 2, 4 or 8 in the DCT domain, as long as
    it stays at least that large.
    """
    if is_jpeg(data):
        return _decode_jpeg(data, min_size)
    with _opened(data) as image:
        if image.mode == "RGB" and image.format == "PNG" and _png_bit_depth(data) == 16:
            return _upright(_narrow(_cv2_rgb16(data)), _pil_orientation(image))
        return _pil_rgb(ImageOps.exif_transpose(image))


def decode_mask(data: bytes) -> Array:
    """The class numbers of a mask as uint8 or uint16 [H, W]."""
    with _opened(data) as image:
        if image.mode not in ("1", "L", "P", "I;16", "I;16B", "I;16L", "I"):
            raise SampleError(
                f"a mask has one channel of class numbers, this one is {image.mode} "
                f"({len(image.getbands())} channels); convert it to class numbers first"
            )
        array = np.asarray(ImageOps.exif_transpose(image))
    return _mask_dtype(array)


def encode_jpeg(image: ImageArray, quality: int, subsampling: str) -> bytes:
    """uint8 [H, W, 3] RGB or [H, W] or [H, W, 1] gray as a JPEG."""
    gray = image.ndim == 2 or image.shape[2] == 1
    pixels = np.ascontiguousarray(image if image.ndim == 3 else image[:, :, None])
    colours = {"colorspace": "GRAY", "colorsubsampling": "Gray"} if gray else {"colorsubsampling": subsampling}
    return bytes(simplejpeg.encode_jpeg(pixels, quality, **colours))


def decode_map(data: bytes) -> Array:
    """A map as [H, W] or [H, W, C]: a NumPy file (`.npy`), or an image of one channel, its 8, 16 or 32 bits kept."""
    if data[:6] == b"\x93NUMPY":
        try:
            return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
        except (ValueError, EOFError, OSError) as error:
            raise SampleError(f"not a whole NumPy file: {error}") from error
    with _opened(data) as image:
        return np.asarray(ImageOps.exif_transpose(image))


def decode_stored_jpeg(data: bytes, *, channels: int | None) -> ImageArray:
    """What `encode_jpeg` wrote: uint8 [H, W, channels]. No orientation is looked for: none was written."""
    try:
        pixels = simplejpeg.decode_jpeg(data, colorspace="GRAY" if channels == 1 else "RGB")
    except ValueError as error:
        raise SampleError(f"not a whole JPEG image: {error}") from error
    return np.asarray(pixels)


def encode_png(array: Array, level: int) -> bytes:
    """uint8 [H, W] or [H, W, C] with 1 to 4 channels, or uint16 with 1, 3 or 4, as a PNG; two are gray and alpha to it."""
    if array.ndim == 3 and array.shape[2] == 2:
        return _encode_png_pair(array, level)
    try:
        done, data = cv2.imencode(".png", np.ascontiguousarray(_swap_rgb(array)), [cv2.IMWRITE_PNG_COMPRESSION, level])
    except cv2.error:
        done = False
    if not done or array.dtype not in (np.uint8, np.uint16):
        raise SampleError(
            f"PNG holds uint8 or uint16 with 1 to 4 channels, not {array.dtype} {list(array.shape)}; use Raw"
        )
    return bytes(data)


def decode_png(data: bytes) -> Array:
    """What `encode_png` wrote: uint8 or uint16 [H, W, C]."""
    pair = len(data) > 25 and data[25] == _PNG_GRAY_ALPHA
    array = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    if array is None:
        raise SampleError("not a whole PNG image")
    if pair:
        return array[:, :, [0, 3]]
    return _swap_rgb(array if array.ndim == 3 else array[:, :, None])


def keeps_original(data: bytes) -> bool:
    """Whether these bytes, untouched, decode to the same pixels everywhere: an upright JPEG of gray or YCbCr, or a PNG of
    8-bit gray or RGB without transparency. TensorFlow reads no other format as `decode_image` does."""
    if is_jpeg(data):
        return _jpeg_header(data)[2] not in ("CMYK", "YCCK") and exif_orientation(data) == 1
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        return False
    with _opened(data) as image:
        plain = image.mode in ("L", "RGB") and not image.has_transparency_data and _png_bit_depth(data) == 8
        return plain and _pil_orientation(image) == 1


def exif_orientation(data: bytes) -> int:
    """The EXIF orientation of a JPEG, 1 to 8; 1 where none is given."""
    if data.find(b"Exif\0\0", 0, 1 << 16) < 0:
        return 1
    with _opened(data) as image:
        return _pil_orientation(image)


# --- JPEG -----------------------------------------------------------------------------------------------------------


def _decode_jpeg(data: bytes, min_size: Size | None) -> ImageArray:
    _, _, colorspace = _jpeg_header(data)
    if colorspace in ("CMYK", "YCCK"):
        with _opened(data) as image:
            return _pil_rgb(ImageOps.exif_transpose(image))
    orientation = exif_orientation(data)
    least = (0, 0) if min_size is None else min_size
    height, width = reversed(least) if orientation >= 5 else least
    try:
        pixels = simplejpeg.decode_jpeg(data, min_height=height, min_width=width)
    except ValueError as error:
        raise SampleError(f"not a whole JPEG image: {error}") from error
    return _upright(pixels, orientation)


def _jpeg_header(data: bytes) -> tuple[int, int, str]:
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except ValueError as error:
        raise SampleError(f"not a JPEG image: {error}") from error
    _check_pixels(height, width)
    return int(height), int(width), str(colorspace)


def _upright(pixels: ImageArray, orientation: int) -> ImageArray:
    turn = _TRANSPOSE.get(orientation)
    return pixels if turn is None else np.ascontiguousarray(turn(pixels))


# --- all other formats ----------------------------------------------------------------------------------------------


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    """The image opened by Pillow; whatever Pillow raises or warns of while it is read becomes a SampleError."""
    if not data:
        raise SampleError("the file is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                _check_pixels(image.height, image.width)
                if getattr(image, "n_frames", 1) > 1:
                    raise SampleError(
                        f"{image.format} holds {getattr(image, 'n_frames', 0)} frames, expected one image"
                    )
                yield image
    except UnidentifiedImageError as error:
        raise SampleError(f"not an image: no known format begins with the bytes {data[:8]!r}") from error
    except (OSError, ValueError, SyntaxError, EOFError, ArithmeticError, LookupError, TypeError, RuntimeError) as error:
        raise SampleError(f"not a whole image: {error or type(error).__name__}") from error


def _check_pixels(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise SampleError(
            f"{width} x {height} pixels are more than the limit of {MAX_PIXELS:,}; the file may be hostile"
        )
    if height < 1 or width < 1:
        raise SampleError(f"an image of {width} x {height} pixels")


def _pil_orientation(image: Image.Image) -> int:
    return int(image.getexif().get(_EXIF_ORIENTATION, 1))


def _pil_rgb(image: Image.Image) -> ImageArray:
    if image.mode.startswith("I"):
        gray = _narrow(_mask_dtype(np.asarray(image)).astype(np.uint16))
        return np.repeat(gray[:, :, None], 3, axis=2)
    if image.mode == "F":
        raise SampleError("an image of 32-bit floats has no defined range; convert it to 8 or 16 bits first")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return np.asarray(image.convert("RGB"))


def _mask_dtype(array: Array) -> Array:
    if array.dtype in (np.bool_, np.uint8):
        return array.astype(np.uint8)
    if array.min() < 0 or array.max() > 65535:
        raise SampleError(f"values from {array.min()} to {array.max()} do not fit into 16 bits")
    return array.astype(np.uint16)


def _narrow(wide: Array) -> ImageArray:
    """16 bits to 8: round(v / 257), which maps 65535 to 255."""
    return ((wide.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _png_bit_depth(data: bytes) -> int:
    return data[24] if len(data) > 24 else 8


def _cv2_rgb16(data: bytes) -> Array:
    array: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH)
    if array is None:
        raise SampleError("not a whole PNG image")
    return np.asarray(array)


def _encode_png_pair(array: Array, level: int) -> bytes:
    if array.dtype != np.uint8:
        raise SampleError(f"PNG holds two channels as uint8 only, not {array.dtype}; use Raw, or one field a channel")
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array), "LA").save(file, "PNG", compress_level=level)
    return file.getvalue()


def _npy_size(data: bytes) -> Size:
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape = read(file)[0]
    except (ValueError, EOFError) as error:
        raise SampleError(f"not a whole NumPy file: {error}") from error
    if len(shape) not in (2, 3):
        raise SampleError(f"a map is [H, W] or [H, W, C], this NumPy file has shape {shape}")
    _check_pixels(shape[0], shape[1])
    return shape[0], shape[1]


def _swap_rgb(array: Array) -> Array:
    """RGB to OpenCV's BGR and back; other channel counts are left alone."""
    if array.ndim == 3 and array.shape[2] == 3:
        return array[:, :, ::-1]
    if array.ndim == 3 and array.shape[2] == 4:
        return array[:, :, [2, 1, 0, 3]]
    return array
