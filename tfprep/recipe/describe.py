"""A recipe's options as plain JSON, with the source of the user's code that they refer to: what its fingerprint is made of.

The rule: the values of the options, with each function's own syntax tree, closure, defaults and attributes, and the source of the
modules that define the user's functions and classes in them, and of the user's modules that those import, and so on
(`tfprep.recipe.code`). The description is the same in every process. docs/recipes.md lists what it does not show.
"""

from __future__ import annotations

import ast
import copyreg
import functools
import hashlib
import json
import math
import pickle
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np

from tfprep.errors import RecipeError
from tfprep.recipe.code import (
    digest_of,
    file_of,
    function_tree,
    is_users,
    module_digests,
    module_of,
    name_of,
    package_version,
)

FUNCTION = "source of the function"
"""The key of the digest of the syntax trees of functions."""
STATE = "state"
"""The key of the digest of a value: of its type and of what pickling it would save."""
NO_SOURCE = "without source"
"""The key in a description's code of the names of functions and classes whose source cannot be found."""
_PLAIN = frozenset({type(None), bool, int, str})
"""Types whose values are JSON as they are."""
_BUILTIN = frozenset({float, complex, bytes, list, tuple, dict})
_CACHED = type(functools.cache(len))
_RANDOM = "random", "_random", "numpy.random._generator", "numpy.random.mtrand", "numpy.random.bit_generator"
"""Modules of generators of random numbers, whose state differs from process to process."""


