"""Raw files to arrays, by kind of field, and what a file's header says about it."""

from __future__ import annotations

import io
from math import prod
from typing import Any

import numpy as np
from PIL import Image

from tfprep.errors import SampleError
from tfprep.fields import Array, ImageArray, Size
from tfprep.images.jpeg_png import decode_jpeg, exif_orientation, jpeg_header, lacks_end, upright
from tfprep.images.pillow import (
    PNG_START,
    WHITE,
    Color,
    bits_per_channel,
    check_pixels,
    has_right_checksums,
    is_jpeg,
    note_turned,
    opened,
    pillow_orientation,
    rgb_pixels,
    upright_size,
    warn,
    white_level,
)
from tfprep.optional import cv2

_NPY_START = b"\x93NUMPY"
_HIGHEST_INT8 = 127
_TIFF_PHOTOMETRIC, _TIFF_SAMPLE_FORMAT = 262, 339
_WHITE_IS_ZERO, _SIGNED = 0, 2
"""Values of these tags: the first as ImageJ writes masks."""


def image_size(data: bytes) -> Size:
    """(height, width) of the upright image (or `.npy` array), from its header. Raises SampleError."""
    if data.startswith(_NPY_START):
        shape = _npy_shape(data)
        return shape[0], shape[1]
    if is_jpeg(data) and (header := jpeg_header(data)):
        height, width, _ = header
        return (width, height) if exif_orientation(data) >= 5 else (height, width)
    with opened(data) as image:
        return upright_size(image, data)


def stored_size(data: bytes) -> Size:
    """(height, width) as the pixels are in the file, before any orientation is applied. Raises SampleError."""
    if is_jpeg(data) and (header := jpeg_header(data)):
        return header[:2]
    with opened(data) as image:
        return image.height, image.width


def decode_image(data: bytes, *, reduced: int = 1, background: Color | None = WHITE) -> ImageArray:
    """The upright image as uint8 [H, W, 3] RGB.

    Args:
        data: the file's bytes.
        reduced: k of 2, 4 or 8 decodes a JPEG at 1/k in the DCT domain: ceil(H / k) by ceil(W / k) pixels; pixel i
            shows the original's pixels k·i to k·(i + 1). All other formats are decoded whole, and so is a JPEG that is
            turned upright so that an incomplete last pixel would come first. `warp_sample(reduced=k)` takes either.
        background: the RGB color that transparent pixels are laid over. With None an image that has some is refused.

    Raises:
        SampleError: the bytes are not a whole image, or one of those that are refused (see `tfprep.images`).
    """
    header = jpeg_header(data) if is_jpeg(data) else None
    if header and header[2] not in ("CMYK", "YCCK"):
        return decode_jpeg(data, header[:2], reduced)
    with opened(data) as image:
        if image.mode.startswith("I") or bits_per_channel(image, data) == 16:
            raise SampleError(
                "the image has 16 bits per channel, and 8 would be lost; keep them with pixels={'image': sources.Pixels()}, "
                "or ask for 8 with sources.Pixels(to='uint8')"
            )
        if _is_signed(image):
            raise SampleError("its numbers are signed, and negative ones would be light; read it by sources.Pixels()")
        if pillow_orientation(image, data) > 1:  # Pillow turns a TIFF by itself when it decodes it
            note_turned(True)
        pixels = rgb_pixels(image, background)
        # Only now: Pillow turns a TIFF itself when it decodes it.
        return upright(pixels, pillow_orientation(image, data))


def decode_mask(data: bytes) -> Array:
    """The class numbers of a mask as uint8 or uint16 [H, W]. Raises SampleError."""
    if is_jpeg(data):
        warn("a JPEG does not keep the numbers of a mask; store masks without loss, as PNG")
    with opened(data) as image:
        if image.mode not in ("1", "L", "P", "I;16", "I;16B", "I;16L", "I"):
            raise SampleError(
                f"a mask has one channel of class numbers, this one is {image.mode} "
                f"({len(image.getbands())} channels); convert it to class numbers, as sources.Paired does with palette="
            )
        numbers = _numbers(image, data)
    if numbers.dtype in (np.bool_, np.uint8):
        return numbers.astype(np.uint8, copy=False)
    if numbers.min() < 0 or numbers.max() > 65535:
        raise SampleError(f"values from {numbers.min()} to {numbers.max()} do not fit into 16 bits")
    return numbers.astype(np.uint16, copy=False)


def decode_map(data: bytes) -> Array:
    """A map as [H, W] or [H, W, C]: a NumPy file (`.npy`), or an image of one channel, its 8, 16 or 32 bits kept. Raises
    SampleError."""
    if data.startswith(_NPY_START):
        _npy_shape(data)
        try:
            return _native(np.load(io.BytesIO(data), allow_pickle=False))
        except (ValueError, EOFError, OSError) as error:
            raise SampleError(f"not a whole NumPy file: {error}") from error
    with opened(data) as image:
        return _numbers(image, data)


def keeps_original(data: bytes) -> bool:
    """Return True if these bytes, untouched, decode to the same pixels everywhere: an upright JPEG of gray or YCbCr, or a PNG of
    8-bit gray or RGB without transparency. TensorFlow reads no other format as `decode_image` does."""
    if is_jpeg(data):
        header = jpeg_header(data)
        return bool(header and header[2] in ("Gray", "YCbCr") and exif_orientation(data) == 1 and not lacks_end(data))
    if not data.startswith(PNG_START):
        return False
    with opened(data) as image:
        plain = image.mode in ("L", "RGB") and not image.has_transparency_data and bits_per_channel(image, data) == 8
        # TensorFlow (libpng) refuses a wrong checksum of pixels, which Pillow does not look at.
        return plain and pillow_orientation(image, data) == 1 and has_right_checksums(data)


