"""Shards, each read once: where the records and their features are, values for the index, a summary.

What is found is written block by block to a part file, a sequence of Arrow streams of one batch each, so that a shard of any
size takes the memory of one block. A receipt is written after it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from tfprep.dataset.imported.schema import BOX_WORDS, LONGEST_VALUE, START_BYTES, FeatureSummary, merge
from tfprep.dataset.imported.shards import Shard, current, open_shard
from tfprep.dataset.plain_json import from_json, indented
from tfprep.errors import DatasetError, TfprepError
from tfprep.fields import Array
from tfprep.images.headers import Header, read_header
from tfprep.images.pillow import MAX_PIXELS
from tfprep.limits import usable_cpus
from tfprep.pool import Died, Done, Mark, Pool, Progress
from tfprep.records.example import (
    BYTES,
    FLOAT,
    INT64,
    NO_LIST,
    ExampleError,
    Span,
    fields,
    find_features,
    head_bytes,
    read_varint,
)
from tfprep.records.framing import FRAME_BYTES, HEADER_BYTES, find_records
from tfprep.storage.local import whole_file
from tfprep.storage.urls import durable_write, is_remote

BLOCK_BYTES = 16 << 20
_BLOCK_ROWS, _BLOCK_CELLS = 1 << 16, 1 << 22
"""What a block holds at most: bytes of records, records, and records times features. Any number of processes has the memory."""
_MOST_FEATURES = 10_000
"""Features of all records of a shard: each is a column."""
_GZIP, _ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
MISSING = -1
"""The kind of a feature in a record that does not have it."""
_LOOKED_AT = 64
"""Records of a block whose lists of strings, or long strings, are checked for text."""
_KINDS = {NO_LIST: "none", BYTES: "bytes", FLOAT: "float", INT64: "int64"}
FEATURES = b"features"
"""The entry of a part's metadata that names the features of a block, in the order of their numbers."""
_FLOAT = struct.Struct("<f").unpack_from
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
"""Control characters other than tabs and ends of lines: what holds one is not text."""


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
        form: The version of receipts.
        path: The shard's path, relative to the folder of receipts, or its URL.
        bytes, version: Its size, and a text that changes when it is written.
        records: The number of good records, which are in the part file.
        bad: The records that are not Examples, or whose checksum is wrong.
        fault: Why the file does not end with a record; "" if it does.
        end: Where its last whole record ends.
        summaries: The summary of each feature, over the good records.
    """

    form: int
    path: str
    bytes: int
    version: str
    records: int
    bad: tuple[LostRecord, ...]
    fault: str
    end: int
    summaries: Mapping[str, FeatureSummary]


def scan(
    file: BinaryIO, identity: Mapping[str, Any], out: BinaryIO, on_bytes: Callable[[int], None] = lambda _: None
) -> Scanned:
    """Read a shard, and write what the index needs of each good record to `out`, the part file.

    Args:
        file: The shard.
        identity: The first fields of `Scanned`.
        out: The part file.
        on_bytes: Called with the number of bytes of each block.

    Raises:
        DatasetError: The records have too many different features.
    """
    summaries: dict[str, FeatureSummary] = {}
    bad: list[LostRecord] = []
    end, fault, records, block = 0, "", 0, _Block(0)

    def write() -> None:
        nonlocal summaries, records, block
        if block.records:
            summaries, records = merge(summaries, block.write(out)), records + len(block.records) // 4
        if len(summaries) > _MOST_FEATURES:
            raise DatasetError(f"{identity['path']} has more than {_MOST_FEATURES:,} different features")
        on_bytes(end - block.start)
        block = _Block(end)

    for number, found in enumerate(find_records(file, identity["bytes"])):
        if found.payload is None:
            fault = found.fault
            break
        end = found.offset + len(found.payload) + FRAME_BYTES
        try:
            spans = find_features(found.payload)
            reason = found.fault
        except ExampleError as error:
            reason = found.fault or str(error)
        if reason:
            bad.append(LostRecord(number, found.offset, reason))
        else:
            block.add(number, found.offset, found.payload, found.payload_crc, spans)
        if end - block.start >= BLOCK_BYTES or block.is_full:
            write()
    write()
    return Scanned(**identity, records=records, bad=tuple(bad), fault=fault, end=end, summaries=summaries)


def read_part(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """The batches of a part file; the metadata entry `FEATURES` of each names its features as JSON."""
    while file.peek(1):  # type: ignore[attr-defined] # a BufferedReader
        with pa.ipc.open_stream(file) as stream:
            yield from stream


class _Block:
    """The good records of a block of a file, as rows of the part file."""

    def __init__(self, start: int) -> None:
        """`start` is where the block begins in the file."""
        self.start = start
        self.records = array("q")
        """Number, offset, size and checksum of each record."""
        self._features: dict[bytes, _Feature] = {}

    @property
    def is_full(self) -> bool:
        rows = len(self.records) // 4
        return rows >= _BLOCK_ROWS or rows * len(self._features) >= _BLOCK_CELLS

    def add(self, number: int, offset: int, payload: bytes, crc: int, spans: Mapping[bytes, Span]) -> None:
        """Add a record."""
        row = len(self.records) // 4
        self.records.extend((number, offset, len(payload) + FRAME_BYTES, crc))
        for name, span in spans.items():
            feature = self._features.get(name)
            if feature is None:
                words = set(re.split(rb"[^a-z]+", name.lower()))
                feature = self._features[name] = _Feature(bool(words & {word.encode() for word in BOX_WORDS}))
            feature.add(row, offset + HEADER_BYTES, payload, span)

    def write(self, out: BinaryIO) -> dict[str, FeatureSummary]:
        """Write the rows; return the summary of each feature."""
        number, offset, size, crc = np.frombuffer(self.records, np.int64).reshape(-1, 4).T
        columns: dict[str, Any] = {
            "number": number,
            "offset": offset,
            "size": size,
            "payload_crc": crc.astype(np.uint32),
        }
        summaries: dict[str, FeatureSummary] = {}
        for place, name in enumerate(sorted(self._features)):
            feature = self._features[name]
            summaries[name.decode("utf-8", "surrogateescape")] = feature.summary()
            columns |= {f"{place}.{part}": column for part, column in feature.columns(len(number)).items()}
        batch = pa.RecordBatch.from_pydict(columns, metadata={FEATURES: json.dumps(list(summaries)).encode()})
        with pa.ipc.new_stream(out, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            stream.write_batch(batch)
        return summaries


@dataclass
class _Feature:
    """One feature of the records of a block.

    Attributes:
        is_box: Whether its name is one of boxes, so that the range of its numbers counts.
        spans: Row, kind, offset in the file, bytes, count, bytes of the value, height and width of each.
        values: Its values, while no record has several and none is long; None after that.
        forms: The number of images by what their headers say.
        is_text: Whether all strings that were looked at are text.
    """

    is_box: bool
    spans: Any = field(default_factory=lambda: array("q"))
    values: list[Any] | None = field(default_factory=list)
    forms: Counter[str] = field(default_factory=Counter)
    is_text: bool = True
    looked_at: int = 0
    start: bytes = b""
    greatest: float = -math.inf

    def add(self, row: int, base: int, payload: bytes, span: Span) -> None:
        """Add the feature of a record, whose payload is at `base` in the file."""
        kind, offset, size, count = span
        height = width = 0
        value: Any = None
        value_size = size
        if count == 1:
            if kind == BYTES:
                value = payload[offset + (2 if size < 0x82 else head_bytes(size)) : offset + size]
                value_size = len(value)
                if header := read_header(value):
                    height, width = self._image(header)
                elif self.is_text:
                    self._look(value, value_size > LONGEST_VALUE)
                if value_size > LONGEST_VALUE:
                    value = self.values = None
            elif kind == INT64:
                value = payload[offset] if size == 1 else _signed(read_varint(payload, offset, offset + size)[0])
            else:
                value = _FLOAT(payload, offset)[0]
        elif count > 1:
            self.values = None
            if kind == BYTES and self.is_text:
                self._look_at_list(payload, offset, size)
        if self.values is not None:
            self.values.append(value)
        if not self.start:
            self.start = payload[offset + size - value_size : offset + size][:START_BYTES]
        if self.is_box and kind == FLOAT and count:
            self.greatest = max(
                self.greatest, float(np.nanmax(np.frombuffer(payload, "<f4", count, offset), initial=-math.inf))
            )
        self.spans.extend((row, kind, base + offset if size else 0, size, count, value_size, height, width))

    def _image(self, header: Header) -> tuple[int, int]:
        """Count an image; return its height and width."""
        height, width = header.height, header.width
        is_readable = height > 0 and width > 0 and height * width <= MAX_PIXELS
        self.forms[f"{header.format} {header.channels} {header.bits}" if is_readable else "unreadable"] += 1
        return (height, width) if is_readable else (0, 0)

    def _look(self, value: bytes, is_long: bool) -> None:
        """Note a string that is not text: all short ones of a block, and some of the long ones."""
        self.looked_at += is_long
        if not is_long or self.looked_at <= _LOOKED_AT:
            self.is_text = is_text(value)

    def _look_at_list(self, payload: bytes, offset: int, size: int) -> None:
        self.looked_at += 1
        if self.looked_at <= _LOOKED_AT:
            self.is_text = all(is_text(payload[at:end]) for _, _, at, end in fields(payload, offset, offset + size))

    def _table(self) -> Array:
        return np.frombuffer(self.spans, np.int64).reshape(-1, 8)

    def columns(self, records: int) -> dict[str, Any]:
        """Return the columns of the part file: of all records, with values if none has several."""
        table = self._table()
        rows = table[:, 0]

        def spread(values: Array, missing: int, dtype: Any) -> Array:
            column = np.full(records, missing, dtype)
            column[rows] = values
            return column

        columns: dict[str, Any] = {
            "kind": spread(table[:, 1], MISSING, np.int8),
            "offset": spread(table[:, 2], 0, np.int64),
            "size": spread(table[:, 3], 0, np.int64),
            "value_size": spread(table[:, 5], 0, np.int64),
        }
        if self.forms:
            columns |= {"height": spread(table[:, 6], 0, np.int32), "width": spread(table[:, 7], 0, np.int32)}
        kinds = np.unique(table[table[:, 4] > 0, 1])
        if self.values is not None and len(kinds) == 1:
            values: list[Any] = [None] * records
            for row, value in zip(rows.tolist(), self.values, strict=True):
                values[row] = value
            columns["value"] = pa.array(
                values, {BYTES: pa.large_binary(), INT64: pa.int64(), FLOAT: pa.float32()}[kinds[0]]
            )
        return columns

    def summary(self) -> FeatureSummary:
        """Return what is known of the feature in this block."""
        table = self._table()
        _, kind, _, _, count, size, height, width = table.T
        kinds = np.bincount(np.where(count > 0, kind, NO_LIST)).tolist()
        sized = height > 0
        heights, widths = ((int(s[sized].min()), int(s[sized].max())) if sized.any() else None for s in (height, width))
        return FeatureSummary(
            records=len(table),
            kinds={_KINDS[number]: amount for number, amount in enumerate(kinds) if amount},
            counts=(int(count.min()), int(count.max())),
            sizes=(int(size.min()), int(size.max())),
            images=dict(sorted(self.forms.items())),
            heights=heights,
            widths=widths,
            text=self.is_text,
            start=self.start.hex(),
            greatest=self.greatest if math.isfinite(self.greatest) else None,
        )


def is_text(value: bytes) -> bool:
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


def compression_of(start: bytes) -> str:
    """GZIP or ZLIB if a file that begins with these bytes is compressed as a whole, as `TFRecordOptions` asks for; else ""."""
    if start.startswith(_GZIP):
        return "GZIP"
    first = next(find_records(io.BytesIO(start), len(start)), None)
    return "ZLIB" if start.startswith(_ZLIB) and first is not None and first.fault.startswith("wrong") else ""


# --- many shards, in this process or in several ------------------------------------------------------------------------


FEW_BYTES = 64 << 20
"""Less than this is scanned sooner than another process has started, which takes half a second."""
_ENTRY = f"{__name__}:open_scan"
_VERSION = 3
_IDENTITY = ("form", "path", "bytes", "version")
OnBytes = Callable[[int], None]


def scan_shards(
    shards: Sequence[Shard],
    folder: Path,
    *,
    workers: int | None = None,
    on_bytes: OnBytes = lambda _: None,
) -> None:
    """Scan shards, so that each has a part and a receipt.

    Args:
        shards: The shards.
        folder: Where parts and receipts lie.
        workers: The number of processes; None for one a usable CPU, 0 for this process alone.
        on_bytes: Called with the number of bytes that were read.

    Raises:
        DatasetError: A shard cannot be read, is compressed as a whole, or was written to meanwhile.
    """
    count = min(usable_cpus() if workers is None else workers, len(shards))
    if count <= 1 or (workers is None and sum(shard.bytes for shard in shards) < FEW_BYTES):
        for shard in shards:
            scan_one(shard, folder, on_bytes)
        return
    shards = sorted(shards, key=lambda shard: -shard.bytes)
    with closing(Pool(_ENTRY, folder, count)) as processes:
        done = {processes.submit(shard): 0 for shard in shards}
        for event in processes.events():
            if isinstance(event, Progress | Done):
                read = event.result if isinstance(event, Done) else event.item or 0
                on_bytes(read - done[event.task])
                done[event.task] = read
            elif isinstance(event, Died):
                path = event.task.content.path
                raise DatasetError(f"the process that read {path} died ({event.reason}); run the command again")


def scan_one(shard: Shard, folder: Path, on_bytes: OnBytes) -> None:
    """Scan one shard, and write its part and its receipt."""
    identity = _identity(shard, folder)
    part, receipt = _paths(folder, identity)
    receipt.unlink(missing_ok=True)
    with open_shard(shard.path) as file, whole_file(part) as out:
        if kind := compression_of(file.read(64)):
            raise DatasetError(
                f"{shard.path} is compressed as a whole ({kind}): to read one of its records, all before it have to be unpacked. "
                f"Index copies without compression, which `gzip -dc < FILE` (`pigz -dc` for ZLIB) writes"
            )
        file.seek(0)
        try:
            found = scan(file, identity, out, on_bytes)
        except OSError as error:
            raise DatasetError(f"{shard.path} cannot be read ({error.strerror or error})") from error
    if current(shard.path) != shard:
        raise DatasetError(
            f"{shard.path} was written to while it was indexed; run the command again when it is complete"
        )
    durable_write(receipt, indented(found))


# --- receipts ---------------------------------------------------------------------------------------------------------


def find_receipt(shard: Shard, folder: Path) -> Scanned | None:
    """Return what was found in a shard as it is now; None if it was not scanned."""
    identity = _identity(shard, folder)
    part, receipt = _paths(folder, identity)
    try:
        found = from_json(Scanned, json.loads(receipt.read_text()))
    except (FileNotFoundError, ValueError):
        return None
    return found if part.is_file() and identity.items() <= vars(found).items() else None


def part_of(found: Scanned, folder: Path) -> Path:
    """Return the part file of a shard that was scanned."""
    return _paths(folder, {name: getattr(found, name) for name in _IDENTITY})[0]


def remove_receipts(folder: Path, kept: Collection[Path]) -> None:
    """Remove the parts that are not among `kept`, with their receipts: shards that changed, or belong to no split any more."""
    for part in folder.glob("*.part"):
        if part not in kept:
            part.with_suffix(".json").unlink(missing_ok=True)
            part.unlink(missing_ok=True)


def _identity(shard: Shard, folder: Path) -> dict[str, Any]:
    """Return what tells one state of a shard from another. A local path is relative, so that all can be moved together."""
    path = str(shard.path) if is_remote(shard.path) else os.path.relpath(shard.path, folder)
    return {"form": _VERSION, "path": path, "bytes": shard.bytes, "version": shard.version}


def _paths(folder: Path, identity: Mapping[str, Any]) -> tuple[Path, Path]:
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
    return folder / f"{digest}.part", folder / f"{digest}.json"


def open_scan(folder: Path) -> Callable[[Shard, Mark], int]:
    """Return the work of a process (`tfprep.pool`): scan a shard, with the bytes read so far as marks."""

    def work(shard: Shard, mark: Mark) -> int:
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            mark(done)

        try:
            scan_one(shard, folder, count)
        except TfprepError:
            raise
        except Exception as error:
            raise DatasetError(f"{shard.path} cannot be indexed ({type(error).__name__}: {error})") from error
        return done

    return work
