"""Source of the user's own code: whose code it is, and the digests of functions, of modules and of the modules that those import.

A digest is that of the syntax tree, which holds no comments and no layout; docstrings are left out. Empty fields are left out as
well, because they differ between versions of Python.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import pkgutil
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tfprep.errors import RecipeError

_RESULTS = {"RECIPE", "FIELDS"}
"""Variables of a file that is run by its path whose values are described option by option."""
OF_RECIPES = "tfprep_recipe_", "tfprep_fields_"
"""The beginnings of the names of modules of recipes' files."""
_RUN_BY_PATH = *OF_RECIPES, "__main__"
"""The beginnings of the names of modules that are run by their path: their files may be renamed."""
_place = attrgetter("lineno", "end_lineno", "col_offset", "end_col_offset")
_first_read: dict[str, tuple[ModuleSpec | None, str]] = {}
"""By name of a module in memory: its `__spec__`, which is another object after a reload, and the digest of its source then."""


# --- whose code it is -------------------------------------------------------------------------------------------------


def module_of(value: Any) -> str:
    """Return the name of a module, or of the module that defines a function or class."""
    if isinstance(value, FunctionType):  # functools.wraps gives a wrapper the `__module__` of what it wraps
        return str(value.__globals__.get("__name__"))
    return value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", None) or "")


def file_of(value: FunctionType | type | ModuleType | str) -> str:
    """Return the file of code, a function's own, or of a module by its name; "" where it has none, as a notebook."""
    if isinstance(value, FunctionType) and not value.__code__.co_filename.startswith("<"):
        return value.__code__.co_filename
    name = value if isinstance(value, str) else module_of(value)
    return str(getattr(sys.modules.get(name), "__file__", None) or "")


def is_users(value: FunctionType | type | ModuleType | str) -> bool:
    """Return True if code, or the module of a name, is outside the standard library, installed packages and tfprep.

    The folder decides, so that a project's own modules count whether they are installed in editable form, imported from the
    current folder, or under another name.
    """
    name = value if isinstance(value, str) else module_of(value)
    file = file_of(value)
    return not _is_installed(file) if file else name.partition(".")[0] not in sys.stdlib_module_names


@cache
def _is_installed(file: str) -> bool:
    path = os.path.realpath(file)
    if {"site-packages", "dist-packages"} & set(path.split(os.sep)):
        return True
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [site.getusersitepackages(), os.path.dirname(os.path.dirname(__file__))]
    return any(path.startswith(os.path.join(os.path.realpath(folder), "")) for folder in folders if folder)


def shown_module(name: str) -> str:
    """Return the name by which a description refers to a module."""
    return "of the recipe" if name.startswith(_RUN_BY_PATH) else name


def name_of(value: FunctionType | type | ModuleType) -> tuple[str, str]:
    """Return the module of the user and the name in it; of what is installed "" and the public name: tfprep.augment.Flip."""
    module = module_of(value)
    name = value.__code__.co_qualname if isinstance(value, FunctionType) else getattr(value, "__qualname__", "")
    if is_users(value):
        return shown_module(module), name
    if module.partition(".")[0] == "tfprep":  # its own by their package
        module = ".".join(module.split(".")[:2])
    return "", f"{module}.{name}"


def package_version(name: str) -> dict[str, str]:
    """Return {"package NAME": version} for an installed module; {} for the standard library and tfprep."""
    top = name.partition(".")[0]
    if top == "tfprep" or top in sys.stdlib_module_names:
        return {}
    from importlib.metadata import version

    packages = sorted(set(_distributions().get(top, ())))
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return {f"package {top}": versions or "without a version"}


@cache
def _distributions() -> dict[str, list[str]]:
    from importlib.metadata import packages_distributions  # with the modules of email, which most recipes do without

    return dict(packages_distributions())


# --- syntax trees -----------------------------------------------------------------------------------------------------


