"""TFRecord files without TensorFlow.

A record is framed as

    uint64le length | uint32le masked crc32c(the 8 length bytes) | payload | uint32le masked crc32c(payload)

with mask(c) = ((c >> 15 | c << 17) + 0xa282ead8) mod 2^32, as in TensorFlow's `record_writer.h`. There is no header and no
compression, so a record can be read alone by its offset. Offsets are those of the length field; sizes are the whole frame's.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import google_crc32c
import numpy as np

from tfprep.errors import DatasetError, RecordError
from tfprep.fields import Array

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
"""The bytes that a frame adds to its payload."""
OTHER_RECORD = "this is not the record that the index describes; the shard and the index come from different builds"


Content = TypeVar("Content", bytes, Array)
"""Bytes of a file, of Python or uint8 [N]."""


class Frame(NamedTuple):
    """The position of a record in its file, in bytes: `offset` of the length field, and `size` of the whole frame."""

    offset: int
    size: int


def masked_crc(data: bytes | Array) -> int:
    """Return the masked CRC-32C of the data, as a frame stores it."""
    return masked(google_crc32c.value(data))


def masked(crc: int) -> int:
    """Mask a CRC-32C, so that the checksum of data that holds checksums stays useful."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Return the payload with its length and checksums around it."""
    length = struct.pack("<Q", len(payload))
    return b"".join((length, struct.pack("<I", masked_crc(length)), payload, struct.pack("<I", masked_crc(payload))))


def footer_crc(framed: bytes | memoryview | Array) -> int:
    """Return the masked CRC-32C of the payload, which is the last four bytes of the frame."""
    return int.from_bytes(framed[-FOOTER_BYTES:], "little")


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
    data: Content, path: Path, where: Frame, number: int | None = None, *, payload_crc: int | None = None
) -> Content:
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
        reason = f"the frame holds {size + FRAME_BYTES} bytes, the index says {where.size}"
        raise RecordError(reason, path=str(path), record=number, offset=where.offset)
    payload = _check_body(data[HEADER_BYTES:], size, path, number, where.offset)
    if payload_crc is not None and payload_crc != footer_crc(data[: where.size]):
        raise RecordError(OTHER_RECORD, path=str(path), record=number, offset=where.offset)
    return payload


def _payload_size(header: Content, path: Path, number: int | None, offset: int) -> int:
    if len(header) < HEADER_BYTES:
        reason = f"cut short: {len(header)} of {HEADER_BYTES} header bytes"
        raise RecordError(reason, path=str(path), record=number, offset=offset)
    if int.from_bytes(header[8:], "little") != masked_crc(header[:8]):
        reason = "wrong checksum of the length; the file is damaged here, or is no TFRecord file"
        raise RecordError(reason, path=str(path), record=number, offset=offset)
    return int.from_bytes(header[:8], "little")


def _check_body(body: Content, size: int, path: Path, number: int | None, offset: int) -> Content:
    if len(body) < size + FOOTER_BYTES:
        reason = f"cut short: {len(body)} of {size + FOOTER_BYTES} bytes behind the header"
        raise RecordError(reason, path=str(path), record=number, offset=offset)
    payload = body[:size]
    if int.from_bytes(body[size : size + FOOTER_BYTES], "little") != masked_crc(payload):
        raise RecordError("wrong checksum of the payload", path=str(path), record=number, offset=offset)
    return payload


# --- the text index of a file ------------------------------------------------------------------------------------------


def format_index(frames: Iterable[Frame]) -> str:
    """Return the content of an `.idx` file."""
    return "".join(f"{frame.offset} {frame.size}\n" for frame in frames)


def read_index(path: Path) -> list[Frame]:
    """Return the frames that an `.idx` file lists; DatasetError names the line that is not two whole numbers."""
    frames = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split()
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise DatasetError(f"{path}, line {number}: expected '<offset> <size>', found {line!r}")
        frames.append(Frame(int(words[0]), int(words[1])))
    return frames


# --- the records of a block --------------------------------------------------------------------------------------------

_LENGTH = struct.Struct("<Q").unpack_from
MOST_RECORD = 1 << 31
"""The largest message of protocol buffers has 2 GiB."""


class Walk(NamedTuple):
    """The whole records of a block, and what follows them.

    Attributes:
        start: Where each payload begins in the block, int64 [N].
        stop: Where each payload ends, int64 [N].
        payload_crc: The masked CRC-32C that stands behind each payload, uint32 [N].
        end: Where the last whole record ends.
        needed: Bytes of the record that begins there, as far as they are known; 0 where the block ends with a record.
        fault: Why no record follows; "" where the rest is the beginning of one.
    """

    start: Array
    stop: Array
    payload_crc: Array
    end: int
    needed: int
    fault: str


def walk(block: Array) -> Walk:
    """Find the records of a block, uint8 [bytes], that begins with a record; the checksums of their lengths are compared."""
    offsets: list[int] = []
    at, needed, limit, last = 0, 0, len(block), len(block) - HEADER_BYTES
    content = memoryview(block)  # type: ignore[arg-type] # a buffer
    while at <= last:
        (size,) = _LENGTH(content, at)
        following = at + size + FRAME_BYTES
        if following > limit:
            needed = size + FRAME_BYTES
            break
        offsets.append(at)
        at = following
    if not needed and at < limit:
        needed = HEADER_BYTES
    offset = np.array(offsets, np.int64)
    stop = np.append(offset[1:], at)[: len(offset)]
    right = _length_crcs(block, offset)
    fault = ""
    if not right.all():
        first = int(np.flatnonzero(~right)[0])
        at, needed, fault = int(offset[first]), 0, _fault(block, int(offset[first]))
        offset, stop = offset[:first], stop[:first]
    elif needed > HEADER_BYTES or (needed == HEADER_BYTES and at <= last):
        fault = _fault(block, at)
    crc = _uint32_at(block, stop - FOOTER_BYTES)
    return Walk(offset + HEADER_BYTES, stop - FOOTER_BYTES, crc, at, needed, fault)


def _fault(block: Array, at: int) -> str:
    """Why no record begins here; "" where one does."""
    size, crc = struct.unpack("<QI", block[at : at + HEADER_BYTES].tobytes())
    if masked(google_crc32c.value(block[at : at + 8].tobytes())) != crc:
        return "wrong checksum of the length; the file is damaged here, or is no TFRecord file"
    return "" if size < MOST_RECORD else f"a record of {size:,} bytes, more than protocol buffers allow"


def _length_crcs(block: Array, offset: Array) -> Array:
    """Return whether the checksum behind each length is right: CRC-32C by table, a byte of all lengths at a time."""
    crc = np.full(len(offset), 0xFFFFFFFF, np.uint32)
    for byte in range(8):
        crc = _TABLE.take((crc ^ block.take(offset + byte)) & np.uint32(0xFF)) ^ (crc >> np.uint32(8))
    crc = ~crc
    expected = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)
    return np.asarray(expected == _uint32_at(block, offset + 8))


def _uint32_at(block: Array, at: Array) -> Array:
    """Return the little-endian numbers of four bytes that begin at these places."""
    parts = (block.take(at + byte).astype(np.uint32) << np.uint32(8 * byte) for byte in range(4))
    return np.asarray(functools.reduce(np.bitwise_or, parts))


_TABLE = np.arange(256, dtype=np.uint32)
"""The remainders of all bytes by Castagnoli's polynomial, bits reflected."""
for _ in range(8):
    _TABLE = np.where(_TABLE & 1, (_TABLE >> np.uint32(1)) ^ np.uint32(0x82F63B78), _TABLE >> np.uint32(1))
