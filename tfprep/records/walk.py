"""Where the records of a block of a TFRecord file lie: from frame to frame, without their payloads."""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c
import numpy as np

from tfprep.fields import Array
from tfprep.records.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, masked

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
    at, needed, last = 0, 0, len(block) - HEADER_BYTES
    add = offsets.append
    content = memoryview(block)  # type: ignore[arg-type] # a buffer
    limit = len(block)
    while at <= last:
        (size,) = _LENGTH(content, at)
        following = at + size + FRAME_BYTES
        if following > limit:
            needed = size + FRAME_BYTES
            break
        add(at)
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
    crc = np.zeros(len(offset), np.uint32)
    for byte in range(FOOTER_BYTES):
        crc |= block.take(stop - FOOTER_BYTES + byte).astype(np.uint32) << np.uint32(8 * byte)
    return Walk(offset + HEADER_BYTES, stop - FOOTER_BYTES, crc, at, needed, fault)


def _fault(block: Array, at: int) -> str:
    """Why no record begins here; "" where one does."""
    size, crc = struct.unpack("<QI", block[at : at + HEADER_BYTES].tobytes())
    if masked(google_crc32c.value(block[at : at + 8].tobytes())) != crc:
        return "wrong checksum of the length; the file is damaged here, or is no TFRecord file"
    return "" if size < MOST_RECORD else f"a record of {size:,} bytes, more than protocol buffers allow"


def _length_crcs(block: Array, offset: Array) -> Array:
    """Whether the checksum behind each length is right: CRC-32C by table, a byte of all lengths at a time."""
    crc = np.full(len(offset), 0xFFFFFFFF, np.uint32)
    for byte in range(8):
        crc = _TABLE.take((crc ^ block.take(offset + byte)) & np.uint32(0xFF)) ^ (crc >> np.uint32(8))
    crc = ~crc
    expected = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)
    stored = np.zeros(len(offset), np.uint32)
    for byte in range(4):
        stored |= block.take(offset + 8 + byte).astype(np.uint32) << np.uint32(8 * byte)
    return np.asarray(expected == stored)


def _crc_table() -> Array:
    """The remainders of all bytes by Castagnoli's polynomial, bits reflected."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    return table


_TABLE = _crc_table()
