"""From the part files of shards to the files of a version: `index.parquet`, `locations.bin` and `rejects.jsonl`.

They are those of a built dataset. The index has the values of single numbers and short strings besides, each in a column of the
field's own name, and no digests of sources, which nobody knows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfprep import __version__
from tfprep.dataset.imported.scan import FRAME, LostRecord, Scanned, read_part
from tfprep.dataset.imported.schema import IndexedField
from tfprep.dataset.imported.shards import Place, Shard, common_root, name_below
from tfprep.dataset.index import joined_tables, label_type, schema, write_index
from tfprep.dataset.locations import write_locations
from tfprep.dataset.manifest import FieldInfo, FileInfo, Imported, Manifest, SplitInfo, digest_of, kept_fields
from tfprep.dataset.names import INDEX, LOCATIONS, PRIVATE, REJECTS
from tfprep.dataset.versions import NewVersion, version_folder
from tfprep.errors import DatasetError
from tfprep.fields import Array
from tfprep.records.framing import HEADER_BYTES
from tfprep.storage.local import writing
from tfprep.storage.urls import is_remote

NO_FEATURE = -2
Groups = Mapping[str, Sequence[tuple[Shard, Scanned]]]
"""The shards of each split, with what was found in them."""


@dataclass
class Content:
    """Content of a dataset that is to be written.

    Attributes:
        name: The dataset's name.
        groups: The shards by split.
        fields: The fields.
        left_out: The features that are not fields, and why.
        raster: The feature whose height and width are the index's; None if there is none.
        records, rejected, counts: Numbers of records by split and shard, bad records, and numbers of records by label, split and
            class (numbers of no class do not count), which `tables` counts.
    """

    name: str
    groups: Groups
    fields: Sequence[IndexedField]
    left_out: Mapping[str, str]
    raster: str | None

    def __post_init__(self) -> None:
        self.root: Place = common_root([shard.path for group in self.groups.values() for shard, _ in group])
        columns = {
            field.name: pa.string() if field.spec.dtype == "string" else pa.from_numpy_dtype(field.spec.dtype)
            for field in self.fields
            if field.column
        }
        self.infos = {field.name: FieldInfo(field.spec, dict(field.codec)) for field in self.fields}
        self.label = next((field.name for field in self.fields if field.spec.kind == "label"), None)
        self.schema = schema(list(self.infos), label_type(self.infos), columns)
        self.records: dict[str, list[int]] = {split: [] for split in self.groups}
        self.rejected: list[dict[str, Any]] = []
        self.counts: dict[str, dict[str, Array]] = {
            field.name: {split: np.zeros(len(field.classes), np.int64) for split in self.groups}
            for field in self.fields
            if field.classes and field.column and field.spec.shape == ()
        }

    def tables(self, folder: Path) -> Iterator[pa.Table]:
        """Yield the rows of all splits; `folder` is that of the part files."""
        for split, group in self.groups.items():
            yield from joined_tables(self._tables(folder, split, group))
            if not sum(self.records[split]):
                reason = next((line["reason"] for line in self.rejected if line["split"] == split), "there is none")
                raise DatasetError(f"no record of the split {split!r} can be read: {reason}")

    def _tables(self, folder: Path, split: str, group: Sequence[tuple[Shard, Scanned]]) -> Iterator[pa.Table]:
        for number, (shard, scanned) in enumerate(group):
            name, records, bad = name_below(self.root, shard.path), 0, list(scanned.bad)
            if scanned.fault:
                reason = f"{scanned.fault}; what follows is left out"
                bad.append(LostRecord(scanned.records + len(bad), scanned.end, reason))
            self._reject(split, name, bad)
            numbers = {feature: number for number, feature in enumerate(scanned.summaries)}
            for batch in read_part(shard, folder):
                table = self._table(_Block(batch, numbers), split, number, name)
                records += len(table)
                yield table
            self.records[split].append(records)

    def _reject(self, split: str, shard: str, records: Iterable[LostRecord]) -> None:
        for one in records:
            line = {"split": split, "shard": shard, "record": one.number, "offset": one.offset, "reason": one.reason}
            self.rejected.append(line)

    def _table(self, block: _Block, split: str, shard: int, shard_name: str) -> pa.Table:
        """Return the rows of a block; records that miss a required feature are left out."""
        for field in self.fields:
            if field.required:
                self._reject(split, shard_name, block.leave_out_without(field.feature))
        columns: dict[str, Any] = {name: block.numbers(None, name) for name in ("offset", "size")}
        columns["payload_crc"] = block.numbers(None, "value")
        columns["key"] = [f"{shard_name}#{number}" for number in block.numbers(None, "count").tolist()]
        of_shard = {"split": split, "variant": 0, "shard": shard}
        columns |= {name: [value] * len(columns["key"]) for name, value in of_shard.items()}
        for field in self.fields:
            columns |= block.columns(field)
        for side in ("height", "width"):
            pixels = block.numbers(self.raster or "", side)
            columns[side] = pa.array(pixels, mask=pixels == 0)
        if self.label is not None:
            columns["label"] = columns[self.label]
        for name, of_splits in self.counts.items():
            values, counts = columns[name].to_numpy(), of_splits[split]
            counts += np.bincount(values[(values >= 0) & (values < len(counts))], minlength=len(counts))
        arrays = [one if isinstance(one, pa.Array) else pa.array(one) for one in map(columns.get, self.schema.names)]
        return pa.table(
            [one.cast(kind) for one, kind in zip(arrays, self.schema.types, strict=True)], schema=self.schema
        )


class _Block:
    """The records of one batch of a part file. `numbers`: the numbers of its features, by name."""

    def __init__(self, batch: pa.RecordBatch, numbers: Mapping[str, int]) -> None:
        self._batch, self._numbers = batch, numbers
        self._record, self._feature = (batch.column(name).to_numpy() for name in ("record", "feature"))
        self._records = int(np.count_nonzero(self._feature == FRAME))
        self._kept = np.arange(self._records)

    def feature(self, number: int, column: str) -> pa.Array:
        """Return a column of the rows of a feature, or of the frames; null for a record that does not have it."""
        found = np.flatnonzero(self._feature == number)
        row_of_record = np.full(self._records, -1)
        row_of_record[self._record[found]] = found
        rows = row_of_record[self._kept]
        return self._batch.column(column).take(pa.array(rows, mask=rows < 0))

    def numbers(self, feature: str | None, column: str) -> Array:
        """Return a column of numbers of the rows of a feature, or of the frames (None); 0 for a record that does not have it."""
        number = FRAME if feature is None else self._numbers.get(feature, NO_FEATURE)
        values: Array = pc.fill_null(self.feature(number, column), 0).to_numpy()
        return values

    def leave_out_without(self, feature: str) -> Iterator[LostRecord]:
        """Leave out the records that do not have a feature, and yield them."""
        has = self.numbers(feature, "size") > 0  # an empty string has a tag and a length
        lost = zip(*(self.numbers(None, name)[~has].tolist() for name in ("count", "offset")), strict=True)
        self._kept = self._kept[has]
        return (LostRecord(number, offset, f"it has no {feature!r}") for number, offset in lost)

    def columns(self, field: IndexedField) -> dict[str, Any]:
        """Return where a field is, and its values; a missing or empty one begins with its record and has no bytes."""
        offset, size = (self.numbers(field.feature, name) for name in ("offset", "size"))
        columns: dict[str, Any] = {}
        if field.column:
            number = self._numbers.get(field.feature, NO_FEATURE)
            values = self.feature(number, "text" if field.spec.dtype == "string" else "value")
            if field.spec.dtype == "float32":
                bits = pc.fill_null(values, 0).to_numpy().astype(np.uint32)
                values = pa.array(bits.view(np.float32))
            columns[field.name] = pc.if_else(pa.array(size > 0), values, None)
        if field.codec["codec"] in ("encoded", "text", "raw"):  # one string, without its tag and length
            value_size = np.where(size > 0, self.numbers(field.feature, "value_size"), 0)
            offset, size = offset + size - value_size, value_size
        first = np.where(size > 0, offset, self.numbers(None, "offset") + HEADER_BYTES)
        return columns | {f"{field.name}_offset": first, f"{field.name}_size": size}


def write_imported(new: NewVersion, content: Content, old: Manifest | None) -> Manifest:
    """Publish the dataset as the current version.

    Raises:
        DatasetError: No record of a split can be read.
        BuildError: The folder cannot be written to.
    """
    index, locations = new.file(INDEX), new.file(LOCATIONS)
    with writing(index):
        write_index(index, content.schema, content.tables(new.root / PRIVATE))
    rejected = new.write(REJECTS, "".join(json.dumps(line) + "\n" for line in content.rejected))
    manifest = write_locations(locations, index, _manifest(new.root, content))
    files = {path.name: digest_of(path) for path in (index, locations, rejected)}
    names = [[file.name, file.bytes] for info in manifest.splits.values() for file in info.files[0]]
    identity = json.dumps([files[LOCATIONS].sha256, names])
    manifest = replace(manifest, files=files, fingerprint=hashlib.sha256(identity.encode()).hexdigest())
    manifest = replace(manifest, added=kept_fields(old, manifest))
    for entry in manifest.groups.values():
        new.add_folder(entry.folder)
    new.publish(manifest)
    return manifest


def _manifest(folder: Path, content: Content) -> Manifest:
    root, fields = content.root, content.fields
    splits = {}
    for split, group in content.groups.items():
        pairs = zip(group, content.records[split], strict=True)
        files = tuple(FileInfo(name_below(root, shard.path), records, shard.bytes) for (shard, _), records in pairs)
        splits[split] = SplitInfo(sum(content.records[split]), (files,))
    is_inside = not is_remote(root) and folder.is_relative_to(root)  # both can then be moved together
    return Manifest(
        name=content.name,
        fingerprint="",
        recipe={"row_fields": {field.name: list(field.rows) for field in fields if field.spec.kind == "boxes"}},
        fields=content.infos,
        splits=splits,
        classes={field.name: field.classes for field in fields if field.classes},
        class_counts={
            name: {split: tuple(counts.tolist()) for split, counts in of_splits.items()}
            for name, of_splits in content.counts.items()
        },
        versions={"tfprep": __version__},
        rejected=len(content.rejected),
        imported=Imported(
            root=os.path.relpath(root, version_folder(folder, 1)) if is_inside else str(root),
            features={field.name: field.feature for field in fields},
            left_out=dict(content.left_out),
            versions={split: tuple(shard.version for shard, _ in group) for split, group in content.groups.items()},
            fixed=tuple(field.name for field in fields if field.fixed),
        ),
    )
