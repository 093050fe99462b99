"""Turns the cells of a table into the values of an entry.

Each function raises SourceError with the rule and the value; the caller adds table, row and column.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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


def label_cell(cell: Any, numbers: Mapping[str, int]) -> int | list[int]:
    """Return the class number of one class, or those of a list of classes.

    A whole number that is no class's name is itself the class number, where the names are given and none is a number.
    """
    if isinstance(cell, list | tuple):
        return [_class_number(name_cell(item), numbers) for item in cell]
    return _class_number(name_cell(cell), numbers)


def sorted_classes(names: set[str]) -> tuple[str, ...]:
    """Return the names sorted by code points; by value if all are whole numbers, so that 0, 1, …, 10 keep their numbers."""
    if fault := next(filter(None, map(class_name_fault, sorted(names))), ""):
        raise SourceError(fault)
    if names and all(map(_WHOLE_NUMBER.fullmatch, names)):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def number_cell(cell: Any, whole: bool) -> Any:
    """A number or (nested) list of numbers, as int where `whole`, else as float; None where the cell is empty."""
    if isinstance(cell, list | tuple):
        return [number_cell(item, whole) for item in cell]
    if cell is None or cell == "":
        return None
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


FILE_KINDS = ("image", "mask", "map")
"""The kinds of field that are read from files."""

Cells = Mapping[str, Sequence[Any]]


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

    `files` are the fields with a file, `values` the others with kind and column; `numbers` the class numbers by label
    field, `whole` the scalar fields of whole numbers; `key`, `split` and `group` are columns. With `by_file`, `{split}` in a path
    is what it stands for in the path of the table, and no column.
    """

    files: Mapping[str, Template]
    values: Mapping[str, tuple[Kind, str]]
    numbers: Mapping[str, Mapping[str, int]]
    whole: frozenset[str]
    key: str | None
    split: str | None
    group: str | None
    by_file: bool = False

    def needed(self) -> list[str]:
        """Every column that is read."""
        of_files = [column for path in self.files.values() for column in path_columns(path, self.by_file)]
        of_values = [column for _, column in self.values.values()]
        return [*of_files, *of_values, *filter(None, (self.key, self.split, self.group))]

    def row(self, cells: Cells, row: int, split: str, place: str) -> Row:
        """The entry of a row, and its group. `place` is the key of an image that has no path.

        Raises:
            SourceError: A cell is not what it should be; the message names the column, or the field of a file.
        """
        files = tuple(self._path(name, path, cells, row, split) for name, path in self.files.items())
        values = tuple(
            _read_cell(partial(self._value, name, kind), column, cells, row)
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
            return path_cell(path.fill(lambda part: _path_part(cells[part][row]) if part in columns else split))
        except SourceError as error:
            raise SourceError(f"{name!r}: {error}") from error

    def _value(self, name: str, kind: Kind, cell: Any) -> Any:
        if kind == "label":
            return label_cell(cell, self.numbers[name])
        if kind == "scalar":
            return number_cell(cell, name in self.whole)
        return text_cell(cell) if kind == "text" else list_cell(cell)


def _read_cell(convert: Callable[[Any], Any], column: str, cells: Cells, row: int) -> Any:
    try:
        return convert(cells[column][row])
    except SourceError as error:
        raise SourceError(f"{column!r}: {error}") from error


def _path_part(cell: Any) -> str:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    if cell is None or cell == "":
        raise SourceError("it is empty; fill it in or take the row out")
    if not isinstance(cell, str):
        raise SourceError(f"expected a path, or a part of one, as text; got {cell!r}")
    return cell
