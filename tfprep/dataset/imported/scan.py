"""Shards, each read once: where the records and their features are, and values for the index.

What is found in a shard is a part file in `.tfprep`: tables, one for each block of the shard, so that a shard of any size takes
the memory of a block. A receipt beside the part file holds its digest: a damaged one is scanned again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from tfprep.dataset.imported.schema import BOX_WORDS, LONGEST_VALUE, UNREADABLE, FeatureSummary
from tfprep.dataset.imported.shards import Shard, current, open_shard
from tfprep.dataset.manifest import digest_of, is_sealed, seal
from tfprep.dataset.plain_json import from_json
from tfprep.errors import DatasetError, TfprepError
from tfprep.images.headers import read_header
from tfprep.images.pillow import MAX_PIXELS
from tfprep.limits import usable_cpus
from tfprep.pool import Died, Done, Mark, Pool
from tfprep.records import example
from tfprep.records.example import BYTES, FLOAT, INT64, NO_LIST, ExampleError, Span, find_features
from tfprep.records.framing import FRAME_BYTES, HEADER_BYTES, Found, find_records
from tfprep.storage.local import whole_file
from tfprep.storage.urls import durable_write, is_remote

BLOCK_BYTES = 16 << 20
_BLOCK_FEATURES = 1 << 18
"""The most bytes of records, and features of them, of a block."""
_MOST_NAMES = 10_000
_GREATEST = float(1 << 40)
_KINDS = ["none", "bytes", "float", "int64"]
"""By the number that `find_features` gives."""
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
"""Control characters other than tabs and ends of lines: what holds one is not text."""

FRAME = ("number", "offset", "size", "payload_crc")
"""Columns of a block: the number of the record in its shard, its place in the file, and the checksum of its payload."""
FEATURE = pa.struct(
    [
        *(("kind", pa.string()), ("form", pa.string()), ("offset", pa.int64()), ("size", pa.int64())),
        *(("count", pa.int64()), ("value_size", pa.int64()), ("height", pa.int64()), ("width", pa.int64())),
        *(("is_text", pa.bool_()), ("greatest", pa.int64())),
        *(("int64", pa.int64()), ("float32", pa.float32()), ("string", pa.large_binary())),
    ]
)
"""The other columns: what a record has of the feature `PREFIX + name`, null where it does not have it.

