"""`tfprep index`: from a pattern, or a directory of TensorFlow Datasets, to a dataset that refers to its records.

    list the shards -> scan those without a receipt, in processes -> decide the fields from all summaries
      -> write the files of a dataset

Part files stay in `.tfprep`: the same command again reads only shards that are new or have changed, and one that was stopped
continues. Nothing that readers use changes before the last step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tfprep.dataset.imported.declared import FEATURES_JSON, INFO_JSON, Declared, read_declared, tfds_splits
from tfprep.dataset.imported.scan import Scanned, find_receipt, part_of, remove_parts, scan_shards, summarize
from tfprep.dataset.imported.schema import IndexedField, decide_fields, sized_raster
from tfprep.dataset.imported.shards import (
    Place,
    Shard,
    common_root,
    current,
    list_shards,
    missing_shards,
    name_below,
    path_below,
    root_of,
    shards_at,
)
from tfprep.dataset.imported.write import Content, Groups, write_imported
from tfprep.dataset.manifest import Manifest, read_manifest
from tfprep.dataset.names import BESIDE, MANIFEST, POINTER, PRIVATE, check_name
from tfprep.dataset.versions import NewVersion, find_version, version_folder
from tfprep.errors import DatasetError
from tfprep.storage.store import open_store
from tfprep.storage.urls import folder_at, is_remote, names_in


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
        features: A `features.json`, or a JSON file that describes features (see `tfprep.dataset.imported.declared`).
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
    name, beside, splits, lengths = _find_shards(os.fspath(source), split)
    declared = _declared(beside, features)
    if out is not None and "://" in os.fspath(out):
        raise DatasetError(f"an index is written to a local folder, not to {os.fspath(out)}")
    if out is None and is_remote(beside):
        raise DatasetError(f"the shards are at {beside}; name a local folder for the index with --out")
    folder = Path(os.path.abspath(out)) if out is not None else beside / BESIDE
    if (folder / MANIFEST).is_file():
        raise DatasetError(f"{folder} is a version of a dataset; choose another folder for the index")
    with NewVersion(folder) as new:
        old = None if new.before is None else read_manifest(new.before.path)
        if old is not None and old.imported is None:
            raise DatasetError(f"{folder} holds a dataset that tfprep built; choose another folder for the index")
        groups, scanned = _scan(folder, splits, old, workers, on_bytes)
        if on_bad == "raise":
            for key in splits:
                _check_whole(groups[key], lengths.get(key))
        content = _decide(folder / PRIVATE, groups, old.name if old else name, declared, skip=on_bad == "skip")
        present = {field.name for field in content.fields}
        lost = [name for name in (old.fields if old else ()) if name not in present]
        if lost and old is not None and old.rejected and on_bad == "raise":
            raise DatasetError(
                f"{', '.join(lost)}: {old.rejected} records do not have them, which --on-bad skip left out; give it again, or "
                "write the files again with all features"
            )
        manifest = write_imported(new, content, old)
        remove_parts(folder / PRIVATE, {part_of(s, folder / PRIVATE) for group in groups.values() for s, _ in group})
    names = tuple(name_below(content.root, shard.path) for shard in scanned)
    missing = missing_shards(shard.path for shards in splits.values() for shard in shards)
    nbytes = sum(shard.bytes for shard in scanned)
    return IndexReport(folder, manifest, tuple(content.fields), names, nbytes, _changes(old, manifest), tuple(missing))


def _changes(old: Manifest | None, new: Manifest) -> tuple[str, ...]:
    """The fields that are other than before, in words."""
    if old is None:
        return ()
    changes = [f"{name} is new" for name in new.fields if name not in old.fields]
    changes += [f"{name} is not a field any more" for name in old.fields if name not in new.fields]
    for name, info in new.fields.items():
        if name in old.fields and (was := old.fields[name].spec) != (spec := info.spec):
            changes.append(f"{name} was {was.dtype} {list(was.shape)}, it is {spec.dtype} {list(spec.shape)}")
    for group in old.groups.keys() - new.groups.keys():
        changes.append(f"the added fields {group!r} are gone, because shards changed: run tfprep fields add again")
    return tuple(changes)


# --- what is asked for ----------------------------------------------------------------------------------------------------


def _find_shards(source: str, split: str | None) -> tuple[str, Place, dict[str, list[Shard]], dict[str, Sequence[int]]]:
    """Return the dataset's name, the folder of all shards, the shards by split, and the numbers of their records if known."""
    lengths: dict[str, Sequence[int]] = {}
    if (folder := _tfds_folder(source)) is not None:
        name, tfds = tfds_splits(folder)
        if split is not None and split not in tfds:
            raise DatasetError(f"{folder} has no split {split!r}; it has {', '.join(tfds) or 'none'}")
        chosen = {key: files for key, files in tfds.items() if split in (None, key)}
        empty = [key for key, files in chosen.items() if not files]
        if empty or not chosen:
            of_split = f" of {', '.join(empty)}; index the other splits one by one (--split)" if empty else ""
            raise DatasetError(f"{folder / INFO_JSON} names no shards{of_split}")
        splits = {key: shards_at(folder, files) for key, files in chosen.items()}
        lengths = {key: [*files.values()] for key, files in chosen.items()}
    else:
        if split is None:
            raise DatasetError(
                f"which split are the shards {source} of? Name it with --split, for example --split train"
            )
        splits = {split: list_shards(source)}
        folder = common_root([shard.path for shard in splits[split]])
        name = folder.name
    for key in splits:
        check_name("the name of a split", key)
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)[:90].strip("_")
    name = name if name[:1].isalpha() else f"tfrecords_{name}".strip("_")
    return re.sub(r"_v[0-9]+\Z", "", name) or "tfrecords", folder, splits, lengths


