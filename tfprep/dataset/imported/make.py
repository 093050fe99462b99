"""`tfprep index`: from a pattern, or a directory of TensorFlow Datasets, to a dataset that refers to its records.

    list the shards -> scan those without a receipt, in processes -> decide the fields from all summaries
      -> write the files of a dataset

A shard's scan is a part file and a receipt in `.tfprep`. They stay: the same command again reads only shards that are new or have
changed, and one that was stopped continues. Nothing that readers use changes before the last step.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfprep.dataset.dataset import read_manifest
from tfprep.dataset.imported.declared import FEATURES_JSON, INFO_JSON, Declared, read_declared, tfds_splits
from tfprep.dataset.imported.scan import Scanned
from tfprep.dataset.imported.scanning import find_receipt, part_of, remove_receipts, scan_shards
from tfprep.dataset.imported.schema import FeatureSummary, IndexedField, decide_fields, merge, sized_raster
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
from tfprep.dataset.manifest import BESIDE, MANIFEST, Manifest
from tfprep.dataset.names import PRIVATE, check_name
from tfprep.errors import BuildLockedError, DatasetError
from tfprep.storage.local import locked, writing
from tfprep.storage.store import open_store
from tfprep.storage.urls import folder_at, is_remote

_MOST_LOST = 0.5
"""With on_bad="skip", records without an image are left out up to this share; beyond it, the user decides what is left out."""


@dataclass(frozen=True)
class IndexOptions:
    """Options of an index.

    Attributes:
        verify: Whether the checksum of every payload is compared.
        on_bad: "raise" at the first record that cannot be part of a dataset, or "skip": leave them out and list them.
        key: The feature that gives each record its key; None for the shard's name and the record's number.
        require: Features without which a record is left out.
        ignore: Features that become no fields.
        workers: The number of processes; None for one a usable CPU, 0 for this process alone.
    """

    verify: bool = False
    on_bad: str = "raise"
    key: str | None = None
    require: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.on_bad not in ("raise", "skip"):
            raise DatasetError(f"on_bad is 'raise' or 'skip', not {self.on_bad!r}")


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
    options: IndexOptions = IndexOptions(),
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> IndexReport:
    """Index TFRecords that tfprep did not write, so that `tfprep.open` opens them as a dataset. Nothing is copied.

    Every record is read once. The same call again reads only the shards that are new or have changed.

    Args:
        source: A path or URL with wildcards, or a directory of TensorFlow Datasets, which names all splits.
        split: The split that the shards are of; for a directory of TensorFlow Datasets the only one that is indexed.
        out: The folder of the dataset; None for `tfprep-index` beside the shards.
        features: A `features.json`, or a JSON file that describes features (see `tfprep.dataset.imported.declared`).
        options: How the shards are indexed.
        on_bytes: Called with the number of bytes that were read, and of all that are.

    Returns:
        What was done.

    Raises:
        DatasetError: A shard is no TFRecord file, holds no Examples, is compressed as a whole or damaged.
        BuildLockedError: Another process writes this dataset.
    """
    targets = _find_targets(os.fspath(source), split, features)
    folder = _out_folder(targets, out)
    busy = BuildLockedError(f"another process indexes into {folder}; wait until it has finished")
    with writing(folder):
        (folder / PRIVATE).mkdir(parents=True, exist_ok=True)
    with locked(folder / PRIVATE / "lock", busy):
        old = read_manifest(folder) if (folder / MANIFEST).is_file() else None
        groups, scanned = _scan(folder, targets, old, options, on_bytes)
        content = _decide(groups, targets, old, options, _command(os.fspath(source), split, out, features, options))
        manifest = write_imported(folder, content, old)
        remove_receipts(
            folder / PRIVATE, {part_of(found, folder / PRIVATE) for group in groups.values() for _, found in group}
        )
    names = [name_below(content.root, shard.path) for shard in scanned]
    missing = missing_shards(shard.path for shards in targets.splits.values() for shard in shards)
    changes, nbytes = _changes(old, manifest), sum(shard.bytes for shard in scanned)
    return IndexReport(folder, manifest, tuple(content.fields), tuple(names), nbytes, changes, tuple(missing))


def _command(source: str, split: str | None, out: Any, features: Any, options: IndexOptions) -> str:
    words = ["tfprep", "index", source]
    named = (("--split", split), ("--out", out), ("--features", features), ("--key", options.key))
    for flag, value in named:
        words += [flag, os.fspath(value)] if value is not None else []
    for flag, values in (("--require", options.require), ("--ignore", options.ignore)):
        words += [word for value in values for word in (flag, value)]
    words += ["--on-bad", "skip"] if options.on_bad == "skip" else []
    return shlex.join(words)


def _changes(old: Manifest | None, new: Manifest) -> tuple[str, ...]:
    """The fields that are other than before, in words."""
    if old is None:
        return ()
    changes = [f"{name} is new" for name in new.fields if name not in old.fields]
    changes += [f"{name} is no field any more" for name in old.fields if name not in new.fields]
    for name, info in new.fields.items():
        if name in old.fields and (was := old.fields[name].spec) != (spec := info.spec):
            changes.append(f"{name} was {was.dtype} {list(was.shape)}, it is {spec.dtype} {list(spec.shape)}")
    for group in old.groups.keys() - new.groups.keys():
        changes.append(f"the added fields {group!r} are gone, because shards changed: run tfprep add-fields again")
    return tuple(changes)


# --- what is asked for ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Targets:
    """Shards by split, the numbers of their records where they are known, and declarations of features."""

    name: str
    folder: Place
    splits: Mapping[str, Sequence[Shard]]
    lengths: Mapping[str, Sequence[int]]
    declared: Mapping[str, Declared]


def _find_targets(source: str, split: str | None, features: str | os.PathLike[str] | None) -> _Targets:
    if (folder := _tfds_folder(source)) is not None:
        return _tfds_targets(folder, split, features)
    shards = list_shards(source)
    if split is None:
        raise DatasetError(f"which split are the shards {source} of? Name it with --split, for example --split train")
    check_name("the name of a split", split)
    folder = common_root([shard.path for shard in shards])
    return _Targets(_dataset_name(folder.name), folder, {split: shards}, {}, _declared(folder, features))


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
    if (path / MANIFEST).is_file() and read_manifest(path).imported is None:
        raise DatasetError(f"{path} was built by tfprep; open it as it is, it needs no other index")
    if not (path / INFO_JSON).is_file():
        raise DatasetError(
            f"{path} has no {INFO_JSON}, so it is no directory of TensorFlow Datasets; name the shards of one split with a "
            f"pattern: '{path}/train-*' --split train"
        )
    return path


def _tfds_targets(folder: Place, split: str | None, features: str | os.PathLike[str] | None) -> _Targets:
    name, splits = tfds_splits(folder)
    if split is not None and split not in splits:
        raise DatasetError(f"{folder} has no split {split!r}; it has {', '.join(splits) or 'none'}")
    chosen = {key: value for key, value in splits.items() if split in (None, key) and value.files}
    shards = {key: shards_at(folder, value.files) for key, value in chosen.items()}
    if not shards:
        raise DatasetError(f"{folder / INFO_JSON} names no shards")
    for key in shards:
        check_name("the name of a split", key)
    lengths = {key: value.lengths for key, value in chosen.items()}
    return _Targets(_dataset_name(name), folder, shards, lengths, _declared(folder, features))


def _declared(folder: Place, features: str | os.PathLike[str] | None) -> dict[str, Declared]:
    """Read the file of `features`, or else a `features.json` beside the shards."""
    if features is not None:
        return read_declared(Path(features))
    beside = folder / FEATURES_JSON
    if is_remote(beside):
        listed = {info.name for info in open_store(folder).list(recursive=False)}
        return read_declared(beside) if FEATURES_JSON in listed else {}
    return read_declared(beside) if beside.is_file() else {}


def _dataset_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)[:90].strip("_")
    return re.sub(r"_v[0-9]+\Z", "", name if name[:1].isalpha() else f"tfrecords_{name}".strip("_")) or "tfrecords"


def _out_folder(targets: _Targets, out: str | os.PathLike[str] | None) -> Path:
    if out is not None and "://" in os.fspath(out):
        raise DatasetError(f"an index is written to a local folder, not to {os.fspath(out)}")
    if out is None and is_remote(targets.folder):
        raise DatasetError(f"the shards are at {targets.folder}; name a local folder for the index with --out")
    folder = Path(os.path.abspath(out)) if out is not None else targets.folder / BESIDE
    if (folder / MANIFEST).is_file() and read_manifest(folder).imported is None:
        raise DatasetError(f"{folder} holds a dataset that tfprep built; choose another folder for the index")
    return folder


# --- what is in the shards ------------------------------------------------------------------------------------------------


def _scan(
    folder: Path,
    targets: _Targets,
    old: Manifest | None,
    options: IndexOptions,
    on_bytes: Callable[[int, int], None],
) -> tuple[Groups, list[Shard]]:
    """Return the shards of all splits with what was found in them, and those that were scanned for it."""
    work = folder / PRIVATE
    splits = {split: list(_known_shards(folder, old, split)) for split in old.splits} if old else {}
    splits |= {split: list(shards) for split, shards in targets.splits.items()}
    new = [
        shard
        for split, shards in splits.items()
        for shard in shards
        if find_receipt(shard, work, verify=options.verify and split in targets.splits) is None
    ]
    done, total = 0, sum(shard.bytes for shards in splits.values() for shard in shards)

    def count(more: int) -> None:
        nonlocal done
        done += more
        on_bytes(done, total)

    count(total - sum(shard.bytes for shard in new))
    scan_shards(new, work, verify=options.verify, workers=options.workers, on_bytes=count)
    groups: dict[str, list[tuple[Shard, Scanned]]] = {split: [] for split in splits}
    for split, shards in splits.items():
        for shard in shards:
            found = find_receipt(shard, work, verify=options.verify and split in targets.splits)
            assert found is not None, shard
            groups[split].append((shard, found))
    if options.on_bad != "skip":
        for split in targets.splits:
            _check_whole(groups[split], targets.lengths.get(split))
    return groups, new


def _known_shards(folder: Path, manifest: Manifest, split: str) -> Iterator[Shard]:
    """The shards of a split that this command does not name, as they were indexed; or as they are if nothing is known of them."""
    assert manifest.imported is not None
    root = root_of(folder, manifest)
    for file, version in zip(manifest.splits[split].files[0], manifest.imported.versions[split], strict=True):
        shard = Shard(path_below(root, file.name), file.bytes, version)
        yield shard if find_receipt(shard, folder / PRIVATE, verify=False) else current(shard.path)


def _check_whole(group: Sequence[tuple[Shard, Scanned]], lengths: Sequence[int] | None) -> None:
    """Raise DatasetError for damage, with what to do, and for other numbers of records than `dataset_info.json` has."""
    advice = "Write the file again, or leave such records out with --on-bad skip, which lists them"
    for number, (shard, found) in enumerate(group):
        if found.bad:
            bad = found.bad[0]
            raise DatasetError(f"{shard.path}, record {bad.number} at byte {bad.offset:,}: {bad.reason}. {advice}")
        if found.fault:
            rest = shard.bytes - found.end
            raise DatasetError(
                f"{shard.path}, byte {found.end:,}, behind {found.records:,} whole records: {found.fault} ({rest:,} bytes "
                f"follow). {advice}"
            )
        if lengths is not None and found.records != lengths[number]:
            raise DatasetError(
                f"{shard.path} holds {found.records:,} records, {INFO_JSON} says {lengths[number]:,}; copy the dataset again"
            )


def _decide(groups: Groups, targets: _Targets, old: Manifest | None, options: IndexOptions, command: str) -> Content:
    """Decide from what was found in all shards which features become fields, and what the index is made of."""
    found = [one for group in groups.values() for _, one in group]
    summaries: dict[str, FeatureSummary] = {}
    for one in found:
        summaries = merge(summaries, one.summaries)
    records = sum(one.records for one in found)
    if not records:
        raise DatasetError(f"{targets.folder}: the shards hold no record")
    fields, left_out = decide_fields(summaries, records, targets.declared, options.require, options.ignore)
    _check_complete(fields, summaries, records, options)
    if not fields:
        reasons = "; ".join(f"{item.feature}: {item.reason}" for item in left_out)
        raise DatasetError(f"no feature can be read ({reasons or 'the records have none'})")
    commands = old.imported.commands if old and old.imported else {}
    return Content(
        name=old.name if old else targets.name,
        groups=groups,
        fields=fields,
        left_out={item.feature: item.reason for item in left_out},
        commands={split: command if split in targets.splits else commands[split] for split in groups},
        raster=sized_raster(fields, summaries),
        key=_key_field(fields, options.key),
    )


def _check_complete(
    fields: Sequence[IndexedField], summaries: Mapping[str, FeatureSummary], records: int, options: IndexOptions
) -> None:
    """A required feature is in every record, or the user says that the others are left out."""
    for item in fields:
        summary = summaries[item.feature]
        absent = records - (summary.records - summary.kinds.get("none", 0))
        is_lost = options.on_bad == "skip" and absent <= records * _MOST_LOST
        if item.required and absent and item.feature not in options.require and not is_lost:
            raise DatasetError(
                f"{absent:,} of {records:,} records have no {item.feature!r}. Leave the feature out with --ignore "
                f"{shlex.quote(item.feature)}, or those records with --require {shlex.quote(item.feature)}, which lists them"
            )


def _key_field(fields: Sequence[IndexedField], feature: str | None) -> str | None:
    if feature is None:
        return None
    known = {item.feature: item.name for item in fields if item.column and item.spec.shape == ()}
    if feature not in known:
        raise DatasetError(
            f"--key {feature!r}: the key is a number or a short string that every record has; there are {', '.join(known)}"
        )
    return known[feature]
