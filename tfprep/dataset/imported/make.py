"""`tfprep index`: from a pattern, or a directory of TensorFlow Datasets, to a dataset that refers to its records.

    list the shards -> scan those without a receipt, in processes -> decide the fields from all summaries
      -> write the files of a dataset

Part files stay in `.tfprep`: the same command again reads only shards that are new or have changed, and one that was stopped
continues. Nothing that readers use changes before the last step.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from tfprep.dataset.imported.declared import FEATURES_JSON, INFO_JSON, Declared, is_of_tfds, read_declared
from tfprep.dataset.imported.scan import Scanned, find_receipt, part_of, remove_parts, scan_shards, summarize
from tfprep.dataset.imported.schema import IndexedField, decide_fields, sized_raster
from tfprep.dataset.imported.shards import Place, Shard, common_root, find_source, missing_shards, name_below, root_of
from tfprep.dataset.imported.write import Content, Groups, write_imported
from tfprep.dataset.manifest import Manifest, read_manifest
from tfprep.dataset.names import BESIDE, MANIFEST, PRIVATE
from tfprep.dataset.versions import NewVersion, version_folder
from tfprep.errors import DatasetError
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
    listed = find_source(os.fspath(source), split)
    files = [] if features is None else [Path(features)]
    beside = listed.folder / FEATURES_JSON
    if FEATURES_JSON in names_in(listed.folder) and (not files or is_of_tfds(beside)):
        files = [beside, *files]  # what the user declares takes the place of what is declared there
    declared = {name: entry for path in files for name, entry in read_declared(path).items()}
    folder = _index_folder(listed.folder, out)
    work = folder / PRIVATE
    with NewVersion(folder) as new:
        old = None if new.before is None else read_manifest(new.before.path)
        if old is not None and old.imported is None:
            raise DatasetError(f"{folder} holds a dataset that tfprep built; choose another folder for the index")
        splits = {**_earlier_splits(folder, old), **listed.splits}
        counts = Counter(shard.path for shards in splits.values() for shard in shards)
        if twice := [path for path, count in counts.items() if count > 1]:
            raise DatasetError(
                f"{twice[0]} is in two splits of {folder}: index the other one again without it first, or choose another folder"
            )
        groups, scanned = _scanned(splits, work, workers, on_bytes)
        if on_bad == "raise":
            for key in listed.splits:
                _check_whole(groups[key], listed.lengths)
        content = _decide(work, groups, old.name if old else listed.name, declared, skip=on_bad == "skip")
        lost = set(old.fields if old else ()) - content.infos.keys()
        if lost and old is not None and old.rejected and on_bad == "raise":
            raise DatasetError(
                f"{', '.join(sorted(lost))}: {old.rejected} records do not have them, which --on-bad skip left out; give it "
                "again, or write the files again with all features"
            )
        manifest = write_imported(new, content, old)
        remove_parts(work, {part_of(shard, work) for group in groups.values() for shard, _ in group})
    return IndexReport(
        folder, manifest, tuple(content.fields), tuple(name_below(content.root, shard.path) for shard in scanned),
        sum(shard.bytes for shard in scanned), tuple(_changes(old, manifest)),
        tuple(missing_shards(shard.path for shards in listed.splits.values() for shard in shards)),
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


def _scanned(
    splits: Mapping[str, Sequence[Shard]], work: Path, workers: int | None, on_bytes: Callable[[int, int], None]
) -> tuple[Groups, list[Shard]]:
    """Return the shards of all splits with what was found in them, and those that were scanned for it."""
    found = {shard: find_receipt(shard, work) for shards in splits.values() for shard in shards}
    due = [shard for shard, receipt in found.items() if receipt is None]
    total, left = sum(shard.bytes for shard in found), sum(shard.bytes for shard in due)
    on_bytes(total - left, total)
    receipts = {shard: receipt for shard, receipt in found.items() if receipt is not None}
    receipts |= scan_shards(due, work, workers, lambda done: on_bytes(total - left + done, total))
    return {split: [(shard, receipts[shard]) for shard in shards] for split, shards in splits.items()}, due


def _check_whole(group: Sequence[tuple[Shard, Scanned]], lengths: Mapping[Shard, int]) -> None:
    """Raise DatasetError for damage, with what to do, and for other numbers of records than `dataset_info.json` has."""
    advice = "Write the file again, or leave such records out with --on-bad skip, which lists them"
    for shard, found in group:
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
        if (expected := lengths.get(shard, found.records)) != found.records:
            raise DatasetError(
                f"{shard.path} holds {found.records:,} records, {INFO_JSON} says {expected:,}; copy the dataset again"
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
