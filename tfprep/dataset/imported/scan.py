"""Shards, each read once in blocks of whole records: where these and their features lie, values for the index, a summary.

What is found is written block by block to a part file, a sequence of Arrow streams of one batch each, so that a shard of any
size takes the memory of one block. A receipt is written after it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from tfprep.dataset.imported.schema import LONGEST_VALUE, START_BYTES, FeatureSummary, merge
from tfprep.dataset.imported.shards import Shard, current, open_shard
from tfprep.dataset.plain_json import from_json, indented
from tfprep.errors import DatasetError, TfprepError
from tfprep.fields import Array
from tfprep.images.headers import JPEG, NO_IMAGE, Headers, read_headers
from tfprep.images.pillow import MAX_PIXELS
from tfprep.limits import usable_cpus
from tfprep.pool import Died, Done, Mark, Pool, Progress
from tfprep.records.example import messages
from tfprep.records.find import BYTES, FLOAT, INT64, NO_LIST, PADDING, Feature, find_features, gather
from tfprep.records.framing import FRAME_BYTES, HEADER_BYTES, Walk, masked, walk
from tfprep.storage.local import whole_file, write_whole
from tfprep.storage.urls import is_remote

BLOCK_BYTES = 16 << 20
"""Large enough that the cost of an operation of NumPy is spread over many records, small enough for a few processes at once."""

_GZIP, _ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
MISSING = -1
"""The kind of a feature in a record that does not have it."""
_LOOKED_AT = 64
"""Records of a block whose lists of strings, or long strings, are checked for UTF-8."""
_KINDS = {NO_LIST: "none", BYTES: "bytes", FLOAT: "float", INT64: "int64"}
FEATURES = b"features"
"""The entry of a part's metadata that names the features of a block, in the order of their numbers."""


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
        verify: Whether the checksum of every payload was compared.
        records: The number of good records, which are in the part file.
        bad: The records that are no Examples, or whose checksum is wrong.
        fault: Why the file does not end with a record; "" if it does.
        end: Where its last whole record ends.
        summaries: The summary of each feature, over the good records.
    """

    form: int
    path: str
    bytes: int
    version: str
    verify: bool
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
    """
    summaries: dict[str, FeatureSummary] = {}
    bad: list[LostRecord] = []
    number = end = 0
    fault = ""
    for block in blocks(file, identity["bytes"]):
        if records := len(block.walk.start):
            of_block, lost = _scan_block(block, number, out, verify=identity["verify"])
            summaries, bad = merge(summaries, of_block), bad + lost
            number += records
        end, fault = block.offset + block.walk.end, block.walk.fault
        on_bytes(block.walk.end)
    return Scanned(**identity, records=number - len(bad), bad=tuple(bad), fault=fault, end=end, summaries=summaries)


