"""Is a dataset still what was built? Every file against its size and SHA-256, every record against its checksums, its place
in the index, and its codecs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tfprep.dataset.dataset import Dataset
from tfprep.dataset.manifest import FileInfo
from tfprep.errors import DatasetError, TfprepError
from tfprep.records import Frame, check_frame, read_index

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Fault:
    """Something that is not as it was built: in which file, at which byte (None: the file as a whole), and what."""

    file: str
    offset: int | None
    reason: str


def verify(data: Dataset, on_file: Callable[[FileInfo], None] | None = None) -> Iterator[Fault]:
    """Every fault of the dataset, file by file; none where it is whole. One record is in memory at a time.

    Raises DatasetError where the index itself cannot be read.
    """
    for split, info in data.splits.items():
        for variant in range(info.variants):
            rows = data.index(split, variant, ["shard", "offset", "size"])
            if len(rows) != info.samples:
                yield Fault(
                    "index.parquet", None, f"{len(rows)} rows for {info.samples} samples of {split} variant {variant}"
                )
            for shard, file in enumerate(info.files[variant]):
                yield from _file_faults(data, file, _frames(rows, shard))
                if on_file:
                    on_file(file)


def _frames(rows: pa.Table, shard: int) -> list[Frame]:
    mask = rows["shard"].to_numpy() == shard
    places = zip(rows["offset"].to_numpy()[mask].tolist(), rows["size"].to_numpy()[mask].tolist(), strict=True)
    return [Frame(*place) for place in places]


def _file_faults(data: Dataset, file: FileInfo, frames: list[Frame]) -> Iterator[Fault]:
    path = data.path / file.name
    if not path.is_file():
        yield Fault(file.name, None, "the file is missing")
        return
    if path.stat().st_size != file.bytes:
        yield Fault(file.name, None, f"{path.stat().st_size} bytes, {file.bytes} were written")
    elif _sha256(path) != file.sha256:
        yield Fault(file.name, None, "its SHA-256 is not that of the build")
    yield from _record_faults(data, path, frames)
    try:
        if read_index(path.with_name(f"{path.name}.idx")) != frames:
            yield Fault(f"{file.name}.idx", None, "it lists other records than index.parquet")
    except (OSError, DatasetError) as error:
        yield Fault(f"{file.name}.idx", None, str(error))


def _record_faults(data: Dataset, path: Path, frames: list[Frame]) -> Iterator[Fault]:
    with path.open("rb") as file:
        for number, frame in enumerate(frames):
            file.seek(frame.offset)
            try:
                data.decode(check_frame(file.read(frame.size), path, frame, number))
            except (TfprepError, ValueError) as error:
                yield Fault(path.name, frame.offset, getattr(error, "reason", str(error)))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
