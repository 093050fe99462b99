"""The user's code on its way to other machines: the recipe, the files beside it, and the modules that it imports from elsewhere.

Installed packages are not sent: they are part of each machine's environment, as tfprep itself.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tfprep.errors import BuildError
from tfprep.recipe.code import is_users
from tfprep.recipe.file import RECIPE_MODULE

_DATA_SUFFIXES = {".csv", ".json", ".toml", ".txt", ".yaml", ".yml"}
_MOST_DATA_BYTES = 1 << 20
"""Files that a recipe may read beside itself, such as a list of classes, are sent up to this size."""
_BESIDE, _ELSEWHERE = "recipe/", "modules/"


@dataclass(frozen=True)
class UserCode:
    """Files of the user's code.

    Attributes:
      files: Their content by path: what lies beside the recipe is below `recipe/`, what is imported from elsewhere below
        `modules/`.
      recipe: The recipe's path among them; empty if the recipe is not a file.
    """

    files: Mapping[str, bytes]
    recipe: str


def collected(recipe: Path | None, named: Mapping[str, Path] = MappingProxyType({})) -> UserCode:
    """Return the recipe's file and its neighbours, and all modules in memory that are neither installed nor built in.

    Args:
      recipe: The recipe's file; None if it has none.
      named: The files that the recipe names (`Recipe.files`). Those below its folder are sent, whatever they are; others have to
        be on each node.

    Raises:
      BuildError: A file cannot be read.
    """
    beside = {} if recipe is None else {**_neighbours(recipe.resolve().parent), recipe.name: recipe}
    beside |= {name: path for name, path in named.items() if not os.path.isabs(name)}
    paths = {_BESIDE + name: path for name, path in beside.items()}
    paths |= {_ELSEWHERE + name: path for name, path in _loaded_modules() if path not in beside.values()}
    try:
        files = {name: path.read_bytes() for name, path in sorted(paths.items())}
    except OSError as error:
        raise BuildError(f"{error.filename} cannot be sent to the nodes: {error.strerror}") from error
    return UserCode(files, _BESIDE + recipe.name if recipe else "")


def unpack(code: UserCode, folder: Path) -> None:
    """Write the files into a new folder, and let this process and its workers import the modules from elsewhere.

    The folder of the recipe is not among those: a file beside it may be named as a module of the standard library, which counts
    from the moment on when the recipe is loaded, and not before.
    """
    for name, content in code.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    sys.path.insert(0, str(folder / _ELSEWHERE))


# --- beside the recipe ------------------------------------------------------------------------------------------------


def _neighbours(folder: Path) -> dict[str, Path]:
    """Return what can be imported from a recipe's folder, and its small data files, by path below it.

    A folder without `__init__.py` is a package as well, if some file imports it; else it may hold a million raw files.
    """
    files = dict(_package(folder))
    while True:
        imported = {name for path in files.values() if path.suffix == ".py" for name in _imported(path)}
        spaces = [folder / name for name in imported if (folder / name).is_dir() and not _is_package(folder / name)]
        more = {
            path.relative_to(folder).as_posix(): path
            for space in spaces
            for path in space.rglob("*.py")
            if _is_sent(path)
        }
        if more.keys() <= files.keys():
            return files
        files |= more


def _package(folder: Path, inside: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the Python files and the small data files of a folder and of the packages in it."""
    for path in folder.iterdir():
        name = f"{inside}{path.name}"
        if path.is_dir():
            if _is_package(path):
                yield from _package(path, f"{name}/")
        elif _is_sent(path):
            yield name, path


def _is_sent(path: Path) -> bool:
    """Return whether a file is Python or small data. Links of editors to nothing, pipes and keys are neither."""
    if path.name.startswith(".") or not path.is_file() or _is_key(path):
        return False
    return path.suffix == ".py" or (path.suffix in _DATA_SUFFIXES and path.stat().st_size <= _MOST_DATA_BYTES)


def _is_key(path: Path) -> bool:
    """Return whether this is the key of a service account, which must not leave the machine."""
    key = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return key is not None and Path(key).resolve() == path.resolve()


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _imported(path: Path) -> Iterator[str]:
    """Yield the first part of the names that a Python file imports, also inside functions."""
    with suppress(OSError, SyntaxError, ValueError):  # Nothing says that the recipe imports this file.
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


# --- elsewhere --------------------------------------------------------------------------------------------------------


def _loaded_modules() -> Iterator[tuple[str, Path]]:
    """Yield the files of the modules in memory that belong to the user, with all files of their packages."""
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "")
        top, _, rest = name.partition(".")
        # "__": the main program, and functions that AutoGraph translated
        if top.startswith(("__", RECIPE_MODULE)) or path.suffix != ".py" or not is_users(module):
            continue
        if path.name != "__init__.py":
            yield f"{name.replace('.', '/')}.py", path
        elif not rest:
            yield from _package(path.parent, f"{top}/")
        else:
            yield f"{name.replace('.', '/')}/__init__.py", path
