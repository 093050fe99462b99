"""Rows of a CSV, TSV, JSON lines or Parquet file, one after the other, so that the whole table is never in memory.

CSV and TSV: UTF-8, with a byte order mark or without; a header, RFC 4180 quoting, commas, semicolons or tabs, line breaks inside
quotes allowed, spaces before a cell left out; every cell comes as text, so `007` and `NA` stay what they are. JSON lines: one
object a line; `objects.bbox` is a value in an object of a row. Parquet: any layout. Rows are numbered from 1, the header not
counted; in JSON lines a row's number is its line's.

Hugging Face stores an image in Parquet as a struct of `bytes` and `path` (https://huggingface.co/docs/hub/datasets-image), and
the types of the columns as JSON in the file's metadata, under the name `huggingface`. A page of a column is compressed as a
whole, so that no image has a place in the file: a column of images is copied once (`tfprep.sources.raw.staged`), one image after
the other.

Arrow is imported where it reads: every recipe imports this module, and a build's workers read no table.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tfprep.errors import SourceError
from tfprep.sources.raw import Reference, open_raw, staged_files
from tfprep.sources.source import class_name_fault, key_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


BATCH_ROWS = 8192
MOST_CELL_CHARACTERS = 1 << 24
NumberedRow: TypeAlias = tuple[int, Sequence[Any]]


class TableRow(NamedTuple):
    """A row of one of several tables: the path and the split of its table, its number, and its cells by column."""

    path: str
    split: str
    number: int
    cells: dict[str, Any]

    def place(self) -> str:
        """Name the row for a message."""
        return f"{self.path}: row {self.number}"


def column_names(path: Path) -> list[str]:
    """Return the names of the table's columns; of JSON lines, those in the first `BATCH_ROWS` lines."""
    with _arrow_errors(path):
        return _format_of(path)[0](path)


def declared_classes(path: Path, column: str) -> tuple[str, ...] | None:
    """Return the names of a column's classes in the order of their numbers, if the file itself gives them."""
    if path.suffix.lower() != ".parquet":
        return None
    with _arrow_errors(path), _opened(path) as file:
        names = _classes(_features(path, file), column)
    fault = next(filter(None, map(class_name_fault, names or ())), "")
    if fault or len(set(names or ())) < len(names or ()):
        raise SourceError(f"{path}: the class names of {column!r} in its metadata: {fault or 'two are the same'}")
    return names


def file_columns(path: Path) -> list[str]:
    """Return the columns of a Parquet file whose cells are files: bytes, or a struct of bytes and path."""
    with _arrow_errors(path), _opened(path) as file:
        return [name for name in file.schema_arrow.names if _bytes_column(file, name)]


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[NumberedRow]:
    """Yield the number of each row, and its cells in the order of `columns`. SourceError if a column is missing or the file is
    not what its suffix says."""
    there = column_names(path)
    for column in columns:
        if there.count(column) != 1:
            problem = f"there are {there.count(column)} columns" if column in there else "there is no column"
            known = f"the columns are {', '.join(map(repr, there))}" if there else "the table is empty"
            raise SourceError(f"{path}: {problem} {column!r}; {known}")
    with _arrow_errors(path):
        yield from _format_of(path)[1](path, columns)


def table_rows(root: Path, tables: Iterable[tuple[str, str]], columns: Sequence[str]) -> Iterator[TableRow]:
    """Yield the rows of tables, each given with its split; see `rows_of`."""
    for path, split in tables:
        for number, cells in rows_of(root / path, columns):
            yield TableRow(path, split, number, dict(zip(columns, cells)))  # noqa: B905  # a check for each row takes 3 %


# --- CSV and TSV ----------------------------------------------------------------------------------------------------


def _csv_rows(path: Path) -> Iterator[list[str]]:
    """Yield the header, then the rows without blank lines. A quote in the wrong place, after which a cell goes on, would take
    whole rows into the cell: it is an error."""
    suffix_marks = ("\t",) if path.suffix.lower() == ".tsv" else (",", ";", "\t")
    with open_raw(path) as file, io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="") as text:
        try:
            unquoted = "".join(text.readline().split('"')[::2])
            text.seek(0)
            # In CSV a comma, or what the header has in its place: a semicolon (spreadsheets in Europe) or a tab.
            mark = next((mark for mark in suffix_marks if mark in unquoted), suffix_marks[0])
            csv.field_size_limit(max(csv.field_size_limit(), MOST_CELL_CHARACTERS))
            reader = csv.reader(text, delimiter=mark, strict=True, skipinitialspace=True)
            header: list[str] = []
            for row in filter(None, reader):
                header = header or row
                if len(row) != len(header):
                    rule = f"there are {len(row)} cells, and {len(header)} in the header"
                    raise SourceError(f"{path}, line {reader.line_num}: {rule}")
                yield row
        except csv.Error as error:
            fix = "double the quotes inside of a cell, or write JSON lines"
            raise SourceError(f"{path}, line {reader.line_num}: {error}: {fix}") from error


