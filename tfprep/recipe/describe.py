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
import io
import json
import math
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import CellType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType, NoneType
from typing import Any

import numpy as np

from tfprep.errors import RecipeError
from tfprep.recipe.code import (
    OF_RECIPES,
    digest_of,
    file_of,
    function_tree,
    is_users,
    module_digests,
    module_of,
    package_version,
    public_name,
    shown_module,
)

FUNCTION = "source of the function"
"""The key of the digest of the syntax trees of functions."""
STATE = "state"
"""The key of the digest of a value: of its type and of what pickling it would save."""
NO_SOURCE = "without source"
"""The key in a description's code of the names of functions and classes whose source cannot be found."""
_CACHED = type(functools.cache(len))
_PLAIN = frozenset({NoneType, bool, int, float, complex, str, bytes, list, tuple, dict})
"""Types whose values are what they hold."""
_RANDOM = "random", "_random", "numpy.random._generator", "numpy.random.mtrand", "numpy.random.bit_generator"
"""Modules of generators of random numbers, whose state differs from process to process."""


class Description:
    """Describes the values of one recipe; `code` tells what source they refer to."""

    def __init__(self) -> None:
        self.packages: dict[str, str] = {}
        self.modules: set[str] = set()
        self.no_source: set[str] = set()
        self.open: set[int] = set()  # the ids of the functions that are being described: one may capture itself

    def code(self) -> dict[str, Any]:
        """Return the digest of each module and the version of each package that was reached: {"module blurring": "1f..."}.

        Raises:
            RecipeError: A module was edited after this process had imported it.
        """
        unseen = {NO_SOURCE: sorted(self.no_source)} if self.no_source else {}
        return {**dict(sorted({**self.packages, **module_digests(self.modules)}.items())), **unseen}

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
            self.packages |= package_version(name := public_name(kind))
            return {"type": name, **{field.name: self.describe(getattr(value, field.name)) for field in fields(kind)}}
        trees: list[ast.AST] = []
        try:
            state = _State(self, trees).digest(value)
        except RecipeError:
            raise
        except Exception as error:  # whatever a class raises that cannot be pickled
            what = getattr(value, "__qualname__", kind.__qualname__)
            reason = "an object in it holds itself" if "cyclic" in str(error) else error
            raise RecipeError(
                "a recipe, and what its functions capture, holds plain values, arrays, dataclasses and functions; "
                f"{what} cannot be described: {reason}. Make such an object in the function that needs it"
            ) from error
        module, name = _name(value if isinstance(value, FunctionType) else kind)
        described = {"type": {"class": name, "module": module} if module else name}
        if isinstance(value, FunctionType):
            described = {"function": name}
        return {**described, STATE: state, **({FUNCTION: digest_of(trees)} if trees else {})}


