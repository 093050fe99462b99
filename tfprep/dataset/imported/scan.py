"""Shards, each read once: where the records and their features are, values for the index, a summary.

What is found in a shard is a part file in `.tfprep`, an Arrow stream of batches (`PART`), one for each block of the shard, so
that a shard of any size takes the memory of a block. A batch has a row for the frame of each record, and one for each feature of
it. A receipt beside the part file holds its digest: a damaged one is scanned again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.dataset.imported.schema import BOX_WORDS, LONGEST_VALUE, FeatureSummary, merge
from tfprep.dataset.imported.shards import Shard, current, open_shard
from tfprep.dataset.manifest import is_sealed, seal, sha256_of
from tfprep.dataset.plain_json import from_json
from tfprep.errors import DatasetError, TfprepError
from tfprep.fields import Array
from tfprep.images.headers import read_header
from tfprep.images.pillow import MAX_PIXELS
from tfprep.limits import usable_cpus
from tfprep.pool import Died, Done, Mark, Pool
from tfprep.records.example import BYTES, FLOAT, INT64, NO_LIST, ExampleError, Span, fields, find_features, read_varint
from tfprep.records.framing import FRAME_BYTES, HEADER_BYTES, find_records
from tfprep.storage.local import whole_file
from tfprep.storage.urls import durable_write, is_remote

BLOCK_BYTES = 16 << 20
_BLOCK_SPANS = 1 << 19
"""The most bytes of records, and features of them, of a block."""
_MOST_FEATURES = 10_000
_KINDS = {NO_LIST: "none", BYTES: "bytes", FLOAT: "float", INT64: "int64"}
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
"""Control characters other than tabs and ends of lines: what holds one is not text."""

FRAME = -1
_COLUMNS = ("record", "feature", "kind", "offset", "size", "count", "value_size", "height", "width", "value")
"""Of a feature: its record, counted in the block, and its number in the shard; its place in the file, its number of values, the
bytes of the only one, the size of an image, and the only number (of floats the bits). Of a frame (`FRAME` in place of the
feature): its place, as `count` the number of the record in the shard, and as `value` the checksum of its payload."""
PART = pa.schema([*((name, pa.int64()) for name in _COLUMNS), ("text", pa.large_binary())])


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
        summaries: The summary of each feature over the good records, in the order of the features' numbers.
        part: The SHA-256 of the part file.
    """

    records: int
    bad: tuple[LostRecord, ...]
    fault: str
    end: int
    summaries: Mapping[str, FeatureSummary]
    part: str = ""


class _Feature:
    """What is known of one feature in all records of a shard so far."""

    def __init__(self, number: int, name: bytes) -> None:
        self.number = number
        self.is_box = bool(set(re.split(rb"[^a-z]+", name.lower())) & {word.encode() for word in BOX_WORDS})
        self.is_text, self.greatest = True, -math.inf


