"""One record's fields, read by offset: large ones straight to where they belong, the rest into scratch memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from tfprep.errors import RecordError
from tfprep.fields import Array
from tfprep.load.reader.files import Files, cut_short, read_into
from tfprep.load.reader.worker import Scratch
from tfprep.records.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, OTHER_RECORD, footer_crc, masked

SKIP_BYTES = 64 << 10
"""A gap between wanted fields of at most this is read along with them; behind a larger one a second read begins."""


class FieldSpan(NamedTuple):
    """Where a field's bytes lie in the file, and the memory they are read into (None: scratch)."""

    name: str
    offset: int
    size: int
    target: Array | None


class Record(NamedTuple):
    """Which record: the number of its file, where its frame lies there, and the masked CRC-32C of its payload by the index."""

    file: int
    offset: int
    size: int
    payload_crc: int


def read_fields(
    files: Files, record: Record, spans: Sequence[FieldSpan], scratch: Scratch, *, verify: bool, whole: bool = False
) -> dict[str, Array]:
    """The bytes of each field as uint8 [N]: the target given, or scratch memory valid until the next call.

    `spans` stand in the order of their offsets. With `verify` the whole frame is read and both checksums are compared; with
    `whole` the payload comes as the field "" too; without, only what lies between the fields is read. Raises RecordError.
    """
    if files.remote[record.file]:
        return _fetched_fields(files, record, spans, verify=verify, whole=whole)
    scratch.reset(record.size)
    contents: dict[str, Array] = {}
    everything = verify or whole
    for run in [spans] if everything else _runs(spans):
        start = record.offset if everything else run[0].offset
        stop = record.offset + record.size if everything else run[-1].offset + run[-1].size
        if any(span.target is not None for span in run):
            pieces = _scattered(run, start, stop, scratch, contents)
        else:
            pieces = [scratch.take(stop - start)]
            for span in run:
                contents[span.name] = pieces[0][span.offset - start : span.offset - start + span.size]
        read_into(files.get(record.file), files.paths[record.file], start, pieces, stop - start)
        if verify:
            check_pieces(files.paths[record.file], record, pieces)
        if whole:
            contents[""] = pieces[0][HEADER_BYTES:-FOOTER_BYTES]
    return contents


def _fetched_fields(
    files: Files, record: Record, spans: Sequence[FieldSpan], *, verify: bool, whole: bool
) -> dict[str, Array]:
    """`read_fields` of a record at a URL: views of the memory that it was fetched into, copied to the targets given."""
    contents: dict[str, Array] = {}
    path, everything = files.paths[record.file], verify or whole
    for run in [spans] if everything else _runs(spans):
        start = record.offset if everything else run[0].offset
        stop = record.offset + record.size if everything else run[-1].offset + run[-1].size
        content = files.fetched.read(record.file, record.offset, start, stop)
        if len(content) < stop - start:
            raise cut_short(path, start, len(content), stop - start)
        if verify:
            check_pieces(path, record, [content])
        for span in run:
            field = contents[span.name] = content[span.offset - start : span.offset - start + span.size]
            if span.target is not None:
                span.target[:] = field
        if whole:
            contents[""] = content[HEADER_BYTES:-FOOTER_BYTES]
    return contents


def _runs(spans: Sequence[FieldSpan]) -> Sequence[Sequence[FieldSpan]]:
    """The spans in as few reads as need not skip much."""
    if len(spans) == 1:
        return [spans]
    runs = [[spans[0]]]
    for span in spans[1:]:
        last = runs[-1][-1]
        if span.offset - last.offset - last.size > SKIP_BYTES:
            runs.append([])
        runs[-1].append(span)
    return runs


def _scattered(
    run: Sequence[FieldSpan], start: int, stop: int, scratch: Scratch, contents: dict[str, Array]
) -> list[Array]:
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


def check_pieces(path: Path, record: Record, pieces: Sequence[Array]) -> None:
    """Compare both checksums of a frame that lies in these pieces of memory; RecordError where one is wrong.

    The first piece holds at least the header, the last at least the footer.
    """
    header, last = pieces[0], pieces[-1]
    if sum(map(len, pieces)) < record.size:
        raise _wrong(path, record, f"cut short: the file holds {sum(map(len, pieces))} of {record.size} bytes")
    length, length_crc = struct.unpack("<QI", header[:HEADER_BYTES].tobytes())
    if length_crc != masked(google_crc32c.value(header[:8])):
        raise _wrong(path, record, "wrong checksum of the length; the file is damaged here, or is no TFRecord file")
    if length + FRAME_BYTES != record.size:
        raise _wrong(path, record, f"the frame holds {length + FRAME_BYTES} bytes, the index says {record.size}")
    crc, stored_crc = 0, footer_crc(last[-FOOTER_BYTES:].tobytes())
    for number, piece in enumerate(pieces):
        first = HEADER_BYTES if number == 0 else 0
        stop = len(piece) - (FOOTER_BYTES if number == len(pieces) - 1 else 0)
        crc = google_crc32c.extend(crc, piece[first:stop])
    if stored_crc != masked(crc):
        raise _wrong(path, record, "wrong checksum of the payload")
    if stored_crc != record.payload_crc:
        raise _wrong(path, record, OTHER_RECORD)


def _wrong(path: Path, record: Record, reason: str) -> RecordError:
    return RecordError(reason, path=str(path), record=None, offset=record.offset)
