"""Turns the cells of a table into the values of an entry.

Each function raises SourceError with the rule and the value; the caller adds table, row and column.
"""

from __future__ import annotations

import contextlib
import math
import os
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from tfprep.errors import SourceError
from tfprep.fields import Kind
from tfprep.sources.patterns import Template, spelled
from tfprep.sources.rows import RawCell
from tfprep.sources.source import class_name_fault, key_of

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_WHOLE_VALUE = re.compile(r"[+-]?[0-9]+(?:\.0*)?")
"""A whole number, also as it is written where a column holds floats: `3.0`."""


def name_cell(cell: Any) -> str:
    """Return a class, split, group or key as text without spaces around it; the cell is text, a whole number or a truth value."""
    cell = cell.strip() if isinstance(cell, str) else cell
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, int) or (isinstance(cell, str) and cell):
        return key_of(str(cell))
    if cell is None or cell == "":
        raise SourceError("it is empty; fill it in or take the row out")
    raise SourceError(f"expected text or a whole number; got {cell!r:.60}")


def path_cell(path: str) -> str:
    """Return a path relative to the root, normalized."""
    plain = posixpath.normpath(path)
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:  # a lone surrogate, as "\\ud800" in JSON
        raise SourceError(f"expected a path; got {path!r}, which is the name of no file") from error
    if "://" in path:  # which may hold credentials
        raise SourceError("expected a path below the data's root; got a URL: download the files first")
    if path.startswith("/") or plain in ("..", ".") or plain.startswith("../") or "\0" in path:
        raise SourceError(f"expected a path relative to the data's root and below it; got {path!r}")
    return plain


def label_cell(cell: Any, numbers: Mapping[str, int], separator: str | None = None) -> int | list[int] | None:
    """Return the class number of one class, or those of a list of classes; None where the cell is empty.

    A whole number that is not the name of a class is itself the class number, where the names are given and none is a number.
    """
    names = class_cell(cell, separator)
    if names is None:
        return None
    found = [_class_number(name, numbers) for name in names]
    return found if separator or isinstance(cell, list | tuple) else found[0]


def class_cell(cell: Any, separator: str | None = None) -> list[str] | None:
    """Return the names of the classes in a cell; None where it is empty."""
    is_nan = isinstance(cell, float) and math.isnan(cell)
    if cell is None or is_nan or (isinstance(cell, str) and not cell.strip()):
        return None
    if separator is not None and isinstance(cell, str):
        cell = [part for part in cell.split(separator) if part.strip()]
    return [name_cell(item) for item in (cell if isinstance(cell, list | tuple) else [cell])]


_YES, _NO = frozenset(("1", "true", "yes")), frozenset(("0", "-1", "false", "no"))


def flag_cell(cell: Any) -> bool | None:
    """Return True if a cell of a column of its own says that a class is there; None where it is empty."""
    text = "" if cell is None else str(cell).strip().lower().removesuffix(".0")
    if text in _YES or text in _NO:
        return text in _YES
    if text in ("", "nan"):
        return None
    raise SourceError(f"expected 1 or 0, as the column is one of several classes; got {cell!r:.60}")


def sorted_classes(names: set[str]) -> tuple[str, ...]:
    """Return the names sorted by code points; by value if all are whole numbers, so that 0, 1, …, 10 keep their numbers.

    Raises SourceError for a wrong name, and for one number in two spellings, which would be two classes.
    """
    ordered = sorted(names)
    if fault := next(filter(None, map(class_name_fault, ordered)), ""):
        raise SourceError(fault)
    if not all(map(_WHOLE_VALUE.fullmatch, names)):
        return tuple(ordered)
    by_value: dict[int, str] = {}
    for name in ordered:
        if (other := by_value.setdefault(int(name.partition(".")[0]), name)) != name:
            rule = f"the classes {other!r} and {name!r} are one number"
            raise SourceError(f"{rule}; write it in one way, or give the names with classes=")
    return tuple(by_value[value] for value in sorted(by_value))


def number_cell(cell: Any, whole: bool) -> Any:
    """A number or (nested) list of numbers, as int where `whole`, else as float; None where the cell is empty or NaN."""
    if isinstance(cell, list | tuple):
        return [number_cell(item, whole) for item in cell]
    if cell is None or cell == "":
        return None
    if isinstance(cell, int | float) or (isinstance(cell, str) and "_" not in cell):  # Python reads 1_000 as 1000
        with contextlib.suppress(ValueError, OverflowError):
            number = int(cell) if whole else float(cell)
            if not math.isinf(number):  # as 1e400 is for Python
                return None if math.isnan(number) else number
    raise SourceError(f"expected a finite number; got {cell!r:.60}")


