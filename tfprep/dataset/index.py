"""`index.parquet`: one row per record, in the order split, variant, shard, position in the shard.

Columns: `key` string, `split` string, `variant` int16, `shard` int32, `offset` and `size` int64 (of the whole frame),
`payload_crc` uint32 (the masked CRC-32C of the record's payload, which ties the row to its record),
`label` int64 (or a list of them; only if a label is stored), `height` and `width` int32 (of the first raster stored; null if
there is none), `source_digest` 16 bytes, `image_digest` 16 bytes and `image_hash` uint64 (of the image's file and of its pixels,
in rows of variant 0; null where there is none), and for each stored field `FIELD_offset` int64 and `FIELD_size` int32: where in
the file that field's own bytes begin and how many there are. Offsets count from the start of the file.

An index of records that other tools wrote (`tfprep.dataset.imported`) has no digests and no hashes, and a column of values for
each field that is a number or a short string.

Each (split, variant) begins a new row group, so a reader that wants one variant reads no row of another.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfprep.dataset.manifest import FieldInfo, FileInfo, Manifest
from tfprep.dataset.names import INDEX
from tfprep.errors import DatasetError
from tfprep.fields import Array
from tfprep.records.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES
from tfprep.storage.local import regular_size
from tfprep.storage.urls import is_remote, open_file

OPTIONAL = ("image_digest", "image_hash")
_NULLABLE = ("height", "width", *OPTIONAL)


def schema(
    fields: Sequence[str], label: pa.DataType | None, values: Mapping[str, pa.DataType] | None = None
) -> pa.Schema:
    """Return the index's schema.

    Args:
        fields: The stored fields.
        label: The type of the column `label`; None if there is no label.
        values: For imported records, the types of the columns of fields' values; None for a built dataset.
    """
    columns = [
        pa.field("key", pa.string()),
        pa.field("split", pa.string()),
        pa.field("variant", pa.int16()),
        pa.field("shard", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("payload_crc", pa.uint32()),
        *([pa.field("label", label)] if label is not None else []),
        pa.field("height", pa.int32()),
        pa.field("width", pa.int32()),
    ]
    if values is None:
        digests = [("source_digest", pa.binary(16)), ("image_digest", pa.binary(16)), ("image_hash", pa.uint64())]
        columns += [pa.field(name, dtype) for name, dtype in digests]
    for name in fields:
        columns += [pa.field(f"{name}_offset", pa.int64()), pa.field(f"{name}_size", pa.int32())]
    columns += [pa.field(name, dtype) for name, dtype in (values or {}).items() if name != "label" or label is None]
    return pa.schema(columns)


def label_type(fields: Mapping[str, FieldInfo]) -> pa.DataType | None:
    """Return the type of the index's label column, that of the first label stored; None if no label is stored."""
    shapes = [info.spec.shape for info in fields.values() if info.spec.kind == "label"]
    if not shapes:
        return None
    return pa.int64() if shapes[0] == () else pa.list_(pa.int64())


def read_index(
    folder: Path, manifest: Manifest, split: str, variant: int, columns: Sequence[str] | None, first: int | None = None
) -> pa.Table:
    """Read the rows of one split and variant, and check them against the manifest.

    Args:
        folder: The dataset's folder.
        manifest: What the dataset is.
        split: A split of the manifest.
        variant: One of its variants.
        columns: The columns to read; None reads all. Names that no index has are left out.
        first: The number of rows to read, from the first on; None reads all.

    Raises:
        DatasetError: The index cannot be read, or its rows cannot be those of this dataset.
    """
    path = folder / INDEX
    files = manifest.splits[split].files[variant]
    with _opened(path, manifest.fix) as file:
        groups = _row_groups(file.metadata, split, variant)
        counts = [file.metadata.row_group(group).num_rows for group in groups]
        rows = sum(counts)
        if rows != manifest.splits[split].samples:
            raise DatasetError(
                f"{path} lists {rows} records of split {split!r}, variant {variant}; manifest.json says "
                f"{manifest.splits[split].samples}; {manifest.fix}"
            )
        if first is not None:
            groups = groups[: np.searchsorted(np.cumsum(counts), first) + 1]
        # At a URL in the order of the file, and in this thread: where a thread of Arrow lets go of a Python object while the
        # program ends, it aborts the program ("terminate called without an active exception"). Tables without columns cannot
        # be joined: they would have no rows.
        has_columns = columns is None or not {*file.schema_arrow.names}.isdisjoint(columns)
        parts = [[group] for group in groups if has_columns and is_remote(path)] or [groups]
        tables = [file.read_row_groups(part, columns=columns, use_threads=not is_remote(path)) for part in parts]
        table = (pa.concat_tables(tables) if len(tables) > 1 else tables[0]).slice(0, first)
    values = None if manifest.imported is None else dict[str, pa.DataType]()
    expected = schema(list(manifest.fields), label_type(manifest.fields), values)
    try:
        _check_columns(table, expected, columns)
        _check_numbers(table, files, list(manifest.fields), is_whole=first is None)
    except DatasetError as error:
        raise DatasetError(f"{path}, split {split!r}, variant {variant}: {error}") from None
    return table


