"""The header of a JPEG or PNG file: no pixel is decoded.

A JPEG's size is in its frame header (ITU-T T.81, B.2.2), after segments of any length; a PNG's in its first chunk (IHDR).
"""

from __future__ import annotations

from typing import NamedTuple

_MOST_SEGMENTS = 300
"""An ICC profile has up to 255 segments; some ten others precede the frame header."""
_JPEG_START, _PNG_START = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_PNG_HEADER_BYTES = 33
_CHANNELS_OF_COLOR_TYPE = 1, 0, 3, 3, 2, 0, 4, 0
"""By PNG color type; a palette (3) becomes RGB."""


class Header(NamedTuple):
    """What a header says: "jpeg" or "png", height and width in pixels, channels, bits per channel; 0 where it is damaged."""

    format: str
    height: int = 0
    width: int = 0
    channels: int = 0
    bits: int = 0


def read_header(data: bytes) -> Header | None:
    """Read the header of a file; None if it does not begin like a JPEG or a PNG."""
    if data.startswith(_PNG_START) and len(data) >= _PNG_HEADER_BYTES:
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        return Header("png", height, width, _CHANNELS_OF_COLOR_TYPE[data[25] & 7], 16 if data[24] == 16 else 8)
    return _jpeg_header(data) if data.startswith(_JPEG_START) else None


def _jpeg_header(data: bytes) -> Header:
    """Go from marker to marker until the frame header."""
    at = 2
    for _ in range(_MOST_SEGMENTS):
        if at + 10 > len(data) or data[at] != 0xFF:
            break
        code = data[at + 1]
        if 0xC0 <= code <= 0xCF and code not in (0xC4, 0xC8, 0xCC):
            height, width = int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
            return Header("jpeg", height, width, data[at + 9], data[at + 4])
        if code in (0xD9, 0xDA):
            break
        at += 1 if code == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")  # 0xFF: a fill byte
    return Header("jpeg")