def is_whole(cell: Any) -> bool:
    """Every number in the cell is a whole number, spelled as one. An empty cell does not say otherwise, but an empty list does:
    it becomes an array of floats, and a field has one type."""
    if isinstance(cell, list | tuple):
        return len(cell) > 0 and all(map(is_whole, cell))
    if isinstance(cell, str):
        return not cell or _WHOLE_NUMBER.fullmatch(cell) is not None
    return cell is None or isinstance(cell, int)


def _class_number(name: str, numbers: Mapping[str, int]) -> int:
    number = numbers.get(name)
    if number is not None:
        return number
    if (
        _WHOLE_NUMBER.fullmatch(name)
        and 0 <= int(name) < len(numbers)
        and not any(map(_WHOLE_VALUE.fullmatch, numbers))
    ):
        return int(name)
    known = ", ".join(map(repr, list(numbers)[:20]))
    raise SourceError(f"{name!r} is none of the {len(numbers)} classes: {known}")


FILE_KINDS: tuple[Kind, ...] = ("image", "mask", "map")
"""The kinds of field that are read from files."""
ColumnNames: TypeAlias = str | tuple[str, ...]
Cells: TypeAlias = Mapping[str, Any]
"""The cells of a row by column."""


def value_cell(cell: Any, kind: Kind, numbers: Mapping[str, int], separator: str | None, whole: bool) -> Any:
    """Return the value of a field that is not a file. The options are those of `label_cell` and `number_cell`."""
    if kind == "label":
        return label_cell(cell, numbers, separator)
    if kind == "scalar":
        return number_cell(cell, whole)
    if cell is None or isinstance(cell, str if kind == "text" else list | tuple):
        return cell  # rows of boxes and points are checked when the sample is made
    if kind != "text":
        raise SourceError(f"expected a list of rows of numbers (JSON lines or Parquet); got {cell!r:.60}")
    if isinstance(cell, bool | int | float):
        return None if math.isnan(cell) else str(cell)
    raise SourceError(f"expected text; got {cell!r:.60}")


def read_cell(cells: Cells, column: str, convert: Callable[..., Any], *options: Any) -> Any:
    """Return the value of a row's cell; the SourceError of a wrong one names the column."""
    try:
        return convert(cells[column], *options)
    except SourceError as error:
        raise SourceError(f"{column!r}: {error}") from error


@dataclass(frozen=True)
class CellPath:
    """A path that is made of cells: that in one column, or text with columns in braces (`images/{id}.jpg`).

    `{split}` is the split of the table where `by_file`, else a column. `places` gives the path of the image in any folder that
    `**/NAME` stands for, by its name (`tfprep.sources.patterns.image_places`).
    """

    root: Path
    template: Template
    by_file: bool
    places: Mapping[str, str]

    @staticmethod
    def parse(root: Path, text: str, by_file: bool, places: Mapping[str, str]) -> CellPath:
        template = Template.parse(text)
        return CellPath(root, template if template.holes else Template(((True, text),)), by_file, places)

    @cached_property
    def columns(self) -> list[str]:
        """The columns that the path is made of."""
        return [name for name in self.template.holes if not (self.by_file and name == "split")]

    def fill(self, cells: Cells, split: str, field: str) -> str:
        """Return the path for a row. Raises SourceError, which names the field, if it is none below the root."""
        if len(self.template.tokens) == 1 and self.columns and isinstance(cell := cells[self.columns[0]], RawCell):
            return cell.reference

        def part(name: str) -> str:
            if self.by_file and name == "split":
                return split
            cell = cells[name]
            if isinstance(cell, int) and not isinstance(cell, bool):
                return str(cell)
            if cell is None or cell == "":
                raise SourceError("it is empty; fill it in or take the row out")
            if not isinstance(cell, str):
                raise SourceError(f"expected a path, or a part of one, as text; got {cell!r:.60}")
            return cell.replace("\\", "/")  # tools on Windows write backslashes

        try:
            path = self.template.fill(part)
            name = path.removeprefix("**/")
            return spelled(self.root, path_cell(path if name == path else self.places.get(key_of(name), name)))
        except SourceError as error:
            raise SourceError(f"{field!r}: {error}") from error
