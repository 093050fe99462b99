"""`locations.bin`: where every record is, in rows of one width, so that a loader maps the file instead of reading it.

The rows have the order of the index: by split, variant, shard and position in the shard. A row (`row_type`) holds the
frame's `offset` in its shard, its `size` and `payload_crc`, the `label` if the index has one number per record, and for each
stored field `FIELD_offset` (from the beginning of the frame) and `FIELD_size`. `manifest.json` holds the CRC-32C of the rows of
each shard: they are compared, and the numbers checked, when a row of that shard is first used. The first batch of a dataset of
any size thus needs some pages of the file only.

All of it follows from `index.parquet`, which is for people and tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tfprep.dataset.index import label_type, numpy_column, outside
from tfprep.dataset.manifest import FieldInfo, Manifest
from tfprep.errors import DatasetError
from tfprep.fields import Array
from tfprep.storage.local import writing
from tfprep.storage.urls import file_size, is_remote, open_file

RowType = np.dtype[np.void]


def row_type(fields: Mapping[str, FieldInfo]) -> RowType:
    """Return the type of a row: little-endian, without gaps, a multiple of 8 bytes."""
    columns = [("offset", "<u8"), ("size", "<u4"), ("payload_crc", "<u4")]
    columns += [("label", "<i8")] if label_type(fields) == pa.int64() else []
    columns += [(f"{name}_{what}", "<u4") for name in fields for what in ("offset", "size")]
    return np.dtype(columns)


def write_locations(path: Path, index: Path, manifest: Manifest) -> Manifest:
    """Write the file from an index, with some rows in memory at a time.

    Args:
        path: The file to write.
        index: The dataset's `index.parquet`.
        manifest: What the dataset is; its `rows_crc32c` do not count.

    Returns:
        The manifest with the `rows_crc32c` of the file.

    Raises:
        DatasetError: The index is damaged or of another dataset, or a record has 4 GiB or more.
    """
    row = row_type(manifest.fields)
    names = list(row.names or ())
    try:
        with path.open("wb") as file, pq.ParquetFile(index.absolute()) as parquet:

            def batches() -> Iterator[Array]:
                for group in range(parquet.num_row_groups):
                    for batch in parquet.iter_batches(1 << 20, row_groups=[group], columns=names):
                        rows = np.empty(len(batch), row)
                        offset, size = (numpy_column(batch.column(name)) for name in ("offset", "size"))
                        if (largest := int(size.max(initial=0))) >= 1 << 32:
                            raise DatasetError(f"{index}: a record has {largest} bytes; it must have less than 4 GiB")
                        for name in names:
                            values = numpy_column(batch.column(name))
                            rows[name] = values - offset if name.endswith("_offset") else values
                        yield rows

            crcs = _written(file, batches(), [file.records for file in manifest.shard_files()])
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; Arrow's own have no number
            with writing(path):
                raise
        raise DatasetError(f"{path} cannot be made from {index} ({error})") from error
    if crcs is None:
        raise DatasetError(f"{index} lists another number of records than manifest.json")
    remaining_crcs = iter(crcs)
    splits = {
        name: replace(info, rows_crc32c=tuple(tuple(next(remaining_crcs) for _ in files) for files in info.files))
        for name, info in manifest.splits.items()
    }
    return replace(manifest, splits=splits)


def _written(file: BinaryIO, batches: Iterable[Array], counts: Sequence[int]) -> list[int] | None:
    """Write the rows; return the checksum of those of each shard. None if there are more or fewer rows than in all shards."""
    stops = np.cumsum(counts)
    crcs, first = [0] * len(counts), 0
    for rows in batches:
        last = first + len(rows)
        if last > stops[-1]:
            return None
        file.write(rows.tobytes())
        lowest, highest = np.searchsorted(stops, [first, last - 1], "right").tolist()
        for shard in range(lowest, highest + 1):
            start, stop = max(stops[shard] - counts[shard], first), min(stops[shard], last)
            crcs[shard] = google_crc32c.extend(crcs[shard], rows[start - first : stop - first].tobytes())
        first = last
    return crcs if first == stops[-1] else None


class Locations:
    """The rows of consecutive variants of a split. Those of a shard are checked when one of them is first used."""

    def __init__(self, path: Path, manifest: Manifest, split: str, variants: range) -> None:
        """Map the rows into memory, or read them if they are at a URL.

        Args:
            path: The file.
            manifest: What the dataset is.
            split: One of its splits.
            variants: Variants that follow each other.

        Raises:
            DatasetError: The file is missing or has another size.
        """
        info = manifest.splits[split]
        files = [file for variant in variants for file in info.files[variant]]
        self._path = path
        self._fix = manifest.fix
        self._ends = np.cumsum([file.records for file in files])
        self._file_bytes = [file.bytes for file in files]
        self._crcs = [crc for variant in variants for crc in info.rows_crc32c[variant]]
        self._unchecked = np.array([file.records > 0 for file in files])
        self._is_checked = not self._unchecked.any()
        self._fields = tuple(manifest.fields)
        row = row_type(manifest.fields)
        first, total = 0, 0
        for name, one in manifest.splits.items():
            first = total + variants.start * one.samples if name == split else first
            total += one.variants * one.samples
        if (found := file_size(path)) != row.itemsize * total:
            raise DatasetError(f"{path} holds {found} bytes, {row.itemsize * total} were written; {self._fix}")
        self._rows, start, count = np.empty(0, row), first * row.itemsize, info.samples * len(variants)
        with open_file(path) as file:
            if count and is_remote(path):
                file.seek(start)
                self._rows = np.frombuffer(file.read(count * row.itemsize), row)
            elif count:
                self._rows = np.asarray(np.memmap(file, row, "r", start, (count,)))
        self.nbytes = self._rows.nbytes if is_remote(path) else 0  # pages that are mapped belong to the system

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, numbers: npt.NDArray[np.int64]) -> Array:
        """Return the rows of these numbers: [N] of `row_type`.

        Raises:
            DatasetError: The rows of a shard are not those that were built.
        """
        if not self._is_checked:
            shards = self.shards(numbers)
            for shard in np.unique(shards[self._unchecked[shards]]).tolist():
                self._check_shard(shard)
                self._unchecked[shard] = False
            self._is_checked = not self._unchecked.any()
        rows: Array = self._rows[numbers]
        return rows

    def shards(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the shard of each row: its number among those of all the variants."""
        return np.searchsorted(self._ends, numbers, "right")

    def _check_shard(self, shard: int) -> None:
        rows = self._rows[(self._ends[shard - 1] if shard else 0) : self._ends[shard]]
        if google_crc32c.value(rows.tobytes()) != self._crcs[shard]:
            raise DatasetError(
                f"{self._path} is damaged, or of another build: the locations of a shard are not those that were built; "
                f"{self._fix}"
            )
        offset = rows["offset"].view(np.int64)  # one that is too large is negative, and outside
        size = rows["size"].astype(np.int64)
        spans = {
            name: (rows[f"{name}_offset"].astype(np.int64), rows[f"{name}_size"].astype(np.int64))
            for name in self._fields
        }
        if fault := outside(offset, size, self._file_bytes[shard], spans):
            raise DatasetError(f"{self._path}: {fault}")
