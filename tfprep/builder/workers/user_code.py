"""The user's code on its way to other machines: the recipe, the files beside it, and the modules that it imports from elsewhere.

Installed packages are not sent: they are part of each machine's environment, as tfprep itself.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

from tfprep.errors import BuildError
from tfprep.recipe.file import RECIPE_MODULE

_DATA_SUFFIXES = {".csv", ".json", ".toml", ".txt", ".yaml", ".yml"}
_MOST_DATA_BYTES = 1 << 20
"""Files that a recipe may read beside itself, such as a list of classes, are sent up to this size."""


@dataclass(frozen=True)
class UserCode:
    """Files of the user's code.

    Attributes:
      files: Their content, by path below the folder that they are imported from.
      recipe: The recipe's path among them; empty if the recipe is not a file.
    """

    files: Mapping[str, bytes]
    recipe: str


def collected(recipe: Path | None) -> UserCode:
    """Return the recipe's file and its neighbours, and all modules in memory that are neither installed nor built in.

    Raises:
      BuildError: A file cannot be read.
    """
    paths = dict(_loaded_modules())
    if recipe is not None:
        paths.update(_neighbours(recipe.resolve().parent))
        paths[recipe.name] = recipe
    try:
        files = {name: path.read_bytes() for name, path in sorted(paths.items())}
    except OSError as error:
        raise BuildError(f"{error.filename} cannot be sent to the nodes: {error.strerror}") from error
    return UserCode(files, recipe.name if recipe else "")


def unpack(code: UserCode, folder: Path) -> None:
    """Write the files into a new folder, and let this process and its workers import from there."""
    folder.mkdir()
    for name, content in code.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    sys.path.insert(0, str(folder))


def _neighbours(folder: Path, inside: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the Python files and small data files of a folder and of the packages in it."""
    for path in folder.iterdir():
        name = f"{inside}{path.name}"
        if path.is_dir():
            if (path / "__init__.py").is_file():
                yield from _neighbours(path, f"{name}/")
        elif path.suffix == ".py" or (path.suffix in _DATA_SUFFIXES and path.stat().st_size <= _MOST_DATA_BYTES):
            yield name, path


def _loaded_modules() -> Iterator[tuple[str, Path]]:
    """Yield the files of the modules in memory that belong to the user, with all files of their packages."""
    installed = {"tfprep", "ray", *packages_distributions(), *sys.stdlib_module_names}
    standard = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "")
        top, _, rest = name.partition(".")
        if (
            top in installed
            or top.startswith(("__", RECIPE_MODULE))  # "__": the main program, and functions that AutoGraph translated
            or path.suffix != ".py"
            or any(path.is_relative_to(folder) for folder in standard)
        ):
            continue
        if path.name != "__init__.py":
            yield f"{name.replace('.', '/')}.py", path
        elif not rest:
            yield from _neighbours(path.parent, f"{top}/")
        else:
            yield f"{name.replace('.', '/')}/__init__.py", path
