"""Writing an index: the columns of each split, then `rejects.jsonl`, and `tfprep-index.json` last."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep._version import __version__
from tfprep.dataset.external.columns import ColumnWriter, column_crcs, open_columns, row_ranges
from tfprep.dataset.external.declared import INFO_JSON
from tfprep.dataset.external.listed import ListedShard
from tfprep.dataset.external.opened import DOCUMENT, ExternalIndex, SplitState
from tfprep.dataset.external.rows import RowMaker
from tfprep.dataset.external.scan import LostRecord, read_part
from tfprep.dataset.external.schema import IndexedField, LeftOut
from tfprep.dataset.external.shards import Place, common_root, name_below
from tfprep.dataset.external.targets import Targets
from tfprep.dataset.manifest import FieldInfo, FileInfo, Manifest, SplitInfo
from tfprep.errors import DatasetError
from tfprep.storage.local import sync_folder, whole_file, write_whole, writing
from tfprep.storage.urls import is_remote

BAD_RECORDS = "rejects.jsonl"


class Publisher:
    """Writes an index, in place of the `old` one if there is one. `command` is that which makes the splits of `targets`."""

    def __init__(
        self, folder: Path, work: Path, targets: Targets, old: ExternalIndex | None, command: str, *, skips: bool
    ) -> None:
        """`work`: the folder of temporary files. `skips`: whether records that cannot be read are left out."""
        self._folder, self._work, self._targets, self._old = folder, work, targets, old
        self._command, self._skips = command, skips
        self._bad: list[dict[str, Any]] = []
        self._old_shards: dict[str, list[pa.RecordBatch]] = {}

    def publish(
        self, entries: Mapping[str, Sequence[ListedShard]], maker: RowMaker, left_out: Sequence[LeftOut]
    ) -> ExternalIndex:
        """Write the rows of all shards, and return the index. `left_out`: the features that become no fields."""
        root = root_of(entries)
        old_lines = self._old_lines(entries, root)
        manifest_splits, states, counts = {}, {}, {}
        for split, group in entries.items():
            files, name, crcs = self._write_split(split, group, maker, root)
            manifest_splits[split] = SplitInfo(sum(file.records for file in files), (tuple(files),))
            shards = tuple(entry.state for entry in group)
            command = self._command if split in self._targets.splits else self._old_command(split)
            states[split] = SplitState(name, crcs, shards, command)
            counts[split] = self._class_counts(name, maker, manifest_splits[split].samples)
        self._check_lengths(entries)
        rejects = old_lines + self._bad
        manifest = _manifest(
            self._targets.name if self._old is None else self._old.manifest.name,
            maker.fields,
            manifest_splits,
            counts,
            len(rejects),
        )
        index = ExternalIndex(
            self._folder,
            self._root_text(root),
            tuple(maker.fields),
            tuple(left_out),
            states,
            maker.key,
            maker.raster,
            manifest,
        )
        write_whole(self._folder / BAD_RECORDS, "".join(json.dumps(line) + "\n" for line in rejects))
        write_whole(self._folder / DOCUMENT, index.to_json())
        sync_folder(self._folder)
        self._remove_unused({state.columns for state in states.values()})
        return index

    def _old_command(self, split: str) -> str:
        assert self._old is not None
        return self._old.splits[split].command

    def _root_text(self, root: Place) -> str:
        """Relative to the index where it lies inside the folder of the shards, so that both can be moved together."""
        if is_remote(root):
            return str(root)
        return os.path.relpath(root, self._folder) if self._folder.is_relative_to(root) else str(root)

    def _write_split(
        self, split: str, group: Sequence[ListedShard], maker: RowMaker, root: Place
    ) -> tuple[list[FileInfo], str, dict[str, int]]:
        """Write the columns of a split; its shards in the manifest, the file's name, and the checksums of its columns."""
        files = []
        with writing(self._folder), ColumnWriter(self._work, maker.types) as writer:
            for number, entry in enumerate(group):
                digest = _FramesDigest(entry.shard.bytes)
                first = writer.rows
                for columns, rows in self._rows(split, entry, number, maker, root):
                    writer.append(columns, rows)
                    digest.add(columns)
                name = name_below(root, entry.shard.path)
                files.append(FileInfo(name, writer.rows - first, entry.shard.bytes, digest.hexdigest()))
            if not writer.rows:
                raise DatasetError(f"no record of the split {split!r} can be read; see {self._folder / BAD_RECORDS}")
            types = {name: str(dtype) for name, dtype in maker.types.items()}
            identity = [[asdict(file) for file in files], types, [asdict(item) for item in maker.fields]]
            name = f"{split}-{_digest(identity)}.arrow"
            path = self._folder / name
            with whole_file(path) as file:
                writer.write(file)
            return files, name, column_crcs(path, maker.types, writer.rows)

    def _rows(
        self, split: str, entry: ListedShard, number: int, maker: RowMaker, root: Place
    ) -> Iterator[tuple[dict[str, pa.Array], int]]:
        if entry.scanned is None:
            yield self._old_rows(entry, number, maker)
            return
        name = name_below(root, entry.shard.path)
        self._note(split, name, entry.scanned.bad)
        if entry.scanned.fault:
            reason = f"{entry.scanned.fault}; what follows is left out"
            self._note(
                split, name, [LostRecord(entry.scanned.records + len(entry.scanned.bad), entry.scanned.end, reason)]
            )
        with entry.scanned.part.open("rb") as file:
            for batch in read_part(file):
                columns, bad, kept = maker.rows(batch, number)
                self._note(split, name, bad)
                yield columns, int(kept.sum())

    def _note(self, split: str, shard: str, bad: Sequence[LostRecord]) -> None:
        self._bad += [
            {"split": split, "shard": shard, "record": item.number, "offset": item.offset, "reason": item.reason}
            for item in bad
        ]

    def _old_rows(self, entry: ListedShard, number: int, maker: RowMaker) -> tuple[dict[str, pa.Array], int]:
        """The rows of a shard that did not change, from the old columns."""
        index, split, before = entry.before
        if split not in self._old_shards:
            info = index.manifest.splits[split]
            counts = [file.records for file in info.files[0]]
            path = index.folder / index.splits[split].columns
            self._old_shards[split] = list(row_ranges(path, index.types, info.samples, counts))
        batch = self._old_shards[split][before]
        rows = batch.num_rows
        columns = {}
        for name, dtype in maker.types.items():
            if name == "shard":
                columns[name] = pa.array(np.full(rows, number, np.int32))
            elif name in batch.schema.names:
                columns[name] = batch.column(name)
            elif name.endswith("_offset"):
                columns[name] = pa.array(batch.column("offset").to_numpy() + 12)
            elif name.endswith("_size"):
                columns[name] = pa.array(np.zeros(rows, np.int32))
            else:
                columns[name] = pa.nulls(rows, dtype)
        return columns, rows

    def _class_counts(self, name: str, maker: RowMaker, rows: int) -> dict[str, tuple[int, ...]]:
        """How many records of a split have each class, by label; other numbers than those of classes are not counted."""
        counts = {}
        batch = open_columns(self._folder / name, maker.types, rows)
        for item in maker.fields:
            if item.classes and item.column and item.spec.shape == ():
                values = batch.column(item.name).to_numpy()
                inside = values[(values >= 0) & (values < len(item.classes))]
                counts[item.name] = tuple(np.bincount(inside, minlength=len(item.classes)).tolist())
        return counts

    def _check_lengths(self, entries: Mapping[str, Sequence[ListedShard]]) -> None:
        """Compare the numbers of records with `dataset_info.json`."""
        for split, lengths in self._targets.lengths.items():
            for entry, length in zip(entries[split], lengths, strict=True):
                bad = len(entry.scanned.bad) if entry.scanned else 0
                if entry.state.records + bad != length and not self._skips:
                    raise DatasetError(
                        f"{entry.shard.path} holds {entry.state.records:,} records, {INFO_JSON} says {length:,}; copy the "
                        "dataset again"
                    )

    def _old_lines(self, entries: Mapping[str, Sequence[ListedShard]], root: Place) -> list[dict[str, Any]]:
        """The lines of `rejects.jsonl` about shards that are not scanned again."""
        kept = {(split, name_below(root, e.shard.path)) for split, group in entries.items() for e in group if e.old}
        try:
            lines = [json.loads(line) for line in (self._folder / BAD_RECORDS).read_text().splitlines()]
        except (OSError, ValueError):
            return []
        return [line for line in lines if (line.get("split"), line.get("shard")) in kept]

    def _remove_unused(self, used: set[str]) -> None:
        for path in self._folder.glob("*-????????????????.arrow"):
            if path.name not in used:
                path.unlink(missing_ok=True)