class _State(pickle.Pickler):
    """Pickles equal values to equal bytes: functions and classes by their names, sets in order, nothing by reference.

    Attributes:
        trees: The definitions of the user's functions that the value holds.
    """

    def __init__(self, description: Description, trees: list[ast.AST]) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, protocol=4)
        self.fast = True  # without references to objects before: equal objects that were one become two in a worker
        self.trees = trees
        self._description = description

    def digest(self, value: Any) -> str:
        """Pickle a value, and return 16 hexadecimal digits of the SHA-256."""
        self.dump(value)
        return hashlib.sha256(self._file.getvalue()).hexdigest()[:16]

    def persistent_id(self, value: Any) -> Any:
        """Return what is pickled in place of a value; None for the value itself."""
        kind = type(value)
        if kind in _PLAIN:
            return None
        if any(base.__module__ in _RANDOM for base in kind.__mro__):
            raise pickle.PicklingError(f"the state of a {kind.__qualname__} differs from process to process")
        for module in (str(kind.__module__), module_of(value)):
            self._description.packages |= {} if is_users(module) else package_version(module)
        if is_users(kind):  # also where it is pickled by the name of a variable
            self._definition(kind)
        parts: Any = None
        if isinstance(value, FunctionType):
            parts = self._function(value)
        elif isinstance(value, type | ModuleType):
            parts = self._definition(value)
        elif isinstance(value, MethodType):
            parts = "method", value.__self__, value.__func__
        elif isinstance(value, _CACHED):
            parts = "cache", value.__wrapped__
        elif isinstance(value, set | frozenset):
            items = sorted(json_text(self._description.describe(item)) for item in value)
            parts = kind, items, value.__getstate__() or {}
        elif kind is np.ndarray and not value.dtype.hasobject:  # a large one is not copied again and again
            parts = "array", str(value.dtype.descr), value.shape, hashlib.sha256(value.tobytes()).digest()
        elif is_users(kind) and _may_lose_attributes(kind) and (attributes := _attributes(value)):
            parts = "attributes", value.__reduce_ex__(4), attributes
        return parts

    def reducer_override(self, value: Any) -> Any:
        """Leave out what `functools.cached_property` has computed, and the texts that `functools.update_wrapper` copies."""
        names = getattr(value, "__dict__", {})
        cached = {name for name in names if isinstance(getattr(type(value), name, None), functools.cached_property)}
        cached |= names.keys() & set(functools.WRAPPER_ASSIGNMENTS)
        reduced = value.__reduce_ex__(4) if cached and type(value) not in copyreg.dispatch_table else None
        if not isinstance(reduced, tuple):
            return NotImplemented
        made_by, args, state, *items = (*reduced, None)[: max(3, len(reduced))]

        def kept(part: dict[str, Any]) -> dict[str, Any] | None:  # None stands for an object without attributes
            return {name: item for name, item in part.items() if name not in cached} or None

        if isinstance(state, dict):
            state = kept(state)
        elif isinstance(state, tuple):  # of a class with slots, or a `functools.partial`
            state = tuple(
                kept(part) if isinstance(part, dict) and part.keys() == names.keys() else part for part in state
            )
        return made_by, args, state, *items

    def _definition(self, value: type | ModuleType) -> tuple[str, str]:
        """Return the name of a class or module, and note the modules of the user that define it."""
        for definition in filter(is_users, value.__mro__ if isinstance(value, type) else [value]):
            module, name = module_of(definition), getattr(definition, "__qualname__", "")
            if not file_of(module):  # of a notebook
                self._description.no_source.add(f"class {name}" if name else module)
            elif name and ("<locals>" in name or not hasattr(sys.modules[module], name.partition(".")[0])):
                raise RecipeError(
                    f"the class {name} is not a variable of its module, so that what it is made of cannot be seen; define it at "
                    f"the top of {file_of(module)}"
                )
            else:
                self._description.modules.add(module)
        return _name(value)

    def _function(self, function: FunctionType) -> tuple[str, str, str]:
        """Return the name of a function, and the digest of its defaults, captured variables and attributes; note its source."""
        if id(function) in self._description.open:
            return *_name(function), "circular"
        cells = [_content(cell) for cell in function.__closure__ or ()]
        names, uses = self._source(function) if is_users(function) else (), {}
        self._description.open.add(id(function))
        try:
            for name in names:
                try:
                    uses[name] = _State(self._description, self.trees).digest(function.__globals__[name])
                except Exception:  # it cannot be pickled, so that nobody knows if it has changed
                    self._description.no_source.add(f"variable {name}")
            parts = [function.__defaults__, function.__kwdefaults__, cells, vars(function), uses]
            return *_name(function), _State(self._description, self.trees).digest(parts)
        finally:
            self._description.open.remove(id(function))

    def _source(self, function: FunctionType) -> Sequence[str]:
        """Note the source of a function; of a notebook, return the names of variables that it uses, which no module shows."""
        if (tree := function_tree(function)) is None:
            self._description.no_source.add(f"function {function.__qualname__}")
            return ()
        self.trees.append(tree)
        module, file = module_of(function), function.__globals__.get("__file__")
        # A file that `runpy` or `importlib` ran may have the name of another module. A recipe has that of its file.
        if file_of(module) and (module.startswith(OF_RECIPES) or file == file_of(module)):
            self._description.modules.add(module)
            return ()
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        return sorted(names & function.__globals__.keys())


def _may_lose_attributes(kind: type) -> bool:
    """Return True if an installed base of the class decides what pickling saves: that of an array leaves out its attributes."""
    reducing = next(base for base in kind.__mro__ if {"__reduce__", "__reduce_ex__"} & vars(base).keys())
    return reducing is not object and not is_users(reducing) and not issubclass(kind, Enum)


def _attributes(value: Any) -> dict[str, Any]:
    """Return what the user's classes keep in an object, without what is computed from it: also by installed bases, in slots."""
    kind, state = type(value), object.__getstate__(value)
    attributes, slots = state if isinstance(state, tuple) else (state, {})
    names = {name for name in attributes or {} if not isinstance(getattr(kind, name, None), functools.cached_property)}
    own = [vars(base) for base in kind.__mro__ if is_users(base)]  # in `kind` a property may hide a slot
    names |= {name for name in slots if any(isinstance(names_of.get(name), MemberDescriptorType) for names_of in own)}
    return {name: getattr(value, name) for name in sorted(names)}


def _name(value: FunctionType | type | ModuleType) -> tuple[str, str]:
    """Return the module of the user and the name in it; for what is installed the public name only."""
    if not is_users(value):
        return "", public_name(value)
    name = value.__code__.co_qualname if isinstance(value, FunctionType) else getattr(value, "__qualname__", "")
    return shown_module(module_of(value)), name


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is assigned later
        return None


# --- what differs between two descriptions -------------------------------------------------------------------------------


_SHOWN = 60
"""Characters up to which an old and a new value are shown; longer ones are only said to have changed."""
_BY_NAME = "derive", "store", "variants", "fill", "row_fields", "flip_indices", "shards", "files", "code"
"""Options that are mappings from names of the user."""


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
    options = [_without_functions({**described, "code": None}) for described in (old, new)]
    return json_text(options[0]) == json_text(options[1]) and json_text(old) != json_text(new)


def _without_functions(described: Any) -> Any:
    if isinstance(described, Mapping):
        return {name: _without_functions(part) for name, part in described.items() if name != FUNCTION}
    return [_without_functions(part) for part in described] if isinstance(described, list) else described


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    """Yield the options that differ below `path`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("type") == new.get("type"):
        for name in dict.fromkeys((*old, *new)):
            below = name if path in ("", "code") else f"{path}['{name}']" if path in _BY_NAME else f"{path}.{name}"
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
