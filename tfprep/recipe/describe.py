"""Values of a recipe as plain JSON, together with the user's code that they reach.

The description is the same in every process: it holds no addresses and no order of sets. Equal descriptions mean equal
datasets, as far as Python shows what a value is; docs/recipes.md lists what it does not show.
"""

from __future__ import annotations

import ast
import copyreg
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import random
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from tfprep.errors import RecipeError
from tfprep.recipe.code import assignments, code_digest, code_uses, is_users, public_name

_LONG = 400
"""Characters of JSON from which on a constant is described by its digest: `tfprep.json` holds a description of every recipe."""
_NOT_CODE = types.MemberDescriptorType, types.GetSetDescriptorType
_BUILT_IN = types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodWrapperType, np.ufunc
_CACHES = weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet
"""Caches; their content depends on what has run so far."""
_OF_EVERY_CLASS = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__"),
    *("__firstlineno__", "__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__match_args__"),
    *(
        "__slots__",
        "__abstractmethods__",
        "__orig_bases__",
        "__parameters__",
        "__type_params__",
        "__classcell__",
        "__hash__",
    ),
}
"""Class attributes that Python sets, or that other members show; `__hash__` only where it is no function."""
_OF_EVERY_MODULE = {
    *("__name__", "__doc__", "__file__", "__cached__", "__loader__", "__spec__", "__package__", "__path__"),
    *("__builtins__", "__annotations__"),
}


