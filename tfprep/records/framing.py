"""TFRecord files without TensorFlow.

A record is framed as

    uint64le length | uint32le masked crc32c(the 8 length bytes) | payload | uint32le masked crc32c(payload)

with mask(c) = ((c >> 15 | c << 17) + 0xa282ead8) mod 2^32, as in TensorFlow's `record_writer.h`. There is no header and no
compression, so a record can be read alone by its offset. Offsets are those of the length field; sizes are the whole frame's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import google_crc32c

from tfprep.errors import RecordError

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
"""What a frame adds to its payload."""


class Frame(NamedTuple):
    """Where a record lies in its file: `offset` of the length field, `size` of the whole frame, in bytes."""

    offset: int
    size: int


def masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """The payload with its length and checksums around it."""
    length = struct.pack("<Q", len(payload))
    return b"".join((length, struct.pack("<I", masked_crc(length)), payload, struct.pack("<I", masked_crc(payload))))


class RecordWriter:
    """Writes records one after another to `file`, and knows where each one lies.

    The caller opens and closes the file, and so decides how it becomes visible.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.frames: list[Frame] = []
        self._end = 0

    def write(self, payload: bytes) -> Frame:
        framed = frame(payload)
        self._file.write(framed)
        written = Frame(self._end, len(framed))
        self.frames.append(written)
        self._end += len(framed)
        return written


def read_records(path: Path) -> Iterator[tuple[Frame, bytes]]:
    """Every record of a file, in order, one in memory at a time.

    Raises RecordError at the first record that is cut short or fails a checksum. With an index, `read_record` gets at those
    behind it.
    """
    with path.open("rb") as file:
        offset, number = 0, 0
        while header := file.read(HEADER_BYTES):
            size = _payload_size(header, path, number, offset)
            payload = _check_body(file.read(size + FOOTER_BYTES), size, path, number, offset)
            yield Frame(offset, size + FRAME_BYTES), payload
            offset += size + FRAME_BYTES
            number += 1


def read_record(file: BinaryIO, path: Path, place: Frame, number: int | None = None) -> bytes:
    """The payload of the record at `place`; RecordError where it is not whole or not the size that the index says."""
    file.seek(place.offset)
    data = file.read(place.size)
    return check_frame(data, path, place, number)


def check_frame(data: bytes, path: Path, place: Frame, number: int | None = None) -> bytes:
    """The payload inside one frame's bytes, after both checksums."""
    size = _payload_size(data[:HEADER_BYTES], path, number, place.offset)
    if size + FRAME_BYTES != place.size:
        raise RecordError(
            f"the frame holds {size + FRAME_BYTES} bytes, the index says {place.size}",
            path=str(path),
            record=number,
            offset=place.offset,
        )
    return _check_body(data[HEADER_BYTES:], size, path, number, place.offset)


def _payload_size(header: bytes, path: Path, number: int | None, offset: int) -> int:
    if len(header) < HEADER_BYTES:
        reason = f"cut short: {len(header)} of {HEADER_BYTES} header bytes"
        raise RecordError(reason, path=str(path), record=number, offset=offset)
    if struct.unpack("<I", header[8:])[0] != masked_crc(header[:8]):
        reason = "wrong checksum of the length; the file is damaged here, or is no TFRecord file"
        raise RecordError(reason, path=str(path), record=number, offset=offset)
    return int(struct.unpack("<Q", header[:8])[0])


def _check_body(body: bytes, size: int, path: Path, number: int | None, offset: int) -> bytes:
    if len(body) < size + FOOTER_BYTES:
        reason = f"cut short: {len(body)} of {size + FOOTER_BYTES} bytes behind the header"
        raise RecordError(reason, path=str(path), record=number, offset=offset)
    payload = body[:size]
    if struct.unpack("<I", body[size : size + FOOTER_BYTES])[0] != masked_crc(payload):
        raise RecordError("wrong checksum of the payload", path=str(path), record=number, offset=offset)
    return payload
