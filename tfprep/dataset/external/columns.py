"""The columns of an index: one Arrow file (IPC, uncompressed) a split, with one batch, so that each column is one array.

MappedColumns: `shard` int32, `number` int32 (of the record in its file, from 0), `offset` and `size` int64 (of the whole frame),
`payload_crc` uint32, `key` if a feature is the key, `height` and `width` int32 where an image is stored, for each field
`FIELD_offset` int64 and `FIELD_size` int32, and the values of single numbers and short strings under the field's own name.

A reader maps the file into memory, so ten million records take no memory of the process, and only the columns that are used are
read. The file is written from temporary files of one column each: neither does it take memory to write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa

from tfprep.dataset.external.schema import IndexedField
from tfprep.errors import DatasetError
from tfprep.fields import Array
from tfprep.records.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES

_CHUNK = 1 << 20
"""Rows that are checked, and bytes whose checksum is computed, at a time."""
_STRING = pa.large_string()
Types = Mapping[str, pa.DataType]


def column_types(fields: Sequence[IndexedField], *, sizes: bool, key: bool) -> dict[str, pa.DataType]:
    """The columns of an index of these fields; `sizes`: with height and width; `key`: with a column of keys."""
    types = {
        "shard": pa.int32(),
        "number": pa.int32(),
        "offset": pa.int64(),
        "size": pa.int64(),
        "payload_crc": pa.uint32(),
    }
    if key:
        types["key"] = _STRING
    if sizes:
        types |= {"height": pa.int32(), "width": pa.int32()}
    for field in fields:
        types |= {f"{field.name}_offset": pa.int64(), f"{field.name}_size": pa.int32()}
        if field.column:
            types[field.name] = _STRING if field.spec.dtype == "string" else pa.from_numpy_dtype(field.spec.dtype)
    return types


class ColumnWriter:
    """Writes columns batch by batch to temporary files, and then to one Arrow file."""

    def __init__(self, folder: Path, types: Types) -> None:
        self._folder, self._types = folder, types
        self._files: dict[str, BinaryIO] = {}
        self._ends = dict.fromkeys(types, 0)
        self._stack = ExitStack()
        self.rows = 0

    def __enter__(self) -> ColumnWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for number in range(len(self._types)):
            for part in ("data", "ends", "valid"):
                self._path(number, part).unlink(missing_ok=True)

    def append(self, columns: Mapping[str, pa.Array], rows: int) -> None:
        """Add rows; each column is an Arrow array of its type."""
        for number, (name, dtype) in enumerate(self._types.items()):
            array = columns[name]
            assert (array.type, len(array)) == (dtype, rows), name
            self._file(number, "valid").write(_valid(array).tobytes())
            if dtype == _STRING:
                self._append_strings(number, name, array)
            else:
                self._file(number, "data").write(np.ascontiguousarray(array.fill_null(0).to_numpy()).data)
        self.rows += rows

    def write(self, file: BinaryIO) -> None:
        """Write the Arrow file."""
        for open_file in self._files.values():
            open_file.flush()
        arrays = [self._array(number, name, dtype) for number, (name, dtype) in enumerate(self._types.items())]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(self._types.items())))
        with pa.ipc.new_file(file, batch.schema) as out:
            out.write_batch(batch)

    def _append_strings(self, number: int, name: str, array: pa.Array) -> None:
        ends, content = string_parts(array.fill_null(""))
        self._file(number, "ends").write((ends[1:] + self._ends[name]).tobytes())
        self._file(number, "data").write(content)
        self._ends[name] += int(ends[-1])

    def _array(self, number: int, name: str, dtype: pa.DataType) -> pa.Array:
        valid = np.frombuffer(self._mapped(number, "valid"), bool)
        validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        if dtype != _STRING:
            return pa.Array.from_buffers(dtype, self.rows, [validity, self._mapped(number, "data")])
        ends = np.concatenate([np.zeros(1, np.int64), np.frombuffer(self._mapped(number, "ends"), np.int64)])
        return pa.Array.from_buffers(dtype, self.rows, [validity, pa.py_buffer(ends), self._mapped(number, "data")])

    def _mapped(self, number: int, part: str) -> pa.Buffer:
        path = self._path(number, part)
        if not path.exists() or not path.stat().st_size:
            return pa.py_buffer(b"")
        return pa.memory_map(str(path)).read_buffer()

    def _file(self, number: int, part: str) -> BinaryIO:
        key = f"{number}.{part}"
        if key not in self._files:
            self._files[key] = self._stack.enter_context(self._path(number, part).open("wb"))
        return self._files[key]

    def _path(self, number: int, part: str) -> Path:
        return self._folder / f"column-{number}.{part}"


def string_parts(array: pa.Array) -> tuple[Array, bytes]:
    """Where the strings of a large_string array end, from 0 on: int64 [N + 1]; and their bytes."""
    ends = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    first, last = int(ends[0]), int(ends[-1])
    content = array.buffers()[2]
    return ends - first, b"" if content is None else content.slice(first, last - first).to_pybytes()


def _valid(array: pa.Array) -> Array:
    if not array.null_count:
        return np.ones(len(array), bool)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)


class MappedColumns:
    """The columns of one split, mapped into memory. Each is checked when it is first used.

    Raises:
        DatasetError: The file is missing or damaged, is that of another index, or holds numbers that cannot be true.
    """

    def __init__(self, path: Path, types: Types, rows: int, crcs: Mapping[str, int], file_bytes: Sequence[int]) -> None:
        self._path, self._types, self._rows = path, types, rows
        self._crcs, self._file_bytes = crcs, np.array(file_bytes, np.int64)
        self._checked: set[str] = set()
        self._batch: pa.RecordBatch | None = None

    def table(self, names: Sequence[str]) -> pa.Table:
        """These columns."""
        batch = self._mapped()
        for name in names:
            self._check(batch, name)
        return pa.table({name: batch.column(name) for name in names})

    def _mapped(self) -> pa.RecordBatch:
        if self._batch is None:
            self._batch = open_columns(self._path, self._types, self._rows)
        return self._batch

    def _check(self, batch: pa.RecordBatch, name: str) -> None:
        if name in self._checked:
            return
        if column_crc(batch.column(name)) != self._crcs.get(name):
            raise DatasetError(f"{self._path} is damaged: the column {name} is not that of the index")
        self._check_numbers(batch, name)
        self._checked.add(name)

    def _check_numbers(self, batch: pa.RecordBatch, name: str) -> None:
        """Records lie inside their files, and fields inside their records, a part of the rows at a time."""
        field = name.removesuffix("_size")
        spans = name in self._types and f"{field}_offset" in self._types and name.endswith("_size")
        if name != "offset" and not spans:
            return
        columns = ["shard", "offset", "size", *([f"{field}_offset", name] if spans else [])]
        for first in range(0, self._rows, _CHUNK):
            part = batch.slice(first, _CHUNK)
            shard, offset, size, *span = (part.column(column).to_numpy() for column in columns)
            if not (
                _fields_lie_inside(offset, size, *span) if spans else self._records_lie_inside(shard, offset, size)
            ):
                raise DatasetError(f"{self._path} is damaged: {name} points outside of a record or a shard")

    def _records_lie_inside(self, shard: Array, offset: Array, size: Array) -> bool:
        if shard.min() < 0 or shard.max() >= len(self._file_bytes) or (np.diff(shard) < 0).any():
            return False
        ends = self._file_bytes[shard]
        return bool(offset.min() >= 0 and size.min() >= FRAME_BYTES and (size <= ends - offset).all())


def _fields_lie_inside(offset: Array, size: Array, first: Array, length: Array) -> bool:
    inner = first - offset
    return bool(inner.min() >= HEADER_BYTES and length.min() >= 0 and (length <= size - FOOTER_BYTES - inner).all())


def open_columns(path: Path, types: Types, rows: int) -> pa.RecordBatch:
    """Map an Arrow file into memory and compare its form with what the index says."""
    try:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            batch = reader.get_batch(0) if reader.num_record_batches == 1 else None
        if batch is not None:
            batch.validate(full=False)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; run tfprep index again") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DatasetError(f"{path} is damaged ({error}); run tfprep index again") from error
    if batch is None or batch.num_rows != rows or batch.schema != pa.schema(list(types.items())):
        raise DatasetError(f"{path} is not the file of this index; run tfprep index again")
    return batch


def column_crc(array: pa.Array) -> int:
    """The CRC-32C of an array's buffers, one after another."""
    crc = 0
    for buffer in array.buffers():
        content = memoryview(buffer) if buffer is not None else b""
        for first in range(0, len(content), _CHUNK):
            crc = google_crc32c.extend(crc, bytes(content[first : first + _CHUNK]))
    return crc


def column_crcs(path: Path, types: Types, rows: int) -> dict[str, int]:
    """The CRC-32C of every column of a file that was just written."""
    batch = open_columns(path, types, rows)
    return {name: column_crc(batch.column(name)) for name in types}


def row_ranges(path: Path, types: Types, rows: int, counts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, shard by shard."""
    batch, first = open_columns(path, types, rows), 0
    for count in counts:
        yield batch.slice(first, count)
        first += count


def keys_of(shards: Sequence[str], table: pa.Table) -> pa.Array:
    """The keys of records that have none of their own: the shard's name, '#' and the record's number in it."""
    names: Any = pa.array(list(shards), _STRING).take(table.column("shard"))
    numbers = table.column("number").cast(_STRING)
    return pa.compute.binary_join_element_wise(names, numbers, pa.scalar("#", _STRING))
