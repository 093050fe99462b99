"""One record's fields, read by offset: large ones straight to where they belong, the rest into scratch memory."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np

from tfprep.errors import RecordError
from tfprep.fields import Array
from tfprep.read.files import Files, read_into
from tfprep.records.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES

SKIP_BYTES = 64 << 10
"""A gap between wanted fields of at most this is read along with them; behind a larger one a second read begins."""


class Span(NamedTuple):
    """Where a field's bytes lie in the file, and the memory they are read into (None: scratch)."""

    name: str
    offset: int
    size: int
    target: Array | None


class Scratch:
    """A thread's own memory, that grows as it is needed and is handed out from the start for each record."""

    def __init__(self) -> None:
        self._memory = np.empty(1 << 16, np.uint8)
        self._used = 0

    def reset(self, nbytes: int) -> None:
        """Make room for a record of so many bytes; whatever was handed out before is no longer valid."""
        self._used = 0
        if nbytes > len(self._memory):
            self._memory = np.empty(nbytes + nbytes // 4, np.uint8)

    def take(self, nbytes: int) -> Array:
        self._used += nbytes
        return self._memory[self._used - nbytes : self._used]


@dataclass(frozen=True)
class Record:
    """Which record: its file, its number in the table's order, and where its frame lies."""

    path: Path
    offset: int
    size: int


def read_fields(
    files: Files, record: Record, spans: Sequence[Span], scratch: Scratch, *, verify: bool
) -> Mapping[str, Array]:
    """The bytes of each field as uint8 [N]: the target given, or scratch memory valid until the next call.

    `spans` stand in the order of their offsets. With `verify` the whole frame is read and both checksums are compared;
    without, only what lies between the fields. Raises RecordError.
    """
    scratch.reset(record.size)
    contents: dict[str, Array] = {}
    for run in [list(spans)] if verify else _runs(spans):
        start = record.offset if verify else run[0].offset
        stop = record.offset + record.size if verify else run[-1].offset + run[-1].size
        pieces = _pieces(run, start, stop, scratch, contents)
        read_into(files, record.path, start, pieces)
        if verify:
            _check(record, pieces)
    return contents


def _runs(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans in as few reads as need not skip much."""
    runs = [[spans[0]]]
    for span in spans[1:]:
        last = runs[-1][-1]
        if span.offset - last.offset - last.size > SKIP_BYTES:
            runs.append([])
        runs[-1].append(span)
    return runs


def _pieces(run: Sequence[Span], start: int, stop: int, scratch: Scratch, contents: dict[str, Array]) -> list[Array]:
    """Memory for the bytes from `start` to `stop`: the fields' own, and scratch for what lies between."""
    pieces = []
    for span in run:
        if span.offset > start:
            pieces.append(scratch.take(span.offset - start))
        contents[span.name] = scratch.take(span.size) if span.target is None else span.target
        pieces.append(contents[span.name])
        start = span.offset + span.size
    if stop > start:
        pieces.append(scratch.take(stop - start))
    return pieces


def _check(record: Record, pieces: Sequence[Array]) -> None:
    header, last = pieces[0], pieces[-1]
    length, length_crc = struct.unpack("<QI", header[:HEADER_BYTES].tobytes())
    if length_crc != _masked(google_crc32c.value(header[:8])):
        raise _wrong(record, "wrong checksum of the length; the file is damaged here, or is no TFRecord file")
    if length + FRAME_BYTES != record.size:
        raise _wrong(record, f"the frame holds {length + FRAME_BYTES} bytes, the index says {record.size}")
    crc = google_crc32c.value(header[HEADER_BYTES:])
    for piece in pieces[1:-1]:
        crc = google_crc32c.extend(crc, piece)
    crc = google_crc32c.extend(crc, last[:-FOOTER_BYTES])
    if struct.unpack("<I", last[-FOOTER_BYTES:].tobytes())[0] != _masked(crc):
        raise _wrong(record, "wrong checksum of the payload")


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _wrong(record: Record, reason: str) -> RecordError:
    return RecordError(reason, path=str(record.path), record=None, offset=record.offset)