class Description:
    """Describes the values of one recipe; `code` gathers the user's functions, classes and constants that they reach.

    A function, class or constant is described once and referred to by its name. A constant whose value does not show what it
    is, such as `cv2.createCLAHE(2.0)`, and one that reached code assigns (`global model`), is described by the statements that
    assign it when its module is imported. Names carry no module, so that a file may be
    renamed, or imported under another name; where two things have one name, the second is `name (2)`.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self._kept: list[Any] = []  # ids in `_names` and `_open` stay unique while these objects live
        self._open: set[int] = set()
        self._stored: set[tuple[int, str]] = set()
        self._scopes: dict[tuple[int, str], Mapping[str, Any]] = {}  # of the constants
        self._opaque_count = 0
        self._strict = True

    def code(self) -> dict[str, Any]:
        """Entry name to description of everything reached so far, such as {"function blur": ..., "constant SIGMA": 2.0}.

        What reached code assigns to a name (`global model`) is state and not an option, and is left out.
        """
        for key in sorted(self._stored & self._scopes.keys(), key=lambda key: self._names[key]):
            with self._lenient():
                self._entries[self._names[key]] = self._assigned(self._scopes[key], key[1])
        return self._entries

    def describe(self, value: Any) -> Any:
        """The value as JSON.

        Raises:
            RecipeError: The value holds something that cannot be described, such as a lock or an open file.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if not is_users(type(value)) and (plain := _plain(value)) is not None:
            return plain
        if isinstance(value, types.FunctionType | types.ModuleType | type):
            if isinstance(value, types.FunctionType):
                return self._function(value)
            return self._class(value) if isinstance(value, type) else self._module(value)
        if isinstance(value, Enum):
            return {"enum": self._class(type(value)), "member": value.name}
        return self._once(value)

    def option(self, value: Any) -> Any:
        """An option of a recipe or of its parts: as `describe`, with mappings by name as JSON objects and tuples as lists."""
        if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return {name: self.option(item) for name, item in value.items()}
        if type(value) in (list, tuple):
            return [self.option(item) for item in value]
        return self.describe(value)

    def _once(self, value: Any) -> Any:
        """A value that may hold itself."""
        if id(value) in self._open:
            return {"circular": type(value).__qualname__}
        self._open.add(id(value))
        self._kept.append(value)
        try:
            return self._container(value)
        finally:
            self._open.discard(id(value))

    def _container(self, value: Any) -> Any:
        kind = type(value)
        if kind in (list, tuple):
            items = [self.describe(item) for item in value]
            return items if kind is list else {"tuple": items}
        if isinstance(value, set | frozenset):
            items = sorted((self.describe(item) for item in value), key=_text)
            if kind in (set, frozenset):
                return {"set" if kind is set else "frozenset": items}
            # Pickling a set of a subclass would list its items in the order of their hashes.
            attributes = {"attributes": self._named(vars(value))} if getattr(value, "__dict__", None) else {}
            return {"type": self.describe(kind), "items": items, **attributes}
        if is_dataclass(value) and not is_users(kind):
            options = {field.name: self.option(getattr(value, field.name)) for field in fields(value)}
            return {"type": public_name(kind), **options}
        if kind in (dict, OrderedDict, types.MappingProxyType):
            return {"dict": [[self.describe(key), self.describe(item)] for key, item in value.items()]}
        return self._callable(value) if callable(value) or kind is classmethod else self._instance(value)

    def _callable(self, value: Any) -> Any:
        """A callable object that is no plain function of the user."""
        if isinstance(value, types.FunctionType):
            return {"function": public_name(value), **self._captured(value)}
        if isinstance(value, functools.partial):
            described = {"function": self.describe(value.func), "args": [self.describe(arg) for arg in value.args]}
            try:  # a function that takes keywords by any name sees their order
                parameters = inspect.signature(value.func).parameters.values()
                ordered = any(one.kind is one.VAR_KEYWORD for one in parameters)
            except (TypeError, ValueError):  # a built-in one
                ordered = True
            order = {"order": list(value.keywords)} if ordered else {}
            return {**described, "keywords": self._named(value.keywords), **order}
        # `[].append` belongs to an object, `math.sin` to a module.
        of_value = isinstance(value, types.BuiltinFunctionType) and not isinstance(
            value.__self__, types.ModuleType | None
        )
        if isinstance(value, staticmethod | classmethod | types.MethodType) or of_value:
            return self._method(value)
        if isinstance(value, _BUILT_IN):
            return {"function": public_name(value)}
        return self._instance(value)

    def _method(self, value: Any) -> Any:
        if isinstance(value, types.BuiltinFunctionType):
            return {"method": value.__name__, "of": self.describe(value.__self__)}
        function = self.describe(value.__func__)
        if isinstance(value, types.MethodType):
            return {"method": function, "of": self.describe(value.__self__)}
        return {"staticmethod" if isinstance(value, staticmethod) else "classmethod": function, **self._subclass(value)}

    def _subclass(self, value: Any) -> dict[str, Any]:
        """The type of a descriptor, if it is the user's."""
        return {"type": self.describe(type(value))} if is_users(type(value)) else {}

    def _named(self, items: Mapping[str, Any]) -> dict[str, Any]:
        """Options by name, in no order; a `dict` that code reads has one."""
        return {name: self.describe(item) for name, item in items.items()}

    def _instance(self, value: Any) -> Any:
        """An object, by its class and by what pickling it would save."""
        kind = type(value)
        if isinstance(value, _generators()):  # their state differs from process to process
            return self._opaque(value)
        if isinstance(value, _CACHES):
            return {"opaque": public_name(kind)}
        try:
            reducer = copyreg.dispatch_table.get(kind)  # `re.Pattern` and other types of extensions have theirs here
            reduced = reducer(value) if reducer else value.__reduce_ex__(4)
        except Exception:
            return self._opaque(value)
        if not isinstance(reduced, str) and not _is_reduced(reduced):
            return self._opaque(value)
        name: Any = self.describe(kind) if is_users(kind) else public_name(kind)
        if isinstance(reduced, str):  # functools.cache and the like wrap what counts
            wrapped = (
                {"wraps": self.describe(value.__wrapped__)} if hasattr(value, "__wrapped__") else {"name": reduced}
            )
            return {"type": name, **wrapped}
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
        if state is None:
            return {}
        if not isinstance(state, dict):
            return {"state": self.describe(state)}
        computed = {name for name in state if isinstance(getattr(kind, name, None), functools.cached_property)}
        computed.update(functools.WRAPPER_ASSIGNMENTS)  # functools.update_wrapper copies names and texts
        names = list(state) if kind is types.SimpleNamespace else sorted(state)  # its order is that of the call
        described = {"attributes": self._named({str(n): state[n] for n in names if n not in computed})}
        return {**described, "order": names} if kind is types.SimpleNamespace else described

    def _opaque(self, value: Any) -> Any:
        if self._strict:
            try:
                text = repr(value)
            except Exception:
                text = f"a {type(value).__name__} whose __repr__ fails"
            rule = "a recipe holds plain values, arrays, dataclasses and functions"
            raise RecipeError(f"{rule}; {text} cannot be described in JSON")
        self._opaque_count += 1
        return {"opaque": self.describe(type(value)) if is_users(type(value)) else public_name(type(value))}

    # --- code ---------------------------------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> Any:
        if not is_users(function):
            return self._once(function)
        if (name := self._names.get(id(function))) is None:
            name = self._name(id(function), f"function {_local(function.__qualname__)}")
            with self._lenient():
                self._entries[name] = {"code": code_digest(function.__code__), **self._captured(function)}
                self._entries[name] |= {"uses": uses} if (uses := self._uses(function)) else {}
        return {"function": name.partition(" ")[2]}

    def _captured(self, function: types.FunctionType) -> dict[str, Any]:
        """The values of a function besides its code: defaults, captured variables and attributes."""
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(cell.cell_contents)
            except ValueError:  # a variable that is assigned later
                cells.append(None)
        parts = {
            "defaults": list(function.__defaults__ or ()),
            "keyword defaults": function.__kwdefaults__ or {},
            "captured": dict(zip(function.__code__.co_freevars, cells, strict=True)),
            "attributes": vars(function),
        }
        with self._lenient():
            return {
                what: self._named(items) if isinstance(items, dict) else self.describe(items)
                for what, items in parts.items()
                if items
            }

    def _uses(self, function: types.FunctionType) -> dict[str, Any]:
        (chains, imports, stored), scope = code_uses(function.__code__), function.__globals__
        self._stored |= {(id(scope), name) for name in stored}
        uses = {}
        for chain in sorted(chains):
            if (
                chain[0] in scope and chain[0] not in _OF_EVERY_MODULE
            ):  # `__file__` is the place of the code, no part of it
                uses[".".join(chain)] = self._global(scope, chain)
        for level, module, names in sorted(imports):
            uses[f"import {'.' * level}{module}"] = self._imported(scope, level, module, names)
        return uses

    def _global(self, scope: Mapping[str, Any], chain: Sequence[str]) -> Any:
        """The value of a dotted name: attributes of the user's modules are followed, those of other values are not."""
        value, rest = scope[chain[0]], chain[1:]
        if isinstance(value, types.ModuleType):
            if rest and is_users(value) and rest[0] in vars(value):
                return self._global(vars(value), rest)
            return self.describe(value)
        if callable(value) and hasattr(value, "__qualname__"):
            return self.describe(value)
        return self._global_constant(scope, chain[0], value)

    def _global_constant(self, scope: Mapping[str, Any], variable: str, value: Any) -> Any:
        key = (id(scope), variable)
        if (name := self._names.get(key)) is None:
            self._scopes[key] = scope
            name, opaque = self._name(key, f"constant {variable}"), self._opaque_count
            if isinstance(value, PurePath):  # below its module: the code may lie elsewhere, as on a node of a cluster
                folder = PurePath(scope.get("__file__") or "/dev/null").parent
                value = value.relative_to(folder) if value.is_relative_to(folder) else value
            described = self.describe(value)
            if self._opaque_count > opaque:
                described = {"value": described, **self._assigned(scope, variable)}
            self._entries[name] = described if len(_text(described)) < _LONG else {"sha256": _digest(_text(described))}
        return {"constant": name.partition(" ")[2]}

    def _assigned(self, scope: Mapping[str, Any], variable: str) -> dict[str, Any]:
        """The statements that assign a constant, and what they use."""
        try:
            source = Path(scope["__file__"]).read_text(encoding="utf-8")
        except (KeyError, OSError, UnicodeError):
            return {}
        statements = assignments(source, variable)
        named = {node.id for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)}
        uses = {name: self._global(scope, (name,)) for name in sorted(named - {variable}) if name in scope}
        return {"code": _digest("\n".join(map(ast.dump, statements))), **({"uses": uses} if uses else {})}

    def _imported(self, scope: Mapping[str, Any], level: int, name: str, names: Iterable[str]) -> Any:
        """The names that an import statement inside a function brings in; only the user's own modules are imported."""
        full = "." * level + name
        try:
            full = importlib.util.resolve_name(full, scope.get("__package__"))
            spec = importlib.util.find_spec(full)
            module = types.ModuleType(full)  # a stand-in: name and file are what tells whose it is
            if spec is not None and spec.origin is not None:
                module.__file__ = spec.origin
            if spec is None or not is_users(module):
                return {"module": full}
            module = importlib.import_module(full)
            for one in names if "__path__" in vars(module) else ():  # only packages have submodules
                if one not in vars(module) and importlib.util.find_spec(f"{full}.{one}"):
                    importlib.import_module(f"{full}.{one}")
        except Exception as error:
            # It fails in the same way when the function runs; a failed import ends the build there.
            return {"module": full, "error": type(error).__name__}
        if not names or "*" in names:
            return self._module(module)
        members = vars(module)
        attributes = {one if one in members else "__getattr__" for one in names}
        return {one: self._global(members, (one,)) for one in sorted(attributes) if one in members}

    def _module(self, module: types.ModuleType) -> Any:
        if not is_users(module):
            return {"module": module.__name__}
        if (name := self._names.get(id(module))) is None:
            file = getattr(module, "__file__", None)
            name = self._name(id(module), f"module {Path(file).stem if file else module.__name__}")
            with self._lenient():
                scope = vars(module)
                self._entries[name] = {
                    one: self._global(scope, (one,)) for one in sorted(scope) if one not in _OF_EVERY_MODULE
                }
        return {"module": name.partition(" ")[2]}

    def _class(self, kind: type) -> Any:
        if not is_users(kind):
            return {"class": public_name(kind)}
        if (name := self._names.get(id(kind))) is None:
            name = self._name(id(kind), f"class {_local(kind.__qualname__)}")
            with self._lenient():
                bases = [self.describe(base) for base in (*kind.__bases__, type(kind)) if base not in (object, type)]
                # The order of an enum's members is that of a loop over them.
                order = {"order": list(kind.__members__)} if issubclass(kind, Enum) else {}
                self._entries[name] = {**({"bases": bases} if bases else {}), **order, **self._members(kind)}
        return {"class": name.partition(" ")[2]}

    def _members(self, kind: type) -> dict[str, Any]:
        members = {}
        for name, value in sorted(vars(kind).items()):
            own = isinstance(value, types.FunctionType) and is_users(value)
            if isinstance(value, _NOT_CODE) or (name in _OF_EVERY_CLASS and not (own and name == "__hash__")):
                continue
            if name.startswith(("__annotate", "_abc_")) or (issubclass(kind, Enum) and _of_enum(name, value)):
                continue
            if isinstance(value, property):
                parts = {part: self.describe(getattr(value, part)) for part in ("fget", "fset", "fdel")}
                members[name] = parts | self._subclass(value)
            elif isinstance(value, functools.cached_property):
                members[name] = {"cached_property": self.describe(value.func), **self._subclass(value)}
            else:
                members[name] = self.describe(value.value if isinstance(value, Enum) and type(value) is kind else value)
        return members

    def _name(self, key: Any, base: str) -> str:
        name, number = base, 2
        while name in self._entries:
            name, number = f"{base} ({number})", number + 1
        self._names[key], self._entries[name] = name, None
        return name

    @contextmanager
    def _lenient(self) -> Iterator[None]:
        """Inside, what cannot be described is named by its type: a module may hold a lock or a logger."""
        before, self._strict = self._strict, False
        try:
            yield
        finally:
            self._strict = before


