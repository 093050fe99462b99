"""`tfprep index`: from a pattern, or a directory of TensorFlow Datasets, to a dataset that refers to its records.

    list the shards -> scan those without a receipt, in processes -> decide the fields from all summaries
      -> write the files of a version, from the part files

Part files stay in `.tfprep`: the same command again reads only shards that are new or have changed, and one that was stopped
continues. Nothing that readers use changes before the last step.

The files are those of a built dataset. The index has the values of single numbers and short strings besides, each in a column of
the field's own name, and no digests of sources, which nobody knows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfprep import __version__
from tfprep.dataset.imported.declared import FEATURES_JSON, INFO_JSON, Declared, is_of_tfds, read_declared
from tfprep.dataset.imported.scan import (
    LostRecord,
    Scanned,
    find_receipt,
    part_of,
    read_part,
    remove_parts,
    scan_shards,
    summarize,
)
from tfprep.dataset.imported.schema import IndexedField, decide_fields, sized_raster
from tfprep.dataset.imported.shards import Place, Shard, common_root, find_source, missing_shards, name_below, root_of
from tfprep.dataset.index import joined_tables, label_type, numpy_column, schema, write_index
from tfprep.dataset.locations import write_locations
from tfprep.dataset.manifest import (
    FieldInfo,
    FileInfo,
    Imported,
    Manifest,
    SplitInfo,
    digest_of,
    kept_fields,
    read_manifest,
)
from tfprep.dataset.names import BESIDE, INDEX, LOCATIONS, MANIFEST, PRIVATE, REJECTS
from tfprep.dataset.versions import NewVersion, version_folder
from tfprep.errors import DatasetError
from tfprep.fields import Array
from tfprep.records.framing import HEADER_BYTES
from tfprep.storage.local import writing
from tfprep.storage.urls import is_remote, names_in


@dataclass(frozen=True)
class IndexReport:
    """Result of `index_tfrecords`.

    Attributes:
        out: The folder of the dataset.
        manifest: What the dataset is.
        fields: Its fields, with what a user should know about them.
        scanned: The names of the shards that were read.
        bytes: Their bytes.
        changed: The fields whose shape or type changed since the last time, in words.
        missing: The names of shards that the names of others speak of (`x-00000-of-00004`), and that were not given.
    """

    out: Path
    manifest: Manifest
    fields: tuple[IndexedField, ...]
    scanned: tuple[str, ...]
    bytes: int
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def index_tfrecords(
    source: str | os.PathLike[str],
    split: str | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    features: str | os.PathLike[str] | None = None,
    on_bad: Literal["raise", "skip"] = "raise",
    workers: int | None = None,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> IndexReport:
    """Index TFRecords that tfprep did not write, so that `tfprep.open` opens them as a dataset. Nothing is copied.

    Every record is read once. The same call again reads only the shards that are new or have changed.

    Args:
        source: A path or URL with wildcards, or a directory of TensorFlow Datasets, which names all splits.
        split: The split that the shards are of; for a directory of TensorFlow Datasets the only one that is indexed.
        out: The folder of the dataset; None for `tfprep-index` beside the shards.
        features: A JSON file that describes features (see `tfprep.dataset.imported.declared`), also some of those that a
            `features.json` of TensorFlow Datasets beside the shards describes; None for a `features.json` there only.
        on_bad: "raise" at the first record that cannot be part of a dataset, or "skip": leave them out and list them.
        workers: The number of processes; None for one per usable CPU, 0 for this process only.
        on_bytes: Called with the number of bytes that were read, and of all that are.

    Returns:
        What was done.

    Raises:
        DatasetError: A shard is not a TFRecord file, holds no Examples, is compressed as a whole or damaged.
        BuildLockedError: Another process writes this dataset.
    """
    if on_bad not in ("raise", "skip"):
        raise DatasetError(f"on_bad is 'raise' or 'skip', not {on_bad!r}")
    if workers is not None and workers < 0:
        raise DatasetError(f"workers is at least 0, not {workers}")
    name, place, listed = find_source(os.fspath(source), split)
    files = [] if features is None else [Path(features)]
    beside = place / FEATURES_JSON
    if FEATURES_JSON in names_in(place) and (not files or is_of_tfds(beside)):
        files = [beside, *files]  # what the user declares takes the place of what is declared there
    declared = {name: entry for path in files for name, entry in read_declared(path).items()}
    folder = _index_folder(place, out)
    work = folder / PRIVATE
    with NewVersion(folder) as new:
        old = None if new.before is None else read_manifest(new.before.path)
        if old is not None and old.imported is None:
            raise DatasetError(f"{folder} holds a dataset that tfprep built; choose another folder for the index")
        splits = {**_earlier_splits(folder, old), **listed}
        shards, named = ([shard for group in groups.values() for shard in group] for groups in (splits, listed))
        if twice := [path for path, count in Counter(shard.path for shard in shards).items() if count > 1]:
            raise DatasetError(
                f"{twice[0]} is in two splits of {folder}: index the other one again without it first, or choose another folder"
            )
        receipts, scanned = _receipts(shards, work, workers, on_bytes)
        _check_whole(named, receipts, skip=on_bad == "skip")
        content = _Content(old.name if old else name, splits, receipts, work, declared, skip=on_bad == "skip")
        lost = set(old.fields if old else ()) - content.infos.keys()
        if lost and old is not None and old.rejected and on_bad == "raise":
            raise DatasetError(
                f"{', '.join(sorted(lost))}: {old.rejected} records do not have them, which --on-bad skip left out; give it "
                "again, or write the files again with all features"
            )
        manifest = _publish(new, content, old)
        remove_parts(work, {part_of(shard, work) for shard in shards})
    return IndexReport(
        folder, manifest, tuple(content.fields), tuple(name_below(content.root, shard.path) for shard in scanned),
        sum(shard.bytes for shard in scanned), tuple(_changes(old, manifest)),
        tuple(missing_shards(shard.path for shard in named)),
    )  # fmt: skip


def _index_folder(beside: Place, out: str | os.PathLike[str] | None) -> Path:
    if out is not None and "://" in os.fspath(out):
        raise DatasetError(f"an index is written to a local folder, not to {os.fspath(out)}")
    if out is None and is_remote(beside):
        raise DatasetError(f"the shards are at {beside}; name a local folder for the index with --out")
    folder = Path(os.path.abspath(beside / BESIDE if out is None else out))
    if (folder / MANIFEST).is_file():
        raise DatasetError(f"{folder} is a version of a dataset; choose another folder for the index")
    return folder


def _changes(old: Manifest | None, new: Manifest) -> Iterator[str]:
    """Yield the fields that are not as before, in words."""
    if old is None:
        return
    yield from (f"{name} is new" for name in new.fields if name not in old.fields)
    yield from (f"{name} is not a field any more" for name in old.fields if name not in new.fields)
    for name in (name for name in new.fields if name in old.fields):
        if (was := f"{old.fields[name]}") != (now := f"{new.fields[name]}"):
            yield f"{name} was {was}, it is {now}"
        if old.classes.get(name) != new.classes.get(name):
            yield f"{name} has other class names, or none any more (--features names them)"
    for group in old.groups.keys() - new.groups.keys():
        yield f"the added fields {group!r} are gone, because shards changed: run tfprep fields add again"


# --- what is in the shards ------------------------------------------------------------------------------------------------


def _earlier_splits(folder: Path, old: Manifest | None) -> dict[str, list[Shard]]:
    """Return the splits that are indexed already, with their shards as they were then; they may be gone, if receipts are left."""
    if old is None or old.imported is None:
        return {}
    root = root_of(version_folder(folder, 1), old)
    root = root if is_remote(root) else Path(os.path.abspath(root))  # links are not resolved: shards keep their names
    return {
        split: [
            Shard(root / unquote(file.name), file.bytes, version)
            for file, version in zip(info.files[0], old.imported.versions[split], strict=True)
        ]
        for split, info in old.splits.items()
    }


def _receipts(
    shards: Sequence[Shard], work: Path, workers: int | None, on_bytes: Callable[[int, int], None]
) -> tuple[dict[Shard, Scanned], list[Shard]]:
    """Return what was found in the shards, and those that were scanned for it."""
    found = {shard: find_receipt(shard, work) for shard in shards}
    due = [shard for shard, receipt in found.items() if receipt is None]
    total, left = sum(shard.bytes for shard in found), sum(shard.bytes for shard in due)
    on_bytes(total - left, total)
    receipts = {shard: receipt for shard, receipt in found.items() if receipt is not None}
    return receipts | scan_shards(due, work, workers, lambda done: on_bytes(total - left + done, total)), due


def _check_whole(shards: Sequence[Shard], receipts: Mapping[Shard, Scanned], *, skip: bool) -> None:
    """Raise DatasetError for damage, with what to do, and for other numbers of records than `dataset_info.json` has.

    `skip`: damage is listed, but for records that are missing without a trace.
    """
    advice = "Write the file again, or leave such records out with --on-bad skip, which lists them"
    for shard in shards:
        found = receipts[shard]
        if found.lost and skip:
            continue
        if found.lost:
            lost, other = found.lost[0], ""
            if not found.end:
                other = "If it is not a TFRecord file, give a pattern that leaves it out. If it is compressed as a whole (GZIP, "
                other += (
                    "ZLIB), index copies without compression: `gzip -dc < FILE` writes them (`pigz -dc` for ZLIB). "
                )
            raise DatasetError(
                f"{shard.path}, record {lost.number:,} at byte {lost.offset:,}: {lost.reason}. {other}{advice}"
            )
        if shard.records not in (None, found.records):
            raise DatasetError(
                f"{shard.path} holds {found.records:,} records, {INFO_JSON} says {shard.records:,}; copy the dataset again"
            )


# --- the version ----------------------------------------------------------------------------------------------------------


class _Content:
    """The fields of a dataset, and its rows, which are read from the part files.

    `tables` counts: `records` by split and shard, `rejected` records, and `counts`, the numbers of records by label, split and
    class (numbers of no class do not count).
    """

    def __init__(
        self, name: str, splits: Mapping[str, Sequence[Shard]], receipts: Mapping[Shard, Scanned], work: Path,
        declared: Mapping[str, Declared], *, skip: bool,
    ) -> None:  # fmt: skip
        """Decide from what was found in all shards which features become fields; `work` is the folder of the part files."""
        self.name, self.splits, self._receipts, self._work = name, splits, receipts, work
        shards = [shard for group in splits.values() for shard in group]
        self.root: Place = common_root([shard.path for shard in shards])
        if not (records := sum(receipts[shard].records for shard in shards)):
            raise DatasetError(f"{self.root}: the shards hold no record")
        summaries = summarize(shards, work)
        self.fields, self.left_out = decide_fields(summaries, records, declared, skip=skip)
        if not self.fields:
            reasons = "; ".join(f"{feature}: {reason}" for feature, reason in self.left_out.items())
            raise DatasetError(f"no feature can be read ({reasons or 'the records have none'})")
        self.infos = {field.name: FieldInfo(field.spec, dict(field.codec)) for field in self.fields}
        columns = {
            field.name: pa.string() if field.spec.dtype == "string" else pa.from_numpy_dtype(field.spec.dtype)
            for field in self.fields
            if field.column
        }
        self.schema = schema(list(self.infos), label_type(self.infos), columns)
        self._label = next((field.name for field in self.fields if field.spec.kind == "label"), None)
        self._raster = sized_raster(self.fields, summaries)  # its height and width are the index's
        self.records: dict[str, list[int]] = {split: [] for split in splits}
        self.rejected: list[dict[str, Any]] = []
        self.counts: dict[str, dict[str, Array]] = {
            field.name: {split: np.zeros(len(field.classes), np.int64) for split in splits}
            for field in self.fields
            if field.classes and field.column and field.spec.shape == ()
        }

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows of all splits."""
        for split in self.splits:
            yield from joined_tables(self._tables(split))
            if not sum(self.records[split]):
                reason = next((line["reason"] for line in self.rejected if line["split"] == split), "there is none")
                raise DatasetError(f"no record of the split {split!r} can be read: {reason}")

    def _tables(self, split: str) -> Iterator[pa.Table]:
        for number, shard in enumerate(self.splits[split]):
            name, records = name_below(self.root, shard.path), 0
            self._reject(split, name, self._receipts[shard].lost)
            for block, features in read_part(shard, self._work):
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
        raster = _of_feature(features, self._raster or "", count)
        for side in ("height", "width"):
            columns[side] = pc.if_else(pc.equal(raster[side], 0), None, raster[side])
        if self._label is not None:
            columns["label"] = columns[self._label]
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


def _publish(new: NewVersion, content: _Content, old: Manifest | None) -> Manifest:
    """Publish the dataset as the current version."""
    index, locations = new.file(INDEX), new.file(LOCATIONS)
    with writing(index):
        write_index(index, content.schema, content.tables())
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


def _manifest(folder: Path, content: _Content) -> Manifest:
    root, fields = content.root, content.fields
    rows = {field.name: list(field.rows) for field in fields if field.rows is not None}
    splits = {}
    for split, shards in content.splits.items():
        pairs = zip(shards, content.records[split], strict=True)
        files = tuple(FileInfo(name_below(root, shard.path), records, shard.bytes) for shard, records in pairs)
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
            versions={split: tuple(shard.version for shard in shards) for split, shards in content.splits.items()},
            fixed=tuple(field.name for field in fields if field.fixed),
        ),
    )
