"""A user's function or model by its name on the command line: `module:name` or `file.py:name`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from tfprep.errors import LoaderError
from tfprep.python_file import import_file


def named(text: str) -> Any:
    """Return the object that `text` names; a module may stand in the current folder.

    Raises:
        LoaderError: There is no such module or file, or it does not define the name.
    """
    home, _, name = text.rpartition(":")
    if not home or not name:
        raise LoaderError(f"expected module:name or file.py:name, not {text!r}")
    module = _from_file(Path(home)) if home.endswith(".py") else _from_module(home)
    if not hasattr(module, name):
        raise LoaderError(f"{home} has no {name!r}")
    return getattr(module, name)


def named_function(text: str) -> Callable[..., Any]:
    """Return the function, class or other callable that `text` names; the errors are those of `named`."""
    function = named(text)
    if not callable(function):
        raise LoaderError(f"{text} is of type {type(function).__name__}, not a function")
    return cast("Callable[..., Any]", function)


def _from_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise LoaderError(
            f"there is no module {name!r} ({error}); a file is named by its path, as step.py:f"
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LoaderError(f"{path}: no such file")
    return import_file(path, f"tfprep_named_{path.stem}")
