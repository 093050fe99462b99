"""An index, opened: the file `tfprep-index.json`, the columns of its splits, and the shards that it refers to.

The file holds a manifest like that of a built dataset, and what only an index has: where the shards are, how their features are
called, which columns there are, and what was found in each shard, so that new shards can be added without reading the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.dataset.external.columns import MappedColumns, column_types, keys_of
from tfprep.dataset.external.schema import IndexedField, LeftOut
from tfprep.dataset.external.shards import OpenShard, Place, current, path_below
from tfprep.dataset.external.summary import FeatureSummary, summary_from
from tfprep.dataset.manifest import NOT_SEALED, FileInfo, Manifest, is_sealed, seal
from tfprep.dataset.parse import checked_manifest, parse_json
from tfprep.errors import DatasetError
from tfprep.records.framing import FOOTER_BYTES, HEADER_BYTES, footer_crc
from tfprep.storage.urls import folder_at, is_remote, open_file

DOCUMENT = "tfprep-index.json"
BESIDE = "tfprep-index"
"""The folder of an index that lies beside its shards."""
VERSION = 1
_MOST_BYTES = 512 << 20
_SAMPLED = 16
"""Records that are compared in a shard whose time of modification differs: it may have been copied."""
_USUAL = ("key", "split", "variant", "shard", "number", "offset", "size", "payload_crc", "label", "height", "width")


@dataclass(frozen=True)
class IndexedShard:
    """A shard when it was indexed: its version, how many records it held, bad ones included, and what was found in them."""

    version: str
    records: int
    summaries: Mapping[str, FeatureSummary]


@dataclass(frozen=True)
class SplitState:
    """The columns of a split, its shards, and the command that indexes them."""

    columns: str
    crc32c: Mapping[str, int]
    shards: tuple[IndexedShard, ...]
    command: str


@dataclass(frozen=True)
class ExternalIndex:
    """What an index says beyond its manifest.

    Attributes:
        folder: The folder of the index.
        root: The folder that all shards are in or below; relative to `folder`, or absolute, or a URL.
        fields: The fields, in the order of the manifest.
        left_out: The features that are no fields, and why.
        splits: The state of each split.
        key: The field that gives each record its key; None where the key is the shard's name and the record's number.
        raster: The feature whose size is in the columns `height` and `width`; None where no image is stored.
        manifest: The manifest.
    """

    folder: Place
    root: str
    fields: tuple[IndexedField, ...]
    left_out: tuple[LeftOut, ...]
    splits: Mapping[str, SplitState]
    key: str | None
    raster: str | None
    manifest: Manifest
    _columns: dict[str, MappedColumns] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Another process maps the columns anew."""
        return {**self.__dict__, "_columns": {}}

    @cached_property
    def root_folder(self) -> Place:
        """The folder of the shards."""
        if "://" in self.root:
            return folder_at(self.root)
        return self.folder / self.root if is_remote(self.folder) else Path(os.path.join(self.folder, self.root))

    def path_of(self, name: str) -> Place:
        """The path of a shard by its name in the manifest."""
        return path_below(self.root_folder, name)

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The columns of each split's file."""
        return column_types(self.fields, sizes=self.raster is not None, key=self.key is not None)

    def feature(self, name: str) -> str:
        """The name that a field has in the Examples."""
        return next(item.feature for item in self.fields if item.name == name)

    def column_names(self) -> list[str]:
        """The columns that `where` and `balance` may name."""
        sides = ["height", "width"] if self.raster else []
        return ["key", "shard", *sides, *(item.name for item in self.fields if item.column)]

    def index(self, split: str, columns: Sequence[str] | None) -> pa.Table:
        """The rows of one split in the order of the records, as `Dataset.index` returns them.

        Raises:
            DatasetError: The columns are damaged, or are those of another index.
        """
        types, label = self.types, self._label()
        names = [*dict.fromkeys([*_USUAL, *types])] if columns is None else list(columns)
        stored, rows = self._stored(split), self.manifest.splits[split].samples
        table: dict[str, Any] = {}
        for name in names:
            if name in types:
                table[name] = stored.table([name]).column(0)
            elif name == "key":
                files = [file.name for file in self.manifest.splits[split].files[0]]
                table[name] = keys_of(files, stored.table(["shard", "number"]))
            elif name == "label" and label:
                table[name] = stored.table([label]).column(0)
            elif name in ("split", "variant"):
                value = pa.scalar(split) if name == "split" else pa.scalar(0, pa.int16())
                table[name] = pa.repeat(value, rows)
        return pa.table(table)

    def _label(self) -> str:
        """The field that the column `label` stands for: the first label, as in a built dataset."""
        labels = [item.name for item in self.fields if item.spec.kind == "label" and item.column]
        return labels[0] if labels else ""

    def _stored(self, split: str) -> MappedColumns:
        if split not in self._columns:
            state, info = self.splits[split], self.manifest.splits[split]
            sizes = [file.bytes for file in info.files[0]]
            path = self.folder / state.columns
            self._columns[split] = MappedColumns(path, self.types, info.samples, state.crc32c, sizes)
        return self._columns[split]

    # --- whether the shards are as they were ----------------------------------------------------------------------------

    def check_files(self, split: str, *, sizes: bool = True) -> None:
        """Check that the shards of a split are there and are those that were indexed.

        A shard of another time of modification is compared by the checksums of some of its records: it may have been copied.

        Args:
            split: The split.
            sizes: Whether a shard that changed is an error.

        Raises:
            DatasetError: A shard is missing or has changed; the message names it and the command.
        """
        for number, (file, state) in enumerate(
            zip(self.manifest.splits[split].files[0], self.splits[split].shards, strict=True)
        ):
            path = self.path_of(file.name)
            now = current(path)
            if not sizes or (now.bytes, now.version) == (file.bytes, state.version):
                continue
            if now.bytes != file.bytes:
                raise self._changed(split, path, f"it holds {now.bytes:,} bytes, then it held {file.bytes:,}")
            self._compare_some(split, number, path)

    def _compare_some(self, split: str, shard: int, path: Place) -> None:
        table = self._stored(split).table(["shard", "offset", "size", "payload_crc"])
        shards = table.column("shard").to_numpy()
        first, last = np.searchsorted(shards, [shard, shard + 1])
        rows: Any = np.unique(np.linspace(first, last - 1, _SAMPLED).astype(np.int64)) if last > first else []
        with OpenShard(path) as opened:
            for row in rows:
                offset, size, crc = (
                    int(table.column(name)[int(row)].as_py()) for name in ("offset", "size", "payload_crc")
                )
                length = opened.bytes(offset, HEADER_BYTES)[:8]
                footer = opened.bytes(offset + size - FOOTER_BYTES, FOOTER_BYTES)
                if length != (size - HEADER_BYTES - FOOTER_BYTES).to_bytes(8, "little") or footer_crc(footer) != crc:
                    raise self._changed(split, path, f"the record at byte {offset:,} is another one")

    def _changed(self, split: str, path: Place, how: str) -> DatasetError:
        return DatasetError(
            f"{path} has changed since it was indexed: {how}. Index it again, which reads only what changed: "
            f"{self.splits[split].command}"
        )

    # --- the file ---------------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The text of `tfprep-index.json`, with its own checksum at the end."""
        return seal(
            {
                "index_version": VERSION,
                "root": self.root,
                "key": self.key,
                "raster": self.raster,
                "features": [_field_json(item) for item in self.fields],
                "left_out": [{"feature": item.feature, "reason": item.reason} for item in self.left_out],
                "splits": {name: _split_json(state) for name, state in self.splits.items()},
                "manifest": _manifest_json(self.manifest),
            }
        )


