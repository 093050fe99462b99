"""The rest of a dataset whose raw files are gone: its readable records, as a smaller dataset in a folder of its own.

The index says where the payload of each record lies and what its checksum is. A payload with that checksum is intact, whatever
became of the bytes around it, so it is framed again. A sample is lost if its record is damaged in any variant. Whole shards are
linked, or copied where the file system has no links.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa

from tfprep.builder.publication.contents import mean_and_std
from tfprep.builder.shards.sums import Moments, class_counts, image_moments
from tfprep.dataset import Dataset, FileInfo, Manifest, SplitInfo, Statistics
from tfprep.dataset.croissant import CROISSANT, croissant_text
from tfprep.dataset.index import label_type, schema, write_index
from tfprep.dataset.locations import write_locations
from tfprep.dataset.manifest import MANIFEST, digest_of, sha256_of
from tfprep.dataset.names import INDEX, LOCATIONS, REJECTS
from tfprep.dataset.tfds import tfds_files
from tfprep.errors import DatasetError
from tfprep.fields import Array
from tfprep.records import Frame, RecordWriter, format_index
from tfprep.records.framing import FOOTER_BYTES, HEADER_BYTES, masked_crc
from tfprep.storage.local import link_or_copy, temporary_path, whole_folder, write_whole

_REASON = "its record was damaged or missing when the dataset was repaired without the raw files"


@dataclass(frozen=True)
class _IntactShard:
    """A shard of the new dataset: which of its old records it keeps, and its file and the offsets of its records by variant."""

    kept: Array
    files: tuple[FileInfo, ...]
    offsets: tuple[Array, ...]


def mended_frames(path: Path, rows: pa.Table, sha256: str) -> bool:
    """Write a shard again from its own payloads if they are all intact; return whether it is what it was.

    Args:
        path: The shard.
        rows: Its rows of the index: `offset`, `size` and `payload_crc`.
        sha256: That of the shard when it was built.
    """
    if not path.exists() or any(payload is None for payload in _payloads(path, rows)):
        return False
    temporary = temporary_path(path, "repair")
    try:
        mended = _write_shard(temporary, _payloads(path, rows))[0].sha256 == sha256
        if mended:
            temporary.replace(path)
        return mended
    finally:
        temporary.unlink(missing_ok=True)


def save_rest(data: Dataset, out: Path) -> Manifest:
    """Write the samples whose records are intact in all variants as a dataset of its own.

    Args:
        data: A dataset with shards that are damaged or missing; its manifest and its index are intact.
        out: A folder, which is missing or empty. It appears whole, or not at all.

    Returns:
        The manifest of the new dataset. The lost samples are among its rejects.

    Raises:
        DatasetError: The folder is not empty, the index is damaged, or no sample is left.
        BuildError: The folder cannot be written.
    """
    if out.exists() and any(out.iterdir()):
        raise DatasetError(f"{out} is not empty; name a new folder for the rest of the dataset")
    with whole_folder(out) as folder:
        return _Rest(data, folder).write()


class _Rest:
    def __init__(self, data: Dataset, out: Path) -> None:
        self._data, self._out = data, out
        self._lost: list[tuple[str, str]] = []

    def write(self) -> Manifest:
        shards = {split: self._shards(split) for split in self._data.splits}
        splits = {split: _split(of_split) for split, of_split in shards.items()}
        if not any(info.samples for info in splits.values()):
            raise DatasetError(f"{self._data.path}: no sample is intact in all variants; nothing is left to save")
        manifest = replace(self._data.manifest, splits=splits, files={})
        columns = schema(list(manifest.fields), label_type(manifest.fields))
        write_index(self._out / INDEX, columns, self._tables(shards))
        manifest = write_locations(self._out / LOCATIONS, self._out / INDEX, manifest)
        manifest = self._counted(manifest)
        texts = self._others(manifest)
        for name, text in texts.items():
            write_whole(self._out / name, text)
        manifest = replace(manifest, files={name: digest_of(self._out / name) for name in (INDEX, LOCATIONS, *texts)})
        write_whole(self._out / MANIFEST, manifest.to_json())
        return manifest

    # --- shards ----------------------------------------------------------------------------------------------------

    def _shards(self, split: str) -> list[_IntactShard]:
        variants: list[list[tuple[FileInfo, pa.Table]]] = [[] for _ in range(self._data.splits[split].shards)]
        for number, file, rows in self._data.shard_rows(split, ["key", "shard", "offset", "size", "payload_crc"]):
            variants[number].append((file, rows))
        return [self._shard(split, of_shard) for of_shard in variants]

    def _shard(self, split: str, variants: Sequence[tuple[FileInfo, pa.Table]]) -> _IntactShard:
        keys = variants[0][1]["key"]
        kept = np.ones(len(keys), bool)
        for file, rows in variants:
            kept &= [payload is not None for payload in _payloads(self._data.path / file.name, rows)]
        self._lost += [(split, key) for key in keys.filter(pa.array(~kept)).to_pylist()]
        written = [self._write(file, rows, kept) for file, rows in variants]
        return _IntactShard(kept, tuple(file for file, _ in written), tuple(offsets for _, offsets in written))

    def _write(self, file: FileInfo, rows: pa.Table, kept: Array) -> tuple[FileInfo, Array]:
        source, target = self._data.path / file.name, self._out / file.name
        if kept.all() and source.is_file() and sha256_of(source) == file.sha256:
            link_or_copy(source, target)
            text = format_index(map(Frame, rows["offset"].to_pylist(), rows["size"].to_pylist()))
            write_whole(target.with_name(f"{file.name}.idx"), text)
            return file, rows["offset"].to_numpy()
        info, frames = _write_shard(target, _payloads(source, rows.filter(pa.array(kept))))
        write_whole(target.with_name(f"{file.name}.idx"), format_index(frames))
        return info, np.array([frame.offset for frame in frames], np.int64)

    # --- index, counts and the other files -------------------------------------------------------------------------

    def _tables(self, shards: Mapping[str, Sequence[_IntactShard]]) -> Iterator[pa.Table]:
        for split, of_split in shards.items():
            for variant in range(self._data.splits[split].variants):
                kept = np.concatenate([shard.kept for shard in of_split])
                rows = self._data.index(split, variant).filter(pa.array(kept))
                yield _moved(rows, np.concatenate([shard.offsets[variant] for shard in of_split]))

    def _counted(self, manifest: Manifest) -> Manifest:
        """Count classes and pixels again in splits that lost samples; a sum has no memory of what a lost one added to it."""
        rest = Dataset(self._out, replace(manifest, files={INDEX: digest_of(self._out / INDEX)}))
        counts = {name: dict(by_split) for name, by_split in manifest.class_counts.items()}
        statistics = dict(manifest.statistics)
        train = next(iter(manifest.splits))
        for split in dict.fromkeys(split for split, _ in self._lost):
            moments: dict[str, list[Moments]] = {name: [] for name in statistics}
            numbers: dict[str, Counter[int]] = {name: Counter() for name in counts}
            for sample in rest.samples(split, fields=[*counts, *statistics]):
                for name in counts:
                    numbers[name] += class_counts(sample[name], len(manifest.classes[name]))
                for name in moments if split == train else ():
                    moments[name].append(image_moments(sample[name]))
            for name, of_split in numbers.items():
                counts[name][split] = tuple(of_split[number] for number in range(len(manifest.classes[name])))
            statistics |= {name: _statistics(sums) for name, sums in moments.items() if sums}
        lost = len(self._lost)
        return replace(manifest, class_counts=counts, statistics=statistics, rejects=manifest.rejects + lost)

    def _others(self, manifest: Manifest) -> dict[str, str]:
        before = ""
        with suppress(OSError):
            before = (self._data.path / REJECTS).read_text("utf-8", "surrogateescape")
        lines = [
            {"key": key, "split": split, "stage": "repair", "field": "", "error": _REASON, "file": ""}
            for split, key in self._lost
        ]
        rejects = before + "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        return {
            REJECTS: rejects,
            CROISSANT: croissant_text(manifest, digest_of(self._out / INDEX)),
            **tfds_files(manifest),
        }


def _payloads(path: Path, rows: pa.Table) -> Iterator[bytes | None]:
    """Yield the payload of each row, None where it is not that of the index."""
    places = zip(*(rows[name].to_pylist() for name in ("offset", "size", "payload_crc")), strict=True)
    try:
        with path.open("rb") as file:
            for offset, size, crc in places:
                file.seek(offset + HEADER_BYTES)
                payload = file.read(size - HEADER_BYTES - FOOTER_BYTES)
                whole = len(payload) == size - HEADER_BYTES - FOOTER_BYTES and masked_crc(payload) == crc
                yield payload if whole else None
    except FileNotFoundError:
        yield from [None] * len(rows)


def _write_shard(path: Path, payloads: Iterable[bytes | None]) -> tuple[FileInfo, list[Frame]]:
    """Write a shard of payloads, one in memory at a time."""
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for payload in payloads:
            assert payload is not None
            writer.write(payload)
        file.flush()
        os.fsync(file.fileno())
    frames = writer.frames
    return FileInfo(path.name, len(frames), sum(frame.size for frame in frames), sha256_of(path)), frames


def _split(shards: Sequence[_IntactShard]) -> SplitInfo:
    files = tuple(zip(*(shard.files for shard in shards), strict=True))
    return SplitInfo(sum(int(shard.kept.sum()) for shard in shards), files)


def _moved(rows: pa.Table, offsets: Array) -> pa.Table:
    """Return the rows with their records at other offsets of their shards."""
    shift = offsets - rows["offset"].to_numpy()
    for place, column in enumerate(rows.schema):
        if column.name == "offset" or column.name.endswith("_offset"):
            rows = rows.set_column(place, column, pa.array(rows[column.name].to_numpy() + shift, column.type))
    return rows


def _statistics(sums: Sequence[Moments]) -> Statistics:
    return mean_and_std(reduce(Moments.plus, sums))
