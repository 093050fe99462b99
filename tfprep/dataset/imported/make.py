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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfprep import __version__
from tfprep.dataset import FieldInfo, FileInfo, Manifest, SplitInfo, read_manifest
from tfprep.dataset.imported.declared import INFO_JSON, read_declared
from tfprep.dataset.imported.scan import VALUE, LostRecord, Scanned, Summary, read_part, scan_shards
from tfprep.dataset.imported.schema import IndexedField, decide_fields, sized_raster
from tfprep.dataset.imported.shards import Shard, common_root, find_source, missing_shards, name_below, root_of
from tfprep.dataset.index import label_type, numpy_column, schema
from tfprep.dataset.locations import with_rows, write_rows
from tfprep.dataset.manifest import Imported, digest_of, kept_fields, matches
from tfprep.dataset.names import BESIDE, INDEX, LOCATIONS, PRIVATE, REJECTS
from tfprep.dataset.versions import NewVersion, version_folder
from tfprep.errors import DatasetError
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
        changed: The fields whose shape or type changed since the last time, and the splits that became smaller, in words.
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
    if out is not None and "://" in os.fspath(out):
        raise DatasetError(f"an index is written to a local folder, not to {os.fspath(out)}")
    if out is None and is_remote(place):
        raise DatasetError(f"the shards are at {place}; name a local folder for the index with --out")
    folder, skip = Path(os.path.abspath(place / BESIDE if out is None else out)), on_bad == "skip"
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
            reason = next((f"; {lost.reason}" for receipt in receipts.values() for lost in receipt.lost), "")
            raise DatasetError(f"{root}: the shards hold no record that can be read{reason}")
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
        raster = sized_raster(fields, summaries) or ""
        manifest = _publish(new, old.name if old else name, splits, receipts, fields, raster, left_out, old)
    return IndexReport(
        folder, manifest, tuple(fields), tuple(name_below(root, shard.path) for shard in scanned),
        sum(shard.bytes for shard in scanned), tuple(_changes(old, manifest)),
        tuple(missing_shards(shard.path for shard in named)),
    )  # fmt: skip


def _changes(old: Manifest | None, new: Manifest) -> Iterator[str]:
    """Yield the fields that are not as before, and the splits that became smaller, in words."""
    if old is None:
        return
    for name, split in old.splits.items():
        if split.samples > (left := new.splits[name].samples):
            yield f"{name} had {split.samples:,} samples, it has {left:,}: those of the last pattern that was given for it"
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
            Shard(root / unquote(file.name, errors="surrogateescape"), file.bytes, version)
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


def _table(
    block: pa.Table, fields: Sequence[IndexedField], raster: str, schema: pa.Schema, columns: dict[str, Any], shard: str
) -> tuple[pa.Table, list[LostRecord]]:
    """Return the rows of a block, with these columns, and its records that lack a required feature, which have no row."""
    numbers, lost = block["number"].to_pylist(), dict[int, LostRecord]()
    columns |= {name: block[name] for name in ("offset", "size", "payload_crc")}
    columns["key"] = [f"{shard}#{number}" for number in numbers]
    columns |= {side: _part(block, raster, side) for side in ("height", "width")}
    for field in fields:
        columns |= _columns(block, field)
        list_bytes = pc.fill_null(_part(block, field.feature, "size"), 0)  # of an empty string not 0: it is a bad value
        for row in np.flatnonzero(numpy_column(list_bytes) == 0) if field.required else ():
            reason = f"it has no {field.feature!r}"
            lost.setdefault(int(row), LostRecord(numbers[row], block["offset"][int(row)].as_py(), reason))
    if label := next((field.name for field in fields if field.spec.kind == "label"), ""):
        columns["label"] = columns[label]
    table = pa.table({name: columns[name] for name in schema.names}).cast(schema)
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