def _csv_columns(path: Path) -> list[str]:
    return _utf8(path, next(_csv_rows(path), []))


def _utf8(path: Path, cells: list[str]) -> list[str]:
    """Return the cells. SourceError if they are not UTF-8, as those of columns that nobody asks for may be."""
    try:
        "".join(cells).encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"{path} is not UTF-8: {cells!r:.60}; save it as UTF-8") from error
    return cells


def _csv_cells(path: Path, columns: Sequence[str]) -> Iterator[NumberedRow]:
    rows = _csv_rows(path)
    header = next(rows, [])
    places = [header.index(name) for name in columns]
    return ((number, _utf8(path, [row[place] for place in places])) for number, row in enumerate(rows, 1))


# --- JSON lines -----------------------------------------------------------------------------------------------------


def _json_columns(path: Path) -> list[str]:
    names: dict[str, None] = {}
    for _, row in islice(_json_rows(path), BATCH_ROWS):
        for top, value in row.items():
            names |= dict.fromkeys([top, *(f"{top}.{inner}" for inner in (value if isinstance(value, dict) else ()))])
    return list(names)


def _json_cells(path: Path, columns: Sequence[str]) -> Iterator[NumberedRow]:
    def cell(row: Mapping[str, Any], name: str) -> Any:
        top, _, inner = name.partition(".")
        value = row.get(top)
        return row.get(name) if name in row or not isinstance(value, dict) else value.get(inner)

    return ((number, [cell(row, name) for name in columns]) for number, row in _json_rows(path))


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open_raw(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except ValueError as error:
                raise SourceError(f"{path}: row {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise SourceError(f"{path}: expected one JSON object a line; row {number} is a {type(row).__name__}")
            yield number, row


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{path}: there is no such table") from error
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path} cannot be read as {path.suffix}: {error}") from error


# --- Parquet files, also as Hugging Face writes them --------------------------------------------------------------------

_COPY_ROWS = 16
"""Rows that are in memory while images are copied: photos of 100 MB each still fit."""
_METADATA = b"huggingface"


@dataclass(frozen=True, slots=True)
class RawCell:
    """A cell that holds the bytes of a file: the text of the reference to them."""

    reference: str

    def __repr__(self) -> str:
        return "bytes; make a column of strings of them"


def _parquet_cells(path: Path, columns: Sequence[str]) -> Iterator[NumberedRow]:
    """Yield the values of the columns: files in cells as `RawCell`, classes by name."""
    import pyarrow as pa

    with _opened(path) as file:
        features = _features(path, file)
        schema = file.schema_arrow
        of_bytes = {name: column for name in columns if (column := _bytes_column(file, name))}
        stored = {name: _file_cells(path, name, column) for name, column in of_bytes.items()}
        of_paths = {
            name: f"{name}.path"
            for name, column in of_bytes.items()
            if column != name and schema.field(name).type.get_field_index("path") >= 0
        }
        plain = [name for name in columns if name not in stored]
        tops = {name: name.partition(".")[0] for name in plain if name not in schema.names}
        # Of a list of structs Parquet reads the whole list, which has longer names inside the file.
        read = [
            tops[name] if name in tops and not pa.types.is_struct(schema.field(tops[name]).type) else name
            for name in plain
        ]
        read += of_paths.values()
        first = 1
        for batch in file.iter_batches(BATCH_ROWS, columns=list(dict.fromkeys(read)), use_threads=False):
            cells: dict[str, Sequence[Any]] = {name: _values(batch, name, features, path, first) for name in plain}
            for name, files in stored.items():
                paths = _values(batch, of_paths[name], {}, path, first) if name in of_paths else [None] * len(batch)
                pairs = zip(paths, islice(files, len(batch)), strict=True)
                cells[name] = [cell if there or not elsewhere else elsewhere for elsewhere, (there, cell) in pairs]
            yield from enumerate(zip(*(cells[name] for name in columns), strict=True), first)
            first += len(batch)


def _opened(path: Path) -> pq.ParquetFile:
    import pyarrow.parquet

    open_raw(path).close()  # an error if it is a pipe, which would wait for a writer
    # Checksums of pages, which Spark writes, are compared only if asked. Arrow may take a path that is not absolute for a URL.
    return pyarrow.parquet.ParquetFile(path.absolute(), page_checksum_verification=True)


def _parquet_columns(path: Path) -> list[str]:
    """Return the names of the columns, and of the fields in structs or in lists of structs: `objects.bbox`."""
    import pyarrow as pa

    names = []
    with _opened(path) as file:
        for field in file.schema_arrow:
            kind = field.type
            if pa.types.is_list(kind) or pa.types.is_large_list(kind):
                kind = kind.value_type
            inner = range(kind.num_fields) if pa.types.is_struct(kind) else ()
            names += [field.name, *(f"{field.name}.{kind.field(number).name}" for number in inner)]
    return names


def _values(batch: pa.RecordBatch, name: str, features: Any, path: Path, first: int) -> list[Any]:
    top, _, inner = name.partition(".")
    whole = name in batch.schema.names
    values = batch[name].to_pylist() if whole else [_inside(value, inner) for value in batch[top].to_pylist()]
    names = _classes(features, name)
    if names is None:
        return values
    return [_named(value, names, f"{path}: row {row}, {name!r}") for row, value in enumerate(values, first)]


def _inside(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_inside(item, name) for item in value]
    return None if value is None else value[name]


def _named(value: Any, names: tuple[str, ...], where: str) -> Any:
    """The name of a class, or of each of a list of them. -1 stands for no class, as in test splits without labels."""
    if isinstance(value, list):
        return [_named(item, names, where) for item in value]
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise SourceError(f"{where}: the metadata names {len(names)} classes, and this is {value!r}")
    return names[value]


def _features(path: Path, file: pq.ParquetFile) -> Any:
    """The types of the columns as Hugging Face writes them; {} if there are none."""
    text = (file.schema_arrow.metadata or {}).get(_METADATA)
    if text is None:
        return {}
    try:
        features = json.loads(text)["info"]["features"]
        return dict(features)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SourceError(f"{path}: its metadata of Hugging Face cannot be read: {error!r}") from error


def _classes(features: Any, column: str) -> tuple[str, ...] | None:
    for name in column.split("."):
        features = _plain(features)
        features = features.get(name) if isinstance(features, dict) else None
    feature = _plain(features)
    if not (
        isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list)
    ):
        return None
    return tuple(key_of(str(name)) for name in feature["names"])