class Description:
    """Describes the values of one recipe; `code` tells what source they refer to."""

    def __init__(self) -> None:
        self._packages: dict[str, str] = {}
        self._modules: set[str] = set()
        self._no_source: set[str] = set()
        self._trees: list[ast.AST] = []  # the definitions of the user's functions in the value that is being described

    def code(self) -> dict[str, Any]:
        """Return the digest of each module and the version of each package that was reached: {"module blurring": "1f..."}.

        Raises:
            RecipeError: A module was edited after this process had imported it.
        """
        unseen = {NO_SOURCE: sorted(self._no_source)} if self._no_source else {}
        return {**dict(sorted({**self._packages, **module_digests(self._modules)}.items())), **unseen}

    def options(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return options as JSON, each as `describe` returns it."""
        try:
            return {name: self.describe(value) for name, value in values.items()}
        except RecursionError:
            raise RecipeError(f"one of {', '.join(values)} holds itself; give a value without circles") from None

    def describe(self, value: Any) -> Any:
        """Return an option as JSON: mappings as objects, lists and tuples as lists, tfprep's own classes by their options.

        Any other value is described by its type and the digest of what pickling it would save.

        Raises:
            RecipeError: The value holds something that cannot be pickled, such as a lock or an open file.
        """
        kind = type(value)
        if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
            return value
        if isinstance(value, PurePath) and not is_users(kind):
            return {"path": str(value)}
        if kind in (dict, MappingProxyType) and all(isinstance(name, str) for name in value):
            return {name: self.describe(item) for name, item in value.items()}
        if kind in (list, tuple):
            return [self.describe(item) for item in value]
        if is_dataclass(kind) and not is_users(kind):
            self._packages |= package_version(name := name_of(kind)[1])
            return {"type": name, **{field.name: self.describe(getattr(value, field.name)) for field in fields(kind)}}
        self._trees = []
        try:
            state = hashlib.sha256(json_text(self._state(value)).encode()).hexdigest()[:16]
        except RecipeError:
            raise
        except Exception as error:  # whatever a class raises that cannot be pickled
            what = getattr(value, "__qualname__", kind.__qualname__)
            reason = "an object in it holds itself" if isinstance(error, RecursionError) else error
            raise RecipeError(
                "a recipe, and what its functions capture, holds plain values, arrays, dataclasses and functions; "
                f"{what} cannot be described: {reason}. Make such an object in the function that needs it"
            ) from error
        module, name = name_of(value if isinstance(value, FunctionType) else kind)
        described = {"type": {"class": name, "module": module} if module else name}
        if isinstance(value, FunctionType):
            described = {"function": name}
        return {**described, STATE: state, **({FUNCTION: digest_of(self._trees)} if self._trees else {})}

    def _state(self, value: Any) -> Any:
        """Return what pickling would save of a value, as JSON: functions and classes by their names, sets in order."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind not in _BUILTIN:
            for module in (str(kind.__module__), module_of(value)):
                self._packages |= {} if is_users(module) else package_version(module)
        parts: Iterable[Any]
        if kind in (list, tuple):
            parts = (item if type(item) in _PLAIN else self._state(item) for item in value)
        elif kind is dict:
            parts = ([self._state(name), self._state(item)] for name, item in value.items())
        elif kind in (float, complex, bytes):
            parts = [repr(value)]
        elif kind is np.ndarray and not value.dtype.hasobject:
            parts = [str(value.dtype.descr), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
        elif isinstance(value, FunctionType):
            parts = self._function(value)
        elif isinstance(value, type | ModuleType):
            parts = self._definition(value)
        elif isinstance(value, MethodType):
            parts = [self._state(value.__self__), self._state(value.__func__)]
        elif isinstance(value, _CACHED):
            parts = [self._state(value.__wrapped__)]
        else:
            parts = [*self._definition(kind), *self._object(value)]
        return [kind.__name__, *parts]

    def _object(self, value: Any) -> list[Any]:
        """Return what an object holds, in the parts in which pickle takes it."""
        kind = type(value)
        if any(base.__module__ in _RANDOM for base in kind.__mro__):
            raise TypeError(f"the state of a {kind.__qualname__} differs from process to process")
        if isinstance(value, set | frozenset):
            return [sorted(json_text(self._state(item)) for item in value), self._state(value.__getstate__())]
        registered = copyreg.dispatch_table.get(kind)
        reduced = registered(value) if registered else value.__reduce_ex__(4)
        if isinstance(reduced, str):  # the name of a variable
            pickle.dumps(value)  # which raises unless it is that of this object
            return [module_of(value), reduced]
        made_by, args, state, items, pairs = (*reduced, None, None, None)[:5]
        if isinstance(value, functools.partial):
            state = [value.func, value.args, value.keywords, _without_computed(vars(value), value)]
        if isinstance(state, tuple):  # of a class with slots
            state = tuple(_without_computed(part, value) for part in state)
        parts = [made_by, args, _without_computed(state, value), list(items or ()), list(pairs or ())]
        reducing = next(base for base in kind.__mro__ if {"__reduce__", "__reduce_ex__"} & vars(base).keys())
        if is_users(kind) and reducing is not object and not is_users(reducing) and not issubclass(kind, Enum):
            own: Any = object.__getstate__(value)  # pickling an array of a class leaves out its attributes
            attributes, slots = own if isinstance(own, tuple) else (own, {})  # a path keeps what it computes in slots
            names = {name for base in filter(is_users, kind.__mro__) for name in vars(base)}
            own_slots = {name: slots[name] for name in sorted(names & slots.keys())}
            parts += [_without_computed(attributes, value), own_slots]
        return [self._state(part) for part in parts]

    def _definition(self, value: type | ModuleType) -> tuple[str, str]:
        """Return the name of a class or module, and note the modules of the user that define it."""
        for definition in filter(is_users, value.__mro__ if isinstance(value, type) else [value]):
            module, name = module_of(definition), getattr(definition, "__qualname__", "")
            if not file_of(module):  # of a notebook
                self._no_source.add(f"class {name}" if name else module)
            elif name and ("<locals>" in name or not hasattr(sys.modules[module], name.partition(".")[0])):
                raise RecipeError(
                    f"the class {name} is not a variable of its module, so that what it is made of cannot be seen; define it at "
                    f"the top of {file_of(module)}"
                )
            else:
                self._modules.add(module)
        return name_of(value)

    def _function(self, function: FunctionType) -> list[Any]:
        """Return the name of a function, its defaults, captured variables and attributes; note its source."""
        if is_users(function):
            module, tree = module_of(function), function_tree(function)
            # A file that `runpy` or `importlib` ran may have the name of another module.
            if file_of(module) and function.__globals__.get("__file__") == file_of(module):
                self._modules.add(module)
            else:
                tree = None
            if tree is None:
                self._no_source.add(f"function {function.__qualname__}")
            else:
                self._trees.append(tree)
        captured = [cell.cell_contents for cell in function.__closure__ or ()]
        parts = [function.__defaults__, function.__kwdefaults__, captured, vars(function)]
        return [*name_of(function), *map(self._state, parts)]


def _without_computed(part: Any, value: Any) -> Any:
    """Return a part of an object's state without what `cached_property` computed and `functools.update_wrapper` copied."""
    if not isinstance(part, dict) or part.keys() != getattr(value, "__dict__", {None: 0}).keys():
        return part
    computed = {name for name in part if isinstance(getattr(type(value), name, None), functools.cached_property)}
    computed.update(functools.WRAPPER_ASSIGNMENTS)
    return {name: item for name, item in part.items() if name not in computed} or None


# --- what differs between two descriptions -------------------------------------------------------------------------------


_SHOWN = 60
"""Characters up to which an old and a new value are shown; longer ones are only said to have changed."""


def json_text(described: Any) -> str:
    """Return a description as text, which is equal for equal descriptions only: Python holds 1, 1.0 and True for equal."""
    return json.dumps(described, sort_keys=True)


def what_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Name what differs between two recipes.

    Args:
        old: `Recipe.describe()` of the earlier recipe, also as read back from JSON.
        new: The same of the later one.

    Returns:
        One text for each difference, such as "geometry[1].degrees: 10 -> 12", "module blurring changed".
    """
    differences = list(_differences("", old, new))
    orders = [list(described.get("derive", ())) for described in (old, new)]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        differences.append(f"the order of derive: {', '.join(orders[0])} -> {', '.join(orders[1])}")
    return differences


def only_code_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True if two recipes, as for `what_changed`, have the same options and refer to other source."""
    of_function = rf'"{FUNCTION}": "[0-9a-f]+"'  # in a text of a user the quotes would be escaped
    options = {re.sub(of_function, "", json_text({**described, "code": None})) for described in (old, new)}
    return len(options) == 1 and json_text(old) != json_text(new)


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    """Yield the options that differ below `path`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("type") == new.get("type"):
        is_object = not {"type", "function"}.isdisjoint(old)  # others are mappings from names of the user
        for name in dict.fromkeys((*old, *new)):
            below = name if path in ("", "code") else f"{path}.{name}" if is_object else f"{path}['{name}']"
            if name in old and name in new:
                yield from _differences(below, old[name], new[name])
            else:
                yield f"{below} {'removed' if name in old else 'added'}"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{path}[{number}]", before, after)
    elif json_text(old) != json_text(new):
        before, after = _short(old), _short(new)
        is_digest = path.startswith("module ") or path.endswith((FUNCTION, f".{STATE}"))
        shown = max(len(before), len(after)) <= _SHOWN and not is_digest
        yield f"{path}: {before} -> {after}" if shown else f"{path} changed"


def _short(value: Any) -> str:
    """A value as a person writes it; a part of a recipe by its class."""
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        return str(value["type"]).rpartition(".")[2]
    return repr(value)