@contextmanager
def _opened(path: Path, fix: str) -> Iterator[pq.ParquetFile]:
    """Open an index; DatasetError, also where it is read inside, if it is missing or damaged, or memory cannot be had."""
    try:
        if not is_remote(path) and path.exists():
            regular_size(path)  # Arrow would wait for the writer of a FIFO
        opened: Any = open_file(path) if is_remote(path) else nullcontext(path.absolute())
        with opened as source, pq.ParquetFile(source, memory_map=True, pre_buffer=False) as file:
            yield file
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; {fix}") from None
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        # Arrow's plain exception is "Unknown error": of a thread that could not be started, for example.
        lacks = isinstance(error, MemoryError) or getattr(error, "errno", None) in (errno.ENOMEM, errno.EAGAIN)
        if lacks or type(error) is pa.ArrowException:
            raise DatasetError(f"{path} cannot be read: memory or a thread for it cannot be had ({error})") from error
        raise DatasetError(f"{path} is damaged ({error}); {fix}") from error


def _row_groups(metadata: pq.FileMetaData, split: str, variant: int) -> list[int]:
    """The row groups of this split and variant, by their statistics: a group holds one of each."""
    numbers = {metadata.schema.column(i).name: i for i in range(metadata.num_columns)}
    if not {"split", "variant"} <= numbers.keys():
        raise ValueError("it has no columns split and variant")

    def holds(group: int, column: str, value: str | int) -> bool:
        statistics = metadata.row_group(group).column(numbers[column]).statistics
        return statistics is not None and statistics.has_min_max and statistics.min == statistics.max == value

    groups = [group for group in range(metadata.num_row_groups) if metadata.row_group(group).num_rows]
    return [group for group in groups if holds(group, "split", split) and holds(group, "variant", variant)]


def _check_columns(table: pa.Table, expected: pa.Schema, columns: Sequence[str] | None) -> None:
    for field in expected:
        if columns is not None and field.name not in columns:
            continue
        if field.name not in table.column_names:
            raise DatasetError(f"the column {field.name} is missing")
        column = table.column(field.name)
        if column.type != field.type:
            raise DatasetError(f"the column {field.name} is of type {column.type}, not {field.type}")
        missing = column.null_count
        if pa.types.is_list(column.type):
            missing += sum(chunk.flatten().null_count for chunk in column.chunks)
        if missing and field.name not in _NULLABLE:
            raise DatasetError(f"the column {field.name} has {missing} values missing")


def _check_numbers(table: pa.Table, files: Sequence[FileInfo], fields: Sequence[str], *, is_whole: bool) -> None:
    """Check that every record is inside its shard and every field inside its record, for the columns that were read.

    `is_whole`: the table has all rows, one for each record of each shard.
    """
    if not {"shard", "offset", "size"} <= set(table.column_names) or not len(table):
        return
    shard, offset, size = (numpy_column(table.column(name)) for name in ("shard", "offset", "size"))
    if shard.min() < 0 or shard.max() >= len(files):
        raise DatasetError(f"shards are numbered from 0 to {len(files) - 1}, not {shard.min()} to {shard.max()}")
    counts = np.bincount(shard, minlength=len(files)).tolist()
    if (is_whole and counts != [file.records for file in files]) or (np.diff(shard) < 0).any():
        raise DatasetError("the rows are not in the order of the shards, or a shard has another number of records")
    spans = {
        name: tuple(numpy_column(table.column(f"{name}_{what}")) for what in ("offset", "size"))
        for name in fields
        if {f"{name}_offset", f"{name}_size"} <= set(table.column_names)
    }
    ends = np.array([file.bytes for file in files])[shard]
    if fault := outside(
        offset, size, ends, {name: (first - offset, length) for name, (first, length) in spans.items()}
    ):
        raise DatasetError(fault)


def numpy_column(column: pa.Array | pa.ChunkedArray) -> Array:
    """Return a column of whole numbers: [N]. Arrow's own `to_numpy` imports pandas where it is installed.

    Raises:
        ValueError: A number is missing.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if column.null_count:
        raise ValueError(f"{column.null_count} values are missing")
    dtype = np.dtype(str(column.type))
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def outside(offset: Array, size: Array, ends: Array | int, spans: Mapping[str, tuple[Array, Array]]) -> str:
    """Return what is outside: a record of its shard, or a field of its record; "" if nothing does.

    Args:
        offset, size: The frames of the records, in bytes: int64 [N].
        ends: The size of the shard of each.
        spans: By field, where its bytes begin in the frame, and their number: int64 [N] each.
    """
    if offset.min() < 0 or size.min() < FRAME_BYTES or (size > ends - offset).any():
        return "a record is outside its shard"
    room = size - FOOTER_BYTES
    for name, (first, length) in spans.items():
        if first.min() < HEADER_BYTES or length.min() < 0 or (length > room - first).any():
            return f"the bytes of '{name}' are outside their record"
    return ""
