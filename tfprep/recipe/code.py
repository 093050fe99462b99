"""Source of the user's own code: whose code it is, its syntax trees, and the modules that a module imports.

Syntax trees hold no comments and no layout; docstrings are left out. Trees are written without empty fields, because those differ
between versions of Python.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import linecache
import os
import pkgutil
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tfprep.errors import RecipeError

_RESULTS = {"RECIPE", "FIELDS"}
"""Variables of a user's file whose values are described option by option."""
_RUN_BY_PATH = "tfprep_recipe_", "tfprep_fields_", "__main__"
"""The beginnings of the names of modules that are run by their path: their files may be renamed."""
_first_read: dict[str, tuple[ModuleSpec | None, str]] = {}
"""By name of a module in memory: its `__spec__`, which is another object after a reload, and the digest of its source then."""


def digest_of(trees: list[ast.stmt] | list[ast.AST]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of syntax trees without docstrings."""
    return hashlib.sha256(repr(_plain(trees)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, ast.AST):
        return node
    parts = dict(ast.iter_fields(node))
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
        parts["body"] = node.body[1:]
    return [type(node).__name__, *((n, _plain(part)) for n, part in parts.items() if part is not None and part != [])]


def function_trees(function: FunctionType) -> list[ast.AST]:
    """Return the definition of a function; nothing if its source cannot be found.

    Where several functions of one name begin in one line, such as two lambdas, all statements of that line are returned.
    """
    code = function.__code__
    if os.path.isfile(code.co_filename):
        tree = _parsed(_read(code.co_filename))
    else:
        linecache.checkcache(code.co_filename)  # the cells of a notebook are there
        tree = _parsed("".join(linecache.getlines(code.co_filename, function.__globals__)).encode())
    trees: list[ast.AST] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and getattr(node, "name", "<lambda>") == code.co_name
        and min(one.lineno for one in (node, *getattr(node, "decorator_list", ()))) == code.co_firstlineno
    ]
    if len(trees) > 1:
        return [
            statement
            for statement in tree.body
            if statement.lineno <= code.co_firstlineno <= (statement.end_lineno or 0)
        ]
    return trees


def file_of(module: ModuleType | None) -> str:
    """Return the path of a module's file; "" if it has none, as a notebook."""
    return getattr(module, "__file__", None) or ""


def module_name(name: str) -> str:
    """Return the name by which a description refers to a module."""
    return "of the recipe" if name.startswith(_RUN_BY_PATH) else name


def module_digests(defining: Iterable[str]) -> dict[str, Any]:
    """Describe the source of modules of the user, and of all of the user's modules that they import, and so on.

    Args:
        defining: Names of modules that define what a recipe refers to. Their statements `RECIPE = ...` and `FIELDS = ...` do not
            count, unless another of these modules imports them or they use the variable elsewhere.

    Returns:
        "module NAME" to the digest of its source; "package NAME" to the version of an installed package, None for one that
        an import statement names and that is not there.

    Raises:
        RecipeError: A file was edited after this process had imported it.
    """
    importlib.invalidate_caches()  # a file may have been added a moment ago
    imported = {name for module in defining for name in _prefixes(module.rpartition(".")[0])}
    waiting, digests = sorted({*defining, *imported}), dict[str, Any]()
    files: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        file, *folders = places = _find(name)
        if not any(places):
            digests |= {} if "." in name or name in sys.stdlib_module_names else {f"package {name}": None}
        elif any(_is_installed(place) for place in places if place):
            digests |= package_version(name)
        else:
            files[name] = file
            names = _imports(name, file, folders) - imported
            imported |= names
            waiting += names - files.keys()
    for name, file in sorted(files.items()):
        if file:
            digests[f"module {module_name(name)}"] = _module_digest(name, file, name in imported)
    return digests


def _find(name: str) -> list[str]:
    """Return the file of a module, "" if it has none, and the folders of a package; of installed packages only the top one's."""
    top = name.partition(".")[0]
    if top != name and any(_is_installed(place) for place in _find(top) if place):
        return [""]
    try:
        spec = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
    except Exception:  # a parent cannot be imported, which will fail when the code runs, or it is `__main__`
        return [file_of(sys.modules.get(name))]
    file = spec.origin if spec and spec.has_location else None
    return [file or "", *((spec and spec.submodule_search_locations) or ())]


def _imports(name: str, file: str, folders: list[str]) -> set[str]:
    """Return the dotted names in the `import` statements of a module, in functions too, and the packages above them."""
    package = name if folders else name.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(_parsed(_read(file) if file.endswith(".py") else b"")):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] + "." if node.level else ""
            base = f"{above}{node.module or ''}".rstrip(".")
            members = {alias.name for alias in node.names}
            if "*" in members:  # `__all__` may name submodules
                members = {one.name for one in pkgutil.iter_modules(_find(base)[1:])}
            names |= {base, *(f"{base}.{member}" for member in members)}
    return {prefix for module in names for prefix in _prefixes(module)}


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".") if name else []
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _module_digest(name: str, file: str, whole: bool) -> str:
    if not file.endswith(".py"):  # a compiled extension
        return hashlib.sha256(_read(file)).hexdigest()[:16]
    body = _parsed(_read(file)).body
    if name in sys.modules:
        now = sys.modules[name].__spec__, digest_of(body)
        spec, source = _first_read.setdefault(name, now)
        if spec is now[0] and source != now[1]:
            raise RecipeError(
                f"{file} was edited after this process imported it; reload the module, or start a new process"
            )
        _first_read[name] = now
    rest = [statement for statement in body if not _is_result(statement)]
    used = {node.id for statement in rest for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return digest_of(body if whole or used & _RESULTS else rest)


def _is_result(statement: ast.stmt) -> bool:
    """Return True for `RECIPE = ...`, if it assigns nothing else."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    inside = any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement))
    return not inside and len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id in _RESULTS


@cache
def _parsed(source: bytes) -> ast.Module:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])
    tree.body = tree.body[ast.get_docstring(tree) is not None :]
    return tree


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:
        return b""


def package_version(name: str) -> dict[str, str]:
    """Return {"package NAME": version} for an installed module; {} for the standard library and tfprep."""
    top = name.partition(".")[0]
    if top == "tfprep" or top in sys.stdlib_module_names:
        return {}
    found = sorted(set(_distributions().get(top, ())))
    return {f"package {top}": ", ".join(f"{package} {version(package)}" for package in found) or "without a version"}


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages_distributions())


# --- whose code it is -------------------------------------------------------------------------------------------------


def is_users(value: FunctionType | type | ModuleType) -> bool:
    """Return True if code is the user's: defined outside the standard library, installed packages and tfprep.

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
