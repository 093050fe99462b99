"""Turns the cells of a table into the values of an entry.

Each function raises SourceError with the rule and the value; the caller adds table, row and column.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from tfprep.errors import DatasetError, SourceError
from tfprep.fields import Kind
from tfprep.sources.patterns import Template
from tfprep.sources.raw import parse_reference
from tfprep.sources.rows import RawCell
from tfprep.sources.source import Entry, class_name_fault, key_of
from tfprep.sources.splits import Row
from tfprep.storage.address import parse_url

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")


def name_cell(cell: Any) -> str:
    """Return a class, split, group or key as text; the cell is text, a whole number or a truth value."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, int) or (isinstance(cell, str) and cell):
        return key_of(str(cell))
    if cell is None or cell == "":
        raise SourceError("it is empty; fill it in or take the row out")
    raise SourceError(f"expected text or a whole number; got {cell!r}")


def path_cell(path: str) -> str:
    """Return a path relative to the root, normalised, or a URL."""
    if "://" in path:
        try:
            return str(parse_url(path))
        except DatasetError as error:
            raise SourceError(str(error)) from None
    plain = posixpath.normpath(path)
    if not _encodes(path):
        raise SourceError(f"expected a path; got {path!r}, which is the name of no file")
    if path.startswith("/") or plain in ("..", ".") or plain.startswith("../") or "\0" in path:
        raise SourceError(f"expected a path relative to the data's root and below it; got {path!r}")
    return plain