def read_part(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """The batches of a part file; the metadata entry `FEATURES` of each names its features as JSON."""
    while file.peek(1):  # type: ignore[attr-defined] # a BufferedReader
        with pa.ipc.open_stream(file) as stream:
            yield from stream


def _scan_block(
    block: Block, first: int, out: BinaryIO, *, verify: bool
) -> tuple[dict[str, FeatureSummary], list[LostRecord]]:
    """Write the rows of a block whose first record has the number `first`; return its summaries and its bad records."""
    start, stop, crc = block.walk.start, block.walk.stop, block.walk.payload_crc
    features, faults = find_features(block.bytes, start, stop)
    if verify:
        for number, (first_byte, last, stored) in enumerate(
            zip(start.tolist(), stop.tolist(), crc.tolist(), strict=True)
        ):
            if masked(google_crc32c.value(block.bytes[first_byte:last].tobytes())) != stored:
                faults[number] = "wrong checksum of the payload"
    good = np.ones(len(start), bool)
    good[list(faults)] = False
    rows = _Rows(block, first, good)
    columns: dict[str, Any] = rows.columns()
    summaries: dict[str, FeatureSummary] = {}
    for number, name in enumerate(sorted(features)):
        summary, found = rows.feature(features[name], number)
        summaries[name.decode("utf-8", "surrogateescape")] = summary
        columns |= found
    batch = pa.RecordBatch.from_pydict(columns, metadata={FEATURES: json.dumps(list(summaries)).encode()})
    with pa.ipc.new_stream(out, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_batch(batch)
    return summaries, [
        LostRecord(first + number, block.offset + int(start[number]) - HEADER_BYTES, reason)
        for number, reason in sorted(faults.items())
    ]


class _Rows:
    """The good records of a block, as rows of the part file."""

    def __init__(self, block: Block, first_number: int, good: Array) -> None:
        self._block, self._buffer, self._good = block, block.bytes, good
        self._numbers = np.flatnonzero(good)
        self._first = first_number
        self._row = np.cumsum(good) - 1

    def columns(self) -> dict[str, Any]:
        """Return the places of the records in the file."""
        start, stop, crc = (column[self._numbers] for column in self._block.walk[:3])
        return {
            "number": (self._numbers + self._first).astype(np.int64),
            "offset": start - HEADER_BYTES + self._block.offset,
            "size": stop - start + FRAME_BYTES,
            "payload_crc": crc,
        }

    def feature(self, feature: Feature, number: int) -> tuple[FeatureSummary, dict[str, Any]]:
        """The summary of a feature, and its columns: kind, offset in the file, size, and values if there is at most one each."""
        kept = self._good[feature.record]
        feature = Feature(
            feature.name,
            self._row[feature.record[kept]],
            *(getattr(feature, name)[kept] for name in ("kind", "offset", "size", "count")),
        )
        item, item_size = feature.offset.copy(), feature.size.copy()
        single = np.flatnonzero((feature.kind == BYTES) & (feature.count == 1))
        head = head_bytes(item_size[single])  # the content of a single string, without its tag and length
        item[single] += head
        item_size[single] -= head
        headers = self._headers(feature, item, item_size)
        offset = np.where(feature.size > 0, feature.offset + self._block.offset, 0)
        columns = {
            "kind": self._spread(feature.record, feature.kind, MISSING, np.int8),
            "offset": self._spread(feature.record, offset, 0, np.int64),
            "size": self._spread(feature.record, feature.size, 0, np.int64),
        }
        if headers is not None:
            columns |= {
                side: self._spread(feature.record, getattr(headers, side), 0, np.int32) for side in ("height", "width")
            }
        if (values := self._values(feature, item, item_size)) is not None:
            columns["value"] = values
        named = {f"{number}.{name}": column for name, column in columns.items()}
        return self._summary(feature, item, item_size, headers), named

    def _spread(self, rows: Array, values: Array, missing: int, dtype: Any) -> Array:
        """The values of all rows, `missing` where a row has none."""
        column = np.full(len(self._numbers), missing, dtype)
        column[rows] = values
        return column

    def _headers(self, feature: Feature, item: Array, size: Array) -> Headers | None:
        """The headers of the images; None where no value is one."""
        single = (feature.kind == BYTES) & (feature.count == 1)
        if not single.any():
            return None
        first = self._buffer.take(item)
        single &= (size > 3) & ((first == 0xFF) | (first == 0x89))
        if not single.any():
            return None
        headers = read_headers(self._buffer, item, np.where(single, size, 0))
        return headers if (headers.format != NO_IMAGE).any() else None

    def _values(self, feature: Feature, item: Array, size: Array) -> pa.Array | None:
        """The single values as an Arrow array with nulls; None where a record has several, or they are long."""
        kinds = set(np.flatnonzero(np.bincount(feature.kind[feature.count > 0])).tolist())
        if len(kinds) != 1 or feature.count.max() > 1:
            return None
        one = np.flatnonzero(feature.count == 1)
        kind, rows, at, length = kinds.pop(), feature.record[one], item[one], size[one]
        if kind == BYTES:
            return self._strings(rows, at, length) if length.max() <= LONGEST_VALUE else None
        if kind == INT64:
            varints = np.zeros(len(rows), np.uint64)
            for byte in range(int(length.max(initial=0))):
                more = np.flatnonzero(length > byte)
                group = (self._buffer.take(at[more] + byte) & 0x7F).astype(np.uint64)
                varints[more] |= group << np.uint64(7 * byte)
            numbers: Array = varints.view(np.int64)
        else:
            content = np.stack([self._buffer.take(at + byte) for byte in range(4)], axis=1)
            numbers = content.view("<f4")[:, 0]
        missing = np.ones(len(self._numbers), bool)
        missing[rows] = False
        dtype = np.int64 if kind == INT64 else np.float32
        return pa.array(self._spread(rows, numbers, 0, dtype), mask=missing if missing.any() else None)

    def _strings(self, rows: Array, at: Array, length: Array) -> pa.Array:
        sizes = self._spread(rows, length, 0, np.int64)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        content = gather(self._buffer, at, length)
        present = self._spread(rows, np.ones(len(rows)), 0, bool)
        validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(content)]
        return pa.Array.from_buffers(pa.large_binary(), len(sizes), buffers)

    def _summary(self, feature: Feature, item: Array, size: Array, headers: Headers | None) -> FeatureSummary:
        if not len(feature.record):
            return FeatureSummary()
        kind = np.where(feature.count > 0, feature.kind, NO_LIST)
        counts = np.bincount(kind).tolist()
        images: dict[str, int] = {}
        heights = widths = None
        if headers is not None:
            images, heights, widths = _image_summary(headers)
        return FeatureSummary(
            records=len(feature.record),
            kinds={_KINDS[number]: count for number, count in enumerate(counts) if count},
            counts=(int(feature.count.min()), int(feature.count.max())),
            sizes=(int(size.min()), int(size.max())),
            images=images,
            heights=heights,
            widths=widths,
            utf8=headers is not None or self._is_utf8(feature, item, size),
            start=self._buffer[item[0] : item[0] + min(START_BYTES, size[0])].tobytes().hex(),
        )

    def _is_utf8(self, feature: Feature, item: Array, size: Array) -> bool:
        """Return whether strings are text: all short single ones of a block, and some of the others."""
        single = np.flatnonzero((feature.kind == BYTES) & (feature.count == 1))
        short = single[size[single] <= LONGEST_VALUE]
        if not _all_decode(gather(self._buffer, item[short], size[short]), size[short]):
            return False
        pieces = []
        for number in single[size[single] > LONGEST_VALUE][:_LOOKED_AT].tolist():
            pieces.append(self._buffer[item[number] : item[number] + size[number]].tobytes())
        for number in np.flatnonzero((feature.kind == BYTES) & (feature.count > 1))[:_LOOKED_AT].tolist():
            items = memoryview(self._buffer[item[number] : item[number] + size[number]].tobytes())
            pieces += [bytes(items[start:stop]) for _, start, stop in messages(items, 0, len(items), 1)]
        try:
            for piece in pieces:
                piece.decode()
        except UnicodeDecodeError:
            return False
        return True


def head_bytes(size: Array) -> Array:
    """Return how many of these bytes are the tag and the length of the single item that fills the rest."""
    head = np.full(len(size), 2, np.int64)
    for more in range(1, 6):
        head += size - 2 - more >= 1 << (7 * more)
    return head


def _image_summary(headers: Headers) -> tuple[dict[str, int], tuple[int, int] | None, tuple[int, int] | None]:
    images: dict[str, int] = {}
    readable = (headers.format != NO_IMAGE) & (headers.height > 0) & (headers.width > 0)
    readable &= headers.height * headers.width <= MAX_PIXELS
    counts = np.bincount((headers.format << 16 | headers.channels << 8 | headers.bits)[readable])  # a byte each
    for code in np.flatnonzero(counts).tolist():
        form = "jpeg" if code >> 16 == JPEG else "png"
        images[f"{form} {code >> 8 & 0xFF} {code & 0xFF}"] = int(counts[code])
    if not readable.any():
        return {"unreadable": int((headers.format != NO_IMAGE).sum())}, None, None
    if unreadable := int(((headers.format != NO_IMAGE) & ~readable).sum()):
        images["unreadable"] = unreadable
    sides = [headers.height[readable], headers.width[readable]]
    heights, widths = ((int(side.min()), int(side.max())) for side in sides)
    return images, heights, widths


def _all_decode(content: Array, sizes: Array) -> bool:
    """Return whether each of these strings is UTF-8."""
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    strings = pa.Array.from_buffers(pa.large_binary(), len(sizes), [None, pa.py_buffer(ends), pa.py_buffer(content)])
    try:
        strings.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


# --- blocks -------------------------------------------------------------------------------------------------------------


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


def blocks(file: BinaryIO, size: int) -> Iterator[Block]:
    """Read a file of `size` bytes block by block. The last block has a fault if the file does not end with a record."""
    buffer = np.zeros(min(BLOCK_BYTES, max(size, HEADER_BYTES)) + PADDING, np.uint8)
    offset = filled = 0
    while True:
        room = len(buffer) - PADDING - filled
        filled += file.readinto(buffer[filled : filled + min(room, size - offset - filled)])  # type: ignore[attr-defined]
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
    is_whole = start.startswith(_ZLIB) and len(start) >= HEADER_BYTES and walk(np.frombuffer(start, np.uint8)).fault
    return "ZLIB" if is_whole else ""


# --- many shards, in this process or in several ------------------------------------------------------------------------


FEW_BYTES = 64 << 20
"""Less than this is scanned sooner than another process has started, which takes half a second."""
_ENTRY = f"{__name__}:open_scan"
_VERSION = 2
_IDENTITY = ("form", "path", "bytes", "version")
OnBytes = Callable[[int], None]


def scan_shards(
    shards: Sequence[Shard],
    folder: Path,
    *,
    verify: bool,
    workers: int | None = None,
    on_bytes: OnBytes = lambda _: None,
) -> None:
    """Scan shards, so that each has a part and a receipt.

    Args:
        shards: The shards.
        folder: Where parts and receipts lie.
        verify: Whether the checksum of every payload is compared.
        workers: The number of processes; None for one a usable CPU, 0 for this process alone.
        on_bytes: Called with the number of bytes that were read.

    Raises:
        DatasetError: A shard cannot be read, is compressed as a whole, or was written to meanwhile.
    """
    count = min(usable_cpus() if workers is None else workers, len(shards))
    if count <= 1 or (workers is None and sum(shard.bytes for shard in shards) < FEW_BYTES):
        for shard in shards:
            scan_one(shard, folder, verify=verify, on_bytes=on_bytes)
        return
    shards = sorted(shards, key=lambda shard: -shard.bytes)
    with closing(Pool(_ENTRY, (folder, verify), count)) as processes:
        done = {processes.submit(shard): 0 for shard in shards}
        for event in processes.events():
            if isinstance(event, Progress | Done):
                read = event.result if isinstance(event, Done) else event.item or 0
                on_bytes(read - done[event.task])
                done[event.task] = read
            elif isinstance(event, Died):
                path = event.task.content.path
                raise DatasetError(f"the process that read {path} died ({event.reason}); run the command again")


def scan_one(shard: Shard, folder: Path, *, verify: bool, on_bytes: OnBytes) -> None:
    """Scan one shard, and write its part and its receipt."""
    identity = _identity(shard, folder)
    part, receipt = _paths(folder, identity)
    receipt.unlink(missing_ok=True)  # that of a scan without `verify` describes another part
    with open_shard(shard.path) as file, whole_file(part) as out:
        if kind := compression_of(file.read(64)):
            raise DatasetError(
                f"{shard.path} is compressed as a whole ({kind}): to read one of its records, all before it have to be unpacked. "
                f"Index copies without compression, which `gzip -dc < FILE` (`pigz -dc` for ZLIB) writes"
            )
        file.seek(0)
        try:
            found = scan(file, {**identity, "verify": verify}, out, on_bytes)
        except OSError as error:
            raise DatasetError(f"{shard.path} cannot be read ({error.strerror or error})") from error
    if current(shard.path) != shard:
        raise DatasetError(
            f"{shard.path} was written to while it was indexed; run the command again when it is complete"
        )
    write_whole(receipt, indented(found))


# --- receipts ---------------------------------------------------------------------------------------------------------


def find_receipt(shard: Shard, folder: Path, *, verify: bool) -> Scanned | None:
    """Return what was found in a shard as it is now; None if it was not scanned, or `verify` asks for more than was compared."""
    identity = _identity(shard, folder)
    part, receipt = _paths(folder, identity)
    try:
        found = from_json(Scanned, json.loads(receipt.read_text()))
    except (FileNotFoundError, ValueError):
        return None
    is_same = part.is_file() and identity.items() <= vars(found).items()
    return found if is_same and verify <= found.verify else None


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


def open_scan(argument: tuple[Path, bool]) -> Callable[[Shard, Mark], int]:
    """Return the work of a process (`tfprep.pool`): scan a shard, with the bytes read so far as marks."""
    folder, verify = argument

    def work(shard: Shard, mark: Mark) -> int:
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            mark(done)

        try:
            scan_one(shard, folder, verify=verify, on_bytes=count)
        except TfprepError:
            raise
        except Exception as error:
            raise DatasetError(f"{shard.path} cannot be indexed ({type(error).__name__}: {error})") from error
        return done

    return work
