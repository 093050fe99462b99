"""A dataset on disk, opened: its manifest, its index, and single records by position."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.codecs import Codec, TopK, feature_value, from_description
from tfprep.dataset.imported.shards import check_shards, path_below, root_of
from tfprep.dataset.index import read_index
from tfprep.dataset.locations import Locations
from tfprep.dataset.manifest import (
    BESIDE,
    MANIFEST,
    MOST_BYTES,
    AddedFields,
    FieldInfo,
    FileInfo,
    Manifest,
    SplitInfo,
    crc32c_of,
    parse_manifest,
)
from tfprep.dataset.names import PRIVATE
from tfprep.errors import DatasetError, DatasetReplacedError, RecordError, SampleError, StorageError
from tfprep.fields import FieldSpec, stored_name
from tfprep.records import Frame, decode, read_record
from tfprep.storage.local import FileIdentity, identity_of, regular_identities, regular_identity
from tfprep.storage.store import open_store
from tfprep.storage.urls import PathOrUrl, file_size, file_state, folder_at, is_remote, listed_sizes, open_file, size_of

PUBLICATION_S, PAUSE_S = 2.0, 0.02
"""How long opening waits for the end of a publication, and between two looks. It takes less for most datasets; a build that was
killed meanwhile leaves a dataset that can be read as it is."""
_ROWS = 8192
"""Rows of `locations.bin` that are looked up at a time."""


def check_no_link(folder: Path) -> None:
    """Raise DatasetError where the folder of added fields is a link: it may lead to any folder of the user's."""
    if not is_remote(folder) and folder.is_symlink():
        raise DatasetError(f"{folder} is a link; added fields lie in a folder of the dataset: copy the folder itself")