@functools.singledispatch
def _plain(value: Any) -> Any:
    """A value that holds no other, as JSON; None where it is of another kind."""
    return None


@_plain.register
def _(value: float) -> Any:
    return float(value) if math.isfinite(value) else {"float": str(float(value))}


@_plain.register(bytes)
@_plain.register(bytearray)
def _(value: bytes | bytearray) -> Any:
    return {"bytes": _digest(value)}


@_plain.register
def _(value: np.ndarray) -> Any:
    if value.dtype.hasobject or type(value) is not np.ndarray:  # a masked array holds more than its numbers
        return None
    content = _digest(np.ascontiguousarray(value).tobytes())
    return {"array": str(value.dtype.descr), "shape": list(value.shape), "sha256": content}


@_plain.register
def _(value: np.generic) -> Any:
    return {"scalar": value.dtype.str, "value": repr(value.item())}


@_plain.register
def _(value: PurePath) -> Any:
    return {"path": str(value)}


def _generators() -> tuple[type, ...]:
    """Return the classes of generators of random numbers; `numpy.random`, which a worker may never need, is not imported."""
    if "numpy.random" not in sys.modules:
        return (random.Random,)
    return random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator


def _is_reduced(value: Any) -> bool:
    """Return whether a method `__reduce_ex__` returned what pickle takes: a function, its arguments, a state, items and pairs."""
    if not isinstance(value, tuple) or not 2 <= len(value) <= 6:
        return False
    function, args, *rest = value
    return (
        callable(function) and isinstance(args, tuple) and all(p is None or isinstance(p, Iterator) for p in rest[1:3])
    )


def _of_enum(name: str, value: Any) -> bool:
    """Return whether an underscored attribute of an enum class comes from `enum` itself."""
    function = getattr(value, "__func__", value)
    return (
        name.startswith("_")
        and name.endswith("_")
        and not (isinstance(function, types.FunctionType) and is_users(function))
    )


def _local(qualname: str) -> str:
    return qualname.replace(".<locals>", "")


def _text(described: Any) -> str:
    return json.dumps(described, sort_keys=True)


def _digest(content: bytes | bytearray | str) -> str:
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()