def _plain(feature: Any) -> Any:
    """The type of a list's elements: `{"feature": ..., "_type": "Sequence"}`, and in older files a list of one."""
    while True:
        if isinstance(feature, list) and len(feature) == 1:
            (feature,) = feature
        elif isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
            feature = feature.get("feature")
        else:
            return feature


def _bytes_column(file: pq.ParquetFile, name: str) -> str | None:
    """The column that holds the bytes of files: that of this name, or the field `bytes` of its structs; None without files."""
    import pyarrow as pa

    if name not in file.schema_arrow.names:
        return None
    kind, column = file.schema_arrow.field(name).type, name
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind, column = kind.field("bytes").type, f"{name}.bytes"
    return column if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else None


def _file_cells(path: Path, name: str, column: str) -> Iterator[tuple[bool, RawCell]]:
    """Yield, for each row, True if its cell of this column holds a file, and the reference to the copy of it."""
    kind = f".{name}.bytes".replace("/", "_")
    copy, starts, lengths = staged_files(path, kind, partial(_cells_of, column=column))
    for row, (start, size) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True), 1):
        member = f"{name} of row {row}"
        there = Reference(str(copy), start, size, member=member)
        yield size >= 0, RawCell(str(there if size >= 0 else Reference(path.name, member=member, missing=True)))


def _cells_of(path: Path, column: str) -> Iterator[bytes | None]:
    """Yield the bytes in each cell of a column; None where there are none."""
    top, _, inner = column.partition(".")
    with _opened(path) as file:
        for batch in file.iter_batches(_COPY_ROWS, columns=[column], use_threads=False):
            for value in batch[top].to_pylist():
                yield value if not inner else value and value.get(inner)


_Format: TypeAlias = "tuple[Callable[[Path], list[str]], Callable[[Path, Sequence[str]], Iterator[NumberedRow]]]"
_FORMATS: dict[str, _Format] = {
    ".csv": (_csv_columns, _csv_cells),
    ".tsv": (_csv_columns, _csv_cells),
    ".jsonl": (_json_columns, _json_cells),
    ".ndjson": (_json_columns, _json_cells),
    ".parquet": (_parquet_columns, _parquet_cells),
}
TABLE_SUFFIXES: tuple[str, ...] = tuple(_FORMATS)


def _format_of(path: Path) -> _Format:
    return _FORMATS.get(path.suffix.lower(), _FORMATS[".csv"])
