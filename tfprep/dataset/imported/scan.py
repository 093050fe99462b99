"""Shards, each read once: where the records and their features are, and values for the index.

What is found in a shard is a part file in `.tfprep`. It holds two tables for each block of the shard (`RECORD`, `FEATURE`), so
that a shard of any size takes the memory of a block. A receipt beside the part file holds its digest: a damaged one is scanned
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from tfprep.dataset.imported.schema import BOX_SIDES, LONGEST_VALUE, MOST_SHARE, UNREADABLE, FeatureSummary
from tfprep.dataset.imported.shards import Shard, current
from tfprep.dataset.index import numpy_column
from tfprep.dataset.manifest import digest_of
from tfprep.dataset.plain_json import from_json, with_digest, without_digest
from tfprep.errors import DatasetError, SampleError, TfprepError
from tfprep.images.jpeg_png import read_header
from tfprep.images.pillow import MAX_PIXELS
from tfprep.limits import usable_cpus
from tfprep.pool import Died, Done, Mark, Pool
from tfprep.records import example
from tfprep.records.example import BYTES, FLOAT, INT64, NO_LIST, ExampleError, Span, find_features
from tfprep.records.framing import FRAME_BYTES, HEADER_BYTES, Found, find_records
from tfprep.storage.local import whole_file
from tfprep.storage.urls import durable_write, is_remote, open_file

BLOCK_BYTES = 16 << 20
_BLOCK_FEATURES = 1 << 18
"""The most bytes of records, and features of them, of a block."""
_MOST_NAMES = 10_000
_GREATEST = float(1 << 40)
_KINDS = ["none", "bytes", "float", "int64"]
"""By the number that `find_features` gives."""
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
"""Control characters other than tabs and ends of lines: what holds one is not text."""

RECORD = ("number", "offset", "size", "payload_crc")
"""Columns of a block's table of records: the number of the record in its shard, where its frame is in the file, and the checksum
of its payload."""
FEATURE = (
    *("record", "feature", "kind", "form", "offset", "size", "count", "value_size"),
    *("height", "width", "is_text", "greatest", "int64"),
)
"""Columns of a block's table of features, which has a row for each feature of each record; also `float32` and `string`.

