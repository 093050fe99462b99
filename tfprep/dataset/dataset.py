"""A dataset on disk, opened: its manifest, its index, and single records by position."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.codecs import Codec, feature_value, from_description
from tfprep.dataset.imported.shards import current, path_below, root_of
from tfprep.dataset.index import read_index
from tfprep.dataset.locations import Locations
from tfprep.dataset.manifest import (
    MOST_BYTES,
    AddedFields,
    FieldInfo,
    FileInfo,
    Manifest,
    SplitInfo,
    digest_of,
    parse_manifest,
    read_manifest,
)
from tfprep.dataset.names import INDEX, LOCATIONS, MANIFEST
from tfprep.dataset.versions import Held, Version, hold, hold_current
from tfprep.errors import DatasetError, RecordError, SampleError
from tfprep.fields import FieldSpec
from tfprep.records import Frame, decode, read_record
from tfprep.storage.local import regular_size
from tfprep.storage.urls import PathOrUrl, check_no_link, is_remote, listed_sizes, open_file, read_file
from tfprep.units import aligned, size

_ROWS = 8192
"""Rows of `locations.bin` that are looked up at a time."""


class Splits(dict[str, SplitInfo]):
    """Splits by name, which are printed as a table."""

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table, with its heads."""
        rows = [
            (name, f"{split.samples:,}", f"{split.variants}", f"{split.shards}", size(split.bytes))
            for name, split in self.items()
        ]
        return [("split", "samples", "variants", "shards", "size"), *rows]

    def __repr__(self) -> str:
        return "\n".join(aligned(self.rows()))


