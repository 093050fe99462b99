"""`tfprep index`: from a pattern, or a directory of TensorFlow Datasets, to an index.

    list the shards -> keep what is known of those that did not change -> scan the others, in processes
      -> decide the fields from all summaries -> write the columns of the split -> replace tfprep-index.json

A shard's scan is a part file and a receipt in a folder of their own, so that a command that was stopped continues. Nothing that
readers use changes before the last step.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfprep.dataset.external.columns import column_types
from tfprep.dataset.external.listed import ListedShard, listed_shards
from tfprep.dataset.external.opened import DOCUMENT, ExternalIndex, read_external
from tfprep.dataset.external.publish import Publisher, root_of
from tfprep.dataset.external.rows import RowMaker
from tfprep.dataset.external.scanning import Scanned, scan_shards
from tfprep.dataset.external.schema import IndexedField, LeftOut, decide_fields, sized_raster
from tfprep.dataset.external.shards import Place, Shard, missing_shards, name_below
from tfprep.dataset.external.summary import FeatureSummary, merge
from tfprep.dataset.external.targets import Targets, find_targets, out_folder
from tfprep.errors import BuildLockedError, DatasetError
from tfprep.storage.local import writing

WORK = ".tfprep-index"
"""The folder inside the index's in which parts of an unfinished index lie."""
LOCK = ".lock"
_MOST_LOST = 0.5
"""With on_bad="skip", records without an image are left out up to this share; beyond it, the user decides what is left out."""


@dataclass(frozen=True)
class IndexOptions:
    """How an index is made.

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
    """What `index_tfrecords` did.

    Attributes:
        out: The folder of the index.
        index: The index.
        scanned: The names of the shards that were read.
        bytes: Their bytes.
        changed: The fields whose shape or type changed since the last time, in words.
        missing: The names of shards that the names of others speak of (`x-00000-of-00004`), and that were not given.
    """

    out: Path
    index: ExternalIndex
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
        out: The folder of the index; None for `tfprep-index` beside the shards.
        features: A `features.json`, or a JSON file that describes features (see `tfprep.dataset.external.declared`).
        options: How the index is made.
        on_bytes: Called with the number of bytes that were read, and of all that are.

    Returns:
        What was done.

    Raises:
        DatasetError: A shard is no TFRecord file, holds no Examples, is compressed as a whole or damaged.
        BuildLockedError: Another process writes this index.
    """
    targets = find_targets(os.fspath(source), split, features)
    folder = out_folder(targets, out)
    work = folder / WORK
    with _locked(folder):
        old = _old_index(folder)
        command = _command(os.fspath(source), split, out, features, options)
        maker = _Maker(folder, work, targets, options, old, command, on_bytes)
        report = maker.run()
        shutil.rmtree(work, ignore_errors=True)
    return report