class _Part:
    """Writes the good records of a shard, block by block."""

    def __init__(self, stream: pa.RecordBatchStreamWriter) -> None:
        self._stream = stream
        self._features: dict[bytes, _Feature] = {}
        self._forms: dict[str, int] = {"": 0}
        """What the headers of images say, such as "jpeg 3 8", with a number for each."""
        self.summaries: dict[str, FeatureSummary] = {}
        self.records = 0
        self._clear()

    def _clear(self) -> None:
        self._records, self._rows, self._texts = 0, array("q"), list[Any]()

    @property
    def is_full(self) -> bool:
        return len(self._texts) >= _BLOCK_SPANS

    def add(self, number: int, offset: int, payload: bytes, crc: int, spans: Mapping[bytes, Span]) -> None:
        """Add a record."""
        self._rows.extend((self._records, FRAME, 0, offset, len(payload) + FRAME_BYTES, number, 0, 0, 0, crc, 0))
        self._texts.append(None)
        for name, span in spans.items():
            feature = self._features.get(name)
            if feature is None:
                feature = self._features[name] = _Feature(len(self._features), name)
            self._add(feature, offset + HEADER_BYTES, payload, span)
        self._records += 1

    def _add(self, feature: _Feature, base: int, payload: bytes, span: Span) -> None:
        kind, start, size, count, value_size = span
        height = width = form = number = 0
        text = None
        if kind == BYTES and count == 1:
            value = payload[start + size - value_size : start + size]
            if header := read_header(value):
                is_readable = header.height > 0 and header.width > 0 and header.height * header.width <= MAX_PIXELS
                name = f"{header.format} {header.channels} {header.bits}" if is_readable else "unreadable"
                height, width = (header.height, header.width) if is_readable else (0, 0)
                form = self._forms.setdefault(name, len(self._forms))
            else:
                feature.is_text = feature.is_text and is_text(value)
            text = value if value_size <= LONGEST_VALUE else None
        elif kind == BYTES and feature.is_text:
            items = fields(payload, start, start + size)
            feature.is_text = all(is_text(payload[at:end]) for _, _, at, end in items)
        elif kind == INT64 and count == 1:
            number = payload[start] if size == 1 else _signed(read_varint(payload, start, start + size)[0])
        elif kind == FLOAT and count:
            number = int.from_bytes(payload[start : start + 4], "little")
            if feature.is_box:
                numbers = np.frombuffer(payload, "<f4", count, start)
                feature.greatest = max(feature.greatest, float(np.nanmax(numbers, initial=-math.inf)))
        place = base + start if size else 0
        row = (self._records, feature.number, kind, place, size, count, value_size, height, width, number, form)
        self._rows.extend(row)
        self._texts.append(text)

    def write(self) -> None:
        """Write the block, and add it to the summaries."""
        if len(self._features) > _MOST_FEATURES:
            raise ValueError(f"it has more than {_MOST_FEATURES:,} different features")
        table = np.frombuffer(self._rows, np.int64).reshape(-1, len(_COLUMNS) + 1)
        columns = [*map(pa.array, table.T[: len(_COLUMNS)]), pa.array(self._texts, pa.large_binary())]
        self._stream.write_batch(pa.record_batch(columns, schema=PART))
        self.records += self._records
        self.summaries = merge(self.summaries, dict(self._summed_up(table[table[:, 1] != FRAME, 1:])))
        self._clear()

    def _summed_up(self, table: Array) -> Iterator[tuple[str, FeatureSummary]]:
        forms, names = list(self._forms), list(self._features)
        table = table[np.argsort(table[:, 0], kind="stable")]
        numbers, first = np.unique(table[:, 0], return_index=True)
        for number, of_feature in zip(numbers.tolist(), np.split(table, first[1:]), strict=False):
            feature = self._features[names[number]]
            _, kind, _, _, count, size, height, width, _, form = of_feature.T
            kinds = np.bincount(np.where(count > 0, kind, NO_LIST)).tolist()
            images = {forms[n]: amount for n, amount in enumerate(np.bincount(form).tolist()) if n and amount}
            yield (
                names[number].decode("utf-8", "surrogateescape"),
                FeatureSummary(
                    records=len(of_feature),
                    kinds={_KINDS[n]: amount for n, amount in enumerate(kinds) if amount},
                    counts=(int(count.min()), int(count.max())),
                    sizes=(int(size.min()), int(size.max())),
                    images=dict(sorted(images.items())),
                    heights=(int(height[height > 0].min()), int(height.max())) if height.any() else None,
                    widths=(int(width[width > 0].min()), int(width.max())) if width.any() else None,
                    text=feature.is_text,
                    greatest=feature.greatest if math.isfinite(feature.greatest) else None,
                ),
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
    shards = sorted(shards, key=lambda shard: -shard.bytes)
    with closing(Pool(_ENTRY, folder, count)) as processes:
        for shard in shards:
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
        with open_shard(shard.path) as file, whole_file(path) as out:
            with pa.ipc.new_stream(out, PART, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
                found = _scan(find_records(file, shard.bytes), _Part(stream), on_bytes)
            if current(shard.path) != shard:
                raise DatasetError(
                    f"{shard.path} was written to while it was indexed; run the command again when it is complete"
                )
        durable_write(_receipt_of(path), seal({**vars(found), "part": sha256_of(path)}))
    except TfprepError:
        raise
    except Exception as error:
        raise DatasetError(f"{shard.path} cannot be indexed ({type(error).__name__}: {error})") from error


def _scan(records: Iterator[Any], part: _Part, on_bytes: OnBytes) -> Scanned:
    bad: list[LostRecord] = []
    start, end, fault = 0, 0, ""
    for number, found in enumerate(records):
        if found.payload is None:
            fault = found.fault
            break
        end = found.offset + len(found.payload) + FRAME_BYTES
        try:
            spans, reason = find_features(found.payload), found.fault
        except ExampleError as error:
            spans, reason = {}, found.fault or str(error)
        if reason:
            bad.append(LostRecord(number, found.offset, reason))
        else:
            part.add(number, found.offset, found.payload, found.payload_crc, spans)
        if end - start >= BLOCK_BYTES or part.is_full:
            part.write()
            on_bytes(end - start)
            start = end
    part.write()
    on_bytes(end - start)
    return Scanned(part.records, tuple(bad), fault, end, part.summaries)


# --- part files -------------------------------------------------------------------------------------------------------


_VERSION = 7


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
        return receipt if receipt is not None and sha256_of(path) == receipt.part else None
    except (OSError, ValueError, AttributeError, DatasetError):
        return None


def read_part(shard: Shard, folder: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a part file, of the schema `PART`."""
    with part_of(shard, folder).open("rb") as file, pa.ipc.open_stream(file) as stream:
        yield from stream


def remove_parts(folder: Path, kept: Collection[Path]) -> None:
    """Remove the part files that are not among `kept`: of shards that changed, or belong to no split any more."""
    for path in folder.glob("*.part"):
        if path not in kept:
            path.unlink(missing_ok=True)
            _receipt_of(path).unlink(missing_ok=True)
