"""Turns the rows of a table into entries: which column gives which field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tfprep.errors import SourceError
from tfprep.fields import Kind
from tfprep.sources.cells import label_cell, list_cell, name_cell, number_cell, path_cell, text_cell
from tfprep.sources.parquet import RawCell
from tfprep.sources.reference import parse_reference
from tfprep.sources.source import Entry, key_of
from tfprep.sources.splits import Row

FILE_KINDS = ("image", "mask", "map")
"""The kinds of field that are read from files."""

_BRACES = re.compile(r"(?<!\{)\{([^{}]+)\}(?!\})")
Cells = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class PathCell:
    """A path from the cells of a row: one column, or literal text and columns (`images/{id}.jpg`); `{{` and `}}` are braces."""

    parts: tuple[str, ...]
    """Literal text at even positions, columns at odd ones."""
    by_file: bool = False
    """Whether `{split}` stands for what it stands for in the path of the table, and is no column."""

    @staticmethod
    def parse(text: str, by_file: bool = False) -> PathCell:
        if not _BRACES.search(text):
            return PathCell(("", text, ""))
        parts = _BRACES.split(text)
        plain = (re.sub(r"([{}])\1", r"\1", part) if not n % 2 else part for n, part in enumerate(parts))
        return PathCell(tuple(plain), by_file)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.parts[1::2] if not (self.by_file and name == "split"))

    def path(self, cells: Cells, row: int, split: str) -> str:
        cell = cells[self.columns[0]][row] if self.parts[::2] == ("", "") else None
        if isinstance(cell, RawCell):
            return cell.reference
        text = list(self.parts)
        for place in range(1, len(text), 2):
            of_file = self.by_file and text[place] == "split"
            text[place] = split if of_file else _path_part(cells[text[place]][row])
        return path_cell("".join(text))


@dataclass(frozen=True)
class Columns:
    """What each column gives.

    `files` are the fields with a file, `values` the others with kind and column; `numbers` the class numbers by label
    field, `whole` the scalar fields of whole numbers; `key`, `split` and `group` are columns.
    """

    files: Mapping[str, PathCell]
    values: Mapping[str, tuple[Kind, str]]
    numbers: Mapping[str, Mapping[str, int]]
    whole: frozenset[str]
    key: str | None
    split: str | None
    group: str | None

    def needed(self) -> list[str]:
        """Every column that is read."""
        of_files = [column for cell in self.files.values() for column in cell.columns]
        of_values = [column for _, column in self.values.values()]
        return [*of_files, *of_values, *filter(None, (self.key, self.split, self.group))]

    def row(self, cells: Cells, row: int, split: str, place: str) -> Row:
        """The entry of a row, and its group. `place` is the key of an image that has no path.

        Raises:
            SourceError: A cell is not what it should be; the message names the column, or the field of a file.
        """
        files = tuple(_path(name, path, cells, row, split) for name, path in self.files.items())
        values = tuple(
            _read(partial(self._value, name, kind), column, cells, row) for name, (kind, column) in self.values.items()
        )
        path = parse_reference(files[0])
        key = key_of(place if path.member else files[0]) if self.key is None else _read(name_cell, self.key, cells, row)
        split = split if self.split is None else _read(name_cell, self.split, cells, row)
        group = None if self.group is None else _read(name_cell, self.group, cells, row)
        return Entry(key, split, files, values), group

    def _value(self, name: str, kind: Kind, cell: Any) -> Any:
        if kind == "label":
            return label_cell(cell, self.numbers[name])
        if kind == "scalar":
            return number_cell(cell, name in self.whole)
        return text_cell(cell) if kind == "text" else list_cell(cell)


def _read(convert: Callable[[Any], Any], column: str, cells: Cells, row: int) -> Any:
    try:
        return convert(cells[column][row])
    except SourceError as error:
        raise SourceError(f"{column!r}: {error}") from error


def _path(name: str, path: PathCell, cells: Cells, row: int, split: str) -> str:
    try:
        return path.path(cells, row, split)
    except SourceError as error:
        raise SourceError(f"{name!r}: {error}") from error


def _path_part(cell: Any) -> str:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    if cell is None or cell == "":
        raise SourceError("it is empty; fill it in or take the row out")
    if not isinstance(cell, str):
        raise SourceError(f"expected a path, or a part of one, as text; got {cell!r}")
    return cell
