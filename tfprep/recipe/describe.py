"""Values of a recipe as plain JSON, together with the source of the user's code that they refer to.

The description is the same in every process: it holds no addresses and no order of sets. Options are described by their values.
Functions and classes of the user count with the source of the modules that define them, and of the user's modules that those
import (`tfprep.recipe.code`). docs/recipes.md lists what neither shows.
"""

from __future__ import annotations

import ast
import copyreg
import functools
import hashlib
import json
import math
import sys
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np

from tfprep.errors import RecipeError
from tfprep.recipe.code import (
    digest_of,
    file_of,
    function_trees,
    is_users,
    module_digests,
    module_name,
    package_version,
    public_name,
)

FUNCTION = "source of the function"
"""The key of the digest of a function's syntax tree."""
NO_SOURCE = "without source"
"""The key in a description's code of the names of functions and classes whose source cannot be found."""


class Description:
    """Describes the values of one recipe; `code` tells what source they refer to."""

    def __init__(self) -> None:
        self._packages: dict[str, str] = {}
        self._modules: set[str] = set()
        self._no_source: set[str] = set()
        self._open: dict[int, Any] = {}  # the values that are being described; one may hold itself

    def code(self) -> dict[str, Any]:
        """Return the digest of each module and the version of each package that was reached: {"module blurring": "1f..."}.

        Raises:
            RecipeError: A module was edited after this process had imported it.
        """
        unseen = {NO_SOURCE: sorted(self._no_source)} if self._no_source else {}
        digests = {**self._packages, **module_digests(self._modules)}
        return {**dict(sorted(digests.items())), **unseen}

    def option(self, value: Any) -> Any:
        """An option of a recipe or of its parts: as `describe`, with mappings by name as JSON objects and tuples as lists."""
        if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return {name: self.option(item) for name, item in value.items()}
        if type(value) in (list, tuple):
            return [self.option(item) for item in value]
        return self.describe(value)

    def describe(self, value: Any) -> Any:
        """The value as JSON.

        Raises:
            RecipeError: The value holds something that cannot be described, such as a lock or an open file.
        """
        if not is_users(type(value)) and (plain := _plain(value)) is not _NOT_PLAIN:
            return plain
        if isinstance(value, type | Enum):
            return self._class(value) if isinstance(value, type) else {**self._class(type(value)), "member": value.name}
        if isinstance(value, types.ModuleType):
            return {"module": self._module(value)}
        if id(value) in self._open:
            return {"circular": type(value).__qualname__}
        self._open[id(value)] = value
        try:
            return self._function(value) if isinstance(value, types.FunctionType) else self._parts(value)
        finally:
            del self._open[id(value)]

    def _parts(self, value: Any) -> Any:
        kind = type(value)
        if kind in (list, tuple):
            items = [self.describe(item) for item in value]
            return items if kind is list else {"tuple": items}
        if isinstance(value, set | frozenset):
            items = sorted((self.describe(item) for item in value), key=json_text)
            # Pickling a set of a subclass would list its items in the order of their hashes.
            return {**self._class(kind), "items": items, "attributes": self._named(getattr(value, "__dict__", {}))}
        if is_dataclass(value) and not is_users(kind):
            options = {field.name: self.option(getattr(value, field.name)) for field in fields(value)}
            return {"type": self._public(kind), **options}
        if kind in (dict, types.MappingProxyType):
            return {"dict": [[self.describe(key), self.describe(item)] for key, item in value.items()]}
        if isinstance(value, functools.partial):
            described = {"function": self.describe(value.func), "args": [self.describe(arg) for arg in value.args]}
            # A function that takes keywords by any name sees their order.
            return {**described, "keywords": self._named(value.keywords), "order": list(value.keywords)}
        return self._instance(value)

    def _named(self, items: Mapping[str, Any]) -> dict[str, Any]:
        """Options by name, in no order; a `dict` that code reads has one."""
        return {name: self.describe(item) for name, item in items.items()}

    def _instance(self, value: Any) -> Any:
        """An object, by its class and by what pickling it would save."""
        kind = type(value)
        reduced: Any = None
        try:
            reducer = copyreg.dispatch_table.get(kind)  # `re.Pattern` and other types of extensions have theirs here
            reduced = reducer(value) if reducer else value.__reduce_ex__(4)
        except Exception:
            pass
        is_plain = isinstance(reduced, str) or (isinstance(reduced, tuple) and isinstance(reduced[1], tuple))
        # The state of a generator of random numbers differs from process to process.
        if not is_plain or any(base.__module__ in _RANDOM for base in kind.__mro__):
            raise RecipeError(
                "a recipe, and what its functions capture, holds plain values, arrays, dataclasses and functions; an object of "
                f"{kind.__qualname__} cannot be described in JSON. Make it in the function that needs it"
            )
        name: Any = self._class(kind) if is_users(kind) else self._public(kind)
        if isinstance(reduced, str):  # the name of a global variable; functools.cache and the like wrap what counts
            wrapped = self.describe(value.__wrapped__) if hasattr(value, "__wrapped__") else self._public(value)
            return {"type": name, "wraps": wrapped}
        made_by, args, state, items, pairs = (*reduced, None, None, None)[:5]
        described = {"type": name, **self._state(kind, state)}
        if made_by not in (copyreg.__newobj__, copyreg.__newobj_ex__):  # type: ignore[attr-defined]
            described["made by"] = self.describe(made_by)
        if not (len(args) == 1 and args[0] is kind):
            described["args"] = [self.describe(arg) for arg in args if arg is not kind]
        for part, content in (("items", items), ("pairs", pairs)):
            if content is not None:
                described[part] = [self.describe(item) for item in content]
        return described

    def _state(self, kind: type, state: Any) -> dict[str, Any]:
        if not isinstance(state, dict):
            return {} if state is None else {"state": self.describe(state)}
        computed = {name for name in state if isinstance(getattr(kind, name, None), functools.cached_property)}
        computed.update(functools.WRAPPER_ASSIGNMENTS)  # functools.update_wrapper copies names and texts
        return {"attributes": self._named({str(name): state[name] for name in sorted(state.keys() - computed)})}

    # --- code ---------------------------------------------------------------------------------------------------------

    def _public(self, value: Any) -> str:
        self._packages |= package_version(name := public_name(value))
        return name

    def _module(self, module: types.ModuleType) -> str:
        if not is_users(module):
            self._packages |= package_version(module.__name__)
        elif file_of(module):
            self._modules.add(module.__name__)
        else:
            self._no_source.add(module.__name__)
        return module_name(module.__name__)

    def _function(self, function: types.FunctionType) -> dict[str, Any]:
        """A function, with its defaults, captured variables and attributes."""
        uses: dict[str, Any] = {}
        if not is_users(function):
            described = {"function": self._public(function)}
        else:
            name, trees = function.__code__.co_qualname.replace(".<locals>", ""), function_trees(function)
            described = {"function": name, "module": module_name(str(function.__module__)), FUNCTION: digest_of(trees)}
            if not trees:
                self._no_source.add(f"function {name}")
            module = sys.modules.get(str(function.__globals__.get("__name__")))
            if module is not None and file_of(module):
                self._modules.add(module.__name__)
            else:  # of a notebook: what it uses has no module that counts
                nodes = [node for tree in trees for node in ast.walk(tree)]
                names = sorted({node.id for node in nodes if isinstance(node, ast.Name)} & function.__globals__.keys())
                for name in names:
                    try:
                        uses[name] = self.describe(function.__globals__[name])
                    except RecipeError:
                        self._no_source.add(f"variable {name}")
        parts = {
            "defaults": list(function.__defaults__ or ()),
            "keyword defaults": function.__kwdefaults__ or {},
            "captured": dict(
                zip(function.__code__.co_freevars, map(_content, function.__closure__ or ()), strict=True)
            ),
            "attributes": vars(function),
        }
        named = {
            what: self._named(part) if type(part) is dict else self.describe(part)
            for what, part in parts.items()
            if part
        }
        return {**described, **named, **({"uses": uses} if uses else {})}

    def _class(self, kind: type) -> dict[str, Any]:
        if not is_users(kind):
            return {"class": self._public(kind)}
        for base in filter(is_users, kind.__mro__):
            module = sys.modules.get(base.__module__)
            if not file_of(module):  # of a notebook
                self._no_source.add(f"class {base.__qualname__}")
                continue
            if getattr(module, base.__qualname__.partition(".")[0], None) is None or "<locals>" in base.__qualname__:
                raise RecipeError(
                    f"the class {base.__qualname__} is not a variable of its module, so that what it is made of cannot be seen; "
                    f"define it at the top of {file_of(module)}"
                )
            self._modules.add(base.__module__)
        return {"class": kind.__qualname__, "module": module_name(kind.__module__)}


_NOT_PLAIN = object()
_RANDOM = "random", "_random", "numpy.random._generator", "numpy.random.mtrand", "numpy.random.bit_generator"


def _plain(value: Any) -> Any:
    """Return a value that holds no other as JSON; `_NOT_PLAIN` where it is of another kind."""
    if isinstance(value, np.generic):  # first: np.float64 is a float, too, and np.str_ a str
        return {"scalar": value.dtype.str, "value": repr(value.item())}
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, bytes | bytearray):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if type(value) is np.ndarray and not value.dtype.hasobject:  # a masked array holds more than its numbers
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"array": str(value.dtype.descr), "shape": list(value.shape), "sha256": content}
    return {"path": str(value)} if isinstance(value, PurePath) else _NOT_PLAIN


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is assigned later
        return None


def json_text(described: Any) -> str:
    """Return a description as text, which is equal for equal descriptions only: Python holds 1, 1.0 and True for equal."""
    return json.dumps(described, sort_keys=True)
