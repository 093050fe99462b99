"""TFRecord files without TensorFlow.

A record is framed as

    uint64le length | uint32le masked crc32c(the 8 length bytes) | payload | uint32le masked crc32c(payload)

with mask(c) = ((c >> 15 | c << 17) + 0xa282ead8) mod 2^32, as in TensorFlow's `record_writer.h`. There is no header and no
compression, so a single record can be read by its offset. Offsets are those of the length field; sizes are the whole frame's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import google_crc32c

from tfprep.errors import RecordError
from tfprep.fields import Array

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
"""The bytes that a frame adds to its payload."""
MOST_RECORD = 1 << 31
"""The largest message of protocol buffers has 2 GiB."""
_WRONG_LENGTH = "wrong checksum of the length; the file is damaged here, or is not a TFRecord file"
OTHER_RECORD = "this is not the record that the index describes; the shard and the index come from different builds"


Content = TypeVar("Content", bytes, Array)
"""Bytes of a file, of Python or uint8 [N]."""


class Frame(NamedTuple):
    """The position of a record in its file, in bytes: `offset` of the length field, and `size` of the whole frame."""

    offset: int
    size: int


def masked_crc(data: bytes | Array) -> int:
    """Return the masked CRC-32C that a frame stores: masked, so that the checksum of data that holds checksums stays useful.

    Args:
        data: The length or the payload of the frame.

    Returns:
        A number of 32 bits.
    """
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Frame a record for a TFRecord file.

    Args:
        payload: The record's bytes.

    Returns:
        The payload with its length and checksums around it.
    """
    length = struct.pack("<Q", len(payload))
    return b"".join((length, struct.pack("<I", masked_crc(length)), payload, struct.pack("<I", masked_crc(payload))))


def footer_crc(framed: bytes | Array) -> int:
    """Return the masked CRC-32C of the payload that a frame ends with."""
    return int.from_bytes(framed[-FOOTER_BYTES:], "little")


class Found(NamedTuple):
    """A record of a file, or why there is none.

    Attributes:
        offset: Where it begins.
        payload: Its content; None where the rest of the file cannot be read.
        payload_crc: The masked CRC-32C that follows the payload.
        fault: What is wrong with it; "" if nothing is.
    """

    offset: int
    payload: bytes | None
    payload_crc: int
    fault: str


def find_records(file: BinaryIO, size: int) -> Iterator[Found]:
    """Read all records of a file of `size` bytes, one in memory at a time.

    A record with a wrong checksum has a fault, and those after it are read. After a wrong length nothing can be read: the last
    one has no payload.
    """
    offset = 0
    while offset < size:
        header = file.read(HEADER_BYTES)
        length, crc = struct.unpack("<QI", header.ljust(HEADER_BYTES, b"\0"))
        needed, rest, fault = length + FRAME_BYTES, size - offset, ""
        if len(header) < HEADER_BYTES:
            fault = f"cut short: {len(header)} of {HEADER_BYTES} bytes of the record are there"
        elif masked_crc(header[:8]) != crc:
            fault = _WRONG_LENGTH
        elif length >= MOST_RECORD:
            fault = f"a record of {length:,} bytes, more than protocol buffers allow"
        elif needed > rest:
            fault = f"cut short: {rest} of {needed} bytes of the record are there"
        body = b"" if fault else file.read(length + FOOTER_BYTES)
        if not fault and len(body) < length + FOOTER_BYTES:
            fault = f"cut short: {len(body) + HEADER_BYTES} of {needed} bytes of the record are there"
        if fault:
            yield Found(offset, None, 0, fault)
            return
        payload, payload_crc = body[:length], footer_crc(body)
        wrong = masked_crc(payload) != payload_crc
        yield Found(offset, payload, payload_crc, "wrong checksum of the payload" if wrong else "")
        offset += needed


def read_record(
    file: BinaryIO, path: Path, where: Frame, number: int | None = None, *, payload_crc: int | None = None
) -> bytes:
    """Read one record by its offset.

    Args:
        file: The open file.
        path: Its path, for messages.
        where: What the index says about the frame.
        number: The record's number in the file, for messages.
        payload_crc: As in `check_frame`.

    Returns:
        The payload.

    Raises:
        RecordError: As in `check_frame`.
    """
    file.seek(where.offset)
    data = file.read(where.size)
    return check_frame(data, path, where, number, payload_crc=payload_crc)


def check_frame(
    data: Content, path: Path, where: Frame, number: int | None = None, *, payload_crc: int | None = None
) -> Content:
    """Compare a frame with its own checksums and with the index.

    Args:
        data: The frame's bytes.
        path: The file that they come from, for messages.
        where: What the index says about the frame.
        number: The record's number in the file, for messages.
        payload_crc: The masked CRC-32C that the index holds for this record; None if the index is not asked.

    Returns:
        The payload.

    Raises:
        RecordError: The frame is cut short or damaged, or is not the record that the index describes.
    """
    if len(data) < HEADER_BYTES:
        fault = f"cut short: {len(data)} of {HEADER_BYTES} header bytes"
    else:
        size, stop = int.from_bytes(data[:8], "little"), where.size - FOOTER_BYTES
        if int.from_bytes(data[8:HEADER_BYTES], "little") != masked_crc(data[:8]):
            fault = _WRONG_LENGTH
        elif size + FRAME_BYTES != where.size:
            fault = f"the frame holds {size + FRAME_BYTES} bytes, the index says {where.size}"
        elif len(data) < where.size:
            fault = f"cut short: {len(data) - HEADER_BYTES} of {size + FOOTER_BYTES} bytes after the header"
        elif (crc := masked_crc(payload := data[HEADER_BYTES:stop])) != footer_crc(data[: where.size]):
            fault = "wrong checksum of the payload"
        elif payload_crc is not None and payload_crc != crc:
            fault = OTHER_RECORD
        else:
            return payload
    raise RecordError(fault, path=str(path), record=number, offset=where.offset)


# --- the text index of a file ------------------------------------------------------------------------------------------


def format_index(frames: Iterable[Frame]) -> str:
    """Format the positions of the records of a shard, as NVIDIA DALI reads them.

    Args:
        frames: The frame of each record.

    Returns:
        The content of an `.idx` file, with a line of offset and size for each record.
    """
    return "".join(f"{frame.offset} {frame.size}\n" for frame in frames)
