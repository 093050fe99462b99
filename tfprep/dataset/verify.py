"""Compare a dataset with what was built: every file with its size and SHA-256, every record with its checksums and its codecs.

What the index says of a record (where its fields are, its label, height and width) is compared with the record, parsed again, and
`locations.bin` with the index: a checksum says only that a file is as it was written, not that it was written right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.codecs import Boxes, Scalar, Texts
from tfprep.dataset.dataset import Dataset
from tfprep.dataset.index import numpy_column, read_index
from tfprep.dataset.manifest import FileInfo, digest_of, read_manifest
from tfprep.dataset.names import INDEX, LOCATIONS, MANIFEST
from tfprep.dataset.versions import hold_current
from tfprep.errors import DatasetError, TfprepError
from tfprep.fields import RASTER_KINDS, class_numbers
from tfprep.records import Frame, decode, format_index, read_record
from tfprep.records.example import find_features
from tfprep.records.framing import HEADER_BYTES
from tfprep.storage.urls import PathOrUrl, file_size, open_file, read_file

_BATCH_ROWS = 8192


@dataclass(frozen=True)
class Fault:
    """A difference from what was built: the file's name, the byte where it begins (None: the file as a whole), the reason."""

    file: str
    offset: int | None
    reason: str


def verify(path: PathOrUrl, on_bytes: Callable[[int, int], None] = lambda done, total: None) -> Iterator[Fault]:
    """Find every fault of a dataset, file by file, with one record in memory at a time.

    Args:
        path: The dataset's folder or URL.
        on_bytes: Called after each shard, with the bytes that are checked and those of all shards, with those of added fields.

    Yields:
        The faults; none if every byte of every published file is as it was built.

    Raises:
        DatasetError: There is no such dataset. Where `manifest.json` is damaged, which names the rest, it is the only fault.
    """
    version, held = hold_current(path)
    try:
        data = Dataset(version.path, read_manifest(version.path), version, held)
    except DatasetError as error:
        yield Fault(MANIFEST, None, str(error))
        return
    parts = {"": data}
    for group, entry in data.manifest.groups.items():
        try:
            parts[f"{entry.folder}/"] = data.added(group)
        except DatasetError as error:
            yield Fault(f"{entry.folder}/{MANIFEST}", None, str(error))
    total, done = sum(info.bytes for part in parts.values() for info in part.splits.values()), 0

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        on_bytes(done, total)

    for place, part in parts.items():
        for fault in part_faults(part, data, count):
            yield replace(fault, file=f"{place}{fault.file}")


def part_faults(part: Dataset, data: Dataset, count: Callable[[int], None] = lambda nbytes: None) -> Iterator[Fault]:
    """Yield the faults of the dataset itself, or of added fields of it."""
    faults = [
        fault
        for name, digest in part.manifest.files.items()
        for fault in _byte_faults(part.path / name, name, digest.bytes, digest.sha256)
    ]
    yield from faults
    yield from _shard_faults(part, {fault.file for fault in faults}, count)
    if part is not data:
        yield from _added_faults(part, data)


def _added_faults(added: Dataset, data: Dataset) -> Iterator[Fault]:
    """Yield a fault where a record of added fields is not of the main record of its place."""
    try:
        for split, info in added.splits.items():
            for variant in range(info.variants):
                main, mine = (
                    one.index(split, variant, ["key", "payload_crc", "source_digest"]) for one in (data, added)
                )
                keys, crcs = main["key"].to_pylist(), main["payload_crc"].to_pylist()
                for number, digest in enumerate(mine["source_digest"].to_pylist()):
                    if digest != record_digest(keys[number], crcs[number]):
                        what = f"record {number} of {split}, variant {variant}"
                        reason = f"{what} was computed from another record than {keys[number]!r}"
                        yield Fault(INDEX, None, reason)
                        break
    except DatasetError as error:
        yield Fault(INDEX, None, str(error))


