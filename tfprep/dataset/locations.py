"""`locations.bin`: where every record is, in rows of one width, so that a loader maps the file instead of reading it.

The rows have the order of the index: by split, variant, shard and position in the shard. A row (`row_type`) holds the
frame's `offset` in its shard, its `size` and `payload_crc`, the `label` if the index has one number per record, and for each
stored field `FIELD_offset` (from the beginning of the frame) and `FIELD_size`. `manifest.json` holds the CRC-32C of the rows of
each shard: they are compared, and the numbers checked, when a row of that shard is first used. The first batch of a dataset of
any size thus needs some pages of the file only.

All of it follows from `index.parquet`, which is for people and tools; `write_rows` writes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tfprep.dataset.index import label_type, numpy_column, outside
from tfprep.dataset.manifest import FieldInfo, Manifest, digest_of
from tfprep.dataset.names import INDEX, LOCATIONS, MANIFEST
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


Written: TypeAlias = Mapping[tuple[str, int, int], tuple[int, int]]
"""By split, variant and shard the number of rows, and the CRC-32C of those in `locations.bin`."""
ROW_GROUP = 1 << 16
_REPETITIVE = ["split", "variant", "shard", "label", "height", "width"]


def write_rows(
    index: Path, locations: Path, fields: Mapping[str, FieldInfo], columns: pa.Schema, tables: Iterable[pa.Table]
) -> Written:
    """Write `index.parquet` and `locations.bin`, with a row group in memory at a time.

    Args:
        index, locations: The files to write.
        fields: The stored fields.
        columns: The schema of the index.
        tables: The rows in the order of the index, each table of one split and variant.

    Raises:
        BuildError: The disk refuses.
        DatasetError: A record has 4 GiB or more.
    """
    row, written = row_type(fields), dict[tuple[str, int, int], tuple[int, int]]()
    # Numbers stay uncompressed: a loader reads them before its first batch, a million rows in 10 ms instead of 50.
    texts = [column.name for column in columns if pa.types.is_string(column.type) and column.name != "split"]
    compression = {name: "zstd" if name in texts or "digest" in name else "none" for name in columns.names}
    # Absolute: Arrow takes a relative path such as `run:1/index.parquet` for a URL.
    parquet = partial(pq.ParquetWriter, index.absolute(), compression=compression, use_dictionary=_REPETITIVE)
    with writing(index), locations.open("wb") as file, parquet(columns) as writer:
        for table in _row_groups(tables, columns):
            writer.write_table(table, row_group_size=ROW_GROUP)
            rows, offset = np.empty(len(table), row), numpy_column(table["offset"])
            if (largest := int(numpy_column(table["size"]).max())) >= 1 << 32:
                raise DatasetError(f"{index}: a record has {largest} bytes; it must have less than 4 GiB")
            for name in row.names or ():
                values = numpy_column(table[name])
                rows[name] = values - offset if name.endswith("_offset") else values
            file.write(rows.tobytes())
            shard, (split, variant) = numpy_column(table["shard"]), _place(table)
            for first, last in pairwise([0, *(np.flatnonzero(np.diff(shard)) + 1).tolist(), len(shard)]):
                place = split, variant, int(shard[first])
                count, crc = written.get(place, (0, 0))
                written[place] = count + last - first, google_crc32c.extend(crc, rows[first:last].tobytes())
    return written


def _row_groups(tables: Iterable[pa.Table], columns: pa.Schema) -> Iterator[pa.Table]:
    """Join tables of one split and variant to row groups: a large dataset has too many shards for a row group each."""
    waiting: list[pa.Table] = []
    for table in tables:
        joined = sum(map(len, waiting)) + len(table)
        if waiting and len(table) and (joined > ROW_GROUP or _place(table) != _place(waiting[0])):
            yield pa.concat_tables(waiting)
            waiting = []
        waiting += [table.select(columns.names).cast(columns)] if len(table) else []
    if waiting:
        yield pa.concat_tables(waiting)


def _place(table: pa.Table) -> tuple[str, int]:
    return table["split"][0].as_py(), table["variant"][0].as_py()


def with_rows(manifest: Manifest, written: Written, index: Path, locations: Path) -> Manifest:
    """Return a manifest with the checksums of the rows that `write_rows` wrote, and the digests of the two files.

    Raises:
        DatasetError: The index lists other records than the manifest.
    """
    splits = {}
    for name, info in manifest.splits.items():
        rows = [
            [written.get((name, variant, shard), (0, 0)) for shard in range(info.shards)]
            for variant in range(info.variants)
        ]
        if [[count for count, _ in shards] for shards in rows] != [
            [file.records for file in files] for files in info.files
        ]:
            raise DatasetError(f"{index} lists another number of records of {name} than {MANIFEST}")
        splits[name] = replace(info, rows_crc32c=tuple(tuple(crc for _, crc in shards) for shards in rows))
    if sum(count for count, _ in written.values()) != sum(file.records for file in manifest.shard_files()):
        raise DatasetError(f"{index} lists more records than {MANIFEST}")
    return replace(manifest, splits=splits, files={INDEX: digest_of(index), LOCATIONS: digest_of(locations)})


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
