"""Places of the bytes of every sample: rows of `locations.bin`, or columns of the index where there is no such file.

A table is made of one split, or of several of different datasets, one after another. A *row* is a sample, a *record* one of
its variants: records are numbered by part, then variant, then row, so that a variant's records are consecutive.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.dataset import Dataset, FileInfo, SplitInfo
from tfprep.dataset.locations import Locations
from tfprep.errors import LoaderError
from tfprep.fields import Array
from tfprep.load.order.permutation import Numbers

_TOLD = ("key", "label", "shard", "height", "width")
"""Columns that `where`, `balance` and `folds` are for."""


@dataclass(frozen=True)
class TableSplit:
    """Part of a table from one split of one dataset: all its samples, in the variants that are read, which follow each other."""

    dataset: Dataset
    split: str
    variants: tuple[int, ...]

    @cached_property
    def info(self) -> SplitInfo:
        """What the manifest says of the split."""
        return self.dataset.split(self.split)

    @property
    def samples(self) -> int:
        return self.info.samples

    @property
    def records(self) -> int:
        return self.samples * len(self.variants)


Columns = dict[str, Array]
"""By name one value per record: `offset`, `size` and `payload_crc` of its frame, `FIELD_offset` and `FIELD_size`, `label`."""


class RecordTable:
    """The samples of the parts, in the order of the records on disk. Their places are mapped when they are first asked for."""

    def __init__(self, parts: Sequence[TableSplit]) -> None:
        self.parts = tuple(parts)
        self.first_row = np.cumsum([0] + [part.samples for part in parts])
        self._first_record = np.cumsum([0] + [part.records for part in parts])
        self.samples, self.records = int(self.first_row[-1]), int(self._first_record[-1])
        self._lock = threading.Lock()
        self._locations: list[Locations] | None = None
        self._columns: dict[str, pa.ChunkedArray] = {}
        files = [(part, info) for part in parts for variant in part.variants for info in part.info.files[variant]]
        self.infos: list[FileInfo] = [info for _, info in files]
        self.files: list[Path] = [part.dataset.shard_path(info) for part, info in files]
        self.file_ends: Numbers = np.cumsum([info.records for info in self.infos])
        """For each file the number of the first record after it: int64 [files]."""

    def file_of(self, records: Any) -> Numbers:
        """The number in `files` of each record's file: int64 [N]."""
        files: Numbers = np.searchsorted(self.file_ends, records, "right")
        return files

    def read(self) -> list[Locations]:
        """The records' places of each part, mapped or read when this is first called. DatasetError where they are damaged."""
        with self._lock:
            if self._locations is None:
                self._locations = [
                    part.dataset.locations(part.split, range(part.variants[0], part.variants[-1] + 1))
                    for part in self.parts
                ]
            return self._locations

    def locate(self, records: Numbers, names: Sequence[str]) -> Columns:
        """Return where records are.

        Args:
            records: Numbers of records: int64 [N].
            names: `offset`, `size`, `payload_crc`, `label`, and `FIELD_offset` and `FIELD_size` of the table's fields.

        Returns:
            Those columns, one value per record; offsets are those in the file.

        Raises:
            DatasetError: The index, or what it says of these records, is damaged.
        """
        locations = self.read()
        if len(locations) == 1:
            return _columns(locations[0].take(records), names)
        part = np.searchsorted(self._first_record, records, "right") - 1
        by_part = [
            _columns(locations[at].take(records[part == at] - self._first_record[at]), names)
            for at in np.unique(part).tolist()
        ]
        back = np.argsort(np.argsort(part, kind="stable"), kind="stable")
        return {name: np.concatenate([columns[name] for columns in by_part])[back] for name in names}

    @property
    def nbytes(self) -> int:
        """Memory that the places take: 0 before they are read, and 0 where a file is mapped."""
        return sum(locations.nbytes for locations in self._locations or ())

    def record(self, row: Numbers, variant: Numbers) -> Numbers:
        """The record of each row's variant."""
        if len(self.parts) == 1:
            part = self.parts[0]
            record: Numbers = _slot(part, variant) * part.samples + row
            return record
        number = np.searchsorted(self.first_row, row, "right") - 1
        records = np.empty_like(row)
        for at, part in enumerate(self.parts):
            mine = number == at
            inside = row[mine] - self.first_row[at]
            records[mine] = self._first_record[at] + _slot(part, variant[mine]) * part.samples + inside
        return records

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of the index, one value per row (variant 0's)."""
        if name not in self._columns:
            self._columns[name] = pa.chunked_array(
                [chunk for part in self.parts for chunk in _column(part, name).chunks] or [[]]
            )
        return self._columns[name]

    def key(self, row: int) -> str:
        """One sample's key, for messages."""
        return str(self.column("key")[row].as_py())

    def number_in_file(self, record: int) -> int:
        """A record's number in its file, from 0."""
        file = int(self.file_of(record))
        return record - (int(self.file_ends[file - 1]) if file else 0)


def _columns(rows: Array, names: Sequence[str]) -> Columns:
    """These columns of rows of `locations.bin`; offsets are those in the shard."""
    offset = rows["offset"].astype(np.int64)
    return {
        name: offset if name == "offset" else offset + rows[name] if name.endswith("_offset") else rows[name]
        for name in names
    }


def _slot(part: TableSplit, variant: Any) -> Any:
    """The place of a variant among those that are read."""
    if part.variants == tuple(range(len(part.variants))):
        return variant
    return np.searchsorted(np.array(part.variants), variant)


def _column(part: TableSplit, name: str) -> pa.ChunkedArray:
    index = part.dataset.index(part.split, 0, [name])
    if name in index.column_names:
        return index.column(name)
    columns = part.dataset.index(part.split, 0, None, first=0).column_names
    known = [column for column in columns if column in (*_TOLD, *part.dataset.fields)]
    near = difflib.get_close_matches(name, known, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise LoaderError(f"the index of {part.dataset.path} has no column {name!r}; it has {', '.join(known)}{meant}")
