"""Where the bytes of every sample lie: the columns of `index.parquet` that a reader needs, as arrays.

A table is made of one split, or of several of different datasets, one after another. A *row* is a sample, a *record* one of
its variants: records are numbered by part, then variant, then row, so that a variant's records are consecutive.
"""

from __future__ import annotations

import contextlib
import difflib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfprep.dataset import Dataset
from tfprep.errors import LoaderError
from tfprep.fields import Array

Numbers = npt.NDArray[np.int64]
_TOLD = ("key", "label", "shard", "height", "width")
"""Columns that `where`, `balance` and `folds` are for."""


@dataclass(frozen=True)
class TableSplit:
    """What one split of one dataset gives to a table: all its samples, in the variants that are read."""

    dataset: Dataset
    split: str
    variants: tuple[int, ...]

    @property
    def samples(self) -> int:
        return self.dataset.split(self.split).samples

    @property
    def records(self) -> int:
        return self.samples * len(self.variants)


@dataclass(frozen=True)
class RecordOffsets:
    """One element a record: the number of its file, its frame, by field where its bytes lie, and its label if asked."""

    file: npt.NDArray[np.int32]
    offset: Numbers
    size: Numbers
    payload_crc: npt.NDArray[np.uint32]
    field_offset: dict[str, Numbers]
    field_size: dict[str, npt.NDArray[np.int32]]
    label: Numbers | None = None

    @property
    def nbytes(self) -> int:
        columns: list[Array] = [
            self.file,
            self.offset,
            self.size,
            self.payload_crc,
            *self.field_offset.values(),
            *self.field_size.values(),
        ]
        return sum(column.nbytes for column in columns)


class RecordTable:
    """The samples of the parts, in the order of the records on disk. The index is read when its places are first asked for."""

    def __init__(self, parts: Sequence[TableSplit], fields: Sequence[str], *, label: bool = False) -> None:
        """`fields` are those whose places are wanted; `label`: the index's label column too."""
        self.parts = tuple(parts)
        self.fields = tuple(fields)
        self._label = label
        self.samples = sum(part.samples for part in parts)
        self.records = sum(part.records for part in parts)
        self.first_row = np.cumsum([0] + [part.samples for part in parts])
        self._first_record = np.cumsum([0] + [part.records for part in parts])
        self._lock = threading.Lock()
        self._offsets: RecordOffsets | None = None
        self._columns: dict[str, pa.ChunkedArray] = {}
        self.files: list[Path] = [
            part.dataset.shard_path(file)
            for part in parts
            for variant in part.variants
            for file in part.dataset.split(part.split).files[variant]
        ]

    @property
    def offsets(self) -> RecordOffsets:
        with self._lock:
            if self._offsets is None:
                self._offsets = self._read()
            return self._offsets

    def read_ahead(self) -> None:
        """Begin to read the index: of a million records that takes as long as TensorFlow takes to make a graph."""
        threading.Thread(target=self._try_to_read, name="tfprep-index", daemon=True).start()

    def _try_to_read(self) -> None:
        with contextlib.suppress(Exception):  # who needs the places gets the error
            _ = self.offsets

    @property
    def nbytes(self) -> int:
        """Memory that the places take, 0 before they are read."""
        return 0 if self._offsets is None else self._offsets.nbytes

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
        """A column of the index, one value a row (variant 0's)."""
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
        part = int(np.searchsorted(self._first_record, record, "right")) - 1
        if (external := self.parts[part].dataset.external) is not None:  # records that were left out count too
            numbers = external.index(self.parts[part].split, ["number"]).column("number")
            return int(numbers[record - int(self._first_record[part])].as_py())
        file = self.offsets.file  # ascending
        return record - int(np.searchsorted(file, file[record]))

    def _read(self) -> RecordOffsets:
        names = [f"{name}_{part}" for name in self.fields for part in ("offset", "size")]
        names += ["label"] if self._label else []
        columns: dict[str, list[Array]] = {name: [] for name in ("shard", "offset", "size", "payload_crc", *names)}
        first_file = 0
        for part in self.parts:
            for variant in part.variants:
                index = part.dataset.index(part.split, variant, list(columns))
                _check(part, variant, len(index))
                for name, values in columns.items():
                    values.append(index.column(name).to_numpy())
                columns["shard"][-1] = (columns["shard"][-1] + np.int32(first_file)).astype(np.int32)
                first_file += part.dataset.split(part.split).shards
        whole = {name: values[0] if len(values) == 1 else np.concatenate(values) for name, values in columns.items()}
        return RecordOffsets(
            whole["shard"],
            whole["offset"],
            whole["size"],
            whole["payload_crc"],
            {name: whole[f"{name}_offset"] for name in self.fields},
            {name: whole[f"{name}_size"] for name in self.fields},
            whole.get("label"),
        )


def _slot(part: TableSplit, variant: Any) -> Any:
    """The place of a variant among those that are read."""
    if part.variants == tuple(range(len(part.variants))):
        return variant
    return np.searchsorted(np.array(part.variants), variant)


def _column(part: TableSplit, name: str) -> pa.ChunkedArray:
    index = part.dataset.index(part.split, 0, [name])
    if name not in index.column_names:
        raise _no_column(part, name)
    return index.column(name)


def _no_column(part: TableSplit, name: str) -> LoaderError:
    external = part.dataset.external
    columns = (
        part.dataset.index(part.split, 0, list(_TOLD)).column_names if external is None else external.column_names()
    )
    known = [column for column in _TOLD if column in columns] if external is None else columns
    near = difflib.get_close_matches(name, known, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return LoaderError(f"the index of {part.dataset.path} has no column {name!r}; it has {', '.join(known)}{meant}")


def _check(part: TableSplit, variant: int, rows: int) -> None:
    if rows != part.samples:
        raise LoaderError(
            f"{part.dataset.path}: the index lists {rows} records of {part.split!r}, variant {variant}; tfprep.json says "
            f"{part.samples}. Run the build again, it writes both anew"
        )