The kind of its list ("none" for an empty one); what the header of its image says ("jpeg 3 8" for three channels of 8 bits);
its place in the file, its number of values, the bytes of the only one; the size of an image; whether its strings are text; the
greatest number if its name is one of boxes, rounded up; and the value, if that is a single number or a short string."""
PREFIX = "/"


@dataclass(frozen=True)
class LostRecord:
    """A record that cannot be part of a dataset: its number in the file, its offset, and why."""

    number: int
    offset: int
    reason: str


@dataclass(frozen=True)
class Scanned:
    """The receipt of a shard.

    Attributes:
        records: The number of good records, which are in the part file.
        bad: The records that are not Examples, or whose checksum is wrong.
        fault: Why the file does not end with a record; "" if it does.
        end: Where its last whole record ends.
        part: The SHA-256 of the part file.
    """

    records: int
    bad: tuple[LostRecord, ...]
    fault: str
    end: int
    part: str = ""


class _Feature:
    """What the records of a block have of a feature: a row of numbers and a short string for each."""

    def __init__(self, name: bytes) -> None:
        if not _is_text(name):
            raise ExampleError(f"the name of a feature is not text: {name[:60]!r}")
        self.name, self._rows, self._texts, self._forms = name.decode(), array("q"), list[bytes | None](), {"": 0}
        self._is_of_boxes = bool(BOX_WORDS & set(re.split(r"[^a-z]+", self.name.lower())))

    def add(self, record: int, base: int, payload: bytes, span: Span) -> None:
        """Add a record by its number in the block; its payload begins at `base`."""
        kind, start, size, count, value_size = span
        form = height = width = greatest = number = 0
        text, is_text = None, True
        if kind == BYTES and count == 1:
            value = payload[start + size - value_size : start + size]
            if header := read_header(value):
                name = UNREADABLE
                if 0 < header.height * header.width <= MAX_PIXELS:
                    name, height, width = (
                        f"{header.format} {header.channels} {header.bits}",
                        header.height,
                        header.width,
                    )
                form = self._forms.setdefault(name, len(self._forms))
            else:
                is_text = _is_text(value)
            text = value if value_size <= LONGEST_VALUE else None
        elif kind == BYTES:
            is_text = all(_is_text(payload[at:end]) for _, _, at, end in example.fields(payload, start, start + size))
        elif kind == INT64 and count == 1:
            number = payload[start] if size == 1 else _signed(example.read_varint(payload, start, start + size)[0])
        elif kind == FLOAT and count:
            number = int.from_bytes(payload[start : start + 4], "little")
            if self._is_of_boxes:
                numbers = np.frombuffer(payload, "<f4", count, start)
                greatest = int(np.ceil(min(np.nanmax(numbers, initial=0), _GREATEST)))
        kind, place = (kind if count else NO_LIST), (base + start if size else 0)
        self._rows.extend(
            (record, kind, form, place, size, count, value_size, height, width, is_text, greatest, number)
        )
        self._texts.append(text)

    def column(self, records: int) -> pa.Array:
        """Return a value of `FEATURE` for each record of the block."""
        record, kind, form, *numbers, is_text, greatest, number = np.frombuffer(self._rows, np.int64).reshape(-1, 12).T
        columns = [pa.array(_KINDS).take(pa.array(kind)), pa.array(list(self._forms)).take(pa.array(form))]
        columns += [pa.array(column) for column in (*numbers, is_text.astype(bool), greatest, number)]
        columns += [pa.array(number.astype(np.uint32).view(np.float32)), pa.array(self._texts, pa.large_binary())]
        place = np.full(records, -1)
        place[record] = np.arange(len(record))
        return pa.StructArray.from_arrays(columns, fields=list(FEATURE)).take(pa.array(place, mask=place < 0))


class _Block:
    """The good records of a part of a shard."""

    def __init__(self) -> None:
        self._frames, self._features = array("q"), dict[bytes, _Feature]()
        self.records = self.features = 0

    def add(self, number: int, found: Found, payload: bytes) -> None:
        """Add a record. Raises ExampleError if it is not an Example that can be read by offset."""
        spans = find_features(payload)
        self._features |= {name: _Feature(name) for name in spans if name not in self._features}
        if len(self._features) > _MOST_NAMES:
            raise ValueError(f"it has more than {_MOST_NAMES:,} different features")
        for name, span in spans.items():
            self._features[name].add(self.records, found.offset + HEADER_BYTES, payload, span)
        self._frames.extend((number, found.offset, len(payload) + FRAME_BYTES, found.payload_crc))
        self.records += 1
        self.features += len(spans)

    def write(self, file: BinaryIO) -> None:
        """Write the block as a table."""
        frames = np.frombuffer(self._frames, np.int64).reshape(-1, len(FRAME))
        columns: dict[str, pa.Array] = dict(zip(FRAME, map(pa.array, frames.T), strict=True))
        columns |= {PREFIX + feature.name: feature.column(self.records) for feature in self._features.values()}
        table = pa.table(columns)
        with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_table(table)


def _is_text(value: bytes) -> bool:
    """Return True if a string is UTF-8 without control characters other than tabs and ends of lines."""
    if _CONTROL.search(value):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return not value or not value.isspace()


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


# --- many shards, in this process or in several ------------------------------------------------------------------------


FEW_BYTES = 64 << 20
"""Less than this is scanned sooner than another process has started, which takes half a second."""
_ENTRY = f"{__name__}:open_scan"
OnBytes = Callable[[int], None]


def scan_shards(shards: Sequence[Shard], folder: Path, workers: int | None, on_bytes: OnBytes) -> None:
    """Scan shards, so that each has a part file and a receipt.

    Args:
        shards: The shards.
        folder: Where these files are.
        workers: The number of processes; None for one per usable CPU, 0 for this process only.
        on_bytes: Called with the number of bytes that were read.

    Raises:
        DatasetError: A shard cannot be read, or was written to meanwhile.
    """
    count = min(usable_cpus() if workers is None else workers, len(shards))
    if count <= 1 or (workers is None and sum(shard.bytes for shard in shards) < FEW_BYTES):
        for shard in shards:
            _scan_one(shard, folder, on_bytes)
        return
    with closing(Pool(_ENTRY, folder, count)) as processes:
        for shard in sorted(shards, key=lambda shard: -shard.bytes):
            processes.submit(shard)
        for event in processes.events():
            if isinstance(event, Done):
                on_bytes(event.task.content.bytes)
            elif isinstance(event, Died):
                path = event.task.content.path
                raise DatasetError(f"the process that read {path} died ({event.reason}); run the command again")


def open_scan(folder: Path) -> Callable[[Shard, Mark], None]:
    """Return the work of a process (`tfprep.pool`): scan a shard."""
    return lambda shard, mark: _scan_one(shard, folder, lambda _: None)


def _scan_one(shard: Shard, folder: Path, on_bytes: OnBytes) -> None:
    """Scan one shard, and write its part file and then its receipt."""
    path = part_of(shard, folder)
    try:
        with open_shard(shard.path) as file, whole_file(path) as part:
            scanned = _scan(find_records(file, shard.bytes), part, on_bytes)
            if current(shard.path) != shard:
                raise DatasetError(
                    f"{shard.path} was written to while it was indexed; run the command again when it is complete"
                )
        durable_write(_receipt_of(path), seal(vars(replace(scanned, part=digest_of(path).sha256))))
    except TfprepError:
        raise
    except Exception as error:
        raise DatasetError(f"{shard.path} cannot be indexed ({type(error).__name__}: {error})") from error


def _scan(records: Iterator[Found], part: BinaryIO, on_bytes: OnBytes) -> Scanned:
    bad: list[LostRecord] = []
    block, good, start, end, fault = _Block(), 0, 0, 0, ""

    def write() -> None:
        nonlocal block, good, start
        block.write(part)
        on_bytes(end - start)
        block, good, start = _Block(), good + block.records, end

    for number, found in enumerate(records):
        if found.payload is None:
            fault = found.fault
            break
        end = found.offset + len(found.payload) + FRAME_BYTES
        try:
            if found.fault:
                raise ExampleError(found.fault)
            block.add(number, found, found.payload)
        except ExampleError as error:
            bad.append(LostRecord(number, found.offset, str(error)))
        if end - start >= BLOCK_BYTES or block.features >= _BLOCK_FEATURES:
            write()
    write()
    return Scanned(good, tuple(bad), fault, end)


# --- part files -------------------------------------------------------------------------------------------------------


_VERSION = 8


def part_of(shard: Shard, folder: Path) -> Path:
    """Return the path of the part file of a shard as it is now. A local shard counts by its relative path: both may be moved."""
    path = str(shard.path) if is_remote(shard.path) else os.path.relpath(shard.path, folder)
    identity = json.dumps([_VERSION, path, shard.bytes, shard.version])
    return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.part"


def _receipt_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def find_receipt(shard: Shard, folder: Path) -> Scanned | None:
    """Return what was found in a shard as it is now; None if it was not scanned, or its files are damaged."""
    path = part_of(shard, folder)
    try:
        content = _receipt_of(path).read_bytes()
        document = {name: value for name, value in json.loads(content).items() if name != "sha256"}
        receipt = from_json(Scanned, document) if is_sealed(content) else None
        return receipt if receipt is not None and digest_of(path).sha256 == receipt.part else None
    except (OSError, ValueError, AttributeError, DatasetError):
        return None


def read_part(shard: Shard, folder: Path) -> Iterator[pa.Table]:
    """Yield the blocks of a part file: the columns of `FRAME`, and one of the type `FEATURE` for each feature."""
    with part_of(shard, folder).open("rb") as file:
        while file.peek(1):
            with pa.ipc.open_stream(file) as stream:
                yield stream.read_all()


def summarize(shards: Iterable[Shard], folder: Path) -> dict[str, FeatureSummary]:
    """Return the summary of each feature over the records of all part files."""
    ranges = [(name, "min_max") for name in ("count", "value_size", "height", "width")]
    summaries: dict[str, FeatureSummary] = {}
    for block in (block for shard in shards for block in read_part(shard, folder)):
        for name in block.column_names[len(FRAME) :]:
            rows = pa.Table.from_struct_array(block[name].drop_null()).group_by(["kind", "form"], use_threads=False)
            summary = summaries.setdefault(name.removeprefix(PREFIX), FeatureSummary())
            for row in rows.aggregate(
                [("offset", "count"), ("is_text", "all"), ("greatest", "max"), *ranges]
            ).to_pylist():
                summary.add(row)
    return summaries


def remove_parts(folder: Path, kept: Collection[Path]) -> None:
    """Remove the part files that are not among `kept`: of shards that changed, or belong to no split any more."""
    for path in folder.glob("*.part"):
        if path not in kept:
            path.unlink(missing_ok=True)
            _receipt_of(path).unlink(missing_ok=True)
