"""A TFRecord file in blocks of whole records, read once from its beginning to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tfprep.fields import Array
from tfprep.records.find import PADDING
from tfprep.records.framing import HEADER_BYTES
from tfprep.records.walk import Walk, walk

BLOCK_BYTES = 16 << 20
"""Large enough that the cost of an operation of NumPy is spread over many records, small enough for a few processes at once."""

_GZIP, _ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
ReadInto = Callable[[int, Array], int]
"""(offset in the file, memory to fill) to the number of bytes read; fewer than asked for at the end of the file alone."""


class Block(NamedTuple):
    """Whole records of a file.

    Attributes:
        offset: Where the block begins in the file.
        bytes: Its bytes, uint8 [N], with `PADDING` behind them; valid until the next block is asked for.
        walk: Where the records lie in it, and why no record follows.
    """

    offset: int
    bytes: Array
    walk: Walk


def blocks(read: ReadInto, size: int) -> Iterator[Block]:
    """Read a file of `size` bytes block by block. The last block has a fault if the file does not end with a record."""
    buffer = np.zeros(min(BLOCK_BYTES, max(size, HEADER_BYTES)) + PADDING, np.uint8)
    offset = filled = 0
    while True:
        room = len(buffer) - PADDING - filled
        filled += read(offset + filled, buffer[filled : filled + min(room, size - offset - filled)])
        at_end = offset + filled >= size or (room > 0 and filled < len(buffer) - PADDING)
        found = walk(buffer[:filled])
        if at_end and not found.fault and found.end < filled:
            there = f"{filled - found.end} of {found.needed} bytes of the record are there"
            found = found._replace(fault=f"cut short: {there}")
        yield Block(offset, buffer, found)
        if at_end or found.fault:
            return
        filled -= found.end
        rest = buffer[found.end : found.end + filled].copy()
        if found.needed + PADDING > len(buffer):
            buffer = np.zeros(found.needed + PADDING, np.uint8)
        buffer[:filled] = rest
        offset += found.end


def compression_of(start: bytes) -> str:
    """GZIP or ZLIB if a file that begins with these bytes is compressed as a whole, as `TFRecordOptions` asks for; else ""."""
    if start.startswith(_GZIP):
        return "GZIP"
    return "ZLIB" if start.startswith(_ZLIB) and len(start) >= HEADER_BYTES and walk(_array(start)).fault else ""


def read_local(descriptor: int) -> ReadInto:
    """Read from an open file."""

    def read(offset: int, target: Array) -> int:
        done = 0
        while done < len(target):
            more = os.preadv(descriptor, (target[done:],), offset + done)  # type: ignore[arg-type] # NumPy's stubs
            if not more:
                break
            done += more
        return done

    return read


def _array(content: bytes) -> Array:
    return np.frombuffer(content, np.uint8)