The row of the record in the other table; the feature's name; the kind of its list ("none" for an empty one); what the header of
its image says ("jpeg 3 8" for three channels of 8 bits); its place in the file, its number of values, the bytes of the only one;
the size of an image; whether its strings are text; the greatest integer, or number of what may be boxes, rounded up, or 1
where strings are more than blanks; and the value, if that is a single number or a short string."""


@dataclass(frozen=True)
class LostRecord:
    """A record that cannot be part of a dataset: its number in the file, its offset, and why.

    After one whose length is damaged nothing more of its file can be read.
    """

    number: int
    offset: int
    reason: str


@dataclass(frozen=True)
class Scanned:
    """The receipt of a shard.

    Attributes:
        records: The number of good records, which are in the part file.
        lost: The records that are not Examples, or are damaged.
        end: Where its last whole record ends.
        part: The SHA-256 of the part file.
    """

    records: int
    lost: tuple[LostRecord, ...]
    end: int
    part: str = ""


class _Value(NamedTuple):
    """What `FEATURE` has of a value; `number` holds an int64, or the bits of a float32."""

    form: str = ""
    height: int = 0
    width: int = 0
    is_text: bool = True
    greatest: int = 0
    number: int = 0
    text: bytes | None = None


def _value(name: bytes, payload: bytes, span: Span) -> _Value:
    """Return what the index and the summary of a feature need of its value in a record."""
    kind, start, size, count, value_size = span
    if kind == BYTES and count == 1:
        value = payload[start + size - value_size : start + size]
        text, header = value if value_size <= LONGEST_VALUE else None, read_header(value)
        if header is None:
            return _Value(is_text=_is_text(value), greatest=not value.isspace(), text=text)
        height, width, form = header.height, header.width, f"{header.format} {header.channels} {header.bits}"
        if not 0 < height * width <= MAX_PIXELS:
            height, width, form = 0, 0, UNREADABLE
        return _Value(form, height, width, is_text=False, text=text)
    if kind == BYTES:
        strings = [payload[at:end] for _, _, at, end in example.fields(payload, start, start + size)]
        return _Value(is_text=all(map(_is_text, strings)), greatest=not all(map(bytes.isspace, strings)))
    if kind == INT64 and count:
        integers = [payload[start]]
        if size > 1:
            integers = example.unpack(np.frombuffer(payload, np.uint8, size, start), "int64").tolist()
        return _Value(greatest=max(integers), number=integers[0])
    if kind == FLOAT and count:
        greatest = 0
        if count % 4 == 0 or name.rpartition(b"/")[2] in _SIDES:  # what may be boxes, whatever its name is
            numbers = np.frombuffer(payload, "<f4", count, start)
            greatest = int(np.ceil(min(np.nanmax(numbers, initial=0), _GREATEST)))
        return _Value(greatest=greatest, number=int.from_bytes(payload[start : start + 4], "little"))
    return _Value()


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


class _Block:
    """The good records of a part of a shard, and their features, as rows of numbers."""

    def __init__(self) -> None:
        self._frames, self._rows, self._texts = array("q"), array("q"), list[bytes | None]()
        self._names, self._forms = dict[bytes, int](), {"": 0}

    @property
    def records(self) -> int:
        return len(self._frames) // len(RECORD)

    @property
    def features(self) -> int:
        return len(self._texts)

    def add(self, number: int, found: Found, payload: bytes) -> None:
        """Add a record. Raises ExampleError if it is not an Example that can be read by offset."""
        base, record = found.offset + HEADER_BYTES, self.records
        # All values first: a record that is lost leaves nothing behind.
        features = [(name, span, _value(name, payload, span)) for name, span in find_features(payload).items()]
        for name, *_ in features:
            if name not in self._names and not _is_text(name):
                raise ExampleError(f"the name of a feature is not text: {name[:60]!r}")
        for name, span, value in features:
            self._rows.extend((
                record, self._names.setdefault(name, len(self._names)), span.kind if span.values else NO_LIST,
                self._forms.setdefault(value.form, len(self._forms)), base + span.offset if span.size else 0, span.size,
                span.values, span.last, value.height, value.width, value.is_text, value.greatest, value.number,
            ))  # fmt: skip
            self._texts.append(value.text)
        if len(self._names) > _MOST_NAMES:
            raise ValueError(f"it has more than {_MOST_NAMES:,} different features")
        self._frames.extend((number, found.offset, len(payload) + FRAME_BYTES, found.payload_crc))

    def write(self, file: BinaryIO) -> None:
        """Write the two tables."""
        frames = np.frombuffer(self._frames, np.int64).reshape(-1, len(RECORD)).T
        features = dict(zip(FEATURE, np.frombuffer(self._rows, np.int64).reshape(-1, len(FEATURE)).T, strict=True))
        names = [name.decode() for name in self._names]
        columns: dict[str, pa.Array] = {name: pa.array(numbers) for name, numbers in features.items()}
        for name, texts in (("feature", names), ("kind", _KINDS), ("form", list(self._forms))):
            columns[name] = pa.array(texts, pa.string()).take(columns[name])
        columns["is_text"] = pa.array(features["is_text"] > 0)
        columns["float32"] = pa.array(features["int64"].astype(np.uint32).view(np.float32))
        columns["string"] = pa.array(self._texts, pa.large_binary())
        for table in (pa.table(dict(zip(RECORD, map(pa.array, frames), strict=True))), pa.table(columns)):
            with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
                stream.write_table(table)


# --- many shards, in this process or in several ------------------------------------------------------------------------


_FEW_BYTES = 64 << 20
"""Less than this is scanned sooner than another process has started, which takes half a second."""
_ENTRY = f"{__name__}:open_scan"


def scan_shards(
    shards: Sequence[Shard], folder: Path, workers: int | None, on_bytes: Callable[[int], None]
) -> dict[Shard, Scanned]:
    """Scan shards, so that each has a part file and a receipt in `folder`; return the receipts.

    `on_bytes` is called with the bytes that are read so far. DatasetError where a shard cannot be read, or was written to
    meanwhile.
    """
    if workers is None:
        workers = usable_cpus() if sum(shard.bytes for shard in shards) >= _FEW_BYTES else 0
    receipts, read, total = dict[Shard, Scanned](), dict.fromkeys(shards, 0), 0
    with closing(Pool(_ENTRY, folder, min(workers, len(shards)))) as pool:
        for shard in sorted(shards, key=lambda shard: -shard.bytes):
            pool.submit(shard)
        for event in pool.events():
            if isinstance(event, Died):
                path = event.task.content.path
                raise DatasetError(f"the process that read {path} died ({event.reason}); run the command again")
            if isinstance(event, Done):
                receipts[event.task.content] = event.result
            if event is not None:
                shard = event.task.content
                now = shard.bytes if isinstance(event, Done) else event.item or 0
                read[shard], total = now, total + now - read[shard]
            on_bytes(total)
    return receipts


def open_scan(folder: Path) -> Callable[[Shard, Mark], Scanned]:
    """Return the work of a process (`tfprep.pool`): scan a shard, and write its part file and then its receipt."""

    def scan(shard: Shard, mark: Mark) -> Scanned:
        part = part_of(shard, folder)
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
    lost: list[LostRecord] = []
    block, good, start, end = _Block(), 0, 0, 0
    for number, found in enumerate(records):
        if found.payload is None:
            lost.append(LostRecord(number, found.offset, f"{found.fault}; what follows cannot be read"))
            break
        end = found.offset + len(found.payload) + FRAME_BYTES
        try:
            if found.fault:
                raise ExampleError(found.fault)
            block.add(number, found, found.payload)
        except (ExampleError, SampleError) as error:
            lost.append(LostRecord(number, found.offset, str(error)))
        if end - start >= BLOCK_BYTES or block.features >= _BLOCK_FEATURES:
            block.write(part)
            mark(end)
            block, good, start = _Block(), good + block.records, end
    block.write(part)
    return Scanned(good + block.records, tuple(lost), end)


# --- part files -------------------------------------------------------------------------------------------------------


_VERSION = 15


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
        receipt = from_json(Scanned, without_digest(_receipt_of(path).read_bytes()))
        return receipt if digest_of(path).sha256 == receipt.part else None
    except (OSError, ValueError, DatasetError):
        return None


def read_part(shard: Shard, folder: Path) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield the tables of each block of a part file: `RECORD` and `FEATURE`."""
    with part_of(shard, folder).open("rb") as file:
        while file.peek(1):
            with pa.ipc.open_stream(file) as records:
                table = records.read_all()
            with pa.ipc.open_stream(file) as features:
                yield table, features.read_all()


