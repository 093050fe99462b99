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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfprep import __version__
from tfprep.dataset.imported.declared import INFO_JSON, read_declared
from tfprep.dataset.imported.scan import (
    VALUE,
    LostRecord,
    Scanned,
    Summary,
    part_of,
    read_part,
    remove_parts,
    scan_shards,
)
from tfprep.dataset.imported.schema import IndexedField, decide_fields, sized_raster
from tfprep.dataset.imported.shards import Place, Shard, common_root, find_source, missing_shards, name_below, root_of
from tfprep.dataset.index import label_type, numpy_column, schema
from tfprep.dataset.locations import with_rows, write_rows
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
from tfprep.storage.urls import is_remote


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
    declared = read_declared(place, features)
    folder, skip = _index_folder(place, out), on_bad == "skip"
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
        receipts, scanned = scan_shards(shards, work, workers, on_bytes)
        _check_whole(named, receipts, skip=skip)
        root = common_root([shard.path for shard in shards])
        if not (records := sum(receipt.records for receipt in receipts.values())):
            raise DatasetError(f"{root}: the shards hold no record")
        summaries = dict[str, Summary]()
        for receipt in receipts.values():
            for feature, numbers in receipt.features.items():
                summaries.setdefault(feature, Summary()).add(numbers)
        fields, left_out = decide_fields(summaries, records, declared, skip=skip)
        if not fields:
            reasons = "; ".join(f"{feature}: {reason}" for feature, reason in left_out.items())
            raise DatasetError(f"no feature can be read ({reasons or 'the records have none'})")
        lost = set(old.fields if old else ()) - {field.name for field in fields}
        if lost and old is not None and old.rejected and not skip:
            raise DatasetError(
                f"{', '.join(sorted(lost))}: {old.rejected} records do not have them, which --on-bad skip left out; give it "
                "again, or write the files again with all features"
            )
        rows = _Rows(splits, receipts, work, root, fields, sized_raster(fields, summaries))
        manifest = _publish(new, old.name if old else name, rows, left_out, old)
        remove_parts(work, {part_of(shard, work) for shard in shards})
    return IndexReport(
        folder, manifest, tuple(fields), tuple(name_below(root, shard.path) for shard in scanned),
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
                f"{shard.path}, record {lost.record:,} at byte {lost.offset:,}: {lost.reason}. {other}{advice}"
            )
        if shard.records not in (None, found.records):
            raise DatasetError(
                f"{shard.path} holds {found.records:,} records, {INFO_JSON} says {shard.records:,}; copy the dataset again"
            )


# --- the version ----------------------------------------------------------------------------------------------------------


class _Rows:
    """The rows of the index, from the part files. While they are read they are counted: `rejected` records, and `counts`, the
    numbers of records by label, split and class (numbers of no class do not count)."""

    def __init__(
        self, splits: Mapping[str, Sequence[Shard]], receipts: Mapping[Shard, Scanned], work: Path, root: Place,
        fields: Sequence[IndexedField], raster: str | None,
    ) -> None:  # fmt: skip
        """Args: `work` is the folder of the part files; the index has the height and width of the feature `raster`."""
        self.splits, self.root, self.fields = splits, root, fields
        self._receipts, self._work, self._raster = receipts, work, raster
        self.infos = {field.name: FieldInfo(field.spec, dict(field.codec)) for field in fields}
        types = {name: info.spec.dtype for name, info in self.infos.items()}
        columns = {field.name: pa.type_for_alias(types[field.name]) for field in fields if field.column}
        self.schema = schema(list(self.infos), label_type(self.infos), columns)
        self._label = next((field.name for field in fields if field.spec.kind == "label"), None)
        self.rejected: list[dict[str, Any]] = []
        self.counts: dict[str, dict[str, Array]] = {
            field.name: {split: np.zeros(len(field.classes), np.int64) for split in splits}
            for field in fields
            if field.classes and field.column and field.spec.shape == ()
        }

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows of all splits."""
        shards = [(split, *place) for split, shards in self.splits.items() for place in enumerate(shards)]
        for split, number, shard in shards:
            name = name_below(self.root, shard.path)
            self._reject(split, name, self._receipts[shard].lost)
            for block in read_part(shard, self._work):
                places = {"split": [split] * len(block), "variant": [0] * len(block), "shard": [number] * len(block)}
                table, lost = self._table(block, name, places)
                self._reject(split, name, lost)
                for field, of_splits in self.counts.items():
                    values, counts = numpy_column(table[field]), of_splits[split]
                    counts += np.bincount(values[(values >= 0) & (values < len(counts))], minlength=len(counts))
                yield table

    def _reject(self, split: str, shard: str, records: Iterable[LostRecord]) -> None:
        self.rejected += [{"split": split, "shard": shard, **asdict(record)} for record in records]

    def _table(self, block: pa.Table, shard: str, columns: dict[str, Any]) -> tuple[pa.Table, list[LostRecord]]:
        """Return the rows of a block, and its records that lack a required feature, which have none."""
        numbers, lost = block["number"].to_pylist(), dict[int, LostRecord]()
        columns |= {name: block[name] for name in ("offset", "size", "payload_crc")}
        columns["key"] = [f"{shard}#{number}" for number in numbers]
        for side in ("height", "width"):
            columns[side] = _part(block, self._raster or "", side)
        for field in self.fields:
            columns |= _columns(block, field)
            for row in np.flatnonzero(numpy_column(columns[f"{field.name}_size"]) == 0) if field.required else ():
                reason = f"it has no {field.feature!r}"
                lost.setdefault(int(row), LostRecord(numbers[row], block["offset"][int(row)].as_py(), reason))
        if self._label is not None:
            columns["label"] = columns[self._label]
        table = pa.table({name: columns[name] for name in self.schema.names}).cast(self.schema)
        return table.take(np.setdiff1d(np.arange(len(block)), list(lost))) if lost else table, list(lost.values())


def _part(block: pa.Table, feature: str, part: str) -> pa.Array:
    """Return a part of a feature's values, null in records without it."""
    if f"/{feature}" not in block.column_names:
        return pa.nulls(len(block), VALUE[part])
    return pc.struct_field(block[f"/{feature}"].combine_chunks(), part)


