"""Compare a dataset with what was built: every file with its size and SHA-256, every record with its checksums, its row of the
index and its codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tfprep.dataset.dataset import Dataset, load_manifest
from tfprep.dataset.digests import digest_of, sha256_of
from tfprep.dataset.external.opened import ExternalIndex, read_external
from tfprep.dataset.external.shards import OpenShard, current
from tfprep.dataset.index import read_index
from tfprep.dataset.manifest import MANIFEST, NOT_SEALED, FileInfo, Manifest, is_sealed
from tfprep.dataset.parse import parse_manifest
from tfprep.errors import DatasetError, TfprepError
from tfprep.records import Frame, check_frame, format_index
from tfprep.storage.urls import PathOrUrl, file_size, folder_at, open_file

_EXTERNAL_COLUMNS = ("shard", "number", "offset", "size", "payload_crc")
_COLUMNS = ["shard", "offset", "size", "payload_crc"]


@dataclass(frozen=True)
class Fault:
    """A difference from what was built: the file's name, the byte where it begins (None: the file as a whole), the reason."""

    file: str
    offset: int | None
    reason: str


@dataclass(frozen=True)
class _Row:
    """A record as the index describes it."""

    frame: Frame
    payload_crc: int


def verify(path: PathOrUrl, on_file: Callable[[FileInfo], None] | None = None) -> Iterator[Fault]:
    """Find every fault of a dataset, file by file, with one record in memory at a time.

    Args:
        path: The dataset's folder or URL.
        on_file: Called after each shard.

    Yields:
        The faults; none if every byte of every published file is as it was built.

    Raises:
        DatasetError: There is no `tfprep.json` that could be read.
    """
    folder = folder_at(path)
    try:
        content = load_manifest(folder)
    except DatasetError as error:
        if not isinstance(error.__cause__, FileNotFoundError) or (external := read_external(folder)) is None:
            raise
        yield from _external_faults(Dataset(external.folder, external.manifest, external), external, on_file)
        return
    try:
        manifest = parse_manifest(content, folder / MANIFEST, sealed=False)
    except DatasetError as error:
        yield Fault(MANIFEST, None, str(error))
        return
    if not is_sealed(content):
        yield Fault(MANIFEST, None, f"it {NOT_SEALED}")
    faults = list(_digest_faults(folder, manifest))
    yield from faults
    yield from _shard_faults(Dataset(folder, manifest), manifest.index in {fault.file for fault in faults}, on_file)


def _digest_faults(folder: Path, manifest: Manifest) -> Iterator[Fault]:
    for name, expected in manifest.files.items():
        try:
            found = digest_of(folder / name)
        except DatasetError as error:
            yield Fault(name, None, _why(error))
            continue
        if found.bytes != expected.bytes:
            yield Fault(name, None, f"{found.bytes} bytes, {expected.bytes} were written")
        elif found != expected:
            yield Fault(name, None, "its SHA-256 is not that of the build")


def _why(error: DatasetError) -> str:
    return "the file is missing" if isinstance(error.__cause__, FileNotFoundError) else str(error)


def _shard_faults(data: Dataset, no_index: bool, on_file: Callable[[FileInfo], None] | None) -> Iterator[Fault]:
    for split, info in data.splits.items():
        for variant, files in enumerate(info.files):
            rows = None
            if not no_index:
                try:
                    rows = read_index(data.path, data.manifest, split, variant, _COLUMNS)
                except DatasetError as error:
                    yield Fault(data.manifest.index, None, str(error))
            for shard, file in enumerate(files):
                yield from _file_faults(data, file, None if rows is None else _rows_of(rows, shard))
                if on_file:
                    on_file(file)


def _rows_of(rows: pa.Table, shard: int) -> list[_Row]:
    mask = rows["shard"].to_numpy() == shard
    columns = (rows[name].to_numpy()[mask].tolist() for name in _COLUMNS[1:])
    return [_Row(Frame(offset, size), crc) for offset, size, crc in zip(*columns, strict=True)]


def _file_faults(data: Dataset, file: FileInfo, rows: Sequence[_Row] | None) -> Iterator[Fault]:
    """Yield the faults of a shard and its `.idx`. Records are not checked if there are no rows because the index is damaged."""
    path = data.path / file.name
    try:
        with open_file(path):
            size = file_size(path)
    except DatasetError as error:
        yield Fault(file.name, None, _why(error))
        return
    if size != file.bytes:
        yield Fault(file.name, None, f"{size} bytes, {file.bytes} were written")
    elif sha256_of(path) != file.sha256:
        yield Fault(file.name, None, "its SHA-256 is not that of the build")
    if rows is not None:
        yield from _record_faults(data, path, rows)
        yield from _text_index_faults(path.with_name(f"{path.name}.idx"), rows)


def _text_index_faults(path: Path, rows: Sequence[_Row]) -> Iterator[Fault]:
    """The `.idx` follows from the index, byte for byte."""
    try:
        with open_file(path) as file:
            expected = format_index(row.frame for row in rows).encode()
            if file.read(len(expected) + 1) != expected:
                yield Fault(path.name, None, "it lists other records than the index")
    except DatasetError as error:
        yield Fault(path.name, None, str(error))


def _record_faults(data: Dataset, path: Path, rows: Sequence[_Row]) -> Iterator[Fault]:
    with open_file(path) as file:
        for number, row in enumerate(rows):
            file.seek(row.frame.offset)
            try:
                content = file.read(row.frame.size)
                data.decode(check_frame(content, path, row.frame, number, payload_crc=row.payload_crc))
            except TfprepError as error:
                yield Fault(path.name, row.frame.offset, getattr(error, "reason", str(error)))


# --- an index of TFRecords that tfprep did not write --------------------------------------------------------------------


def _external_faults(
    data: Dataset, index: ExternalIndex, on_file: Callable[[FileInfo], None] | None
) -> Iterator[Fault]:
    """Yield what differs from what was indexed, shard by shard, with one record in memory at a time."""
    for split, info in data.splits.items():
        try:
            table = index.index(split, _EXTERNAL_COLUMNS)
        except DatasetError as error:
            yield Fault(index.splits[split].columns, None, str(error))
            continue
        shards, numbers, offsets, sizes, crcs = (table.column(name).to_numpy() for name in _EXTERNAL_COLUMNS)
        for number, file in enumerate(info.files[0]):
            first, last = np.searchsorted(shards, [number, number + 1])
            rows = zip(*(column[first:last].tolist() for column in (numbers, offsets, sizes, crcs)), strict=True)
            yield from _referred_faults(data, index, file, list(rows))
            if on_file:
                on_file(file)


def _referred_faults(
    data: Dataset, index: ExternalIndex, file: FileInfo, rows: list[tuple[int, int, int, int]]
) -> Iterator[Fault]:
    path = index.path_of(file.name)
    try:
        if (size := current(path).bytes) != file.bytes:
            yield Fault(file.name, None, f"{size} bytes, {file.bytes} were indexed")
        with OpenShard(path) as opened:
            for number, offset, length, crc in rows:
                try:
                    frame = Frame(offset, length)
                    data.decode(check_frame(opened.bytes(offset, length), path, frame, number, payload_crc=crc))
                except TfprepError as error:
                    yield Fault(file.name, offset, getattr(error, "reason", str(error)))
    except (DatasetError, OSError) as error:
        yield Fault(file.name, None, str(error))