def read_external(folder: Place) -> ExternalIndex | None:
    """Read the index in a folder, or beside the shards in it; None where there is none.

    Raises:
        DatasetError: It is damaged, or was written by a newer tfprep.
    """
    for place in (folder, folder / BESIDE):
        path = place / DOCUMENT
        if is_remote(path) or path.is_file():
            try:
                with open_file(path) as file:
                    content = file.read(_MOST_BYTES + 1)
            except DatasetError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    continue
                raise
            return parse_external(content, place)
    return None


def parse_external(content: bytes, folder: Place) -> ExternalIndex:
    """Check the content of `tfprep-index.json` and return what it says."""
    path = folder / DOCUMENT
    raw = parse_json(content, path, _MOST_BYTES)
    version = raw.get("index_version") if isinstance(raw, dict) else None
    if version != VERSION or isinstance(version, bool):
        raise DatasetError(
            f"{path}: index version {str(version)[:20]}, this tfprep reads {VERSION}; upgrade tfprep, or index again"
        )
    if not is_sealed(content):
        raise DatasetError(f"{path} {NOT_SEALED}; run tfprep index again")
    try:
        return _external(raw, folder)
    except (DatasetError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(f"{path} is damaged ({str(error)[:200]}); run tfprep index again") from error


def _external(raw: Mapping[str, Any], folder: Place) -> ExternalIndex:
    manifest = checked_manifest(raw["manifest"])
    fields = tuple(_field_from(entry, manifest) for entry in raw["features"])
    if [item.name for item in fields] != list(manifest.fields) or raw["splits"].keys() != manifest.splits.keys():
        raise DatasetError("its features or its splits are not those of its manifest")
    splits = {name: _split_from(entry, manifest.splits[name].files[0]) for name, entry in raw["splits"].items()}
    left_out = tuple(LeftOut(str(entry["feature"]), str(entry["reason"])) for entry in raw["left_out"])
    names = {item.name for item in fields}
    key, raster = raw["key"], raw["raster"]
    if (key is not None and key not in names) or (raster is not None and not isinstance(raster, str)):
        raise DatasetError("its key is no field")
    return ExternalIndex(folder, str(raw["root"]), fields, left_out, splits, key, raster, manifest)


def _manifest_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest without what belongs to a built dataset alone."""
    document = asdict(manifest)
    del document["format_version"]
    for split in document["splits"].values():
        del split["rows_crc32c"]
    return document


def _field_json(item: IndexedField) -> dict[str, Any]:
    return {
        "name": item.name, "feature": item.feature, "column": item.column, "required": item.required, "note": item.note
    }  # fmt: skip


def _field_from(raw: Mapping[str, Any], manifest: Manifest) -> IndexedField:
    name = str(raw["name"])
    info = manifest.fields[name]
    classes = manifest.classes.get(name, ())
    column, required = raw["column"] is True, raw["required"] is True
    return IndexedField(name, str(raw["feature"]), info.spec, info.codec, column, required, classes, str(raw["note"]))


def _split_json(state: SplitState) -> dict[str, Any]:
    shards = [
        {"version": s.version, "records": s.records, "features": {n: f.to_json() for n, f in s.summaries.items()}}
        for s in state.shards
    ]
    return {"columns": state.columns, "command": state.command, "crc32c": dict(state.crc32c), "shards": shards}


def _split_from(raw: Mapping[str, Any], files: Sequence[FileInfo]) -> SplitState:
    columns = str(raw["columns"])
    if Path(columns).name != columns or columns in (".", ".."):
        raise DatasetError(f"the columns lie in the folder of the index, not at {columns[:100]!r}")
    shards = tuple(_shard_from(entry) for entry in raw["shards"])
    if len(shards) != len(files):
        raise DatasetError(f"it describes {len(shards)} shards, its manifest {len(files)}")
    crcs = {str(name): int(crc) for name, crc in raw["crc32c"].items()}
    return SplitState(columns, crcs, shards, str(raw["command"]))


def _shard_from(raw: Mapping[str, Any]) -> IndexedShard:
    summaries = {str(name): summary_from(entry) for name, entry in raw["features"].items()}
    return IndexedShard(str(raw["version"]), int(raw["records"]), summaries)