def _numbers(image: Image.Image, data: bytes) -> Array:
    """The upright pixels with the numbers that are in the file: Pillow spreads gray of few levels over 0 to 255, and inverts a
    TIFF whose 0 is white."""
    image.load()
    array = upright(_native(np.asarray(image)), pillow_orientation(image, data))
    bits, tags, signed = bits_per_channel(image, data), getattr(image, "tag_v2", {}), _is_signed(image)
    wrapped = array > _HIGHEST_INT8 if signed and array.dtype == np.uint8 else (array < 0) & (not signed and bits == 32)
    if bits > 8 * array.dtype.itemsize or (array.dtype.kind != "f" and wrapped.any()):
        rule = f"Pillow makes {array.dtype} of {image.format} with {bits}{' signed' if signed else ''} bits per channel"
        raise SampleError(
            f"{rule}, which does not hold its numbers; read a map by sources.Pixels(), or save it as .npy"
        )
    if image.mode in ("1", "L") and tags.get(_TIFF_PHOTOMETRIC) == _WHITE_IS_ZERO:
        array = ~array
    levels, white = white_level(image, data), 255 if array.dtype == np.uint8 else 65535
    if image.mode not in ("L", "I") or levels in (None, white):
        return array
    numbers = np.rint(np.arange(white + 1) * (levels / white)).astype(array.dtype)
    return np.asarray(numbers[array])


def _is_signed(image: Image.Image) -> bool:
    return _SIGNED in getattr(image, "tag_v2", {}).get(_TIFF_SAMPLE_FORMAT, ())


def _native(array: Array) -> Array:
    """The array in the machine's order of bytes, which OpenCV takes for granted."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _npy_shape(data: bytes) -> tuple[int, ...]:
    """The shape of a NumPy file whose bytes are all there."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except (ValueError, EOFError) as error:
        raise SampleError(f"not a whole NumPy file: {error}") from error
    if len(shape) not in (2, 3):
        raise SampleError(f"a map is [H, W] or [H, W, C], this NumPy file has shape {shape}")
    check_pixels(shape[0], shape[1])
    present, expected = len(data) - file.tell(), prod(shape) * dtype.itemsize
    if present < expected:
        raise SampleError(f"not a whole NumPy file: {present} of {expected} bytes of pixels are there")
    return tuple(shape)


# --- perceptual hash ---------------------------------------------------------------------------------------------------

HASH_BITS = 64
_SIDE, _FREQUENCIES = 32, 8
_MIDDLE = HASH_BITS // 2
_DECIMALS = 6
_LEAST_SIDE = 4 * _SIDE
"""A file is decoded at 1/2, 1/4 or 1/8 if both sides keep this many pixels, so that each of the 32 x 32 averages several."""


def perceptual_hash(image: Array | bytes) -> int:
    """Return 64 bits that stay nearly the same when a picture is resized, compressed again or brightened.

    It is the pHash of the package ImageHash (`imagehash.phash`): the picture in gray at 32 x 32 pixels, the 8 x 8 lowest
    frequencies of its discrete cosine transform, and one bit for each that is larger than their median. Two differences: pixels
    are averaged over areas, where ImageHash uses a Lanczos filter that takes four times as long; and frequencies are rounded, so
    that a plain picture has one hash and not that of its rounding errors. On 32 x 32 gray pixels both give the same bits.

    Args:
        image: Any numbers [H, W, 3] in RGB, or [H, W, C], whose first channel counts; or the bytes of an image file.

    Returns:
        From 0 to 2**64 - 1. The bits of ImageHash's 8 x 8 array row by row; the first is the most significant.

    Raises:
        SampleError: The bytes are not an image that can be read.
    """
    if isinstance(image, bytes):
        header = jpeg_header(image) if is_jpeg(image) else None
        side = min(header[:2]) if header else 0
        image = decode_image(image, reduced=next((k for k in (8, 4, 2) if side // k >= _LEAST_SIDE), 1))
    pixels: Any = image
    # Only the order of the frequencies counts, so 16 bits and floats need no scale.
    plain = pixels if pixels.dtype in (np.uint8, np.uint16) else np.nan_to_num(pixels.astype(np.float32))
    gray = cv2.cvtColor(plain, cv2.COLOR_RGB2GRAY) if plain.shape[2] == 3 else np.ascontiguousarray(plain[:, :, 0])
    small = cv2.resize(gray, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    # OpenCV's transform is orthonormal: it scales the first row and column by 1/sqrt(2) where SciPy's, of ImageHash, does not.
    low = cv2.dct(small.astype(np.float64))[:_FREQUENCIES, :_FREQUENCIES] * _SCALE
    low = low.round(_DECIMALS).ravel()
    ordered = low.copy()
    ordered.sort()
    median = (ordered[_MIDDLE - 1] + ordered[_MIDDLE]) / 2  # `np.median` takes as long as all the rest
    return int.from_bytes(np.packbits(low > median).tobytes(), "big")


_SCALE = np.outer(*[np.array([np.sqrt(2), *[1.0] * (_FREQUENCIES - 1)])] * 2)