def _encodes(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # a lone surrogate, as "\\ud800" in JSON
        return False
    return True


def label_cell(cell: Any, numbers: Mapping[str, int], separator: str | None = None) -> int | list[int] | None:
    """Return the class number of one class, or those of a list of classes; None where the cell is empty.

    A whole number that is no class's name is itself the class number, where the names are given and none is a number.
    """
    names = class_cell(cell, separator)
    if names is None:
        return None
    found = [_class_number(name, numbers) for name in names]
    return found if separator or isinstance(cell, list | tuple) else found[0]


def class_cell(cell: Any, separator: str | None = None) -> list[str] | None:
    """Return the names of the classes in a cell; None where it is empty."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    cell = cell.strip() if isinstance(cell, str) else cell
    if cell == "":
        return None
    if separator is not None and isinstance(cell, str):
        cell = [part.strip() for part in cell.split(separator) if part.strip()]
    return [name_cell(item) for item in (cell if isinstance(cell, list | tuple) else [cell])]


_YES, _NO = frozenset(("1", "true", "yes")), frozenset(("0", "-1", "false", "no"))


def flag_cell(cell: Any) -> bool | None:
    """Return whether a cell of a column of its own says that a class is there; None where it is empty."""
    text = "" if cell is None else str(cell).strip().lower().removesuffix(".0")
    if text in _YES or text in _NO:
        return text in _YES
    if text in ("", "nan"):
        return None
    raise SourceError(f"expected 1 or 0, as the column is one of several classes; got {cell!r}")


def sorted_classes(names: set[str]) -> tuple[str, ...]:
    """Return the names sorted by code points; by value if all are whole numbers, so that 0, 1, …, 10 keep their numbers."""
    if fault := next(filter(None, map(class_name_fault, sorted(names))), ""):
        raise SourceError(fault)
    if names and all(map(_WHOLE_NUMBER.fullmatch, names)):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def number_cell(cell: Any, whole: bool, comma: bool = False) -> Any:
    """A number or (nested) list of numbers, as int where `whole`, else as float; None where the cell is empty.

    With `comma`, 0,5 is a number.
    """
    if isinstance(cell, list | tuple):
        return [number_cell(item, whole, comma) for item in cell]
    if cell is None or cell == "":
        return None
    if comma and isinstance(cell, str):
        cell = cell.replace(",", ".")
    if isinstance(cell, int | float) or (isinstance(cell, str) and "_" not in cell):  # Python reads 1_000 as 1000
        try:
            return int(cell) if whole else float(cell)
        except (ValueError, OverflowError):
            pass
    raise SourceError(f"expected a number; got {cell!r}")


def is_whole(cell: Any) -> bool:
    """Every number in the cell is a whole number, spelled as one. An empty cell does not say otherwise."""
    if isinstance(cell, list | tuple):
        return all(map(is_whole, cell))
    if isinstance(cell, str):
        return not cell or _WHOLE_NUMBER.fullmatch(cell) is not None
    return cell is None or isinstance(cell, int)


def text_cell(cell: Any) -> str | None:
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, bool | int | float):
        return str(cell)
    raise SourceError(f"expected text; got {cell!r}")


def list_cell(cell: Any) -> Sequence[Any] | None:
    """Boxes or points: a list of rows of numbers, checked when the sample is made; None where the cell is empty."""
    if cell is None or isinstance(cell, list | tuple):
        return cell
    raise SourceError(f"expected a list of rows of numbers (JSON lines or Parquet); got {cell!r}")


def _class_number(name: str, numbers: Mapping[str, int]) -> int:
    number = numbers.get(name)
    if number is not None:
        return number
    if (
        _WHOLE_NUMBER.fullmatch(name)
        and 0 <= int(name) < len(numbers)
        and not any(map(_WHOLE_NUMBER.fullmatch, numbers))
    ):
        return int(name)
    known = ", ".join(map(repr, list(numbers)[:20]))
    raise SourceError(f"{name!r} is none of the {len(numbers)} classes: {known}")


def placed(path: str, places: Mapping[str, str]) -> str:
    """Return the path of the image that `**/NAME` stands for; other paths as they are."""
    name = path.removeprefix("**/")
    return path if name == path else places.get(key_of(name), name)


FILE_KINDS = ("image", "mask", "map")
"""The kinds of field that are read from files."""

Cells = Mapping[str, Sequence[Any]]
ColumnNames: TypeAlias = str | tuple[str, ...]


def columns_of(columns: ColumnNames) -> tuple[str, ...]:
    """Return one column, or several, as a tuple."""
    return (columns,) if isinstance(columns, str) else columns


def path_template(text: str) -> Template:
    """Return what makes a path of a row's cells: one column, or literal text and columns in braces (`images/{id}.jpg`)."""
    template = Template.parse(text)
    return template if template.holes else Template(((True, text),))


def path_columns(template: Template, by_file: bool) -> list[str]:
    """Return the columns that a path is made of; `by_file` as in `Columns`."""
    return [name for name in template.holes if not (by_file and name == "split")]


@dataclass(frozen=True)
class Columns:
    """The meaning of each column.

    `files` are the fields with a file, `values` the others with kind and column, or the columns of the classes of a label;
    `numbers` the class numbers by label field, `single` the label fields of several columns of which each row has one; `whole`
    the scalar fields of whole numbers; `key`, `split` and `group` are columns. `separator` divides the classes in a cell of
    `label`. With `by_file`, `{split}` in a path is what it stands for in the path of the table, and no column.
    `places` gives the path of an image in any folder by its name.
    """

    files: Mapping[str, Template]
    values: Mapping[str, tuple[Kind, ColumnNames]]
    numbers: Mapping[str, Mapping[str, int]]
    whole: frozenset[str]
    single: frozenset[str]
    separator: str | None
    key: str | None
    split: str | None
    group: str | None
    by_file: bool = False
    places: Mapping[str, str] = field(default_factory=dict)

    def needed(self) -> list[str]:
        """Every column that is read."""
        of_files = [column for path in self.files.values() for column in path_columns(path, self.by_file)]
        of_values = [column for _, columns in self.values.values() for column in columns_of(columns)]
        return [*of_files, *of_values, *filter(None, (self.key, self.split, self.group))]

    def row(self, cells: Cells, row: int, split: str, place: str, comma: bool = False) -> Row:
        """The entry of a row, and its group. `place` is the key of an image that has no path; `comma` as in `number_cell`.

        Raises:
            SourceError: A cell is not what it should be; the message names the column, or the field of a file.
        """
        files = tuple(self._path(name, path, cells, row, split) for name, path in self.files.items())
        values = tuple(
            _read_cell(partial(self._value, name, kind, comma), column, cells, row)
            if isinstance(column, str)
            else self._flags(name, column, cells, row)
            for name, (kind, column) in self.values.items()
        )
        path = parse_reference(files[0])
        key = (
            key_of(place if path.member else files[0])
            if self.key is None
            else _read_cell(name_cell, self.key, cells, row)
        )
        split = split if self.split is None else _read_cell(name_cell, self.split, cells, row)
        group = None if self.group is None else _read_cell(name_cell, self.group, cells, row)
        return Entry(key, split, files, values), group

    def _path(self, name: str, path: Template, cells: Cells, row: int, split: str) -> str:
        columns = path_columns(path, self.by_file)
        alone = cells[columns[0]][row] if columns and len(path.tokens) == 1 else None
        if isinstance(alone, RawCell):
            return alone.reference
        try:
            text = path.fill(lambda part: path_part(cells[part][row]) if part in columns else split)
            return path_cell(placed(text, self.places))
        except SourceError as error:
            raise SourceError(f"{name!r}: {error}") from error

    def _flags(self, name: str, columns: tuple[str, ...], cells: Cells, row: int) -> Any:
        """The number of the class whose column says 1, or the numbers of all of them; None if a cell is empty."""
        flags = [_read_cell(flag_cell, column, cells, row) for column in columns]
        if None in flags:
            return None
        found = [self.numbers[name][column] for column, flag in zip(columns, flags, strict=True) if flag]
        return found[0] if name in self.single else found

    def _value(self, name: str, kind: Kind, comma: bool, cell: Any) -> Any:
        if kind == "label":
            return label_cell(cell, self.numbers[name], self.separator if name == "label" else None)
        if kind == "scalar":
            return number_cell(cell, name in self.whole, comma)
        return text_cell(cell) if kind == "text" else list_cell(cell)


def _read_cell(convert: Callable[[Any], Any], column: str, cells: Cells, row: int) -> Any:
    try:
        return convert(cells[column][row])
    except SourceError as error:
        raise SourceError(f"{column!r}: {error}") from error


def path_part(cell: Any) -> str:
    """Return a cell as a part of a path."""
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    if cell is None or cell == "":
        raise SourceError("it is empty; fill it in or take the row out")
    if not isinstance(cell, str):
        raise SourceError(f"expected a path, or a part of one, as text; got {cell!r}")
    return cell.replace("\\", "/")  # tools on Windows write backslashes
