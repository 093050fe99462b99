"""The samples of splits, and where the bytes of their records are: rows of `locations.bin`.

A table is made of one split, or of several of different datasets, one after another. A *row* is a sample, a *record* one of
its variants: records are numbered by part, then variant, then row, so that a variant's records are consecutive.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.dataset import Dataset, SplitInfo
from tfprep.dataset.locations import Locations
from tfprep.errors import LoaderError
from tfprep.fields import Array
from tfprep.load.order.samplers import Numbers

_TOLD = ("key", "label", "shard", "height", "width")
"""Columns that `where`, `balance` and `folds` are for, beside those of stored fields."""


@dataclass(frozen=True)
class SplitRows:
    """All samples of a split, or those with the numbers `rows`; `share` is their share of a mix.

    `training` says what they are for; None for what the split's name says. `read` are the variants that are read, which follow
    each other: a plan chooses them.
    """

    dataset: Dataset
    split: str
    rows: Numbers | None = None
    share: float | None = None
    training: bool | None = None
    read: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.dataset.name}/{self.split}"

    @cached_property
    def info(self) -> SplitInfo:
        """What the manifest says of the split."""
        return self.dataset.split(self.split)

    @property
    def samples(self) -> int:
        return self.info.samples

    @property
    def variants(self) -> int:
        return self.info.variants

    @property
    def label(self) -> str | None:
        """The field that the index's column `label` holds: the first label stored."""
        labels = [name for name, spec in self.dataset.fields.items() if spec.kind == "label"]
        return labels[0] if labels else None

    @property
    def class_names(self) -> Sequence[str]:
        return self.dataset.classes.get(self.label or "", ())


Columns = dict[str, Array]
"""By name one value per record: `offset`, `size` and `payload_crc` of its frame, `FIELD_offset` and `FIELD_size`, `label`."""


