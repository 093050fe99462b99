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
from tfprep.dataset.imported.scan import LostRecord, Scanned, read_part
from tfprep.dataset.imported.schema import IndexedField
from tfprep.dataset.imported.shards import Place, Shard, common_root, name_below
from tfprep.dataset.index import joined_tables, label_type, numpy_column, schema, write_index
from tfprep.dataset.locations import write_locations
from tfprep.dataset.manifest import FieldInfo, FileInfo, Imported, Manifest, SplitInfo, digest_of, kept_fields
from tfprep.dataset.names import INDEX, LOCATIONS, PRIVATE, REJECTS
from tfprep.dataset.versions import NewVersion, version_folder
from tfprep.errors import DatasetError
from tfprep.fields import Array
from tfprep.records.framing import HEADER_BYTES
from tfprep.storage.local import writing
from tfprep.storage.urls import is_remote

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
            name, records = name_below(self.root, shard.path), 0
            self._reject(split, name, scanned.lost)
            for block, features in read_part(shard, folder):
                table, lost = self._table(block, features, split, number, name)
                self._reject(split, name, lost)
                records += len(table)
                yield table
            self.records[split].append(records)

    def _reject(self, split: str, shard: str, records: Iterable[LostRecord]) -> None:
        for record in records:
            line = {"split": split, "shard": shard, "record": record.number, "offset": record.offset}
            self.rejected.append({**line, "reason": record.reason})

    def _table(
        self, block: pa.Table, features: pa.Table, split: str, shard: int, shard_name: str
    ) -> tuple[pa.Table, list[LostRecord]]:
        """Return the rows of a block, and its records that lack a required feature, which have none."""
        count, lost = len(block), dict[int, LostRecord]()
        columns: dict[str, Any] = {name: block[name] for name in ("offset", "size", "payload_crc")}
        columns["key"] = [f"{shard_name}#{number}" for number in block["number"].to_pylist()]
        columns |= {"split": [split] * count, "variant": [0] * count, "shard": [shard] * count}
        for field in self.fields:
            rows = _of_feature(features, field.feature, count)
            columns |= _columns(block, rows, field)
            for row in np.flatnonzero(numpy_column(rows["size"].fill_null(0)) == 0) if field.required else ():
                number, offset = (block[name][int(row)].as_py() for name in ("number", "offset"))
                lost.setdefault(int(row), LostRecord(number, offset, f"it has no {field.feature!r}"))
        raster = _of_feature(features, self.raster or "", count)
        for side in ("height", "width"):
            columns[side] = pc.if_else(pc.equal(raster[side], 0), None, raster[side])
        if self.label is not None:
            columns["label"] = columns[self.label]
        table = pa.table({name: columns[name] for name in self.schema.names}).cast(self.schema)
        if lost:
            table = table.take(np.setdiff1d(np.arange(count), list(lost)))
        for name, of_splits in self.counts.items():
            values, counts = numpy_column(table[name]), of_splits[split]
            counts += np.bincount(values[(values >= 0) & (values < len(counts))], minlength=len(counts))
        return table, list(lost.values())


def _of_feature(features: pa.Table, name: str, records: int) -> pa.Table:
    """Return the row of a feature for each record of a block, null for one that does not have it."""
    rows = features.filter(pc.equal(features["feature"], name))
    places = np.full(records, -1)
    places[numpy_column(rows["record"])] = np.arange(len(rows))
    return rows.take(pa.array(places, mask=places < 0))


def _columns(block: pa.Table, rows: pa.Table, field: IndexedField) -> dict[str, pa.Array]:
    """Return where a field is, and its values; a missing or empty one begins with its record and has no bytes."""
    size = pc.fill_null(rows["size"], 0)  # an empty string has a tag and a length
    has, offset, columns = pc.greater(size, 0), rows["offset"], {}
    if field.column:
        columns[field.name] = pc.if_else(has, rows[field.spec.dtype], None)
    if field.codec["codec"] in ("encoded", "text", "raw"):  # one string, without its tag and length
        value_size = pc.if_else(has, rows["value_size"], 0)
        offset, size = pc.subtract(pc.add(offset, size), value_size), value_size
        has = pc.greater(size, 0)
    first = pc.if_else(has, offset, pc.add(block["offset"], HEADER_BYTES))
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
    new.take_added(old.groups if old else {}, manifest.groups)
    new.complete(manifest)
    new.publish()
    return manifest


def _manifest(folder: Path, content: Content) -> Manifest:
    root, fields = content.root, content.fields
    rows = {field.name: list(field.rows) for field in fields if field.rows is not None}
    splits = {}
    for split, group in content.groups.items():
        pairs = zip(group, content.records[split], strict=True)
        files = tuple(FileInfo(name_below(root, shard.path), records, shard.bytes) for (shard, _), records in pairs)
        splits[split] = SplitInfo(sum(content.records[split]), (files,))
    is_inside = not is_remote(root) and folder.is_relative_to(root)  # both can then be moved together
    return Manifest(
        name=content.name,
        fingerprint="",
        recipe={"row_fields": rows},
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
