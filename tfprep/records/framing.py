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
"""The bytes that a frame adds to its payload."""
OTHER_RECORD = "this is not the record that the index describes; the shard and the index come from different builds"


class Frame(NamedTuple):
    """The position of a record in its file, in bytes: `offset` of the length field, and `size` of the whole frame."""

    offset: int
    size: int


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of the data, as a frame stores it."""
    return masked(google_crc32c.value(data))


def masked(crc: int) -> int:
    """Mask a CRC-32C, so that the checksum of data that holds checksums stays useful."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Return the payload with its length and checksums around it."""
    length = struct.pack("<Q", len(payload))
    return b"".join((length, struct.pack("<I", masked_crc(length)), payload, struct.pack("<I", masked_crc(payload))))


def footer_crc(framed: bytes | memoryview) -> int:
    """Return the masked CRC-32C of the payload, which is the last four bytes of the frame."""
    return int(struct.unpack("<I", framed[-FOOTER_BYTES:])[0])


class RecordWriter:
    """Writes records one after another to `file`.

    The caller opens and closes the file, and so decides how it becomes visible.

    Attributes:
        frames: The position of each record.
        payload_crcs: The masked CRC-32C of each payload.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.frames: list[Frame] = []
        self.payload_crcs: list[int] = []
        self._end = 0

    def write(self, payload: bytes) -> Frame:
        """Write one record and return its position."""
        framed = frame(payload)
        self._file.write(framed)
        written = Frame(self._end, len(framed))
        self.frames.append(written)
        self.payload_crcs.append(footer_crc(framed))
        self._end += len(framed)
        return written


def read_records(path: Path) -> Iterator[tuple[Frame, bytes]]:
    """Read every record of a file in order, one in memory at a time.

    Yields:
        The position of the record, and its payload.

    Raises:
        RecordError: A record is cut short or fails a checksum. The records after it can be read with `read_record` and an index.
    """
    with path.open("rb") as file:
        offset, number = 0, 0
        while header := file.read(HEADER_BYTES):
            size = _payload_size(header, path, number, offset)
            payload = _check_body(file.read(size + FOOTER_BYTES), size, path, number, offset)
            yield Frame(offset, size + FRAME_BYTES), payload
            offset += size + FRAME_BYTES
            number += 1


def read_record(
    file: BinaryIO, path: Path, where: Frame, number: int | None = None, *, payload_crc: int | None = None
) -> bytes:
    """Read one record by its offset and return its payload; the arguments and errors are those of `check_frame`."""
    file.seek(where.offset)
    data = file.read(where.size)
    return check_frame(data, path, where, number, payload_crc=payload_crc)


def check_frame(
    data: bytes, path: Path, where: Frame, number: int | None = None, *, payload_crc: int | None = None
) -> bytes:
    """Compare a frame with its own checksums and with the index, and return its payload.

    Args:
        data: The frame's bytes.
        path: The file that they come from, for messages.
        where: What the index says about the frame.
        number: The record's number in the file, for messages.
        payload_crc: The masked CRC-32C that the index holds for this record; None if the index is not asked.

    Raises:
        RecordError: The frame is cut short or damaged, or is not the record that the index describes.
    """
    size = _payload_size(data[:HEADER_BYTES], path, number, where.offset)
    if size + FRAME_BYTES != where.size:
        raise RecordError(
            f"the frame holds {size + FRAME_BYTES} bytes, the index says {where.size}",
            path=str(path),
            record=number,
            offset=where.offset,
        )
    payload = _check_body(data[HEADER_BYTES:], size, path, number, where.offset)
    if payload_crc is not None and payload_crc != footer_crc(data[: where.size]):
        raise RecordError(OTHER_RECORD, path=str(path), record=number, offset=where.offset)
    return payload


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
