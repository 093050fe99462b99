"""PNG of arrays with 1 to 4 channels of 8 or 16 bits; PNG and TIFF of 16 bits in colour, which Pillow would cut to 8 bits, by
OpenCV.
"""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
from PIL import Image

from tfprep.errors import MissingDependencyError, SampleError
from tfprep.fields import Array, ImageArray
from tfprep.images.pillow import narrowed, strips
from tfprep.opencv import HAS_OPENCV, cv2

_GRAY_ALPHA = 4
"""The colour type of gray and alpha in a PNG's header, byte 25."""


def encode_png(array: Array, level: int) -> bytes:
    """uint8 [H, W] or [H, W, C] with 1 to 4 channels, or uint16 with 1, 3 or 4, as a PNG. Two channels are stored as gray and
    alpha. `level` is zlib's, 0 to 9. Raises SampleError for any other array."""
    if array.ndim == 3 and array.shape[2] == 2:
        return _encode_pair(array, level)
    try:
        written, data = cv2.imencode(
            ".png", np.ascontiguousarray(_swap_rgb(array)), [cv2.IMWRITE_PNG_COMPRESSION, level]
        )
    except cv2.error:
        written = False
    if not written or array.dtype not in (np.uint8, np.uint16):
        raise SampleError(
            f"PNG holds uint8 or uint16 with 1 to 4 channels, not {array.dtype} {list(array.shape)}; use Raw"
        )
    return bytes(data)


def decode_png(data: bytes) -> Array:
    """uint8 or uint16 [H, W, C] of what `encode_png` wrote. Raises SampleError."""
    if not HAS_OPENCV:
        return _by_pillow(data)
    pair = len(data) > 25 and data[25] == _GRAY_ALPHA
    array = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    if array is None:
        raise SampleError("not a whole PNG image")
    if pair:
        return array[:, :, [0, 3]]
    return _swap_rgb(array if array.ndim == 3 else array[:, :, None])