def _declared(folder: Place, features: str | os.PathLike[str] | None) -> dict[str, Declared]:
    """Read the file of `features`, or else a `features.json` beside the shards."""
    if features is not None:
        return read_declared(Path(features))
    is_there = FEATURES_JSON in names_in(folder) if is_remote(folder) else (folder / FEATURES_JSON).is_file()
    return read_declared(folder / FEATURES_JSON) if is_there else {}


def _tfds_folder(source: str) -> Place | None:
    """The directory of TensorFlow Datasets that the source names; None where it names files."""
    if "://" in source and not source.startswith("file://"):
        if any(mark in source for mark in "*?["):
            return None
        place: Any = folder_at(source)
        return place if any(info.name == INFO_JSON for info in open_store(place).list(recursive=False)) else None
    path = Path(os.path.abspath(source.removeprefix("file://")))
    if not path.is_dir():
        return None
    is_dataset = (path / POINTER).is_file() or (path / MANIFEST).is_file()
    if is_dataset and read_manifest(find_version(path).path).imported is None:
        raise DatasetError(f"{path} was built by tfprep; open it as it is, it needs no other index")
    if not (path / INFO_JSON).is_file():
        raise DatasetError(
            f"{path} has no {INFO_JSON}, so it is not a directory of TensorFlow Datasets; name the shards of one split with a "
            f"pattern: '{path}/train-*' --split train"
        )
    return path


# --- what is in the shards ------------------------------------------------------------------------------------------------


def _scan(
    folder: Path,
    splits: Mapping[str, Sequence[Shard]],
    old: Manifest | None,
    workers: int | None,
    on_bytes: Callable[[int, int], None],
) -> tuple[Groups, list[Shard]]:
    """Return the shards of all splits with what was found in them, and those that were scanned for it."""
    work, shards = folder / PRIVATE, dict[str, Sequence[Shard]]()
    if old is not None and old.imported is not None:
        root = root_of(version_folder(folder, 1), old)
        for split, info in old.splits.items():  # as they were indexed; or as they are if nothing is known of them
            versions = zip(info.files[0], old.imported.versions[split], strict=True)
            before = [Shard(path_below(root, file.name), file.bytes, version) for file, version in versions]
            shards[split] = [
                shard if split in splits or find_receipt(shard, work) else current(shard.path) for shard in before
            ]
    shards |= splits
    found = {shard: find_receipt(shard, work) for some in shards.values() for shard in some}
    new = [shard for shard, receipt in found.items() if receipt is None]
    total = sum(shard.bytes for shard in found)
    done = total - sum(shard.bytes for shard in new)
    on_bytes(done, total)

    def count(more: int) -> None:
        nonlocal done
        done += more
        on_bytes(done, total)

    scan_shards(new, work, workers, count)
    found |= {shard: find_receipt(shard, work) for shard in new}
    groups: dict[str, list[tuple[Shard, Scanned]]] = {}
    for split, some in shards.items():
        groups[split] = [(shard, receipt) for shard in some if (receipt := found[shard]) is not None]
        assert len(groups[split]) == len(some)
    return groups, new


def _check_whole(group: Sequence[tuple[Shard, Scanned]], lengths: Sequence[int] | None) -> None:
    """Raise DatasetError for damage, with what to do, and for other numbers of records than `dataset_info.json` has."""
    advice = "Write the file again, or leave such records out with --on-bad skip, which lists them"
    for number, (shard, found) in enumerate(group):
        if found.bad:
            bad = found.bad[0]
            raise DatasetError(f"{shard.path}, record {bad.number} at byte {bad.offset:,}: {bad.reason}. {advice}")
        if found.fault:
            other = "If it is not a TFRecord file, give a pattern that leaves it out. If it is compressed as a whole (GZIP, "
            other += "ZLIB), index copies without compression, which `gzip -dc < FILE` writes (`pigz -dc` for ZLIB). "
            raise DatasetError(
                f"{shard.path}, byte {found.end:,}, after {found.records:,} whole records: {found.fault} "
                f"({shard.bytes - found.end:,} bytes follow). {'' if found.end else other}{advice}"
            )
        if lengths is not None and found.records != lengths[number]:
            raise DatasetError(
                f"{shard.path} holds {found.records:,} records, {INFO_JSON} says {lengths[number]:,}; copy the dataset again"
            )


def _decide(work: Path, groups: Groups, name: str, declared: Mapping[str, Declared], *, skip: bool) -> Content:
    """Decide from what was found in all shards which features become fields, and what the index is made of."""
    shards = [shard for group in groups.values() for shard, _ in group]
    records = sum(scanned.records for group in groups.values() for _, scanned in group)
    if not records:
        raise DatasetError(f"{common_root([shard.path for shard in shards])}: the shards hold no record")
    summaries = summarize(shards, work)
    fields, left_out = decide_fields(summaries, records, declared, skip=skip)
    if not fields:
        reasons = "; ".join(f"{feature}: {reason}" for feature, reason in left_out.items())
        raise DatasetError(f"no feature can be read ({reasons or 'the records have none'})")
    return Content(name, groups, fields, left_out, sized_raster(fields, summaries))
