"""Mends a damaged dataset: every file gets the bytes that it was published with, or is named as lost.

What is damaged is what `verify` finds. Small files follow from others: `tfprep.json` from its copy in `.tfprep`, the index from
the receipts, `.idx` from the index, the rest from `tfprep.json`. Shards are built again from the raw files, in a folder of their
own, and take the place of the damaged ones only if their SHA-256 is the one in `tfprep.json`. Other files are not touched.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from tfprep.builder.layout import Layout, locked
from tfprep.builder.options import BuildOptions
from tfprep.builder.planning.plan import recorded_versions
from tfprep.builder.publish import other_files, write_index_file
from tfprep.builder.receipts import read_receipt
from tfprep.builder.start import build, build_shards
from tfprep.dataset import Dataset, FileInfo, Manifest, open_dataset, read_manifest
from tfprep.dataset.locations import write_locations
from tfprep.dataset.manifest import MANIFEST, digest_of, parse_manifest, sha256_of
from tfprep.dataset.names import PRIVATE, fields_receipt, shard_name
from tfprep.dataset.verify import Fault, verify
from tfprep.errors import BuildError, DatasetError, TfprepError
from tfprep.recipe.changes import what_changed
from tfprep.recipe.file import data_root
from tfprep.records import Frame, RecordWriter, format_index
from tfprep.records.framing import FOOTER_BYTES, HEADER_BYTES, masked_crc
from tfprep.storage.local import sync_folder, temporary_path, write_whole
from tfprep.storage.urls import remove_file

_MOST_KEYS = 5
_INDEX_HINT = (
    ". Without them, tfprep index 'DIR/NAME-SPLIT.tfrecord-*-of-?????' --split SPLIT opens the records that are left"
)


@dataclass(frozen=True)
class RepairSummary:
    """The result of a repair.

    Attributes:
      faults: The faults before it.
      mended: The files that have the bytes they were published with again.
      lost: The files that do not, by name, and why.
      lost_samples: The keys of the samples whose records are in damaged files and cannot be read, as far as the index tells.
    """

    faults: tuple[Fault, ...]
    mended: tuple[str, ...]
    lost: Mapping[str, str]
    lost_samples: tuple[str, ...]


def repair(
    out: str | os.PathLike[str],
    recipe: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> RepairSummary:
    """Mend a damaged dataset.

    Args:
      out: The folder of the dataset.
      recipe: The file of the recipe that built it; without one, what follows from other files is mended.
      data: The folder of the raw files; None as in `tfprep.build`.
      workers: As in `BuildOptions`.
      tell: Called with a line for each step.

    Returns:
      What was mended and what is lost.

    Raises:
      DatasetError: There is no dataset, and nothing to make it from.
      BuildError: A build writes into the folder, or the disk refuses to.
    """
    folder, origin = Path(out), None
    if recipe is not None:
        origin = Path(recipe), data_root(Path(recipe)) if data is None else Path(data)
    if not (folder / MANIFEST).exists() and not (folder / PRIVATE).exists() and recipe is None:
        raise DatasetError(f"{folder} holds no dataset that tfprep built; {_needs_raw('a repair')}{_INDEX_HINT}")
    if (folder / MANIFEST).exists():
        with suppress(DatasetError):  # what is wrong with it is a fault
            if read_manifest(folder).imported is not None:
                raise BuildError(
                    f"{folder} is an index of TFRecords of another tool; run tfprep index again, it is made anew"
                )
    faults = tuple(verify(folder)) if (folder / MANIFEST).exists() else (Fault(MANIFEST, None, "the file is missing"),)
    if not faults:
        return RepairSummary((), (), {}, ())
    layout = Layout(folder)
    with locked(layout):
        return _Repair(layout, origin, workers, tell).run(faults)


class _Repair:
    def __init__(
        self, layout: Layout, origin: tuple[Path, Path] | None, workers: int | None, tell: Callable[[str], None]
    ) -> None:
        self._layout, self._out, self._origin = layout, layout.out, origin
        self._workers, self._tell = workers, tell
        self._lost: dict[str, str] = {}
        self._text_indexes: set[str] = set()

    def run(self, faults: tuple[Fault, ...]) -> RepairSummary:
        damaged = {fault.file for fault in faults}
        if MANIFEST in damaged:
            self._mend_manifest()
            damaged = {fault.file for fault in verify(self._out)} | {MANIFEST}
        manifest = open_dataset(self._out).manifest
        noted = damaged & manifest.files.keys() - {manifest.locations}
        self._mend_noted(manifest, sorted(noted, key=lambda name: name != manifest.index))
        if manifest.locations in damaged:  # it follows from the index
            name, index = manifest.locations, self._out / manifest.index
            self._tell(f"making {name} again")
            try:
                if not self._is_mended(manifest, name, lambda path: write_locations(path, index, manifest)):
                    self._lost[name] = "the index does not give it"
            except DatasetError as error:
                self._lost[name] = str(error)
        rest = {file.name: file for file in manifest.shard_files() if file.name in damaged}
        for split in manifest.splits if rest else ():
            with suppress(DatasetError):  # without the index, nobody knows where the payloads lie
                columns = ["shard", "offset", "size", "payload_crc"]
                for _, file, rows in Dataset(self._out, manifest).shard_rows(split, columns):
                    if file.name in rest and _mends_frames(self._out / file.name, rows, file.sha256):
                        del rest[file.name]
        self._mend_shards(manifest, list(rest.values()))
        self._mend_text_indexes(manifest)
        self._withdraw_added(manifest, damaged)
        sync_folder(self._out)
        left = list(verify(self._out))
        for fault in left:
            self._lost.setdefault(fault.file, fault.reason)
        still = {fault.file for fault in left}
        lost = {name: reason for name, reason in self._lost.items() if name in still}
        every = damaged | {fault.file for fault in faults} | self._text_indexes
        return RepairSummary(faults, tuple(sorted(every - still)), lost, tuple(self._lost_samples(manifest, left)))

    def _withdraw_added(self, manifest: Manifest, damaged: set[str]) -> None:
        """Let the next `tfprep add-fields` compute the damaged shards of added fields: only that has the model."""
        for group, entry in manifest.groups.items():
            names = {name.partition("/")[2] for name in damaged if name.startswith(f"{entry.folder}/")}
            for split, variants in entry.variants.items():
                shards = manifest.splits[split].shards
                for variant, shard in itertools.product(range(variants), range(shards)):
                    name = shard_name(manifest.name, split, variant, shard, shards)
                    if {name, f"{name}.idx"} & names:
                        remove_file(self._out / fields_receipt(group, split, variant, shard))
            for name in names:
                self._lost[f"{entry.folder}/{name}"] = "run tfprep add-fields again, which computes it with the model"

    # --- files that follow from others -----------------------------------------------------------------------------

    def _mend_manifest(self) -> None:
        copy = self._layout.manifest_copy
        try:
            content = copy.read_bytes()
            parse_manifest(content, copy)
        except (OSError, DatasetError) as error:
            if self._origin is None:
                raise DatasetError(
                    f"{self._out / MANIFEST} is damaged, and so is its copy ({error}); {_needs_raw('the rest')}{_INDEX_HINT}"
                ) from error
            self._tell(f"building everything again to make {MANIFEST}")
            with self._built() as scratch:
                content = (scratch.out / MANIFEST).read_bytes()
        write_whole(self._out / MANIFEST, content.decode("utf-8", "surrogateescape"))

    def _mend_noted(self, manifest: Manifest, names: Sequence[str]) -> None:
        """Write files from the receipts; where these do not give the same bytes, take them from a build of everything."""
        if not names:
            return
        places = [(split, shard) for split, info in manifest.splits.items() for shard in range(info.shards)]
        read = (read_receipt(self._layout, split, shard, check_files=False) for split, shard in places)
        receipts = [receipt for receipt in read if receipt is not None]
        texts = other_files(manifest, receipts, manifest.files[manifest.index])

        def write(name: str, path: Path) -> None:
            if name == manifest.index:
                write_index_file(path, self._layout, manifest, receipts)
            else:
                write_whole(path, texts.get(name, ""))

        for name in names:
            self._tell(f"making {name} again")
            try:
                mended = self._is_mended(manifest, name, partial(write, name))
            except (OSError, ValueError, KeyError, TypeError, TfprepError) as error:
                self._tell(f"the receipts are damaged ({type(error).__name__})")
                mended = False
            if not mended and self._origin is None:
                self._lost[name] = f"the receipts of the build do not give it; {_needs_raw('it')}"
            elif not mended:
                with self._built() as scratch:
                    self._take(scratch, scratch.out / name, self._out / name, manifest.files[name].sha256, name)

    def _is_mended(self, manifest: Manifest, name: str, write: Callable[[Path], object]) -> bool:
        """Write a file anew; it takes the place of the old one if it is what was published. Return whether it is."""
        temporary = temporary_path(self._out / name, "repair")
        try:
            write(temporary)
            mended = digest_of(temporary) == manifest.files[name]
            if mended:
                temporary.replace(self._out / name)
            return mended
        finally:
            temporary.unlink(missing_ok=True)

    def _mend_text_indexes(self, manifest: Manifest) -> None:
        data = Dataset(self._out, manifest)
        try:
            for split in manifest.splits:
                for _, file, rows in data.shard_rows(split, ["shard", "offset", "size"]):
                    frames = map(Frame, rows["offset"].to_pylist(), rows["size"].to_pylist())
                    path, text = self._out / f"{file.name}.idx", format_index(frames)
                    if not path.is_file() or path.read_bytes() != text.encode():
                        write_whole(path, text)
                        self._text_indexes.add(path.name)
        except DatasetError as error:
            self._tell(f"no .idx can be made without the index ({error})")

    # --- shards ----------------------------------------------------------------------------------------------------

    def _mend_shards(self, manifest: Manifest, files: list[FileInfo]) -> None:
        if not files:
            return
        if self._origin is None:
            self._lost |= {file.name: _needs_raw("it") for file in files}
            return
        places = {
            (split, shard)
            for split, info in manifest.splits.items()
            for of_variant in info.files
            for shard, file in enumerate(of_variant)
            if file in files
        }
        counts = {split: info.shards for split, info in manifest.splits.items()}
        self._tell(f"building {len(places)} of {sum(counts.values())} shards again")
        recipe, data = self._origin
        with self._scratch() as scratch:
            build_shards(recipe, scratch.out, data, counts, places, self._workers)
            for file in files:
                self._take(scratch, scratch.staged / file.name, self._out / file.name, file.sha256, "the shard")

    @contextmanager
    def _built(self) -> Iterator[Layout]:
        """Build the whole dataset into a folder that is removed again."""
        assert self._origin is not None
        recipe, data = self._origin
        with self._scratch() as scratch:
            build(recipe, scratch.out, data, options=BuildOptions(workers=self._workers))
            yield scratch

    @contextmanager
    def _scratch(self) -> Iterator[Layout]:
        folder = self._layout.private / "repair"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            yield Layout(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _take(self, scratch: Layout, rebuilt: Path, place: Path, sha256: str, what: str) -> None:
        if rebuilt.exists() and sha256_of(rebuilt) == sha256:
            rebuilt.replace(place)
            return
        published, now = open_dataset(self._out).manifest, recorded_versions()
        recipes = [json.loads(path.read_bytes())["recipe"] for path in scratch.recipes.iterdir()]
        by_split = dict.fromkeys(("source", "shards", "variants", "decoders"))  # a split's recipe has not the dataset's
        versions = published.versions.items()
        differing = [f"{name} {old} -> {now.get(name)}" for name, old in versions if now.get(name) != old]
        if changes := what_changed({**published.recipe, **by_split}, {**recipes[0], **by_split}):
            why = f"the recipe is another one: {', '.join(changes[:_MOST_KEYS])}"
        elif differing:
            why = f"built with other versions: {', '.join(differing)}"
        else:
            why = "the raw files have changed since the build"
        self._lost[place.name] = f"{what} was built again with other bytes: {why}"

    def _lost_samples(self, manifest: Manifest, faults: list[Fault]) -> Iterator[str]:
        """Yield the keys of records that cannot be read: those of missing files, and those of damaged records."""
        data = Dataset(self._out, manifest)
        by_file: dict[str, list[Fault]] = {}
        for fault in faults:
            by_file.setdefault(fault.file, []).append(fault)
        if manifest.index in by_file:
            return
        seen: set[str] = set()
        for split in manifest.splits if by_file else ():
            for _, file, rows in data.shard_rows(split, ["key", "shard", "offset", "size"]):
                if file.name not in by_file:
                    continue
                path = self._out / file.name
                size, offsets = path.stat().st_size if path.exists() else 0, {one.offset for one in by_file[file.name]}
                for row in rows.to_pylist():
                    is_lost = row["offset"] + row["size"] > size or row["offset"] in offsets
                    if is_lost and row["key"] not in seen:
                        seen.add(row["key"])
                        yield row["key"]


def _mends_frames(path: Path, rows: pa.Table, sha256: str) -> bool:
    """Frame the payloads of a shard anew, if they are those of its rows of the index; return whether it is what was built."""
    temporary = temporary_path(path, "repair")
    try:
        with path.open("rb") as old, temporary.open("wb") as new:
            writer = RecordWriter(new)
            for row in rows.to_pylist():
                old.seek(row["offset"] + HEADER_BYTES)
                payload = old.read(row["size"] - HEADER_BYTES - FOOTER_BYTES)
                if masked_crc(payload) != row["payload_crc"]:
                    return False
                writer.write(payload)
            new.flush()
            os.fsync(new.fileno())
        mended = sha256_of(temporary) == sha256
        if mended:
            temporary.replace(path)
        return mended
    except FileNotFoundError:
        return False
    finally:
        temporary.unlink(missing_ok=True)


def _needs_raw(what: str) -> str:
    return f"{what} needs the raw files and the recipe: tfprep repair DIR RECIPE --data FOLDER"