def _publish(
    new: NewVersion, name: str, splits: Mapping[str, Sequence[Shard]], receipts: Mapping[Shard, Scanned],
    fields: Sequence[IndexedField], raster: str, left_out: Mapping[str, str], old: Manifest | None,
) -> Manifest:  # fmt: skip
    """Publish the dataset, unless the current version is the same; the index has the height and width of `raster`."""
    root = common_root([shard.path for shard in receipts])
    infos = {field.name: FieldInfo(field.spec, dict(field.codec)) for field in fields}
    values = {field.name: pa.type_for_alias(field.spec.dtype) for field in fields if field.column}
    columns = schema(list(infos), label_type(infos), values)
    lines: list[dict[str, Any]] = []
    classes = {field.name: field.classes for field in fields if field.classes}
    counts = {  # of class numbers; others do not count
        field: {split: np.zeros(len(classes[field]), np.int64) for split in splits}
        for field in classes
        if field in values and infos[field].spec.shape == ()
    }

    def tables() -> Iterator[pa.Table]:
        for split, number, shard in ((split, *one) for split, shards in splits.items() for one in enumerate(shards)):
            place = {"split": split, "shard": name_below(root, shard.path)}
            lines.extend({**place, **asdict(lost)} for lost in receipts[shard].lost)
            for block in read_part(shard, new.root / PRIVATE):
                same = {"split": split, "variant": 0, "shard": number}
                own = {column: [value] * len(block) for column, value in same.items()}
                table, without = _table(block, fields, raster, columns, own, place["shard"])
                lines.extend({**place, **asdict(lost)} for lost in without)
                for field, of_splits in counts.items():
                    numbers, total = numpy_column(table[field]), of_splits[split]
                    total += np.bincount(numbers[(numbers >= 0) & (numbers < len(total))], minlength=len(total))
                yield table

    index, locations = new.file(INDEX), new.file(LOCATIONS)
    written = write_rows(index, locations, infos, columns, tables())
    rejected = new.write(REJECTS, "".join(json.dumps(line) + "\n" for line in lines))
    infos_of_splits = {}
    for split, shards in splits.items():
        records = [written.get((split, 0, number), (0, 0))[0] for number in range(len(shards))]
        if not sum(records):
            reason = next((line["reason"] for line in lines if line["split"] == split), "there is none")
            raise DatasetError(f"no record of the split {split!r} can be read: {reason}")
        pairs = zip(shards, records, strict=True)
        files = tuple(FileInfo(name_below(root, shard.path), count, shard.bytes) for shard, count in pairs)
        infos_of_splits[split] = SplitInfo(sum(records), (files,))
    is_inside = not is_remote(root) and new.root.is_relative_to(root)  # both can then be moved together
    manifest = Manifest(
        name=name,
        fingerprint="",
        recipe={"row_fields": {field.name: list(field.rows) for field in fields if field.rows is not None}},
        fields=infos,
        splits=infos_of_splits,
        classes=classes,
        class_counts={
            field: {split: tuple(total.tolist()) for split, total in of_splits.items()}
            for field, of_splits in counts.items()
        },
        versions={"tfprep": __version__},
        rejected=len(lines),
        imported=Imported(
            root=os.path.relpath(root, version_folder(new.root, 1)) if is_inside else str(root),
            features={field.name: field.feature for field in fields},
            left_out=left_out,
            versions={split: tuple(shard.version for shard in shards) for split, shards in splits.items()},
            fixed=tuple(field.name for field in fields if field.fixed),
        ),
    )
    manifest = with_rows(manifest, written, index, locations)
    digests = {**manifest.files, REJECTS: digest_of(rejected)}
    names = [[file.name, file.bytes] for file in manifest.shard_files()]
    identity = hashlib.sha256(json.dumps([digests[LOCATIONS].sha256, names]).encode()).hexdigest()
    manifest = replace(manifest, files=digests, fingerprint=identity, added=kept_fields(old, manifest))
    current = new.before.path if new.before and new.is_pointed and manifest == old else None
    if current and all(matches(current / name, digest) for name, digest in digests.items()):
        new.clear()
        return manifest
    new.take_added(old.groups if old else {}, manifest.groups)
    new.complete(manifest)
    new.publish()
    return manifest
