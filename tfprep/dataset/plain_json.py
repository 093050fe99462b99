"""JSON to dataclasses (`from_json`), and dataclasses to JSON (`indented`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from tfprep.units import printable

T = TypeVar("T")


def indented(value: Any, *, ensure_ascii: bool = True) -> str:
    """Return a value as JSON text, one value a line, for people.

    Args:
        value: Plain JSON. Mappings count as objects, lists and tuples as lists, and a dataclass as the object of its fields; what
            is cached in it, and is not a field, is left out.
        ensure_ascii: Whether characters beyond ASCII are escaped, as in `json.dumps`.

    Raises:
        TypeError: A value has no form in JSON.
    """
    return json.dumps(value, indent=1, ensure_ascii=ensure_ascii, default=_plain)


def _plain(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} has no form in JSON")


def with_digest(document: Mapping[str, Any], before: str = "") -> str:
    """Return `before`, a document as one line of JSON, and the SHA-256 of all this on another. Receipts are written so."""
    text = f"{before}{json.dumps(document)}"
    return f"{text}\n{sha256(text.encode()).hexdigest()}\n"


def without_digest(content: bytes) -> Any:
    """Return the document of `with_digest`; ValueError where a byte was changed, also in what is before the document."""
    end = content.rfind(b"\n", 0, -1)
    if sha256(memoryview(content)[:end]).hexdigest().encode() != content[end + 1 :].removesuffix(b"\n"):
        raise ValueError("its checksum is wrong")
    return json.loads(content[content.rfind(b"\n", 0, end) + 1 : end])


# --- from JSON --------------------------------------------------------------------------------------------------------


_SHOWN_CHARACTERS = 60
_MOST_COUNT = 2**63 - 1
Check: TypeAlias = Callable[[Any], Any]
"""A function that returns a value in its type, or raises `WrongJsonError`."""


class WrongJsonError(ValueError):
    """A value breaks a rule; `way` leads to it: `splits.train.files[0][3].bytes`."""

    def __init__(self, rule: str, way: str = "") -> None:
        super().__init__(f"{way or 'the document'} {rule}")
        self.rule, self.way = rule, way

    def below(self, step: str | int) -> WrongJsonError:
        """Return the error of the value that holds this one, to which a name or a number of a list leads from there."""
        start = f"[{step}]" if isinstance(step, int) else printable(step)[:_SHOWN_CHARACTERS]
        return WrongJsonError(self.rule, f"{start}{'.' if self.way and self.way[0] != '[' else ''}{self.way}")


def wrong(rule: str, value: Any) -> WrongJsonError:
    """Return the error of a value that breaks a rule."""
    text = type(value).__name__ if isinstance(value, dict | list) else printable(repr(value))
    return WrongJsonError(f"{rule}, not {text if len(text) <= _SHOWN_CHARACTERS else f'{text[:_SHOWN_CHARACTERS]}...'}")


def _leaf(rule: str, is_right: Callable[[Any], bool]) -> Check:
    def check(value: Any) -> Any:
        if not is_right(value):
            raise wrong(rule, value)
        return value

    return check


_LEAVES: Mapping[Any, Check] = {
    Any: lambda value: value,
    str: _leaf("is text", lambda value: type(value) is str),
    int: _leaf("is a whole number from 0 on", lambda value: type(value) is int and 0 <= value <= _MOST_COUNT),
    float: _leaf("is a number", lambda value: type(value) in (int, float)),
    bool: _leaf("is true or false", lambda value: type(value) is bool),
}
_a_list = _leaf("is a list", lambda value: type(value) is list)
_an_object = _leaf("is an object", lambda value: type(value) is dict)


def from_json(kind: type[T], value: Any) -> T:
    """Return what `dataclasses.asdict` and JSON made of a dataclass, as the dataclass again.

    Args:
        kind: The dataclass. Its fields are str, int (from 0, of 63 bits), float, bool, Any, dataclasses, `X | None`,
            `tuple[X, ...]`, `Sequence[X]` or `Mapping[str, X]`, which becomes a dict, or a `Literal`. One whose default is None
            or "" may be missing.
        value: Plain JSON.

    Raises:
        WrongJsonError: The value has other fields, or one of another type; the message names it.
    """
    reader: Callable[[Any], T] = _reader(kind)  # type: ignore[arg-type]
    return reader(value)


@cache
def _reader(kind: Any) -> Check:
    """Return the function that reads values of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _leaf(f"is one of {', '.join(map(str, arguments))}", arguments.__contains__)
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin in (Union, UnionType) and NoneType in arguments and len(arguments) == 2:
        of_other = _reader(next(argument for argument in arguments if argument is not NoneType))
        return lambda value: None if value is None else of_other(value)
    if origin in (tuple, Sequence):
        of_item = _reader(arguments[0])
        return lambda value: tuple(_read(of_item, number, item) for number, item in enumerate(_a_list(value)))
    if origin is Mapping:
        of_entry = _reader(arguments[1])
        return lambda value: {sys.intern(n): _read(of_entry, n, item) for n, item in _an_object(value).items()}
    return _LEAVES[kind]


def _dataclass_reader(kind: Any) -> Check:
    hints, own = get_type_hints(kind), [field for field in fields(kind) if field.init]
    readers = {field.name: _reader(hints[field.name]) for field in own}
    required = {field.name for field in own if field.default not in (None, "")}

    def read(value: Any) -> Any:
        names = _an_object(value).keys()
        if names != readers.keys() and not required <= names <= readers.keys():
            missing, unknown = sorted(required - names), sorted(names - readers.keys())
            raise WrongJsonError("is missing" if missing else "is unknown").below((missing or unknown)[0])
        return kind(**{name: _read(readers[name], name, item) for name, item in value.items()})

    return read


def _read(read: Check, step: str | int, value: Any) -> Any:
    try:
        return read(value)
    except WrongJsonError as error:
        raise error.below(step) from None
