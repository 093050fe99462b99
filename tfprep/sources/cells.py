"""Turns the cells of a table into the values of an entry.

Each function raises SourceError with the rule and the value; the caller adds table, row and column.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfprep.errors import DatasetError, SourceError
from tfprep.sources.labels import class_name_fault
from tfprep.sources.source import key_of
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
