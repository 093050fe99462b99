"""Shards, each read once: where the records and their features are, values for the index, and a summary of each feature.

What is found in a shard is a part file in `.tfprep`, with a table for each block of the shard, so that a shard of any size takes
the memory of a block. The receipt beside it holds the summaries and the digest of the part file: a damaged one is scanned again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from tfprep.dataset.imported.shards import Shard, current
from tfprep.dataset.manifest import digest_of
from tfprep.dataset.plain_json import from_json, with_digest, without_digest
from tfprep.errors import DatasetError, SampleError, TfprepError
from tfprep.images.jpeg_png import read_header
from tfprep.images.pillow import MAX_PIXELS
from tfprep.limits import usable_cpus
from tfprep.pool import Died, Done, Mark, Pool
from tfprep.records.example import FLOAT, INT64, NO_LIST, ExampleError, Span, fields, find_features, unpack
from tfprep.records.framing import FRAME_BYTES, HEADER_BYTES, Found, find_records
from tfprep.storage.local import whole_file
from tfprep.storage.urls import durable_write, is_remote, open_file

BLOCK_BYTES = 16 << 20
_BLOCK_VALUES = 1 << 18
"""The most bytes of records, and values of features, of a block."""
_MOST_NAMES = 10_000
LONGEST_VALUE = 256
"""Bytes of a string that the index keeps for `where` and `balance`: names of classes and files, no captions."""
MOST_SHARE = 2
"""Sides of boxes that are all smaller are shares of the image, some of them a little beyond its edge."""
BOX_SIDES = ("xmin", "ymin", "xmax", "ymax")
"""Ends of the names of features that hold the sides of boxes, in the order of `xyxy`."""
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
"""Control characters other than tabs and ends of lines: what holds one is not text."""

RECORD = {"number": pa.int64(), "offset": pa.int64(), "size": pa.int64(), "payload_crc": pa.uint32()}
"""Columns of a block: the number of the record in its shard, where its frame is in the file, the checksum of its payload."""
VALUE = {
    **{"offset": pa.int64(), "size": pa.int64(), "value_size": pa.int64(), "height": pa.int32(), "width": pa.int32()},
    **{"int64": pa.int64(), "float32": pa.float32(), "string": pa.large_binary()},
}
"""Parts of the column of a feature, null in records without it: the place of its list in the file, the bytes of its last item,
the size of an image, and the first number or a short string."""


class Summary(dict[str, int]):
    """Numbers over all records that have a feature, by name: "least X" and "most X" of a record, and sums of all else.

    X is `count` (of values), `bytes` (of the last value), `height` and `width` (of readable images), or a positive `integer`.
    Sums of records: "kind K" of its list ("bytes", "float", "int64", or "none" for an empty one), "image jpeg 3 8" for three
    channels of 8 bits, "image unreadable" for one without pixels or of more than can be decoded, "other" than text, "visible"
    strings (not only blanks), and "in pixels", where a number is above `MOST_SHARE`. "weighed" is the sum of the counts, each
    times a random number of its record: features of equal sums have the same number of values in every record.
    """

    def add(self, numbers: Mapping[str, int]) -> None:
        """Add the numbers of another record, or of other records."""
        for name, number in numbers.items():
            if name not in self:
                self[name] = number
            elif name.startswith("least "):
                self[name] = min(self[name], number)
            else:
                self[name] = max(self[name], number) if name.startswith("most ") else self[name] + number

    def sums(self, word: str) -> dict[str, int]:
        """Return the sums whose names begin with this word, by the rest of the name."""
        return {name.partition(" ")[2]: number for name, number in self.items() if name.startswith(f"{word} ")}

    @property
    def kind(self) -> str:
        """The only kind of list that has values; "" where there is none, or where there are several."""
        kinds = [kind for kind in self.sums("kind") if kind != "none"]
        return kinds[0] if len(kinds) == 1 else ""


@dataclass(frozen=True)
class LostRecord:
    """A record that cannot be part of a dataset: its number in the file, its offset, and why.

    After one whose length is damaged nothing more of its file can be read.
    """

    record: int
    offset: int
    reason: str


@dataclass(frozen=True)
class Scanned:
    """The receipt of a shard.

    Attributes:
        records: The number of good records, which are in the part file.
        lost: The records that are not Examples, or are damaged.
        end: Where its last whole record ends.
        features: The summary of each feature of the good records.
        part: The SHA-256 of the part file.
    """

    records: int
    lost: tuple[LostRecord, ...]
    end: int
    features: Mapping[str, Mapping[str, int]]
    part: str = ""


# --- one shard ----------------------------------------------------------------------------------------------------------


def open_scan(folder: Path) -> Callable[[Shard, Mark], Scanned]:
    """Return the work of a process (`tfprep.pool`): scan a shard, and write its part file and then its receipt."""

    def scan(shard: Shard, mark: Mark) -> Scanned:
        part = _part_of(shard, folder)
        # The user named it, wherever a link leads.
        path = shard.path if is_remote(shard.path) else Path(os.path.realpath(shard.path))
        try:
            with open_file(path) as file, whole_file(part) as tables:
                scanned = _scan(find_records(file, shard.bytes), tables, mark)
                if current(shard.path) != shard:
                    raise DatasetError(
                        f"{shard.path} was written to since it was listed: index its split again when it is complete"
                    )
            scanned = replace(scanned, part=digest_of(part).sha256)
            durable_write(_receipt_of(part), with_digest(asdict(scanned)))
        except TfprepError:
            raise
        except Exception as error:
            raise DatasetError(f"{shard.path} cannot be indexed ({type(error).__name__}: {error})") from error
        return scanned

    return scan


def _scan(records: Iterator[Found], part: BinaryIO, mark: Mark) -> Scanned:
    lost, features, rows = list[LostRecord](), dict[str, Summary](), list[dict[str, Any]]()
    good = start = end = 0
    for number, found in enumerate(records):
        if found.payload is None:
            lost.append(LostRecord(number, found.offset, f"{found.fault}; what follows cannot be read"))
            break
        size = len(found.payload) + FRAME_BYTES
        end = found.offset + size
        try:
            if found.fault:
                raise ExampleError(found.fault)
            values = _values(found, found.payload)  # all of them first: a record that is lost leaves nothing behind
        except (ExampleError, SampleError) as error:
            lost.append(LostRecord(number, found.offset, str(error)))
            continue
        row: dict[str, Any] = {"number": number, "offset": found.offset, "size": size, "payload_crc": found.payload_crc}
        for name, (numbers, value) in values.items():
            features.setdefault(name, Summary()).add(numbers)
            row[f"/{name}"] = value
        rows.append(row)
        if len(features) > _MOST_NAMES:
            raise ValueError(f"it has more than {_MOST_NAMES:,} different features")
        if end - start >= BLOCK_BYTES or len(rows) * len(features) >= _BLOCK_VALUES:
            _write(rows, features, part)
            mark(end)
            rows, good, start = [], good + len(rows), end
    _write(rows, features, part)
    return Scanned(good + len(rows), tuple(lost), end, features)


def _values(found: Found, payload: bytes) -> dict[str, tuple[dict[str, int], tuple[Any, ...]]]:
    """Return by name of the feature what a record adds to its summary, and its row of `VALUE`; ExampleError if there is none."""
    values = {}
    for name, span in find_features(payload).items():
        if not _is_text(name):
            raise ExampleError(f"the name of a feature is not text: {name[:60]!r}")
        numbers, value = _value(name, payload, span)
        numbers["weighed"] = span.values * (found.payload_crc >> 8)
        base = found.offset + HEADER_BYTES
        place = base + span.offset if span.size else 0, span.size, span.last
        values[name.decode()] = numbers, (*place, *value)
    return values


def _value(name: bytes, payload: bytes, span: Span) -> tuple[dict[str, int], tuple[Any, ...]]:
    """Return the numbers of a feature in a record, and height, width, int64, float32 and string of its value."""
    kind, start, size, count, last = span
    numbers = {"least count": count, "most count": count, "least bytes": last, "most bytes": last}
    height = width = integer = real = text = None
    if kind == NO_LIST or not count:
        numbers["kind none"] = 1
    elif kind == INT64:
        integers = [payload[start]]
        if size > 1:
            integers = unpack(np.frombuffer(payload, np.uint8, size, start), "int64").tolist()
        integer, numbers["kind int64"] = integers[0], 1
        if (most := max(integers)) > 0:  # a receipt holds no negative numbers
            numbers["most integer"] = most
    elif kind == FLOAT:
        reals, numbers["kind float"] = np.frombuffer(payload, "<f4", count, start), 1
        if count % 4 == 0 or name.rpartition(b"/")[2] in _SIDES:  # what may be boxes, whatever its name is
            numbers["in pixels"] = int((reals > MOST_SHARE).any())
        real = float(reals[0])
    else:
        strings, numbers["kind bytes"] = [payload[start + size - last : start + size]], 1
        header = read_header(strings[0]) if count == 1 else None
        text = strings[0] if count == 1 and last <= LONGEST_VALUE else None
        if header and 0 < header.height * header.width <= MAX_PIXELS:
            height, width = header.height, header.width
            numbers |= {"least height": height, "most height": height, "least width": width, "most width": width}
        if header:
            form = f"{header.format} {header.channels} {header.bits}" if height else "unreadable"
            numbers |= {f"image {form}": 1, "other": 1}
        else:
            if count > 1:
                strings = [payload[at:stop] for *_, at, stop in fields(payload, start, start + size)]
            numbers["other"] = int(not all(map(_is_text, strings)))
            numbers["visible"] = int(not all(map(bytes.isspace, strings)))
    return numbers, (height, width, integer, real, text)


_SIDES = {side.encode() for side in BOX_SIDES}


def _is_text(value: bytes) -> bool:
    """Return True if a string is UTF-8 without control characters other than tabs and ends of lines."""
    if _CONTROL.search(value):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _write(rows: Sequence[Mapping[str, Any]], features: Mapping[str, Summary], part: BinaryIO) -> None:
    """Write the table of a block: the columns of `RECORD`, and one of `VALUE` for each feature, with a slash before its name."""
    columns = {**RECORD, **{f"/{name}": pa.struct(list(VALUE.items())) for name in features}}
    table = pa.Table.from_pylist(list(rows), pa.schema(list(columns.items())))
    with pa.ipc.new_stream(part, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)


# --- many shards, in this process or in several ------------------------------------------------------------------------


_FEW_BYTES = 64 << 20
"""Less than this is scanned sooner than another process has started, which takes half a second."""
_ENTRY = f"{__name__}:open_scan"


def scan_shards(
    shards: Sequence[Shard], folder: Path, workers: int | None, on_bytes: Callable[[int, int], None]
) -> tuple[dict[Shard, Scanned], list[Shard]]:
    """Return the receipts of shards, and those shards that were scanned for it, because `folder` has no part files of them.

    Part files of other shards are removed: those changed, or belong to no split any more.
    `on_bytes` is called with the bytes that are read so far, and with all. DatasetError where a shard cannot be read, or was
    written to meanwhile.
    """
    found = {shard: _find_receipt(shard, folder) for shard in shards}
    receipts = {shard: receipt for shard, receipt in found.items() if receipt is not None}
    due = [shard for shard in found if shard not in receipts]
    read, done, total = dict.fromkeys(due, 0), sum(one.bytes for one in receipts), sum(one.bytes for one in found)
    if workers is None:
        workers = usable_cpus() if total - done >= _FEW_BYTES else 0
    on_bytes(done, total)
    with closing(Pool(_ENTRY, folder, min(workers, len(due)))) as pool:
        for shard in sorted(due, key=lambda shard: -shard.bytes):
            pool.submit(shard)
        for event in pool.events():
            if event is None:
                continue
            shard = event.task.content
            if isinstance(event, Died):
                raise DatasetError(f"the process that read {shard.path} died ({event.reason}); run the command again")
            if isinstance(event, Done):
                receipts[shard] = event.result
            before, read[shard] = read[shard], shard.bytes if isinstance(event, Done) else event.item or 0
            done += read[shard] - before
            on_bytes(done, total)
    for path in set(folder.glob("*.part")) - {_part_of(shard, folder) for shard in shards}:
        path.unlink()
        _receipt_of(path).unlink(missing_ok=True)
    return receipts, due


# --- part files -------------------------------------------------------------------------------------------------------


_VERSION = 16


def _part_of(shard: Shard, folder: Path) -> Path:
    """Return the path of the part file of a shard as it is now. A local shard counts by its relative path: both may be moved."""
    path = str(shard.path) if is_remote(shard.path) else os.path.relpath(shard.path, folder)
    identity = json.dumps([_VERSION, path, shard.bytes, shard.version])
    return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.part"


def _receipt_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _find_receipt(shard: Shard, folder: Path) -> Scanned | None:
    """Return what was found in a shard as it is now; None if it was not scanned, or its files are damaged."""
    path = _part_of(shard, folder)
    try:
        receipt = from_json(Scanned, without_digest(_receipt_of(path).read_bytes()))
        return receipt if digest_of(path).sha256 == receipt.part else None
    except (OSError, ValueError, DatasetError):
        return None


def read_part(shard: Shard, folder: Path) -> Iterator[pa.Table]:
    """Yield the table of each block of a part file."""
    with _part_of(shard, folder).open("rb") as file:
        while file.peek(1):
            with pa.ipc.open_stream(file) as stream:
                yield stream.read_all()
