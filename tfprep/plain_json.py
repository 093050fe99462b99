"""JSON to dataclasses (`from_json`), and values to JSON as `json.dumps(value, indent=1)` writes it: one value a line, for people.

With an indent, the encoder of the standard library runs in Python, a generator in a generator for each level: 1.7 s for the
164,000 shards of a dataset of 10^8 samples, which stand in several files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from json.encoder import encode_basestring, encode_basestring_ascii
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def indented(value: Any, *, ensure_ascii: bool = True) -> str:
    """Return a value as JSON text.

    Args:
        value: Plain JSON whose keys are text. Mappings count as objects, lists and tuples as lists, and a dataclass as the object
            of its fields; what is cached in it, and is no field, is left out.
        ensure_ascii: Whether characters beyond ASCII are escaped, as in `json.dumps`.

    Raises:
        TypeError: A key is no text, or a value has no form in JSON.
    """
    return _text(value, encode_basestring_ascii if ensure_ascii else encode_basestring, "\n")


def _text(value: Any, quoted: Callable[[str], str], line: str) -> str:
    """Return the text of a value in a block that begins its lines with `line`."""
    if isinstance(value, str):
        return quoted(value)
    if type(value) is int:  # True is an int, too
        return str(value)
    inner = f"{line} "
    if isinstance(value, list | tuple):
        return _block([_text(one, quoted, inner) for one in value], "[]", line)
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return _block([f"{quoted(_key(name))}: {_text(one, quoted, inner)}" for name, one in value.items()], "{}", line)
    return json.dumps(value)


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a key of a JSON object is a text, not {name!r}")
    return name


def _block(items: list[str], brackets: str, line: str) -> str:
    if not items:
        return brackets
    return f"{brackets[0]}{line} {f',{line} '.join(items)}{line}{brackets[1]}"


# --- from JSON --------------------------------------------------------------------------------------------------------


def from_json(kind: type[T], value: Any) -> T:
    """Return what `dataclasses.asdict` and JSON made of a dataclass, as the dataclass again.

    Args:
        kind: The dataclass. Its fields are str, int, float, bool, Any, dataclasses, `X | None`, `tuple[X, ...]`, `Sequence[X]` or
            `Mapping[str, X]`, which becomes a dict, or a `Literal`.
        value: Plain JSON.

    Raises:
        ValueError: The value has other fields, or one of another type; the message names it.
    """
    reader: Callable[[Any], T] = _reader(kind)  # type: ignore[arg-type]
    return reader(value)


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return the function that reads values of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or origin is Literal:
        return lambda value: value if kind is Any else _one_of(value, arguments)
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin in (Union, UnionType) and NoneType in arguments and len(arguments) == 2:
        of_other = _reader(next(one for one in arguments if one is not NoneType))
        return lambda value: None if value is None else of_other(value)
    if origin in (tuple, Sequence):
        of_item = _reader(arguments[0])
        return lambda value: tuple(map(of_item, _expected(value, list)))
    if origin is Mapping:
        of_item = _reader(arguments[1])
        return lambda value: {sys.intern(name): of_item(item) for name, item in _expected(value, dict).items()}
    types = (int, float) if kind is float else (kind,)
    return lambda value: _expected(value, *types)


def _dataclass_reader(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind) if field.init}

    def read(value: Any) -> Any:
        if _expected(value, dict).keys() != readers.keys():
            differing = ", ".join(sorted(value.keys() ^ readers.keys()))
            raise ValueError(f"{kind.__name__} has the fields {', '.join(readers)}; missing or unknown: {differing}")
        return kind(**{name: reader(value[name]) for name, reader in readers.items()})

    return read


def _one_of(value: Any, values: Sequence[Any]) -> Any:
    if value not in values:
        raise ValueError(f"expected one of {values}, found {str(value)[:100]}")
    return value


def _expected(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise ValueError(f"expected {types[-1].__name__}, found {type(value).__name__}: {str(value)[:100]}")
    return value