def summarize(shards: Iterable[Shard], folder: Path) -> dict[str, FeatureSummary]:
    """Return the summary of each feature over the records of all part files."""
    ranges = [(name, "min_max") for name in ("count", "value_size", "height", "width")]
    summaries, draws = dict[str, FeatureSummary](), np.random.default_rng(0)
    for shard in shards:
        for records, features in read_part(shard, folder):
            weights = draws.integers(1 << 31, size=len(records))[numpy_column(features["record"])]
            in_pixels = (numpy_column(features["greatest"]) > MOST_SHARE).astype(np.int64)
            numbers = {"weighed": weights * numpy_column(features["count"]), "in_pixels": in_pixels}
            for name, column in numbers.items():
                features = features.append_column(name, pa.array(column))  # noqa: PLW2901
            rows = features.group_by(["feature", "kind", "form"], use_threads=False)
            sums = [(name, "sum") for name in numbers]
            rows = rows.aggregate([("offset", "count"), ("is_text", "all"), ("greatest", "max"), *sums, *ranges])
            for row in rows.to_pylist():
                summaries.setdefault(row["feature"], FeatureSummary()).add(row)
    return summaries


def remove_parts(folder: Path, kept: Collection[Path]) -> None:
    """Remove the part files that are not among `kept`: of shards that changed, or belong to no split any more."""
    for path in folder.glob("*.part"):
        if path not in kept:
            path.unlink(missing_ok=True)
            _receipt_of(path).unlink(missing_ok=True)