def _by_pillow(data: bytes) -> Array:
    """The same by Pillow, which has no form for several channels of 16 bits."""
    if len(data) > 25 and data[24] == 16 and data[25] != 0:
        raise MissingDependencyError("a PNG of several channels of 16 bits needs OpenCV: pip install 'tfprep[opencv]'")
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            array = np.array(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise SampleError("not a whole PNG image") from error
    return array if array.ndim == 3 else array[:, :, None]


def has_right_checksums(data: bytes) -> bool:
    """Tells if each chunk of a PNG, up to its last one, is followed by the CRC-32 of its type and content."""
    view, at = memoryview(data), 8
    while at + 12 <= len(data):  # length, type and checksum have four bytes each
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if zlib.crc32(view[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return False
        if data[at + 4 : at + 8] == b"IEND":
            return True
        at = end + 4
    return False


def _encode_pair(array: Array, level: int) -> bytes:
    if array.dtype != np.uint8:
        raise SampleError(f"PNG holds two channels as uint8 only, not {array.dtype}; use Raw, or one field a channel")
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array), "LA").save(file, "PNG", compress_level=level)
    return file.getvalue()


def _swap_rgb(array: Array) -> Array:
    """RGB to OpenCV's BGR and back; other channel counts are left alone."""
    if array.ndim == 3 and array.shape[2] == 3:
        return array[:, :, ::-1]
    if array.ndim == 3 and array.shape[2] == 4:
        return array[:, :, [2, 1, 0, 3]]
    return array


_TIFF_PLANAR, _TIFF_EXTRA_SAMPLES = 284, 338
_TIFF_COMPRESSION, _TIFF_STRIP_BYTES, _TIFF_STRIP_ROWS, _TIFF_TILE_WIDTH = 259, 279, 278, 322
_TIFF_TILE_HEIGHT, _TIFF_TILE_BYTES = 323, 325
_UNCOMPRESSED = 1
_SEPARATE_PLANES = 2
_UNSPECIFIED, _PREMULTIPLIED, _STRAIGHT = 0, 1, 2
"""Values of ExtraSamples (TIFF 6.0, page 31): what the channel after red, green and blue is."""


def deep_pixels(image: Image.Image, data: bytes) -> ImageArray:
    """uint8 [H, W, 3] as the pixels lie in the file, transparency laid over white. Raises SampleError.

    Args:
        image: the opened file, for its header.
        data: the file's bytes.
    """
    alpha = _alpha(image)
    if image.format == "TIFF":
        try:
            _check_blocks(image, getattr(image, "tag_v2", {}))
        except (TypeError, ValueError) as error:  # a tag of another type than its own
            raise SampleError(f"not a whole image of 16 bits a channel: {error}") from error
    flags = cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION
    array: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if array is None or array.dtype != np.uint16 or array.ndim != 3 or array.shape[:2] != (image.height, image.width):
        raise SampleError("not a whole image of 16 bits a channel")
    pixels = np.empty((*array.shape[:2], 3), np.uint8)
    for rows in strips(*array.shape[:2]):
        pixels[rows] = narrowed(_over_white(array[rows], alpha))
    return pixels


def _alpha(image: Image.Image) -> int:
    """The meaning of a fourth channel. Raises SampleError for the layouts that OpenCV misreads."""
    tags = getattr(image, "tag_v2", {})
    if tags.get(_TIFF_PLANAR, 1) == _SEPARATE_PLANES:
        # OpenCV 5.0 returns uninitialised memory for these.
        raise SampleError(
            "a TIFF of 16 bits whose channels are stored one after another (PlanarConfiguration 2) cannot be read; "
            "save it with the channels of a pixel together (PlanarConfiguration 1)"
        )
    extra = tags.get(_TIFF_EXTRA_SAMPLES, (_STRAIGHT,))
    return int(extra[0]) if isinstance(extra, tuple) else int(extra)


def _check_blocks(image: Image.Image, tags: Any) -> None:
    """Raise SampleError if the strips or tiles do not hold all pixels: OpenCV 5.0 leaves the rest of its memory uninitialised."""
    if _TIFF_TILE_WIDTH in tags:
        width, height = tags[_TIFF_TILE_WIDTH], tags.get(_TIFF_TILE_HEIGHT, 0)
        sizes = tags.get(_TIFF_TILE_BYTES, ())
        blocks = -(-image.width // max(width, 1)) * -(-image.height // max(height, 1))
        heights = [height] * blocks
    else:
        width, rows = image.width, min(tags.get(_TIFF_STRIP_ROWS, image.height), image.height)
        sizes = tags.get(_TIFF_STRIP_BYTES, ())
        heights = [min(rows, image.height - top) for top in range(0, image.height, max(rows, 1))]
    # Compressed blocks that are too short are errors of their decoders.
    row_bytes = 2 * len(image.getbands()) * width if tags.get(_TIFF_COMPRESSION, _UNCOMPRESSED) == _UNCOMPRESSED else 0
    short = any(size < row_bytes * height for size, height in zip(sizes, heights, strict=False))
    if len(sizes) != len(heights) or short:
        raise SampleError("not a whole image of 16 bits a channel: its strips or tiles do not hold all pixels")


def _over_white(array: Array, alpha: int) -> Array:
    """uint32 [H, W, 3] RGB of uint16 BGR or BGRA, each product rounded to 16 bits."""
    rgb = array[:, :, 2::-1].astype(np.uint32)
    if array.shape[2] == 3 or alpha == _UNSPECIFIED:
        return rgb
    share = array[:, :, 3:].astype(np.uint32)
    if alpha == _PREMULTIPLIED:
        return np.asarray(np.minimum(rgb + (65535 - share), 65535))
    # At most 65535² + 32767, which is below 2³².
    return np.asarray((rgb * share + 65535 * (65535 - share) + 32767) // 65535)
