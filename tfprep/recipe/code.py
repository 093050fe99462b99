"""Compiled code of user functions: a digest of what it does, the global names that it uses, and whose code it is.

All of it is read from bytecode, because bytecode is what runs: a source file may have been edited since it was imported, and a
lambda has no source of its own. Bytecode holds no comments, docstrings, annotations or layout, so changing those changes no
digest. Another minor version of Python compiles to other bytecode, and so gives another digest.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from types import CodeType, FunctionType, ModuleType
from typing import Any

_KIND_OF_FUNCTION = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_HAS_NAME = frozenset(dis.hasname)
_HAS_CONSTANT = frozenset(dis.hasconst)
_HAS_TARGET = frozenset((*dis.hasjrel, *dis.hasjabs))


def code_digest(code: CodeType) -> str:
    """16 hexadecimal digits of the SHA-256 of what the code does; line numbers and file names are left out."""
    return hashlib.sha256(repr(_canonical(code)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def code_uses(code: CodeType) -> tuple[set[tuple[str, ...]], set[tuple[int, str, tuple[str, ...]]], set[str]]:
    """Return the global names that the code, and the code of functions defined inside it, uses.

    Returns:
        Dotted names as tuples: `helpers.blur` is ("helpers", "blur"); (level, module, imported names) of the import statements
        inside the code; names that the code assigns with a `global` statement.
    """
    names, imports, stored = set(), set(), set()
    for part in _nested(code):
        steps = [step for step in dis.get_instructions(part) if step.opname != "EXTENDED_ARG"]
        for position, step in enumerate(steps):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                attributes = takewhile(lambda one: one.opname in ("LOAD_ATTR", "LOAD_METHOD"), steps[position + 1 :])
                names.add((step.argval, *(one.argval for one in attributes)))
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                stored.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                level, imported = (before.argval for before in steps[position - 2 : position])
                imports.add((level, step.argval, tuple(imported or ())))
    return names, imports, stored


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def assignments(source: str, variable: str) -> list[ast.stmt]:
    """Return the statements at the top level of a module's source that may assign a variable.

    Statements that hold others, such as `if` and `with`, count whole.
    """
    statements = []
    for statement in _parsed(source).body:
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            if any(node.id == variable and isinstance(node.ctx, ast.Store) for node in stored):
                statements.append(statement)
    return statements


def _canonical(code: CodeType) -> list[Any]:
    # A NOP only marks a line for debuggers: it comes and goes with the layout of the source.
    steps = [step for step in dis.get_instructions(code) if step.opname != "NOP"]
    position = {step.offset: number for number, step in enumerate(steps)}
    arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    return [
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _KIND_OF_FUNCTION),
        code.co_varnames[: arguments + bool(code.co_flags & inspect.CO_VARKEYWORDS)],
        [(step.opname, _argument(code, step, position)) for step in steps],
        getattr(code, "co_exceptiontable", b"").hex(),  # from Python 3.11 on
    ]


def _argument(code: CodeType, step: dis.Instruction, position: dict[int, int]) -> Any:
    if step.opcode in _HAS_CONSTANT and step.arg is not None:
        return _constant(
            code.co_consts[step.arg]
        )  # `argval` is unknown for KW_NAMES, the keywords of a call, in 3.11 and 3.12
    if step.opcode in _HAS_NAME:
        return step.argval
    if step.opcode in _HAS_TARGET:
        return position.get(step.argval, step.argval)
    return step.arg


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _canonical(value)
    if isinstance(value, tuple):
        return [_constant(item) for item in value]
    if isinstance(value, frozenset):  # its order depends on PYTHONHASHSEED
        return ["set", *sorted(repr(_constant(item)) for item in value)]
    return repr(value)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


# --- whose code it is -----------------------------------------------------------------------------------------------


def is_users(value: FunctionType | type | ModuleType) -> bool:
    """Return whether code is the user's: defined outside the standard library, installed packages and tfprep.

    The folder decides, so that a project's own modules count whether they are installed in editable form, imported from the
    current folder, or under another name.
    """
    if isinstance(value, FunctionType) and not value.__code__.co_filename.startswith("<"):
        return not _is_installed(value.__code__.co_filename)
    if isinstance(value, ModuleType):
        name, file = value.__name__, getattr(value, "__file__", None)
    else:  # generated code (`<string>`) and classes name no file: the module that they belong to decides
        name = str(value.__globals__.get("__name__")) if isinstance(value, FunctionType) else value.__module__
        file = getattr(sys.modules.get(name), "__file__", None)
    return not _is_installed(file) if file else name.partition(".")[0] not in sys.stdlib_module_names


def public_name(value: Any) -> str:
    """The name of an installed function or class, of tfprep's own by their package, as `tfprep.augment.Flip`."""
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", type(value).__name__)
    if isinstance(value, FunctionType):  # functools.wraps gives a wrapper the names of what it wraps
        code = value.__code__
        module, name = str(value.__globals__.get("__name__", "")), getattr(code, "co_qualname", code.co_name)
    if module.partition(".")[0] == "tfprep":
        module = ".".join(module.split(".")[:2])
    return f"{module}.{name}" if module else str(name)


@cache
def _is_installed(file: str) -> bool:
    path = os.path.realpath(file)
    if {"site-packages", "dist-packages"} & set(path.split(os.sep)):
        return True
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [site.getusersitepackages(), os.path.dirname(os.path.dirname(__file__))]
    return any(path.startswith(os.path.join(os.path.realpath(folder), "")) for folder in folders if folder)
