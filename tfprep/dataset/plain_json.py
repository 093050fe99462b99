"""JSON to dataclasses (`from_json`), and dataclasses to JSON (`indented`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
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


# --- from JSON --------------------------------------------------------------------------------------------------------


_SHOWN_CHARACTERS = 60
Leaf: TypeAlias = Callable[[type], Callable[[Any], Any]]
"""A function that returns, for str, int, float or bool, the function that checks such a value, or raises `WrongJsonError`."""


class WrongJsonError(ValueError):
    """A value breaks a rule; `way` leads to it: `splits.train.files[0][3].bytes`."""

    def __init__(self, rule: str, way: str = "") -> None:
        super().__init__(f"{way or 'the document'} {rule}")
        self.rule, self.way = rule, way

    def below(self, step: str) -> WrongJsonError:
        """Return the error of the value that holds this one, to which `step` leads from there."""
        return WrongJsonError(self.rule, f"{step}{'.' if self.way and self.way[0] != '[' else ''}{self.way}")


def wrong(rule: str, value: Any) -> WrongJsonError:
    """Return the error of a value that breaks a rule."""
    text = type(value).__name__ if isinstance(value, dict | list) else printable(repr(value))
    return WrongJsonError(f"{rule}, not {text if len(text) <= _SHOWN_CHARACTERS else f'{text[:_SHOWN_CHARACTERS]}...'}")


def plain_leaf(kind: type) -> Callable[[Any], Any]:
    """Return the check of a value by its type only, for `from_json`."""
    types, rule = _LEAVES[kind]

    def check(value: Any) -> Any:
        if type(value) not in types:
            raise wrong(rule, value)
        return value

    return check


_LEAVES: Mapping[type, tuple[tuple[type, ...], str]] = {
    str: ((str,), "is text"),
    int: ((int,), "is a whole number"),
    float: ((int, float), "is a number"),
    bool: ((bool,), "is true or false"),
}


def from_json(kind: type[T], value: Any, leaf: Leaf = plain_leaf) -> T:
    """Return what `dataclasses.asdict` and JSON made of a dataclass, as the dataclass again.

    Args:
        kind: The dataclass. Its fields are str, int, float, bool, Any, dataclasses, `X | None`, `tuple[X, ...]`, `Sequence[X]` or
            `Mapping[str, X]`, which becomes a dict, or a `Literal`. One whose default is None or "" may be missing.
        value: Plain JSON.
        leaf: Checks texts, numbers and truth values.

    Raises:
        WrongJsonError: The value has other fields, or one of another type; the message names it.
    """
    reader: Callable[[Any], T] = _reader(kind, leaf)  # type: ignore[arg-type]
    return reader(value)


@cache
def _reader(kind: Any, leaf: Leaf) -> Callable[[Any], Any]:
    """Return the function that reads values of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or origin is Literal:
        return lambda value: value if kind is Any else _one_of(value, arguments)
    if is_dataclass(kind):
        return _dataclass_reader(kind, leaf)
    if origin in (Union, UnionType) and NoneType in arguments and len(arguments) == 2:
        of_other = _reader(next(one for one in arguments if one is not NoneType), leaf)
        return lambda value: None if value is None else of_other(value)
    if origin in (tuple, Sequence):
        return _list_reader(_reader(arguments[0], leaf))
    if origin is Mapping:
        return _object_reader(_reader(arguments[1], leaf))
    return leaf(kind)


def _list_reader(of_item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> tuple[Any, ...]:
        items = _expected(value, list, "is a list")
        try:
            return tuple(map(of_item, items))
        except WrongJsonError:  # the item is looked up only now
            raise next(_errors(enumerate(items), of_item, "[{}]")) from None

    return read


def _object_reader(of_item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> dict[str, Any]:
        items = _expected(value, dict, "is an object").items()
        try:
            return {sys.intern(name): of_item(item) for name, item in items}
        except WrongJsonError:
            raise next(_errors(items, of_item)) from None

    return read


def _dataclass_reader(kind: Any, leaf: Leaf) -> Callable[[Any], Any]:
    hints, own = get_type_hints(kind), [field for field in fields(kind) if field.init]
    readers = {field.name: _reader(hints[field.name], leaf) for field in own}
    required = {field.name for field in own if field.default not in (None, "")}

    def read(value: Any) -> Any:
        names = _expected(value, dict, "is an object").keys()
        if names != readers.keys() and not required <= names <= readers.keys():
            missing, unknown = sorted(required - names), sorted(names - readers.keys())
            raise WrongJsonError("is missing" if missing else "is unknown", _step((missing or unknown)[0]))
        try:
            return kind(**{name: readers[name](item) for name, item in value.items()})
        except WrongJsonError:
            raise next(error for name in names for error in _errors([(name, value[name])], readers[name])) from None

    return read


def _errors(items: Iterable[tuple[Any, Any]], read: Callable[[Any], Any], step: str = "{}") -> Iterator[WrongJsonError]:
    """Yield the errors of the items of a list or an object."""
    for name, item in items:
        try:
            read(item)
        except WrongJsonError as error:
            yield error.below(step.format(_step(str(name))))


def _step(name: str) -> str:
    return printable(name)[:_SHOWN_CHARACTERS]


def _one_of(value: Any, values: Sequence[Any]) -> Any:
    if value not in values:
        raise wrong(f"is one of {', '.join(map(str, values))}", value)
    return value


def _expected(value: Any, kind: type, rule: str) -> Any:
    if type(value) is not kind:
        raise wrong(rule, value)
    return value