def _columns(block: pa.Table, field: IndexedField) -> dict[str, pa.Array]:
    """Return where a field is, and its values; a missing or empty one begins with its record and has no bytes."""
    offset, size, last = (pc.fill_null(_part(block, field.feature, one), 0) for one in ("offset", "size", "value_size"))
    columns = {}
    if field.column:  # an empty list has no value
        columns[field.name] = pc.if_else(pc.greater(size, 0), _part(block, field.feature, field.spec.dtype), None)
    if field.codec["codec"] in ("encoded", "text", "raw"):  # one string, without its tag and length
        offset, size = pc.subtract(pc.add(offset, size), last), last
    first = pc.if_else(pc.greater(size, 0), offset, pc.add(block["offset"].combine_chunks(), HEADER_BYTES))
    return columns | {f"{field.name}_offset": first, f"{field.name}_size": size}


def _publish(new: NewVersion, name: str, rows: _Rows, left_out: Mapping[str, str], old: Manifest | None) -> Manifest:
    """Publish the dataset as the current version."""
    index, locations = new.file(INDEX), new.file(LOCATIONS)
    written = write_rows(index, locations, rows.infos, rows.schema, rows.tables())
    rejected = new.write(REJECTS, "".join(json.dumps(line) + "\n" for line in rows.rejected))
    splits = {}
    for split, shards in rows.splits.items():
        records = [written.get((split, 0, number), (0, 0))[0] for number in range(len(shards))]
        if not sum(records):
            reason = next((line["reason"] for line in rows.rejected if line["split"] == split), "there is none")
            raise DatasetError(f"no record of the split {split!r} can be read: {reason}")
        files = tuple(
            FileInfo(name_below(rows.root, one.path), n, one.bytes) for one, n in zip(shards, records, strict=True)
        )
        splits[split] = SplitInfo(sum(records), (files,))
    is_inside = not is_remote(rows.root) and new.root.is_relative_to(rows.root)  # both can then be moved together
    imported = Imported(
        root=os.path.relpath(rows.root, version_folder(new.root, 1)) if is_inside else str(rows.root),
        features={field.name: field.feature for field in rows.fields},
        left_out=left_out,
        versions={split: tuple(shard.version for shard in shards) for split, shards in rows.splits.items()},
        fixed=tuple(field.name for field in rows.fields if field.fixed),
    )
    manifest = Manifest(
        name=name,
        fingerprint="",
        recipe={"row_fields": {field.name: list(field.rows) for field in rows.fields if field.rows is not None}},
        fields=rows.infos,
        splits=splits,
        classes={field.name: field.classes for field in rows.fields if field.classes},
        class_counts={
            label: {split: tuple(counts.tolist()) for split, counts in of_splits.items()}
            for label, of_splits in rows.counts.items()
        },
        versions={"tfprep": __version__},
        rejected=len(rows.rejected),
        imported=imported,
    )
    manifest = with_rows(manifest, written, index, locations)
    digests = {**manifest.files, REJECTS: digest_of(rejected)}
    names = [[file.name, file.bytes] for file in manifest.shard_files()]
    identity = hashlib.sha256(json.dumps([digests[LOCATIONS].sha256, names]).encode()).hexdigest()
    manifest = replace(manifest, files=digests, fingerprint=identity, added=kept_fields(old, manifest))
    new.take_added(old.groups if old else {}, manifest.groups)
    new.complete(manifest)
    new.publish()
    return manifest