def record_digest(key: str, payload_crc: int) -> bytes:
    """Return what ties a record of added fields to the main record: a digest of its key and its payload's checksum, 16 bytes."""
    return blake2b(f"{payload_crc} {key}".encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _byte_faults(path: Path, name: str, nbytes: int, sha256: str) -> Iterator[Fault]:
    """Yield the fault of a file that is missing, or has another size or SHA-256; that of an imported shard is not known: ""."""
    try:
        if sha256:
            digest = digest_of(path)
            size, found = digest.bytes, digest.sha256
        else:
            with open_file(path):
                size, found = file_size(path), ""
    except DatasetError as error:
        is_missing = isinstance(error.__cause__, FileNotFoundError)
        yield Fault(name, None, "the file is missing" if is_missing else str(error))
        return
    if size != nbytes:
        yield Fault(name, None, f"{size} bytes, {nbytes} were {'written' if sha256 else 'indexed'}")
    elif found != sha256:
        yield Fault(name, None, "its SHA-256 is not that of the build")


def _shard_faults(data: Dataset, damaged: set[str], count: Callable[[int], None]) -> Iterator[Fault]:
    """Yield the faults of the shards. Where the index is damaged, they are compared with their own digests only."""
    imported = data.manifest.imported is not None  # its rasters without a header, which are `Raw`, do not count
    rasters = {
        name
        for name, info in data.manifest.fields.items()
        if info.spec.kind in RASTER_KINDS and not (imported and info.codec["codec"] != "encoded")
    }
    columns = ["shard", "offset", "size", "payload_crc", "height", "width", "label"]
    if "model_fields" in data.manifest.recipe:  # these records hold the key of the main record
        columns.append("key")
    columns += [f"{name}_{what}" for name in data.manifest.fields for what in ("offset", "size")]
    columns += [name for name in data.manifest.fields if imported and name != "label"]
    for split, info in data.splits.items():
        for variant, files in enumerate(info.files):
            rows = None
            if INDEX not in damaged:
                try:
                    rows = read_index(data.path, data.manifest, split, variant, columns)
                except DatasetError as error:
                    yield Fault(INDEX, None, str(error))
            if rows is not None and LOCATIONS not in damaged:
                yield from _location_faults(data, split, variant, rows)
            first = 0
            for file in files:
                yield from _file_faults(data, file, None if rows is None else rows.slice(first, file.records), rasters)
                first += file.records
                count(file.bytes)


def _location_faults(data: Dataset, split: str, variant: int, index: pa.Table) -> Iterator[Fault]:
    """Compare the rows of `locations.bin` with those of the index, column by column."""
    try:
        rows = data.locations(split, range(variant, variant + 1)).take(np.arange(len(index)))
    except DatasetError as error:
        yield Fault(LOCATIONS, None, str(error))
        return
    start = numpy_column(index["offset"])
    for name in rows.dtype.names or ():
        expected = numpy_column(index[name]) - (start if name.endswith("_offset") else 0)
        different = np.flatnonzero(rows[name] != expected)
        if len(different):
            reason = f"{name} of {len(different)} records of {split}, variant {variant}, is not that of the index"
            yield Fault(LOCATIONS, None, f"{reason}; the first is record {different[0]}")


def _file_faults(data: Dataset, file: FileInfo, rows: pa.Table | None, rasters: set[str]) -> Iterator[Fault]:
    """Yield the faults of a shard and its `.idx`; `rows` are those of the index, None if it is damaged.

    A shard that was written again has a fault in each record: the first is named, and of the rows of the index too.
    """
    path = data.shard_path(file)
    yield from _byte_faults(path, file.name, file.bytes, file.sha256)
    if rows is None:
        return
    try:
        shard = open_file(path)
    except DatasetError:  # which is the fault above
        return
    with shard:
        faults, of_index = list[Fault](), list[str]()
        numbered = enumerate(row for batch in rows.to_batches(_BATCH_ROWS) for row in batch.to_pylist())
        for number, row in numbered:
            frame = Frame(row["offset"], row["size"])
            try:
                payload = read_record(shard, path, frame, number, payload_crc=row["payload_crc"])
                of_index += [f"record {number}: {reason}" for reason in _row_faults(data, row, payload, rasters)]
            except TfprepError as error:
                faults.append(Fault(file.name, frame.offset, getattr(error, "reason", str(error))))
    if faults:
        more = f"; {len(faults) - 1:,} more records of this shard are damaged" if len(faults) > 1 else ""
        yield replace(faults[0], reason=f"{faults[0].reason}{more}")
    if of_index:
        more = f", and {len(of_index) - 1:,} more" if len(of_index) > 1 else ""
        yield Fault(INDEX, None, f"{file.name}, {of_index[0]}{more}")
    if data.manifest.imported is not None:
        return
    frames = zip(rows["offset"].to_pylist(), rows["size"].to_pylist(), strict=True)
    text_index = path.with_name(f"{path.name}.idx")  # it follows from the index, byte for byte
    try:
        expected = format_index(Frame(offset, size) for offset, size in frames).encode()
        if read_file(text_index, len(expected) + 1) != expected:
            yield Fault(text_index.name, None, "it lists other records than the index")
    except DatasetError as error:
        yield Fault(text_index.name, None, str(error))


def _row_faults(data: Dataset, row: Mapping[str, Any], payload: bytes, rasters: set[str]) -> Iterator[str]:
    """Yield what the index says otherwise than a record. `rasters` are those of which the height and width can be; they are fewer
    after each row, because all rows hold the size of one and the same raster."""
    fields, values = data.manifest.fields, data.decode(payload)
    if "key" in row and decode(payload).get("key") != [row["key"].encode("utf-8", "surrogateescape")]:
        yield f"it holds the fields of another sample than {row['key']!r}"
    features, spans = find_features(payload), {}
    for name in fields:
        span, size = features.get(data.feature(name).encode("utf-8", "surrogateescape")), 0
        if span:  # of one string without its tag and its length
            size = span.size if isinstance(data.codecs[name], Scalar | Texts | Boxes) else span.last
        spans[name] = (span.offset + span.size - size if span else 0), size
    for name, place in spans.items():
        indexed = row[f"{name}_offset"] - row["offset"] - HEADER_BYTES, row[f"{name}_size"]
        if indexed != place and (indexed[1] or place[1]):
            what = next((f"those of {other!r}" for other, span in spans.items() if span == indexed), "others")
            yield f"the bytes that it gives for {name!r} are {what}"
    label = next((name for name, info in fields.items() if info.spec.kind == "label"), None)
    if label and row["label"] != (numbers := class_numbers(values[label])):
        yield f"the label is {numbers}, not {row['label']}"
    for name in fields if data.manifest.imported else ():
        if name not in row:  # a raster: the index holds numbers and text
            continue
        value = next(iter(np.ravel(values[name]).tolist()), None)  # None where a record has no value
        if repr(row[name]) != repr(value):  # by their texts: NaN is not equal to itself
            yield f"{name!r} is {value!r}, not {row[name]!r}"
    sides = row["height"], row["width"]
    if fitting := {name for name in rasters if np.shape(values[name])[:2] == sides}:
        rasters &= fitting
    elif rasters or sides != (None, None):
        found = [f"{np.shape(values[name])[:2]} of {name!r}" for name in fields if name in rasters]
        yield f"height and width are {' and '.join(found) or 'none'}, not {sides}"