@dataclass(frozen=True)
class Dataset:
    """One version of a dataset, opened. Builds leave it as it is, and do not remove it while this object is there.

    Opening reads `manifest.json` only; the index is read by split, variant and column when it is asked for.

    Attributes:
        path: The folder of the version, or its `Url`.
        manifest: What `manifest.json` says.
        version: The version; None for a folder that was not opened as one.
        lock: Keeps builds from removing the version as long as this object is there; None at a URL.
    """

    path: Path
    manifest: Manifest
    version: Version | None = field(default=None, repr=False, compare=False)
    lock: Held | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lock": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Hold the version in this process too. Raises DatasetError if it was removed meanwhile."""
        self.__dict__.update(state)
        if self.version is not None:
            self.__dict__["lock"] = hold(self.version)

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
        """The splits by name; printed, they are a table."""
        return Splits(self.manifest.splits)

    @cached_property
    def infos(self) -> Mapping[str, FieldInfo]:
        """Every stored field, with those that models added."""
        added = self.manifest.groups.values()
        return {**self.manifest.fields, **{name: info for dataset in added for name, info in dataset.fields.items()}}

    @cached_property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Kind, shape and dtype of every stored field, with those that models added."""
        return {name: info.spec for name, info in self.infos.items()}

    @cached_property
    def codecs(self) -> Mapping[str, Codec]:
        """The codec of every stored field."""
        return {name: from_description(info.codec) for name, info in self.infos.items()}

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """The class names by field."""
        return self.manifest.classes

    @property
    def class_names(self) -> Sequence[str]:
        """The class names of the label, or else of the mask; empty where there are none."""
        for kind in ("label", "mask"):
            for name, spec in self.fields.items():
                if spec.kind == kind and name in self.classes:
                    return self.classes[name]
        return ()

    def fields_of(self, split: str, variant: int = 0) -> Mapping[str, FieldSpec]:
        """The fields that a variant of a split has: added ones may be those of other splits, or of the first variants."""
        groups = [group for group in self.manifest.groups.values() if variant >= group.variants.get(split, 0)]
        absent = {name for group in groups for name in group.fields}
        return {name: spec for name, spec in self.fields.items() if name not in absent}

    def group_of(self, field: str) -> str:
        """Return the name under which a model added a field; "" for a field of the records themselves."""
        added = self.manifest.groups
        return next((group for group, dataset in added.items() if field in dataset.fields), "")

    def added(self, group: str) -> Dataset:
        """Return the dataset of the fields that were added under this name.

        Raises:
            DatasetError: It is missing or damaged.
        """
        if group not in self._added:
            with self._named_if_removed():
                self._added[group] = self._open_added(self.manifest.groups[group])
        return self._added[group]

    def folder_of(self, entry: AddedFields) -> Path:
        """Return the folder of added fields."""
        return (self.path.parent / entry.within if entry.within else self.path) / entry.folder

    def _open_added(self, entry: AddedFields) -> Dataset:
        folder = self.folder_of(entry)
        check_no_link(folder)
        content = read_file(folder / MANIFEST, MOST_BYTES + 1)
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise DatasetError(
                f"{folder / MANIFEST} is not the one that {self.path / MANIFEST} names: it is damaged, or of other fields; copy "
                "the whole dataset again, or run tfprep fields add again"
            )
        manifest = parse_manifest(content, folder / MANIFEST)
        for split, variants in entry.variants.items():  # its records follow those of this dataset
            mine = [[file.records for file in files] for files in self.splits[split].files[:variants]]
            theirs = manifest.splits.get(split)
            if theirs is None or [[file.records for file in files] for files in theirs.files] != mine:
                raise DatasetError(
                    f"{folder} has other records of split {split!r} than {self.path}; run tfprep fields add"
                )
        if manifest.fields != entry.fields:
            raise DatasetError(f"{folder} has other fields than {self.path / MANIFEST} says; run tfprep fields add")
        return Dataset(folder, manifest, self.version, self.lock)

    @cached_property
    def _added(self) -> dict[str, Dataset]:
        return {}

    def split(self, name: str, variant: int = 0) -> SplitInfo:
        """Return the split of this name; DatasetError lists those there are, and says if it has no such variant."""
        splits = self.manifest.splits
        if not isinstance(name, str) or name not in splits:
            raise DatasetError(f"{self.path} has no split {name!r}; it has {', '.join(splits) or 'none'}")
        if variant and variant not in (variants := range(splits[name].variants)):  # there always is a variant 0
            raise DatasetError(f"split {name!r} has {len(variants)} variants, numbered from 0; there is no {variant!r}")
        return splits[name]

    @cached_property
    def shards_folder(self) -> Path:
        """The folder or URL of the shards: the version's own, that of all versions, or that of an imported dataset."""
        if self.manifest.imported is None:
            return self.path.parent / self.manifest.within if self.manifest.within else self.path
        root: Path = root_of(self.path, self.manifest)
        return root

    def shard_path(self, file: FileInfo) -> Path:
        """Return the path of a shard."""
        folder = self.shards_folder
        path: Path = folder / file.name if self.manifest.imported is None else path_below(folder, file.name)
        return path

    def feature(self, field: str) -> str:
        """Return the name that a field has in the Examples."""
        return field if self.manifest.imported is None else self.manifest.imported.features[field]

    def file(self, split: str, variant: int, shard: int) -> FileInfo:
        """Return what the manifest says about one shard file."""
        return self.split(split).files[variant][shard]

    def check_files(self, split: str, variants: Iterable[int], *, sizes: bool = True) -> None:
        """Check that the shards of a split are regular files of their folder, of the sizes that the manifest gives.

        At a URL, names and sizes are compared with a listing of the folder, if its store has one: more would cost a request a
        file.

        Args:
            split: The split.
            variants: Its variants.
            sizes: Whether another size is an error; if not, records that are cut short show when they are read.

        Raises:
            DatasetError: The version was removed; or a file is missing, is not a regular file, leads out of the folder, or has
                another size.
        """
        files = [file for variant in variants for file in self.split(split).files[variant]]
        folder, found = self.shards_folder, {file.name: file.bytes for file in files}
        with self._named_if_removed():
            if self.manifest.imported is None and is_remote(folder):
                found = listed_sizes(folder) or found
            elif self.manifest.imported is None:
                found = {file.name: regular_size(folder / file.name) for file in files}
            elif sizes:
                found = {file.name: current(self.shard_path(file)).bytes for file in files}
            if missing := [file for file in files if file.name not in found]:
                raise DatasetError(
                    f"{self.shard_path(missing[0])} does not exist in its store; is the dataset complete?"
                )
            for file in files if sizes else ():
                if found[file.name] != file.bytes:
                    fix = "copy the file again, or run tfprep build --verify"
                    fix = "it was written again: run tfprep index again" if self.manifest.imported else fix
                    rule = f"holds {found[file.name]} bytes, {MANIFEST} says {file.bytes}"
                    raise DatasetError(f"{self.shard_path(file)} {rule}; {fix}. tfprep verify lists all damage")

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
        self.split(split, variant)
        if isinstance(columns, str):
            raise DatasetError(f"columns is a list of names, such as [{columns!r}], not {columns!r}")
        with self._named_if_removed():
            return read_index(self._checked_folder, self.manifest, split, variant, columns, first)

    def locations(self, split: str, variants: range) -> Locations:
        """Return where the records of these variants are.

        Raises:
            DatasetError: `locations.bin` is missing or damaged.
        """
        with self._named_if_removed():
            return Locations(self.path / LOCATIONS, self.manifest, split, variants)

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
            DatasetError: The index or a record cannot be read, or there is no such split, variant, row or field.
        """
        self.split(split, variant)
        if unknown := [name for name in fields or () if name not in self.fields]:
            raise DatasetError(f"{self.path} has no field {unknown[0]!r}; it has {', '.join(self.fields)}")
        parts = []
        for group, entry in self.manifest.groups.items():
            names = [name for name in entry.fields if fields is None or name in fields]
            if names and variant < entry.variants.get(split, 0):
                parts.append(self.added(group).samples(split, variant, positions, names))
            elif names and fields is not None:  # None asks for those that this variant has
                raise DatasetError(f"variant {variant} of split {split!r} has no {names[0]!r}; run tfprep fields add")
        own = [name for name in self.manifest.fields if fields is None or name in fields]
        if own or not parts:
            parts.insert(0, self._own_samples(split, variant, positions, own))
        for sample in zip(*parts, strict=True):
            yield {name: value for part in sample for name, value in part.items()}

    def _own_samples(
        self, split: str, variant: int, positions: Sequence[int] | None, fields: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        self.check_files(split, [variant], sizes=False)
        locations = self.locations(split, range(variant, variant + 1))
        numbers = np.arange(len(locations)) if positions is None else np.array(positions, np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(locations):
            raise DatasetError(f"rows of split {split!r} have numbers below {len(locations)}, not {positions!r:.60}")
        for some in (numbers[first : first + _ROWS] for first in range(0, len(numbers), _ROWS)):
            shards = locations.shards(some).tolist()
            for position, shard, row in zip(some.tolist(), shards, locations.take(some), strict=True):
                path = self.shard_path(self.file(split, variant, shard))
                frame, crc = Frame(int(row["offset"]), int(row["size"])), int(row["payload_crc"])
                with self._named_if_removed(), open_file(path) as file:
                    payload = read_record(file, path, frame, position, payload_crc=crc)
                try:
                    yield self.decode(payload, fields)
                except SampleError as error:
                    raise RecordError(error.reason, path=str(path), record=position, offset=frame.offset) from error

    def decode(self, payload: bytes, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode one record's payload to NumPy values by field, without added ones; SampleError if it is not an Example of these.

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
    def _named_if_removed(self) -> Iterator[None]:
        """Say so if what is wrong inside comes from the removal of this version."""
        try:
            yield
        except DatasetError:
            if self.version is not None:
                hold(self.version)
            raise

    @cached_property
    def _checked_folder(self) -> Path:
        """The folder of the index, which is compared with its digest once: it never changes."""
        path, expected = self.path / INDEX, self.manifest.files[INDEX]
        try:
            found = digest_of(path)
        except DatasetError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise DatasetError(f"{path} is missing; {self.manifest.fix}") from None
            raise
        if found != expected:
            raise DatasetError(
                f"{path} is not the index that {MANIFEST} was written with: it is damaged, or comes from another build; "
                f"copy the whole dataset again, or {self.manifest.fix}"
            )
        return self.path


def open_dataset(path: PathOrUrl, version: int | None = None) -> Dataset:
    """Open a dataset for inspection, without loaders (`tfprep.open` returns one with loaders).

    Args:
        path: The folder or URL of a dataset, or of one of its versions.
        version: The number of the version; None for the current one.

    Returns:
        The dataset.

    Raises:
        DatasetError: There is no dataset that this version of tfprep reads.
    """
    return Dataset(*read_dataset(path, version))


def read_dataset(path: PathOrUrl, version: int | None = None) -> tuple[Path, Manifest, Version, Held | None]:
    """Read what makes a `Dataset`; arguments and errors are those of `open_dataset`."""
    found, held = hold_current(path, version)
    return found.path, read_manifest(found.path), found, held
