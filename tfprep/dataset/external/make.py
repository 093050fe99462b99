"""`tfprep index`: from a pattern, or a directory of TensorFlow Datasets, to an index.

    list the shards -> keep what is known of those that did not change -> scan the others, in processes
      -> decide the fields from all summaries -> write the columns of the split -> replace tfprep-index.json

A shard's scan is a part file and a receipt in a folder of their own, so that a command that was stopped continues. Nothing that
readers use changes before the last step.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep._version import __version__
from tfprep.dataset.external.columns import ColumnWriter, column_crcs, column_types, open_columns, row_ranges
from tfprep.dataset.external.declared import INFO_JSON
from tfprep.dataset.external.opened import DOCUMENT, ExternalIndex, IndexedShard, SplitState, read_external
from tfprep.dataset.external.rows import RowMaker
from tfprep.dataset.external.scan import LostRecord, read_part
from tfprep.dataset.external.scanning import Scanned, scan_shards
from tfprep.dataset.external.schema import IndexedField, LeftOut, decide_fields, sized_raster
from tfprep.dataset.external.shards import Place, Shard, common_root, name_below
from tfprep.dataset.external.summary import FeatureSummary, merge
from tfprep.dataset.external.targets import Targets, find_targets, out_folder
from tfprep.dataset.manifest import FieldInfo, FileInfo, Manifest, SplitInfo
from tfprep.errors import BuildLockedError, DatasetError
from tfprep.storage.local import sync_folder, whole_file, write_whole, writing
from tfprep.storage.urls import is_remote

WORK = ".tfprep-index"
"""The folder inside the index's in which parts of an unfinished index lie."""
LOCK = ".lock"
BAD_RECORDS = "rejects.jsonl"
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
    """

    out: Path
    index: ExternalIndex
    scanned: tuple[str, ...]
    bytes: int
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class _ListedShard:
    """One shard on its way into an index: as it was indexed before (`old`: the index, the split and the shard's number), or as it
    was scanned now."""

    shard: Shard
    old: tuple[ExternalIndex, str, int] | None = None
    scanned: Scanned | None = None

    @property
    def state(self) -> IndexedShard:
        if self.scanned is not None:
            return IndexedShard(self.shard.version, self.scanned.records, self.scanned.summaries)
        index, split, number = self._before
        return index.splits[split].shards[number]

    @property
    def file(self) -> FileInfo:
        """The shard in the manifest of the old index."""
        index, split, number = self._before
        return index.manifest.splits[split].files[0][number]

    @property
    def _before(self) -> tuple[ExternalIndex, str, int]:
        assert self.old is not None
        return self.old


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
        self._command, self._on_bytes = command, on_bytes
        self._scanned: dict[Place, Scanned] = {}
        self._bad: list[dict[str, Any]] = []
        self._old_shards: dict[str, list[pa.RecordBatch]] = {}

    def run(self) -> IndexReport:
        entries = self._entries()
        entries = self._scan(entries)
        fields, left_out = self._decide(entries)
        raster, key = sized_raster(fields, self._summaries(entries)[0]), self._key_field(fields)
        if self._old is not None and not self._all_fit(self._old, entries, fields, raster, key):
            entries = self._scan({split: [replace(e, old=None) for e in group] for split, group in entries.items()})
            fields, left_out = self._decide(entries)
            raster, key = sized_raster(fields, self._summaries(entries)[0]), self._key_field(fields)
        types = column_types(fields, sizes=raster is not None, key=key is not None)
        maker = RowMaker(fields, types, raster, key)
        index = self._publish(entries, maker, left_out)
        names = [name_below(self._root(entries), path) for path in self._scanned]
        nbytes = sum(e.shard.bytes for group in entries.values() for e in group if e.scanned)
        return IndexReport(self._folder, index, tuple(names), nbytes, tuple(_changes(self._old, fields)))

    def _entries(self) -> dict[str, list[_ListedShard]]:
        """All shards of all splits; those that did not change since they were indexed keep what is known of them."""
        known: dict[tuple[str, str], tuple[ExternalIndex, str, int]] = {}
        entries: dict[str, list[_ListedShard]] = {}
        if self._old is not None:
            for split, info in self._old.manifest.splits.items():
                entries[split] = []
                for number, file in enumerate(info.files[0]):
                    before = (self._old, split, number)
                    path = self._old.path_of(file.name)
                    shard = Shard(path, file.bytes, self._old.splits[split].shards[number].version)
                    known[split, _real(path)] = before
                    entries[split].append(_ListedShard(shard, before))
        for split, shards in self._targets.splits.items():
            entries[split] = [
                _ListedShard(shard, self._same(known.get((split, _real(shard.path))), shard)) for shard in shards
            ]
        return entries

    def _same(
        self, before: tuple[ExternalIndex, str, int] | None, shard: Shard
    ) -> tuple[ExternalIndex, str, int] | None:
        """What was indexed before, if the shard is still as it was then."""
        if before is None or self._options.verify:
            return None
        index, split, number = before
        file, state = index.manifest.splits[split].files[0][number], index.splits[split].shards[number]
        return before if (file.bytes, state.version) == (shard.bytes, shard.version) else None

    def _scan(self, entries: Mapping[str, Sequence[_ListedShard]]) -> dict[str, list[_ListedShard]]:
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

    def _decide(self, entries: Mapping[str, Sequence[_ListedShard]]) -> tuple[list[IndexedField], list[LeftOut]]:
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

    def _summaries(self, entries: Mapping[str, Sequence[_ListedShard]]) -> tuple[dict[str, FeatureSummary], int]:
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
        entries: Mapping[str, Sequence[_ListedShard]],
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

    # --- publication ----------------------------------------------------------------------------------------------------

    def _publish(
        self, entries: Mapping[str, Sequence[_ListedShard]], maker: RowMaker, left_out: Sequence[LeftOut]
    ) -> ExternalIndex:
        root = self._root(entries)
        old_lines = self._old_lines(entries, root)
        manifest_splits, states, counts = {}, {}, {}
        for split, group in entries.items():
            files, name, crcs = self._write_split(split, group, maker, root)
            manifest_splits[split] = SplitInfo(sum(file.records for file in files), (tuple(files),))
            shards = tuple(entry.state for entry in group)
            command = self._command if split in self._targets.splits else self._old_command(split)
            states[split] = SplitState(name, crcs, shards, command)
            counts[split] = self._class_counts(name, maker, manifest_splits[split].samples)
        self._check_lengths(entries)
        rejects = old_lines + self._bad
        manifest = _manifest(
            self._targets.name if self._old is None else self._old.manifest.name,
            maker.fields,
            manifest_splits,
            counts,
            len(rejects),
        )
        index = ExternalIndex(
            self._folder,
            self._root_text(root),
            tuple(maker.fields),
            tuple(left_out),
            states,
            maker.key,
            maker.raster,
            manifest,
        )
        write_whole(self._folder / BAD_RECORDS, "".join(json.dumps(line) + "\n" for line in rejects))
        write_whole(self._folder / DOCUMENT, index.to_json())
        sync_folder(self._folder)
        self._remove_unused({state.columns for state in states.values()})
        return index

    def _old_command(self, split: str) -> str:
        assert self._old is not None
        return self._old.splits[split].command

    def _root(self, entries: Mapping[str, Sequence[_ListedShard]]) -> Place:
        return common_root([entry.shard.path for group in entries.values() for entry in group])

    def _root_text(self, root: Place) -> str:
        """Relative to the index where it lies inside the folder of the shards, so that both can be moved together."""
        if is_remote(root):
            return str(root)
        return os.path.relpath(root, self._folder) if self._folder.is_relative_to(root) else str(root)

    def _write_split(
        self, split: str, group: Sequence[_ListedShard], maker: RowMaker, root: Place
    ) -> tuple[list[FileInfo], str, dict[str, int]]:
        """Write the columns of a split; its shards in the manifest, the file's name, and the checksums of its columns."""
        files = []
        with writing(self._folder), ColumnWriter(self._work, maker.types) as writer:
            for number, entry in enumerate(group):
                digest = _FramesDigest(entry.shard.bytes)
                first = writer.rows
                for columns, rows in self._rows(split, entry, number, maker, root):
                    writer.append(columns, rows)
                    digest.add(columns)
                name = name_below(root, entry.shard.path)
                files.append(FileInfo(name, writer.rows - first, entry.shard.bytes, digest.hexdigest()))
            if not writer.rows:
                raise DatasetError(f"no record of the split {split!r} can be read; see {self._folder / BAD_RECORDS}")
            types = {name: str(dtype) for name, dtype in maker.types.items()}
            identity = [[asdict(file) for file in files], types, [asdict(item) for item in maker.fields]]
            name = f"{split}-{_digest(identity)}.arrow"
            path = self._folder / name
            with whole_file(path) as file:
                writer.write(file)
            return files, name, column_crcs(path, maker.types, writer.rows)

    def _rows(
        self, split: str, entry: _ListedShard, number: int, maker: RowMaker, root: Place
    ) -> Iterator[tuple[dict[str, pa.Array], int]]:
        if entry.scanned is None:
            yield self._old_rows(entry, number, maker)
            return
        name = name_below(root, entry.shard.path)
        self._note(split, name, entry.scanned.bad)
        if entry.scanned.fault:
            reason = f"{entry.scanned.fault}; what follows is left out"
            self._note(
                split, name, [LostRecord(entry.scanned.records + len(entry.scanned.bad), entry.scanned.end, reason)]
            )
        with entry.scanned.part.open("rb") as file:
            for batch in read_part(file):
                columns, bad, kept = maker.rows(batch, number)
                self._note(split, name, bad)
                yield columns, int(kept.sum())

    def _note(self, split: str, shard: str, bad: Sequence[LostRecord]) -> None:
        self._bad += [
            {"split": split, "shard": shard, "record": item.number, "offset": item.offset, "reason": item.reason}
            for item in bad
        ]

    def _old_rows(self, entry: _ListedShard, number: int, maker: RowMaker) -> tuple[dict[str, pa.Array], int]:
        """The rows of a shard that did not change, from the old columns."""
        index, split, before = entry._before
        if split not in self._old_shards:
            info = index.manifest.splits[split]
            counts = [file.records for file in info.files[0]]
            path = index.folder / index.splits[split].columns
            self._old_shards[split] = list(row_ranges(path, index.types, info.samples, counts))
        batch = self._old_shards[split][before]
        rows = batch.num_rows
        columns = {}
        for name, dtype in maker.types.items():
            if name == "shard":
                columns[name] = pa.array(np.full(rows, number, np.int32))
            elif name in batch.schema.names:
                columns[name] = batch.column(name)
            elif name.endswith("_offset"):
                columns[name] = pa.array(batch.column("offset").to_numpy() + 12)
            elif name.endswith("_size"):
                columns[name] = pa.array(np.zeros(rows, np.int32))
            else:
                columns[name] = pa.nulls(rows, dtype)
        return columns, rows

    def _class_counts(self, name: str, maker: RowMaker, rows: int) -> dict[str, tuple[int, ...]]:
        """How many records of a split have each class, by label; other numbers than those of classes are not counted."""
        counts = {}
        batch = open_columns(self._folder / name, maker.types, rows)
        for item in maker.fields:
            if item.classes and item.column and item.spec.shape == ():
                values = batch.column(item.name).to_numpy()
                inside = values[(values >= 0) & (values < len(item.classes))]
                counts[item.name] = tuple(np.bincount(inside, minlength=len(item.classes)).tolist())
        return counts

    def _check_lengths(self, entries: Mapping[str, Sequence[_ListedShard]]) -> None:
        """Compare the numbers of records with `dataset_info.json`."""
        for split, lengths in self._targets.lengths.items():
            for entry, length in zip(entries[split], lengths, strict=True):
                bad = len(entry.scanned.bad) if entry.scanned else 0
                if entry.state.records + bad != length and self._options.on_bad == "raise":
                    raise DatasetError(
                        f"{entry.shard.path} holds {entry.state.records:,} records, {INFO_JSON} says {length:,}; copy the "
                        "dataset again"
                    )

    def _old_lines(self, entries: Mapping[str, Sequence[_ListedShard]], root: Place) -> list[dict[str, Any]]:
        """The lines of `rejects.jsonl` about shards that are not scanned again."""
        kept = {(split, name_below(root, e.shard.path)) for split, group in entries.items() for e in group if e.old}
        try:
            lines = [json.loads(line) for line in (self._folder / BAD_RECORDS).read_text().splitlines()]
        except (OSError, ValueError):
            return []
        return [line for line in lines if (line.get("split"), line.get("shard")) in kept]

    def _remove_unused(self, used: set[str]) -> None:
        for path in self._folder.glob("*-????????????????.arrow"):
            if path.name not in used:
                path.unlink(missing_ok=True)


class _FramesDigest:
    """What stands for the SHA-256 of a shard, whose payloads are not read for it: that of its size, and of where its records lie
    and the checksums of their payloads."""

    def __init__(self, size: int) -> None:
        self._size, self._parts = size, [hashlib.sha256() for _ in range(3)]

    def add(self, columns: Mapping[str, pa.Array]) -> None:
        for part, name in zip(self._parts, ("offset", "size", "payload_crc"), strict=True):
            part.update(np.ascontiguousarray(columns[name].to_numpy()).data)

    def hexdigest(self) -> str:
        digests = b"".join(part.digest() for part in self._parts)
        return hashlib.sha256(self._size.to_bytes(8, "little") + digests).hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _real(path: Place) -> str:
    return str(path) if is_remote(path) else os.path.realpath(path)


def _manifest(
    name: str,
    fields: Sequence[IndexedField],
    splits: Mapping[str, SplitInfo],
    counts: Mapping[str, Mapping[str, tuple[int, ...]]],
    rejects: int,
) -> Manifest:
    classes = {item.name: item.classes for item in fields if item.classes}
    counted = {
        label: {split: of_split[label] for split, of_split in counts.items()}
        for label in classes
        if all(label in of_split for of_split in counts.values())
    }
    infos = {item.name: FieldInfo(item.spec, dict(item.codec)) for item in fields}
    shards = [[file.name, file.sha256] for info in splits.values() for file in info.files[0]]
    return Manifest(
        name, _digest(shards), {}, infos, splits, classes, counted, versions={"tfprep": __version__}, rejects=rejects
    )


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
