"""A dataset on disk, opened: its manifest, its index, and single records by position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.codecs import Codec, Scalar, Texts, from_description
from tfprep.dataset.arrow import numpy_column
from tfprep.dataset.digests import crc32c_of
from tfprep.dataset.external.opened import ExternalIndex, read_external
from tfprep.dataset.index import read_index
from tfprep.dataset.locations import Locations
from tfprep.dataset.manifest import MANIFEST, FieldInfo, FileInfo, Manifest, SplitInfo
from tfprep.dataset.names import PRIVATE
from tfprep.dataset.parse import MOST_BYTES, parse_manifest
from tfprep.errors import DatasetError, DatasetReplacedError, RecordError, SampleError
from tfprep.fields import FieldSpec
from tfprep.records import Frame, decode, read_record
from tfprep.storage.local import regular_sizes
from tfprep.storage.urls import PathOrUrl, file_size, file_state, folder_at, is_remote, listed_sizes, open_file


@dataclass(frozen=True)
class Dataset:
    """An opened dataset. Opening reads `tfprep.json` alone; the index is read by split, variant and column when it is asked for.

    Attributes:
        path: The folder, or a `Url`.
        manifest: What `tfprep.json` says.
        external: What more there is to say of an index of TFRecords that tfprep did not write; None for a built dataset.
    """

    path: Path
    manifest: Manifest
    external: ExternalIndex | None = None

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

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Kind, shape and dtype of every stored field."""
        return {name: info.spec for name, info in self.manifest.fields.items()}

    @cached_property
    def codecs(self) -> Mapping[str, Codec]:
        """The codec of every stored field."""
        return {name: from_description(info.codec) for name, info in self.manifest.fields.items()}

    def split(self, name: str) -> SplitInfo:
        """Return the split of this name; DatasetError lists those there are."""
        if name not in self.splits:
            raise DatasetError(f"{self.path} has no split {name!r}; it has {', '.join(self.splits) or 'none'}")
        return self.splits[name]

    @property
    def shards_folder(self) -> Path:
        """The folder or URL of the shards: the dataset's own, or the one that an index refers to."""
        return self.path if self.external is None else self.external.root_folder

    def shard_path(self, file: FileInfo) -> Path:
        """Return the path of a shard, which an index may refer to in another folder."""
        return self.path / file.name if self.external is None else self.external.path_of(file.name)

    def file(self, split: str, variant: int, shard: int) -> FileInfo:
        """Return what the manifest says about one shard file."""
        return self.split(split).files[variant][shard]

    def check_files(self, split: str, variants: Iterable[int], *, sizes: bool = True) -> None:
        """Check that the shards of a split are regular files of this folder, of the sizes that the manifest gives.

        At a URL, names and sizes are compared with a listing of the folder, if its store has one: more would cost a request a
        file.

        Args:
            split: The split.
            variants: Its variants.
            sizes: Whether another size is an error; if not, records that are cut short show when they are read.

        Raises:
            DatasetError: A file is missing, is no regular file, leads out of the folder, or has another size.
        """
        files = [file for variant in variants for file in self.split(split).files[variant]]
        if self.external is not None:
            self.external.check_files(split, sizes=sizes)
            return
        with self._watch_for_another_build():
            for file, size in zip(files, self._sizes(files), strict=True):
                if sizes and size != file.bytes:
                    raise DatasetError(
                        f"{self.path / file.name} holds {size} bytes, {MANIFEST} says {file.bytes}; copy the file again, "
                        "or run the build again. tfprep verify lists all damage"
                    )

    def _sizes(self, files: Sequence[FileInfo]) -> Iterable[int]:
        if not is_remote(self.path):
            return regular_sizes(self.path, (file.name for file in files))
        listed = listed_sizes(self.path)
        if not listed:
            return [file.bytes for file in files]
        for file in files:
            if file.name not in listed:
                raise DatasetError(f"{self.path / file.name} does not exist in its store; is the dataset complete?")
        return [listed[file.name] for file in files]

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
            if self.external is not None:
                return self.external.index(split, columns).slice(0, first)
            self._check_index()
            rows = read_index(self.path, self.manifest, split, variant, columns, first)
            self._check_index()  # It may have been replaced after it was compared.
        return rows

    def locations(self, split: str, variants: range) -> Locations | None:
        """Return where the records of these variants lie; None where only the index says so (format version 1, other tools).

        Raises:
            DatasetError: `locations.bin` is missing or damaged.
        """
        if self.external is not None or self.manifest.format_version == 1:
            return None
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
            DatasetError: The index or a record cannot be read.
        """
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
        if positions is not None and (locations := self.locations(split, range(variant, variant + 1))) is not None:
            for position in positions:
                number = np.array([position])
                (row,), (shard,) = locations.take(number), locations.shards(number).tolist()
                yield position, shard, Frame(int(row["offset"]), int(row["size"])), int(row["payload_crc"])
            return
        columns = ("shard", "offset", "size", "payload_crc")
        rows = self.index(split, variant, columns)
        shards, offsets, sizes, crcs = (numpy_column(rows.column(name)) for name in columns)
        for position in range(len(rows)) if positions is None else positions:
            frame = Frame(int(offsets[position]), int(sizes[position]))
            yield position, int(shards[position]), frame, int(crcs[position])

    def decode(self, payload: bytes, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Decode one record's payload to NumPy values by field; SampleError if it is no Example of these fields.

        Args:
            payload: The bytes of the Example.
            fields: The fields to decode; None decodes all.
        """
        try:
            features = decode(payload)
            return {
                name: self._decode_field(name, info, features)
                for name, info in self.manifest.fields.items()
                if fields is None or name in fields
            }
        except (ValueError, TypeError, OverflowError) as error:
            raise SampleError(str(error)) from error

    def _decode_field(self, name: str, info: FieldInfo, features: Mapping[str, Any]) -> Any:
        if self.external is not None:
            return self._decode_feature(self.external.feature(name), name, info, features)
        if name not in features:
            raise SampleError(f"the record has no field {name!r}, which {MANIFEST} names")
        value = features[name]
        shape = features.get(f"{name}/shape")
        content = value[0] if isinstance(value, list) and value else value
        return self.codecs[name].decode(content, info.spec, None if shape is None else tuple(map(int, shape)))

    def _decode_feature(self, feature: str, name: str, info: FieldInfo, features: Mapping[str, Any]) -> Any:
        """Decode a feature that another tool wrote; where a record may be without it, it is an empty list then."""
        value, codec = features.get(feature, []), self.codecs[name]
        if isinstance(codec, Scalar | Texts):
            return codec.decode(value, info.spec)
        if len(value) != 1:
            raise SampleError(f"the record has {len(value)} values of {feature!r}, expected one")
        return codec.decode(value[0], info.spec)

    @contextmanager
    def _watch_for_another_build(self) -> Iterator[None]:
        """Say so if what is wrong inside comes from a build that replaced the dataset since it was opened."""
        try:
            yield
        except DatasetError as error:
            if self._is_replaced():
                raise DatasetReplacedError(
                    f"{self.path} was replaced by another build since it was opened; open it again"
                ) from error
            raise

    def _is_replaced(self) -> bool:
        try:
            return read_dataset(self.path)[1] != self.manifest
        except DatasetError:
            return True

    def _check_index(self) -> None:
        """Compare the index with the size and CRC-32C in `tfprep.json`, at first use and whenever the file was replaced."""
        path = self.path / self.manifest.index
        expected = self.manifest.files[self.manifest.index]
        try:
            state = file_state(path)
        except DatasetError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise DatasetError(f"{path} is missing; run the build again, it writes it anew") from None
            raise
        if state == self._checked_index.get("state"):
            return
        if (crc32c_of(path), file_size(path)) != (expected.crc32c, expected.bytes):
            raise DatasetError(
                f"{path} is not the index that {MANIFEST} was written with: it is damaged, or comes from another build; "
                "copy the whole dataset again, or run the build again"
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


def read_dataset(folder: Path) -> tuple[Path, Manifest, ExternalIndex | None]:
    """Read what makes a `Dataset`: the manifest of a built dataset, or of an index in the folder or beside the shards in it.

    Raises:
        DatasetError: There is neither, or something is wrong with it; the message says what to do.
    """
    if isinstance(folder, Path) and folder.is_file():
        raise DatasetError(f"{folder} is a file; open the dataset's folder, {folder.parent}")
    try:
        return folder, read_manifest(folder), None
    except DatasetError as error:
        if isinstance(error.__cause__, FileNotFoundError) and (external := read_external(folder)) is not None:
            return external.folder, external.manifest, external
        raise


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
