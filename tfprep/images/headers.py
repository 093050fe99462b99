"""The header of a JPEG or PNG file: no pixel is decoded.

A JPEG's size is in its frame header (ITU-T T.81, B.2.2), after segments of any length; a PNG's in its first chunk (IHDR).
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

SCAN = 0xDA
"""The code of the marker before the data of the pixels (ITU-T T.81, table B.1)."""
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
    if not data.startswith(_JPEG_START):
        return None
    for code, start, _ in jpeg_segments(data):
        if 0xC0 <= code <= 0xCF and code not in (0xC4, 0xC8, 0xCC) and start + 6 <= len(data):
            height, width = (int.from_bytes(data[at : at + 2], "big") for at in (start + 1, start + 3))
            return Header("jpeg", height, width, data[start + 5], data[start])
    return Header("jpeg")


def jpeg_segments(data: bytes) -> list[tuple[int, int, int]]:
    """Return the code of each marker of a JPEG up to the scan, and start and end of its segment's content."""
    segments: list[tuple[int, int, int]] = []
    at, code = 2, 0
    while code != SCAN and at + 4 <= len(data) and data[at] == 0xFF:
        code = data[at + 1]
        if code == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        segments.append((code, at + 4, end))
        at = end
    return segments


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
