"""PNG of arrays with 1 to 4 channels of 8 or 16 bits."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import numpy as np
from PIL import Image

from tfprep.errors import MissingDependencyError, SampleError
from tfprep.fields import Array
from tfprep.images.pillow import check_pixels, check_settings
from tfprep.optional import HAS_OPENCV, cv2

_GRAY_ALPHA = 4
"""The color type of gray and alpha in a PNG's header, byte 25."""

_LONGEST_SIDE = 1_000_000
"""libpng's own limit, with which OpenCV reads and writes. Pillow writes more, which OpenCV does not read."""


def encode_png(array: Array, level: int) -> bytes:
    """uint8 [H, W] or [H, W, C] with 1 to 4 channels, or uint16 with 1, 3 or 4, as a PNG. Two channels are stored as gray and
    alpha. `level` is zlib's, 0 to 9. Raises SampleError for any other array."""
    if max(array.shape[:2], default=0) > _LONGEST_SIDE:
        raise SampleError(
            f"PNG has sides of up to {_LONGEST_SIDE:,} pixels, not {list(array.shape)}; use Zstd() or Raw()"
        )
    if array.ndim == 3 and array.shape[2] == 2:
        if array.dtype != np.uint8:
            rule = f"PNG holds two channels as uint8 only, not {array.dtype}"
            raise SampleError(f"{rule}; use Zstd() or Raw(), or one field a channel")
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(array), "LA").save(file, "PNG", compress_level=level)
        return file.getvalue()
    written, options = False, [cv2.IMWRITE_PNG_COMPRESSION, level]
    if array.dtype in (np.uint8, np.uint16):
        with suppress(cv2.error):
            written, data = cv2.imencode(".png", np.ascontiguousarray(_swap_rgb(array)), options)
    if not written:
        raise SampleError(
            f"PNG holds uint8 or uint16 with 1 to 4 channels, not {array.dtype} {list(array.shape)}; use Zstd() or Raw()"
        )
    return bytes(data)


def check_png_size(data: Any) -> None:
    """Raises SampleError where the header of a PNG, as bytes or a buffer of them, has more than `MAX_PIXELS`."""
    width, height = (int.from_bytes(bytes(data[at : at + 4]), "big") for at in (16, 20))
    if len(data) >= 24:
        check_pixels(height, width)


def decode_png(data: bytes) -> Array:
    """uint8 or uint16 [H, W, C] of what `encode_png` wrote. Raises SampleError."""
    check_png_size(data)
    if not HAS_OPENCV:  # Pillow has no form for several channels of 16 bits
        if len(data) > 25 and data[24] == 16 and data[25] != 0:
            rule = "a PNG of several channels of 16 bits needs OpenCV"
            raise MissingDependencyError(f"{rule}: pip install 'tfprep[opencv]'")
        check_settings()
        try:
            with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
                pixels = np.array(image)
        except (OSError, SyntaxError, ValueError) as error:
            raise SampleError("not a whole PNG image") from error
        return pixels if pixels.ndim == 3 else pixels[:, :, None]
    array = by_opencv(data)
    # OpenCV repeats the gray of a pair of channels three times.
    return array[:, :, [0, 3]] if len(data) > 25 and data[25] == _GRAY_ALPHA else array


def by_opencv(data: bytes) -> Array:
    """The numbers [H, W, C] of a file in the order of its channels, whatever its orientation. Raises SampleError."""
    array = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    if array is None:
        raise SampleError("not a whole image")
    return _swap_rgb(array if array.ndim == 3 else array[:, :, None])


def _swap_rgb(array: Array) -> Array:
    """RGB to OpenCV's BGR and back; other numbers of channels stay as they are."""
    if array.ndim == 3 and array.shape[2] == 3:
        return array[:, :, ::-1]
    if array.ndim == 3 and array.shape[2] == 4:
        return array[:, :, [2, 1, 0, 3]]
    return array