def root_of(entries: Mapping[str, Sequence[ListedShard]]) -> Place:
    """Return the folder that all shards lie in."""
    return common_root([entry.shard.path for group in entries.values() for entry in group])


class _FramesDigest:
    """What stands for the SHA-256 of a shard, whose payloads are not read for it: that of its size, and of where its records lie
    and the checksums of their payloads."""

    def __init__(self, size: int) -> None:
        self._size, self._parts = size, [hashlib.sha256() for _ in range(3)]

    def add(self, columns: Mapping[str, pa.Array]) -> None:
        for part, name in zip(self._parts, ("offset", "size", "payload_crc"), strict=True):
            part.update(np.ascontiguousarray(columns[name].to_numpy()).data)

    def hexdigest(self) -> str:
        digests = b"".join(part.digest() for part in self._parts)
        return hashlib.sha256(self._size.to_bytes(8, "little") + digests).hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _manifest(
    name: str,
    fields: Sequence[IndexedField],
    splits: Mapping[str, SplitInfo],
    counts: Mapping[str, Mapping[str, tuple[int, ...]]],
    rejects: int,
) -> Manifest:
    classes = {item.name: item.classes for item in fields if item.classes}
    counted = {
        label: {split: of_split[label] for split, of_split in counts.items()}
        for label in classes
        if all(label in of_split for of_split in counts.values())
    }
    infos = {item.name: FieldInfo(item.spec, dict(item.codec)) for item in fields}
    shards = [[file.name, file.sha256] for info in splits.values() for file in info.files[0]]
    return Manifest(
        name, _digest(shards), {}, infos, splits, classes, counted, versions={"tfprep": __version__}, rejects=rejects
    )