class RecordTable:
    """The samples of all these splits, in the order of the records on disk. Their places are mapped when they are first asked
    for.

    There is no lock, which a forked process could find locked: two threads may both map the same files.
    """

    def __init__(self, parts: Sequence[SplitRows]) -> None:
        self.parts = tuple(parts)
        self._first_variant = np.array([part.read[0] for part in parts])
        self._samples = np.array([part.samples for part in parts])
        self.first_row = np.cumsum([0, *self._samples])
        self._first_record = np.cumsum([0] + [part.samples * len(part.read) for part in parts])
        self.samples, self.records = int(self.first_row[-1]), int(self._first_record[-1])
        self._locations: list[Locations] | None = None
        self._columns: dict[str, pa.ChunkedArray] = {}
        files = [(part, info) for part in parts for variant in part.read for info in part.info.files[variant]]
        self.files: list[Path] = [part.dataset.shard_path(info) for part, info in files]
        self.imported = [part.dataset.manifest.imported is not None for part, _ in files]
        self.shard_bytes = sum([info.bytes for _, info in files])
        self.record_bytes = max([info.bytes // max(info.records, 1) for _, info in files], default=0)
        """Bytes of a record, on average in the file with the largest ones."""
        self.file_ends: Numbers = np.cumsum([info.records for _, info in files])
        """For each file the number of the first record after it: int64 [files]."""

    def file_of(self, records: Any) -> Numbers:
        """The number in `files` of each record's file: int64 [N]."""
        files: Numbers = np.searchsorted(self.file_ends, records, "right")
        return files

    def read(self) -> list[Locations]:
        """The records' places of each part, mapped or read when this is first called. DatasetError where they are damaged."""
        if self._locations is None:
            self._locations = [
                part.dataset.locations(part.split, range(part.read[0], part.read[-1] + 1)) for part in self.parts
            ]
        return self._locations

    def locate(self, records: Numbers, names: Sequence[str]) -> Columns:
        """Return these columns, one value for each of these records, with the offsets in the file.

        Raises:
            DatasetError: The index, or what it says of these records, is damaged.
        """
        locations = self.read()
        if len(locations) == 1:
            return _columns(locations[0].take(records), names)
        part = np.searchsorted(self._first_record, records, "right") - 1
        by_part = [
            _columns(locations[at].take(records[part == at] - self._first_record[at]), names)
            for at in np.unique(part).tolist() or [0]  # no records have the columns of any part
        ]
        back = np.argsort(np.argsort(part, kind="stable"), kind="stable")
        return {name: np.concatenate([columns[name] for columns in by_part])[back] for name in names}

    @property
    def fingerprint(self) -> str:
        """A digest of what the shards of the splits hold: name, records and content of each.

        Imported ones have the checksum of their rows in `locations.bin` for their content.
        """
        return digest(
            [
                [
                    [file.name, file.records, file.sha256 or crc]
                    for files, crcs in zip(part.info.files, part.info.rows_crc32c, strict=True)
                    for file, crc in zip(files, crcs, strict=True)
                ]
                for part in self.parts
            ]
        )

    @property
    def nbytes(self) -> int:
        """Memory that the places take: 0 before they are read, and 0 where a file is mapped."""
        return sum(locations.nbytes for locations in self._locations or ())

    @property
    def rows(self) -> Numbers | None:
        """The rows that the splits name; None where that is all of them."""
        if all(part.rows is None for part in self.parts):
            return None
        rows = [
            first + (np.arange(part.samples) if part.rows is None else part.rows)
            for first, part in zip(self.first_row, self.parts, strict=False)
        ]
        return np.concatenate(rows).astype(np.int64)

    def part_of(self, row: Numbers) -> Numbers:
        """The number in `parts` of each row's split."""
        parts: Numbers = np.searchsorted(self.first_row, row, "right") - 1
        return parts

    def record(self, row: Numbers, variant: Numbers) -> Numbers:
        """The record of each row's variant."""
        part = self.part_of(row)
        inside = (variant - self._first_variant[part]) * self._samples[part] + row - self.first_row[part]
        records: Numbers = self._first_record[part] + inside
        return records

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of the index, one value per row (variant 0's)."""
        if name not in self._columns:
            chunks = [chunk for part in self.parts for chunk in _column(part, name).chunks]
            self._columns[name] = pa.chunked_array(chunks or [[]])
        return self._columns[name]

    @property
    def column_names(self) -> list[str]:
        """The columns of the index, of those that are for users."""
        return _known_columns(self.parts[0])

    def key(self, row: int) -> str:
        """One sample's key, for messages."""
        return str(self.column("key")[row].as_py())

    def number_in_file(self, record: int) -> int:
        """A record's number in its file, from 0."""
        file = int(self.file_of(record))
        return record - (int(self.file_ends[file - 1]) if file else 0)


def digest(value: Any) -> str:
    """A short digest of a value in the types of JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _columns(rows: Array, names: Sequence[str]) -> Columns:
    """These columns of rows of `locations.bin`; offsets are those in the shard."""
    offset = rows["offset"].astype(np.int64)
    return {
        name: offset if name == "offset" else offset + rows[name] if name.endswith("_offset") else rows[name]
        for name in names
    }


def _column(part: SplitRows, name: str) -> pa.ChunkedArray:
    index = part.dataset.index(part.split, 0, [name])
    if name == "label" and part.label not in (None, name) and name in part.dataset.fields:
        raise LoaderError(
            f"the column 'label' of the index of {part.dataset.path} holds '{part.label}', which is stored before 'label'; name "
            "'label' first in the recipe's store"
        )
    if name in index.column_names:
        return index.column(name)
    known = _known_columns(part)
    meant = "".join(f"; did you mean {near!r}?" for near in difflib.get_close_matches(name, known, 1))
    if name in part.dataset.fields:
        meant = "; for a stored field give where= one bool, or weights= one number, per sample"
    raise LoaderError(f"the index of {part.dataset.path} has no column {name!r}; it has {', '.join(known)}{meant}")


def _known_columns(part: SplitRows) -> list[str]:
    columns = part.dataset.index(part.split, 0, None, first=0).column_names
    return [column for column in columns if column in (*_TOLD, *part.dataset.fields)]
