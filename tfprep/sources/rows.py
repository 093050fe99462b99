"""Rows of a CSV, TSV, JSON lines or Parquet file, one batch at a time, so that the whole table is never in memory.

CSV and TSV: UTF-8, with a byte order mark or without, a header, RFC 4180 quoting, commas or semicolons, line breaks inside
quotes allowed; every cell comes as text, so `007` and `NA` stay what they are. JSON lines: one object a line. Parquet: any
layout. Rows are numbered from 1, the header not counted; in JSON lines a row's number is its line's.

Arrow is imported where it reads: every recipe imports this module, and a build's workers read no table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tfprep.errors import SourceError
from tfprep.sources.parquet import class_names, parquet_batches, parquet_columns
from tfprep.sources.raw import arrow_input, open_raw

BATCH_ROWS = 8192
BLOCK_BYTES = 1 << 20


class RowBatch(NamedTuple):
    """Some rows: their numbers, and the values of each requested column as plain Python."""

    numbers: Sequence[int]
    columns: Mapping[str, Sequence[Any]]


class _Format(NamedTuple):
    columns: Callable[[Path], list[str]]
    batches: Callable[[Path, list[str]], Iterator[RowBatch]]


def column_names(path: Path) -> list[str]:
    """Return the names of the table's columns; of JSON lines, those in the first `BATCH_ROWS` lines."""
    with _arrow_errors(path):
        return _FORMATS[path.suffix.lower()].columns(path)


def declared_classes(path: Path, column: str) -> tuple[str, ...] | None:
    """Return the names of a column's classes in the order of their numbers, if the file itself gives them."""
    if path.suffix.lower() != ".parquet":
        return None
    with _arrow_errors(path):
        return class_names(path, column)


def batches(path: Path, columns: Sequence[str]) -> Iterator[RowBatch]:
    """Yield all rows with `columns` alone. SourceError if a column is missing or the file is not what its suffix says."""
    there = column_names(path)
    for column in columns:
        if there.count(column) != 1:
            problem = f"there are {there.count(column)} columns" if column in there else "there is no column"
            known = f"the columns are {', '.join(map(repr, there))}" if there else "the table is empty"
            raise SourceError(f"{path}: {problem} {column!r}; {known}")
    with _arrow_errors(path):
        yield from _FORMATS[path.suffix.lower()].batches(path, list(dict.fromkeys(columns)))


# --- CSV and TSV ----------------------------------------------------------------------------------------------------


def _open_csv(path: Path, columns: list[str] | None = None) -> Any:
    import pyarrow as pa
    import pyarrow.csv

    return pyarrow.csv.open_csv(
        arrow_input(path),
        read_options=pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            include_columns=columns,
            column_types={name: pa.string() for name in columns or ()},
            strings_can_be_null=False,
        ),
    )


def _delimiter(path: Path) -> str:
    """A tab in TSV. In CSV a comma, or a semicolon if the header has that and no comma, as spreadsheets write it in Europe."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with open_raw(path) as file:
        header = file.readline(BLOCK_BYTES)
    unquoted = b"".join(header.split(b'"')[::2])
    return ";" if b";" in unquoted and b"," not in unquoted else ","


def _csv_columns(path: Path) -> list[str]:
    with _open_csv(path) as reader:
        return list(reader.schema.names)


def _csv_batches(path: Path, columns: list[str]) -> Iterator[RowBatch]:
    with _open_csv(path, columns) as reader:
        yield from _arrow_batches(reader, columns)


# --- JSON lines -----------------------------------------------------------------------------------------------------


def _json_columns(path: Path) -> list[str]:
    return list(dict.fromkeys(name for _, row in islice(_json_rows(path), BATCH_ROWS) for name in row))


def _json_batches(path: Path, columns: list[str]) -> Iterator[RowBatch]:
    rows = _json_rows(path)
    while chunk := list(islice(rows, BATCH_ROWS)):
        yield RowBatch([n for n, _ in chunk], {name: [row.get(name) for _, row in chunk] for name in columns})


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open_raw(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, _json_object(path, number, line)


def _json_object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except ValueError as error:
        raise SourceError(f"{path}: row {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise SourceError(f"{path}: expected one JSON object a line; row {number} is a {type(row).__name__}")
    return row


# --- Parquet --------------------------------------------------------------------------------------------------------


def _parquet_batches(path: Path, columns: list[str]) -> Iterator[RowBatch]:
    first = 1
    for cells in parquet_batches(path, columns, BATCH_ROWS):
        rows = len(next(iter(cells.values()), ()))
        yield RowBatch(range(first, first + rows), cells)
        first += rows


def _arrow_batches(found: Iterator[Any], columns: list[str]) -> Iterator[RowBatch]:
    first = 1
    for batch in found:
        yield RowBatch(range(first, first + len(batch)), {name: batch[name].to_pylist() for name in columns})
        first += len(batch)


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{path}: there is no such table") from error
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path} cannot be read as {path.suffix}: {error}") from error


_FORMATS: dict[str, _Format] = {
    ".csv": _Format(_csv_columns, _csv_batches),
    ".tsv": _Format(_csv_columns, _csv_batches),
    ".jsonl": _Format(_json_columns, _json_batches),
    ".ndjson": _Format(_json_columns, _json_batches),
    ".parquet": _Format(parquet_columns, _parquet_batches),
}
TABLE_SUFFIXES: tuple[str, ...] = tuple(_FORMATS)
