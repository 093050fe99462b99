"""PNG and TIFF of 16 bits a channel in colour, which Pillow would cut to 8 bits: OpenCV reads them."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from PIL import Image

from tfprep.errors import SampleError
from tfprep.fields import Array, ImageArray
from tfprep.images.pillow import narrowed, strips

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
    """What a fourth channel is. Raises SampleError for the layouts that OpenCV misreads."""
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