def _old_index(folder: Path) -> ExternalIndex | None:
    return read_external(folder) if (folder / DOCUMENT).is_file() else None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; it ends with this process, however that ends."""
    with writing(folder):
        (folder / WORK).mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("wb")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildLockedError(f"another process indexes into {folder}; wait until it has finished") from None
        yield


def _command(source: str, split: str | None, out: Any, features: Any, options: IndexOptions) -> str:
    words = ["tfprep", "index", source]
    for flag, value in (("--split", split), ("--out", out), ("--features", features), ("--key", options.key)):
        words += [flag, os.fspath(value)] if value is not None else []
    for flag, values in (("--require", options.require), ("--ignore", options.ignore)):
        words += [word for value in values for word in (flag, value)]
    words += ["--on-bad", "skip"] if options.on_bad == "skip" else []
    return shlex.join(words)


# --- making it ----------------------------------------------------------------------------------------------------------


class _Maker:
    """The steps of making an index, in their order."""

    def __init__(
        self,
        folder: Path,
        work: Path,
        targets: Targets,
        options: IndexOptions,
        old: ExternalIndex | None,
        command: str,
        on_bytes: Callable[[int, int], None],
    ) -> None:
        self._folder, self._work, self._targets, self._options, self._old = folder, work, targets, options, old
        self._on_bytes = on_bytes
        self._publisher = Publisher(folder, work, targets, old, command, skips=options.on_bad == "skip")
        self._scanned: dict[Place, Scanned] = {}

    def run(self) -> IndexReport:
        entries = self._scan(listed_shards(self._targets, self._old, verify=self._options.verify))
        fields, left_out = self._decide(entries)
        raster, key = sized_raster(fields, self._summaries(entries)[0]), self._key_field(fields)
        if self._old is not None and not self._all_fit(self._old, entries, fields, raster, key):
            entries = self._scan({split: [replace(e, old=None) for e in group] for split, group in entries.items()})
            fields, left_out = self._decide(entries)
            raster, key = sized_raster(fields, self._summaries(entries)[0]), self._key_field(fields)
        types = column_types(fields, sizes=raster is not None, key=key is not None)
        maker = RowMaker(fields, types, raster, key)
        index = self._publisher.publish(entries, maker, left_out)
        root = root_of(entries)
        missing = missing_shards(shard.path for shards in self._targets.splits.values() for shard in shards)
        names = [name_below(root, path) for path in self._scanned]
        nbytes = sum(e.shard.bytes for group in entries.values() for e in group if e.scanned)
        return IndexReport(
            self._folder, index, tuple(names), nbytes, tuple(_changes(self._old, fields)), tuple(missing)
        )

    def _scan(self, entries: Mapping[str, Sequence[ListedShard]]) -> dict[str, list[ListedShard]]:
        new = [e.shard for group in entries.values() for e in group if e.old is None and e.scanned is None]
        done, total = 0, sum(shard.bytes for shard in new)

        def count(more: int) -> None:
            nonlocal done
            done += more
            self._on_bytes(done, total)

        options = self._options
        scanned = scan_shards(new, self._work, verify=options.verify, workers=options.workers, on_bytes=count)
        for shard, found in zip(new, scanned, strict=True):
            self._check_scanned(shard, found)
            self._scanned[shard.path] = found
        return {
            split: [e if e.old is not None else replace(e, scanned=self._scanned[e.shard.path]) for e in group]
            for split, group in entries.items()
        }

    def _check_scanned(self, shard: Shard, found: Scanned) -> None:
        """With on_bad="raise", damage is an error that names the file, the record and what to do."""
        if self._options.on_bad == "skip":
            return
        advice = "Write the file again, or leave such records out with --on-bad skip, which lists them"
        if found.bad:
            bad = found.bad[0]
            raise DatasetError(f"{shard.path}, record {bad.number} at byte {bad.offset:,}: {bad.reason}. {advice}")
        if found.fault:
            rest = shard.bytes - found.end
            raise DatasetError(
                f"{shard.path}, byte {found.end:,}, behind {found.records:,} whole records: {found.fault} ({rest:,} bytes "
                f"follow). {advice}"
            )

    def _decide(self, entries: Mapping[str, Sequence[ListedShard]]) -> tuple[list[IndexedField], list[LeftOut]]:
        summaries, records = self._summaries(entries)
        if not records:
            raise DatasetError(f"{self._targets.folder}: the shards hold no record")
        options = self._options
        fields, left_out = decide_fields(summaries, records, self._targets.declared, options.require, options.ignore)
        self._check_complete(fields, summaries, records)
        if not fields:
            reasons = "; ".join(f"{item.feature}: {item.reason}" for item in left_out)
            raise DatasetError(f"no feature can be read ({reasons or 'the records have none'})")
        return fields, left_out

    def _summaries(self, entries: Mapping[str, Sequence[ListedShard]]) -> tuple[dict[str, FeatureSummary], int]:
        """What was found of each feature in all shards, and the number of their records."""
        states = [entry.state for group in entries.values() for entry in group]
        summaries: dict[str, FeatureSummary] = {}
        for state in states:
            summaries = merge(summaries, state.summaries)
        return summaries, sum(state.records for state in states)

    def _check_complete(
        self, fields: Sequence[IndexedField], summaries: Mapping[str, FeatureSummary], records: int
    ) -> None:
        """A required feature is in every record, or the user says that the others are left out."""
        for item in fields:
            summary = summaries[item.feature]
            absent = records - (summary.records - summary.kinds.get("none", 0))
            if not item.required or not absent:
                continue
            if item.feature in self._options.require or (
                self._options.on_bad == "skip" and absent <= records * _MOST_LOST
            ):
                continue
            raise DatasetError(
                f"{absent:,} of {records:,} records have no {item.feature!r}. Leave the feature out with --ignore "
                f"{shlex.quote(item.feature)}, or those records with --require {shlex.quote(item.feature)}, which lists them"
            )

    def _key_field(self, fields: Sequence[IndexedField]) -> str | None:
        feature = self._options.key
        if feature is None:
            return None
        names = [item.name for item in fields if item.feature == feature and item.column and item.spec.shape == ()]
        if not names:
            known = ", ".join(item.feature for item in fields if item.column and item.spec.shape == ())
            raise DatasetError(
                f"--key {feature!r}: the key is a number or a short string that every record has; there are {known}"
            )
        return names[0]

    def _all_fit(
        self,
        old: ExternalIndex,
        entries: Mapping[str, Sequence[ListedShard]],
        fields: Sequence[IndexedField],
        raster: str | None,
        key: str | None,
    ) -> bool:
        """Whether the rows of the old index can be taken over: its fields lie where the new ones do."""
        if (old.raster, old.key) != (raster, key):
            return all(entry.old is None for group in entries.values() for entry in group)
        before = {item.feature: item for item in old.fields}
        kept = [entry.state.summaries for group in entries.values() for entry in group if entry.old is not None]
        for item in fields:
            was = before.get(item.feature)
            if was is None and not any(item.feature in summaries for summaries in kept) and not item.required:
                continue
            if was is None and kept:
                return False
            if was is not None and (was.codec, was.required, was.name) != (item.codec, item.required, item.name):
                return not kept
            if was is not None and item.column and not was.column:
                return not kept
        return True


def _changes(old: ExternalIndex | None, fields: Sequence[IndexedField]) -> list[str]:
    """The fields that are other than before, in words."""
    if old is None:
        return []
    before = {item.name: item for item in old.fields}
    changes = [f"{item.name} is new" for item in fields if item.name not in before]
    changes += [f"{name} is no field any more" for name in before if name not in {item.name for item in fields}]
    for item in fields:
        was = before.get(item.name)
        if was is not None and was.spec != item.spec:
            changes.append(
                f"{item.name} was {was.spec.dtype} {list(was.spec.shape)}, it is {item.spec.dtype} {list(item.spec.shape)}"
            )
    return changes
