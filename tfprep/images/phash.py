"""A perceptual hash: 64 bits that stay nearly the same when a picture is resized, compressed again or brightened.

It is the pHash of the package ImageHash (`imagehash.phash`): the picture in gray at 32 x 32 pixels, the 8 x 8 lowest frequencies
of its discrete cosine transform, and one bit for each that is larger than their median. Two differences: pixels are averaged over
areas, where ImageHash uses a Lanczos filter that takes four times as long; and frequencies are rounded, so that a plain picture
has one hash and not that of its rounding errors. On a picture of 32 x 32 gray pixels both give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfprep.fields import Array
from tfprep.images.decode import decode_image
from tfprep.images.jpeg import jpeg_header
from tfprep.images.pillow import is_jpeg
from tfprep.optional import cv2

HASH_BITS = 64
_SIDE, _FREQUENCIES = 32, 8
_MIDDLE = HASH_BITS // 2
_DECIMALS = 6
_LEAST_SIDE = 4 * _SIDE
"""A file is decoded at 1/2, 1/4 or 1/8 if both sides keep this many pixels, so that each of the 32 x 32 averages several."""


def perceptual_hash(image: Array | bytes) -> int:
    """Return the hash of a picture as a number of 64 bits.

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