@dataclass(frozen=True)
class Dataset:
    """An opened dataset. Opening reads `tfprep.json` alone; the index is read by split, variant and column when it is asked for.

    Attributes:
        path: The folder, or a `Url`.
        manifest: What `tfprep.json` says.
        opened: The identity of `tfprep.json` when it was read; None at a URL, and in another process.
    """

    path: Path
    manifest: Manifest
    opened: FileIdentity | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Another process may run on another machine, which numbers the devices of a network otherwise."""
        return {**self.__dict__, "opened": None}

    def __repr__(self) -> str:
        splits = ", ".join(
            f"{name} {info.samples:,}" + (f" x {info.variants}" if info.variants > 1 else "")
            for name, info in self.splits.items()
        )
        return f"<{type(self).__name__} {self.name!r} in {self.path}: {splits}; fields {', '.join(self.fields)}>"

    @property
    def name(self) -> str:
        """The dataset's name, which its shards' names begin with."""
        return self.manifest.name

    @property
    def splits(self) -> Mapping[str, SplitInfo]:
        """The splits by name."""
        return self.manifest.splits

    @cached_property
    def infos(self) -> Mapping[str, FieldInfo]:
        """Every stored field, with those that models added."""
        added = self.manifest.groups.values()
        return {**self.manifest.fields, **{name: info for one in added for name, info in one.fields.items()}}

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Kind, shape and dtype of every stored field, with those that models added."""
        return {name: info.spec for name, info in self.infos.items()}

    @cached_property
    def codecs(self) -> Mapping[str, Codec]:
        """The codec of every stored field, and of `parts`."""
        stored = {name: from_description(info.codec) for name, info in self.infos.items()}
        return {**stored, **{name: codec for name, (codec, _) in self._parts.items()}}

    @property
    def parts(self) -> Mapping[str, FieldSpec]:
        """Kind, shape and dtype of what loaders deliver where it is named: `FIELD/indices` and `FIELD/values` of class scores."""
        return {name: spec for name, (_, spec) in self._parts.items()}

    @cached_property
    def _parts(self) -> dict[str, tuple[Codec, FieldSpec]]:
        scores = {name: (from_description(info.codec), info.spec) for name, info in self.infos.items()}
        return {
            f"{name}/{half}": part
            for name, (codec, spec) in scores.items()
            if isinstance(codec, TopK)
            for half, part in codec.parts(spec).items()
        }

    def fields_of(self, split: str, variant: int = 0) -> Mapping[str, FieldSpec]:
        """The fields that a variant of a split has: added ones may be those of other splits, or of the first variants."""
        groups = [one for one in self.manifest.groups.values() if variant >= one.variants.get(split, 0)]
        absent = {name for one in groups for name in one.fields}
        return {name: spec for name, spec in self.fields.items() if name not in absent}

    def group_of(self, field: str) -> str:
        """Return the name under which a model added a field; "" for a field of the records themselves."""
        added = self.manifest.groups
        return next((group for group, one in added.items() if stored_name(field) in one.fields), "")

    def added(self, group: str) -> Dataset:
        """Return the dataset of the fields that were added under this name.

        Raises:
            DatasetError: It is missing or damaged.
            DatasetReplacedError: These fields were computed anew since this dataset was opened.
        """
        if group not in self._added:
            entry = self.manifest.groups[group]
            try:
                self._added[group] = self._open_added(entry)
            except DatasetError as error:
                self.check_not_replaced(error)
                if read_manifest(self.path).groups.get(group) != entry:
                    raise DatasetReplacedError(
                        f"the fields {group!r} of {self.path} were computed anew or removed since it was opened; open it again"
                    ) from error
                raise
        return self._added[group]

    def _open_added(self, entry: AddedFields) -> Dataset:
        folder = self.path / entry.folder
        check_no_link(folder)
        content = load_manifest(folder)
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise DatasetError(
                f"{folder / MANIFEST} is not the one that {self.path / MANIFEST} names: it is damaged, or of other fields; copy "
                "the whole dataset again, or run tfprep add-fields again"
            )
        manifest = parse_manifest(content, folder / MANIFEST)
        for split, variants in entry.variants.items():  # its records follow those of this dataset
            mine = [[file.records for file in files] for files in self.splits[split].files[:variants]]
            theirs = manifest.splits.get(split)
            if theirs is None or [[file.records for file in files] for files in theirs.files] != mine:
                raise DatasetError(
                    f"{folder} has other records of split {split!r} than {self.path}; run tfprep add-fields"
                )
        if manifest.fields != entry.fields:
            raise DatasetError(f"{folder} has other fields than {self.path / MANIFEST} says; run tfprep add-fields")
        return Dataset(folder, manifest, _identity(folder))

    @cached_property
    def _added(self) -> dict[str, Dataset]:
        return {}

    def split(self, name: str) -> SplitInfo:
        """Return the split of this name; DatasetError lists those there are."""
        if name not in self.splits:
            raise DatasetError(f"{self.path} has no split {name!r}; it has {', '.join(self.splits) or 'none'}")
        return self.splits[name]

    @property
    def shards_folder(self) -> Path:
        """The folder or URL of the shards: the dataset's own, or the one that an imported dataset refers to."""
        return self.path if self.manifest.imported is None else root_of(self.path, self.manifest)

    def shard_path(self, file: FileInfo) -> Path:
        """Return the path of a shard, which lies elsewhere if the dataset is an imported one."""
        return self.path / file.name if self.manifest.imported is None else path_below(self.shards_folder, file.name)

    def feature(self, field: str) -> str:
        """Return the name that a field has in the Examples."""
        return field if self.manifest.imported is None else self.manifest.imported.features[field]

    def file(self, split: str, variant: int, shard: int) -> FileInfo:
        """Return what the manifest says about one shard file."""
        return self.split(split).files[variant][shard]

    def check_files(
        self, split: str, variants: Iterable[int], *, sizes: bool = True
    ) -> list[FileIdentity] | list[None]:
        """Check that the shards of a split are regular files of this folder, of the sizes that the manifest gives.

        At a URL, names and sizes are compared with a listing of the folder, if its store has one: more would cost a request a
        file.

        Args:
            split: The split.
            variants: Its variants.
            sizes: Whether another size is an error; if not, records that are cut short show when they are read.

        Returns:
            The identity of each file, in order, to be compared when it is opened; None at a URL.

        Raises:
            DatasetError: A file is missing, is no regular file, leads out of the folder, or has another size.
            DatasetReplacedError: Another build replaced the dataset since it was opened.
        """
        files = [file for variant in variants for file in self.split(split).files[variant]]
        if self.manifest.imported is not None:
            check_shards(self.path, self.manifest, split, lambda: self.locations(split, range(1)), sizes=sizes)
            paths = [self.shard_path(file) for file in files]
            return [regular_identity(path) for path in paths if not is_remote(path)] or [None] * len(paths)
        with self._watch_for_another_build():
            identities: list[FileIdentity] = []
            if is_remote(self.path):
                found = listed_sizes(self.path)
                for file in files if found else ():
                    if file.name not in found:
                        raise DatasetError(
                            f"{self.path / file.name} does not exist in its store; is the dataset complete?"
                        )
            else:
                identities = list(regular_identities(self.path, (file.name for file in files)))
                found = {file.name: identity.bytes for file, identity in zip(files, identities, strict=True)}
            for file in files if sizes else ():
                if found.get(file.name, file.bytes) != file.bytes:
                    raise DatasetError(
                        f"{self.path / file.name} holds {found[file.name]} bytes, {MANIFEST} says {file.bytes}; copy the file "
                        "again, or run the build again. tfprep verify lists all damage"
                    )
        if is_remote(self.path):
            return [None] * len(files)
        # A publication replaces tfprep.json before any shard: the files that were looked at before are those that it describes.
        if self.opened != _identity(self.path) and self._describes_another_build():
            raise self._replaced()
        return identities

    def index(
        self, split: str, variant: int = 0, columns: Sequence[str] | None = None, first: int | None = None
    ) -> pa.Table:
        """Return the rows of `index.parquet` of one split and variant, in the order of the records on disk.

        Args:
            split: The split.
            variant: The variant, from 0.
            columns: The columns to read; None reads all. Names that no index has are left out.
            first: The number of rows to read, from the first on; None reads all.

        Raises:
            DatasetError: There is no such split or variant, or the index is damaged or belongs to another build.
        """
        info = self.split(split)
        if not 0 <= variant < info.variants:
            raise DatasetError(f"split {split!r} has {info.variants} variants, numbered from 0; there is no {variant}")
        with self._watch_for_another_build():
            self._check_index()
            rows = read_index(self.path, self.manifest, split, variant, columns, first)
            self._check_index()  # It may have been replaced after it was compared.
        return rows

    def shard_rows(self, split: str, columns: Sequence[str]) -> Iterator[tuple[int, FileInfo, pa.Table]]:
        """Yield the number, the file and the rows of the index of each shard, variant after variant; errors as of `index`."""
        for variant, files in enumerate(self.split(split).files):
            rows, first = self.index(split, variant, columns), 0
            for number, file in enumerate(files):
                yield number, file, rows.slice(first, file.records)
                first += file.records

    def locations(self, split: str, variants: range) -> Locations:
        """Return where the records of these variants lie.

        Raises:
            DatasetError: `locations.bin` is missing or damaged.
        """
        path = self.path / self.manifest.locations
        return Locations(path, self.manifest, split, variants, self._watch_for_another_build)

    def samples(
        self, split: str, variant: int = 0, positions: Sequence[int] | None = None, fields: Sequence[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Decode records one at a time, with their checksums compared. This is for inspection; loaders are for training.

        Args:
            split: The split.
            variant: The variant, from 0.
            positions: The rows of the index to read; None reads all in order.
            fields: The fields to decode; None decodes all.

        Yields:
            NumPy values by field.

        Raises:
            DatasetError: The index or a record cannot be read, or there is no such field.
        """
        if unknown := [name for name in fields or () if name not in self.fields]:
            raise DatasetError(f"{self.path} has no field {unknown[0]!r}; it has {', '.join(self.fields)}")
        parts = []
        for group, entry in self.manifest.groups.items():
            names = [name for name in entry.fields if fields is None or name in fields]
            if names and variant < entry.variants.get(split, 0):
                parts.append(self.added(group).samples(split, variant, positions, names))
            elif names and fields is not None:  # None asks for those that this variant has
                raise DatasetError(
                    f"{names[0]!r} was not computed for variant {variant} of split {split!r}; run tfprep add-fields for it"
                )
        own = [name for name in self.manifest.fields if fields is None or name in fields]
        if own or not parts:
            parts.insert(0, self._own_samples(split, variant, positions, own))
        for sample in zip(*parts, strict=True):
            yield {name: value for part in sample for name, value in part.items()}

    def _own_samples(
        self, split: str, variant: int, positions: Sequence[int] | None, fields: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        self.check_files(split, [variant], sizes=False)
        for position, shard, frame, crc in self._frames(split, variant, positions):
            path = self.shard_path(self.file(split, variant, shard))
            with self._watch_for_another_build(), open_file(path) as file:
                payload = read_record(file, path, frame, position, payload_crc=crc)
            try:
                yield self.decode(payload, fields)
            except SampleError as error:
                raise RecordError(error.reason, path=str(path), record=position, offset=frame.offset) from error

    def _frames(
        self, split: str, variant: int, positions: Sequence[int] | None
    ) -> Iterator[tuple[int, int, Frame, int]]:
        """Yield the position of each record, its shard, where it lies in it, and the checksum of its payload."""
        locations = self.locations(split, range(variant, variant + 1))
        numbers = np.arange(len(locations)) if positions is None else np.array(positions, np.int64)
        for first in range(0, len(numbers), _ROWS):
            some = numbers[first : first + _ROWS]
            shards = locations.shards(some).tolist()
            for position, shard, row in zip(some.tolist(), shards, locations.take(some), strict=True):
                yield position, shard, Frame(int(row["offset"]), int(row["size"])), int(row["payload_crc"])

    def decode(self, payload: bytes, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode one record's payload to NumPy values by field, without added ones; SampleError if it is no Example of these.

        Args:
            payload: The bytes of the Example.
            fields: The fields to decode; None decodes all.
        """
        try:
            features, values = decode(payload), {}
            for name, info in self.manifest.fields.items():
                if fields is None or name in fields:
                    feature, codec = self.feature(name), self.codecs[name]
                    if feature not in features and self.manifest.imported is None:
                        raise SampleError(f"the record has no field {name!r}, which {MANIFEST} names")
                    value, shape = feature_value(codec, features, feature)
                    values[name] = codec.decode(value, info.spec, shape)
            return values
        except (ValueError, TypeError, OverflowError) as error:
            raise SampleError(str(error)) from error

    @contextmanager
    def _watch_for_another_build(self) -> Iterator[None]:
        """Say so if what is wrong inside comes from a build that replaced the dataset since it was opened."""
        try:
            yield
        except DatasetError as error:
            if not isinstance(error, DatasetReplacedError):
                self.check_not_replaced(error)
            raise

    def check_not_replaced(self, error: Exception | None = None) -> None:
        """Raise DatasetReplacedError if a build was published in this place since this was opened. Added fields do not count.

        Args:
            error: What was wrong, which may come from that.
        """
        now = _identity(self.path)
        if self.opened and now:  # the same build may have been published once more, in other files
            is_replaced = False
            if self.opened != now:
                try:
                    there = read_manifest(self.path)
                    is_replaced = there == self.manifest or replace(there, added=self.manifest.added) != self.manifest
                except DatasetError:
                    is_replaced = True
        else:
            is_replaced = self._describes_another_build()
        if is_replaced:
            raise self._replaced() from error

    def fields_added_since(self) -> list[str]:
        """Return the names of the fields that were added since this was opened; none where `tfprep.json` cannot be read."""
        try:
            now = read_manifest(self.path).groups.values()
        except DatasetError:
            return []
        return [name for one in now for name in one.fields if name not in self.fields]

    def _describes_another_build(self) -> bool:
        try:
            return replace(read_manifest(self.path), added=self.manifest.added) != self.manifest
        except StorageError as error:
            return isinstance(
                error.__cause__, FileNotFoundError
            )  # a store that does not answer says nothing about builds
        except DatasetError:
            return True

    def _replaced(self) -> DatasetReplacedError:
        if not is_remote(self.path) and not self.path.exists():
            return DatasetReplacedError(f"{self.path} was deleted or moved since it was opened")
        return DatasetReplacedError(f"{self.path} was replaced by another build since it was opened; open it again")

    def _check_index(self) -> None:
        """Compare the index with the size and CRC-32C in `tfprep.json`, at first use and whenever the file was replaced."""
        path = self.path / self.manifest.index
        expected = self.manifest.files[self.manifest.index]
        try:
            state = file_state(path)
        except DatasetError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise DatasetError(f"{path} is missing; {self.manifest.way_out}") from None
            raise
        if state == self._checked_index.get("state"):
            return
        if (crc32c_of(path), file_size(path)) != (expected.crc32c, expected.bytes):
            raise DatasetError(
                f"{path} is not the index that {MANIFEST} was written with: it is damaged, or comes from another build; "
                f"copy the whole dataset again, or {self.manifest.way_out}"
            )
        self._checked_index["state"] = state

    @cached_property
    def _checked_index(self) -> dict[str, object]:
        """The state of the index's file when it was compared last."""
        return {}


def open_dataset(path: PathOrUrl) -> Dataset:
    """Open the dataset in this folder or at this URL, for inspection without a loader (`tfprep.open` returns one with loaders).

    Raises:
        DatasetError: There is no dataset that this version reads.
    """
    return Dataset(*read_dataset(folder_at(path)))


def read_dataset(folder: Path) -> tuple[Path, Manifest, FileIdentity | None]:
    """Read what makes a `Dataset`: its folder, which may lie beside imported shards, its manifest, and that file's identity.

    What a publication changes meanwhile is read again: a dataset whose files still have the hidden names of one loses them soon.

    Raises:
        DatasetError: There is none, or something is wrong with it; the message says what to do.
    """
    if isinstance(folder, Path) and folder.is_file():
        raise DatasetError(f"{folder} is a file; open the dataset's folder, {folder.parent}")
    if not is_remote(folder):  # where each look is a request
        folder = manifest_folder(folder)
    end = time.monotonic() + PUBLICATION_S
    while True:
        before = _identity(folder)
        try:
            manifest = read_manifest(folder)
        except DatasetError as error:
            is_missing = is_remote(folder) and isinstance(error.__cause__, FileNotFoundError)
            if is_missing and (beside := manifest_folder(folder)) != folder:
                return read_dataset(beside)
            if time.monotonic() > end or before == _identity(folder):
                raise
        else:
            still = before == _identity(folder) and not manifest.index.startswith(".")
            if still or time.monotonic() > end:
                return folder, manifest, before
        time.sleep(PAUSE_S)


def manifest_folder(folder: Path) -> Path:
    """Return the folder of a dataset's `tfprep.json`: this one, or for imported shards the one that lies beside them."""
    if size_of(folder / MANIFEST) is None and size_of(folder / BESIDE / MANIFEST) is not None:
        return folder / BESIDE
    return folder


def _identity(folder: Path) -> FileIdentity | None:
    """Return the identity of `tfprep.json`; None where there is none, and at a URL, where each look is a request."""
    if is_remote(folder):
        return None
    try:
        return identity_of((folder / MANIFEST).stat())
    except OSError:
        return None


def read_manifest(folder: Path) -> Manifest:
    """Read and check the `tfprep.json` of a folder.

    Raises:
        DatasetError: There is none, or something is wrong with it; the message says what to do.
    """
    return parse_manifest(load_manifest(folder), folder / MANIFEST)


def load_manifest(folder: Path) -> bytes:
    """Return the bytes of `tfprep.json`; DatasetError if they cannot be read."""
    path = folder / MANIFEST
    try:
        if is_remote(path):  # with one request: between two of them it may be replaced
            return bytes(open_store(folder).read(MANIFEST, 0, MOST_BYTES + 1))
        with open_file(path) as file:
            return file.read(MOST_BYTES + 1)
    except DatasetError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise DatasetError(f"{folder} holds no {MANIFEST}: {_why_not(folder)}") from error.__cause__
        raise
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror or error})") from error


def _why_not(folder: Path) -> str:
    if is_remote(folder):
        return "check the URL; `tfprep build RECIPE --out FOLDER` makes a dataset"
    if not folder.exists():
        return "the folder does not exist; `tfprep build RECIPE --out FOLDER` makes one"
    if (folder / PRIVATE).is_dir():
        return "a build has begun here and not finished; run the same command again and it continues"
    return "it is not a dataset built by tfprep; `tfprep index` makes one of TFRecords that another tool wrote"
