"""The headers of many JPEG and PNG files that lie in one buffer, read at the same time: no pixel is decoded.

A JPEG's size stands in its frame header (ITU-T T.81, B.2.2), behind segments of any length; a PNG's in its first chunk (IHDR).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfprep.fields import Array

NO_IMAGE, JPEG, PNG = 0, 1, 2
"""The formats of a file."""
_MOST_SEGMENTS = 300
"""An ICC profile has up to 255 segments; some ten others precede the frame header."""
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_HEADER_BYTES = 33
_CHANNELS_OF_COLOR_TYPE = np.array([1, 0, 3, 3, 2, 0, 4, 0], np.int64)
"""By PNG color type; a palette (3) becomes RGB."""


@dataclass(frozen=True)
class Headers:
    """Format, height and width in pixels, channels and bits per channel of each file: int64 [N], 0 where unknown."""

    format: Array
    height: Array
    width: Array
    channels: Array
    bits: Array


def read_headers(buffer: Array, at: Array, size: Array) -> Headers:
    """Read the headers of the files at these positions of a buffer.

    Args:
        buffer: uint8 [bytes].
        at: Where each file begins, int64 [N].
        size: How many bytes each has, int64 [N].

    Returns:
        The headers. A file whose header is cut short has its format, and 0 for its size.
    """
    format_, *numbers = (np.zeros(len(at), np.int64) for _ in range(5))
    big = np.flatnonzero(size > 3)
    jpeg = big[(buffer.take(at[big]) == 0xFF) & (buffer.take(at[big] + 1) == 0xD8) & (buffer.take(at[big] + 2) == 0xFF)]
    format_[jpeg] = JPEG
    _read_jpegs(buffer, at, size, jpeg, numbers)
    png = np.flatnonzero(size >= _PNG_HEADER_BYTES)
    for number, byte in enumerate(_PNG_START):
        png = png[buffer.take(at[png] + number) == byte]
    format_[png] = PNG
    height, width, channels, bits = numbers
    start = at[png]
    width[png] = _two_bytes(buffer, start + 16) << 16 | _two_bytes(buffer, start + 18)
    height[png] = _two_bytes(buffer, start + 20) << 16 | _two_bytes(buffer, start + 22)
    channels[png] = _CHANNELS_OF_COLOR_TYPE[buffer.take(start + 25) & 7]
    bits[png] = np.where(buffer.take(start + 24) == 16, 16, 8)
    return Headers(format_, height, width, channels, bits)


def _read_jpegs(buffer: Array, start: Array, size: Array, files: Array, out: list[Array]) -> None:
    """Go from marker to marker in all files together, until each has reached its frame header."""
    at, end = start[files] + 2, start[files] + size[files]
    for _ in range(_MOST_SEGMENTS):
        inside = at + 10 <= end
        files, at, end = files[inside], at[inside], end[inside]
        inside = buffer.take(at) == 0xFF
        files, at, end = files[inside], at[inside], end[inside]
        if not len(files):
            return
        code = buffer.take(at + 1)
        is_frame = (code >= 0xC0) & (code <= 0xCF) & (code != 0xC4) & (code != 0xC8) & (code != 0xCC)
        here, framed = at[is_frame], files[is_frame]
        height, width, channels, bits = out
        height[framed], width[framed] = _two_bytes(buffer, here + 5), _two_bytes(buffer, here + 7)
        channels[framed], bits[framed] = buffer.take(here + 9), buffer.take(here + 4)
        step = np.where(code == 0xFF, 1, 2 + np.where(code == 0xFF, 0, _two_bytes(buffer, at + 2)))  # a fill byte
        going = ~is_frame & (code != 0xDA) & (code != 0xD9) & (step > 0)
        files, at, end = files[going], (at + step)[going], end[going]


def _two_bytes(buffer: Array, at: Array) -> Array:
    return buffer.take(at).astype(np.int64) << 8 | buffer.take(at + 1)
