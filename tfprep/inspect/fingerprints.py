"""Digest and perceptual hash of every image of a dataset: from its index, or from the records where the index has no hash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tfprep.dataset import Dataset
from tfprep.dataset.arrow import numpy_column, present
from tfprep.fields import Array
from tfprep.images import perceptual_hash

OnRecord = Callable[[int, int], None]
"""Called with the number of records read so far, and with how many are to be read."""


@dataclass(frozen=True)
class Fingerprints:
    """All N samples of a dataset, split after split.

    Attributes:
        splits: The splits' names.
        keys: Keys, string [N].
        split: int16 [N], an index into `splits`.
        position: int64 [N], the row of a sample in the index of its split.
        digests: What tells equal image files, int64 [N]: equal numbers for equal digests; -1 where there is no digest.
        hashes: Perceptual hashes, uint64 [N]; 0 where there is none.
        hashed: Which samples have a hash, bool [N].
    """

    splits: tuple[str, ...]
    keys: pa.ChunkedArray
    split: Array
    position: Array
    digests: Array
    hashes: Array
    hashed: Array

    def __len__(self) -> int:
        return len(self.split)

    def key(self, row: int) -> str:
        return str(self.keys[row].as_py())

    def name_of_split(self, row: int) -> str:
        return self.splits[int(self.split[row])]


def read_fingerprints(data: Dataset, on_record: OnRecord | None = None, *, from_records: bool = True) -> Fingerprints:
    """Read the fingerprints of all samples.

    Args:
        data: The dataset.
        on_record: Called after each record that had to be read.
        from_records: Whether to compute hashes that the index does not hold from the images of variant 0.

    Raises:
        DatasetError: The index or a record cannot be read.
    """
    names = tuple(data.splits)
    tables = [data.index(name, 0, ["key", "image_digest", "image_hash"]) for name in names]
    counts = [len(table) for table in tables]
    hashes = [_column(table, "image_hash", pa.uint64()) for table in tables]
    hashed = [present(column) for column in hashes]
    values = [np.array(numpy_column(column, 0)) for column in hashes]
    if from_records:
        _compute_missing(data, names, values, hashed, on_record)
    return Fingerprints(
        splits=names,
        keys=pa.chunked_array([chunk for table in tables for chunk in _texts(table["key"]).chunks], pa.string()),
        split=np.repeat(np.arange(len(names), dtype=np.int16), counts),
        position=np.concatenate([np.arange(count) for count in counts]),
        digests=_numbered([_column(table, "image_digest", pa.binary(16)) for table in tables]),
        hashes=np.concatenate(values),
        hashed=np.concatenate(hashed),
    )


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column if column.type == pa.string() else column.cast(pa.string())


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column that an index of an earlier version does not have."""
    return table[name] if name in table.column_names else pa.chunked_array([pa.nulls(len(table), kind)])


def _numbered(digests: Sequence[pa.ChunkedArray]) -> Array:
    """Return a number for each digest, int64: equal ones for equal digests, -1 for none."""
    whole = pa.chunked_array([chunk for column in digests for chunk in column.chunks], pa.binary(16))
    indices = whole.combine_chunks().dictionary_encode().indices
    return numpy_column(indices, -1).astype(np.int64)


def _compute_missing(
    data: Dataset, names: Sequence[str], hashes: list[Array], hashed: list[Array], on_record: OnRecord | None
) -> None:
    field = next((name for name, spec in data.fields.items() if spec.kind == "image"), None)
    missing = [np.flatnonzero(~column).tolist() for column in hashed]
    total, done = sum(map(len, missing)), 0
    if field is None or not total:
        return
    for number, split in enumerate(names):
        samples = data.samples(split, positions=missing[number], fields=[field])
        for position, sample in zip(missing[number], samples, strict=True):
            hashes[number][position] = perceptual_hash(sample[field])
            hashed[number][position] = True
            done += 1
            if on_record:
                on_record(done, total)