def digest_of(trees: Iterable[ast.AST]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of syntax trees without docstrings."""
    return hashlib.sha256(repr(_plain(list(trees))).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, ast.AST):
        return node
    parts = dict(ast.iter_fields(node))
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        parts["body"] = node.body[ast.get_docstring(node) is not None :]
    return [type(node).__name__, *((n, _plain(part)) for n, part in parts.items() if part is not None and part != [])]


def function_tree(function: FunctionType) -> ast.AST | None:
    """Return the definition of a function; None if its source cannot be found."""
    code = function.__code__
    trees = [
        node
        for node in ast.walk(_parsed(_read(code.co_filename)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and getattr(node, "name", "<lambda>") == code.co_name
        and min(part.lineno for part in (node, *getattr(node, "decorator_list", ()))) == code.co_firstlineno
    ]
    if len(trees) > 1:  # several lambdas in a line: their columns tell them apart
        places = set(code.co_positions())
        trees = [node for node in trees if isinstance(node, ast.Lambda) and _place(node.body) in places]
    return trees[0] if len(trees) == 1 else None


@cache
def _parsed(source: bytes) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:
        return b""


# --- modules ----------------------------------------------------------------------------------------------------------


def module_digests(defining: Iterable[str]) -> dict[str, Any]:
    """Describe the source of modules of the user, and of all of the user's modules that they import, and so on.

    Args:
        defining: Names of modules that define what a recipe refers to.

    Returns:
        "module NAME" to the digest of its source; "package NAME" to the version of an installed package, None for one that
        an import statement names and that is not there.

    Raises:
        RecipeError: A file was edited after this process had imported it.
    """
    importlib.invalidate_caches()  # a file may have been added a moment ago
    digests, seen = dict[str, Any](), set[str]()
    waiting = {prefix for name in defining for prefix in _prefixes(name)}
    while waiting:
        seen.add(name := waiting.pop())
        file, *folders = places = _find(name)
        if not any(places):  # not a module, or one that is not there
            digests |= {} if "." in name or name in sys.stdlib_module_names else {f"package {name}": None}
        elif any(_is_installed(place) for place in places if place):
            digests |= package_version(name)
        else:
            digests |= {f"module {shown_module(name)}": _module_digest(name, file)} if file else {}
            waiting |= _imports(name, file, folders) - seen
    return dict(sorted(digests.items()))


def _find(name: str) -> list[str]:
    """Return the file of a module, "" if it has none, and the folders of a package; of installed packages only the top one's."""
    top = name.partition(".")[0]
    if top != name and any(_is_installed(place) for place in _find(top) if place):
        return [""]
    module = sys.modules.get(name)
    try:
        spec = getattr(module, "__spec__", None) or importlib.util.find_spec(name)
    except Exception:  # a parent cannot be imported, which will fail when the code runs, or it is `__main__`
        return [getattr(module, "__file__", None) or ""]
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
                members = {submodule.name for submodule in pkgutil.iter_modules(_find(base)[1:])}
            names |= {base, *(f"{base}.{member}" for member in members)}
    return {prefix for module in names for prefix in _prefixes(module)}


def _prefixes(name: str) -> Iterator[str]:
    """Yield "a", "a.b" and "a.b.c" for "a.b.c"."""
    parts = name.split(".") if name else []
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _module_digest(name: str, file: str) -> str:
    """Return the digest of a file; of a recipe's file without the statement `RECIPE = ...`, unless the variable is used."""
    if not file.endswith(".py"):  # a compiled extension
        return hashlib.sha256(_read(file)).hexdigest()[:16]
    if not os.path.isfile(file):  # it is in a zip file, or was removed after its import
        raise RecipeError(f"{file} cannot be read, so that no change of it would be seen; put it into a folder")
    tree = _parsed(_read(file))
    if name in sys.modules:
        now = sys.modules[name].__spec__, digest_of([tree])
        spec, source = _first_read.setdefault(name, now)
        if spec is now[0] and source != now[1]:
            raise RecipeError(f"{file} was edited after this process imported it; reload it, or start a new process")
        _first_read[name] = now
    rest = [statement for statement in tree.body if not _is_result(statement)]
    used = {node.id for statement in rest for node in ast.walk(statement) if isinstance(node, ast.Name)}
    is_whole = not name.startswith(_RUN_BY_PATH) or used & _RESULTS
    return digest_of([tree if is_whole else ast.Module(rest, [])])


def _is_result(statement: ast.stmt) -> bool:
    """Return True for `RECIPE = ...`, if it assigns nothing else."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    inside = any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement))
    return not inside and len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id in _RESULTS
