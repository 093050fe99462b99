"""Python files that define `RECIPE` or `FIELDS`. What they raise is reported with its line."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TypeVar

from tfprep.errors import RecipeError, summary_of
from tfprep.recipe.model_fields import ModelFields
from tfprep.recipe.python_file import import_file
from tfprep.recipe.recipe import Recipe
from tfprep.storage.urls import folder_at, is_remote

Defined = TypeVar("Defined")


def load_recipe(path: Path) -> Recipe:
    """Load the `RECIPE` of a Python file.

    The file's folder is added to `sys.path`, so that the file can import modules beside it.

    Args:
        path: The Python file.

    Returns:
        The recipe, with all options checked, and the fields that it names as far as the source's options say which there are.

    Raises:
        RecipeError: There is no such file, or it is wrong; the message gives the line, the rule and the value.
    """
    if path.is_dir():
        raise RecipeError(f"{path} is a folder; give the recipe's file, or let 'tfprep init {path}' write one for it")
    if not path.is_file():
        raise RecipeError(f"{path}: no such recipe; 'tfprep init FOLDER' writes one for a folder of images")
    if path.suffix != ".py":
        raise RecipeError(f"{path}: a recipe is a Python file, its name ends in .py")
    recipe = _defined(path, _module_name(path), "RECIPE", Recipe)
    if callable(kinds := getattr(recipe.source, "kinds", None)):
        try:
            recipe.check_kinds(kinds())
        except RecipeError as error:
            raise RecipeError(f"{path}: {error}") from error
    return recipe


def load_fields(path: Path) -> ModelFields:
    """Load the `FIELDS` of a Python file.

    Raises:
        RecipeError: There is no such file, or it is wrong; the message says what.
    """
    if path.suffix != ".py" or not path.is_file():
        raise RecipeError(
            f"{path}: no such file; fields are a Python file that defines FIELDS = tfprep.ModelFields(...)"
        )
    return _defined(path, f"tfprep_fields_{path.stem}", "FIELDS", ModelFields)


def data_root(path: Path) -> Path:
    """Return the folder or URL that the recipe file names as `DATA`; a folder is relative to the file. Without `DATA`, it is the
    current folder."""
    load_recipe(path)
    data = getattr(sys.modules[_module_name(path)], "DATA", None)
    if data is None:
        return Path.cwd()
    folder = folder_at(data)
    return folder if is_remote(folder) else path.parent / folder


def _module_name(path: Path) -> str:
    return f"tfprep_recipe_{path.stem}"


def _defined(path: Path, module_name: str, variable: str, kind: type[Defined]) -> Defined:
    """Run the file, and return the variable that it has to define."""
    try:
        module = import_file(path, module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit and what else a module raises
        raise _located(path, error) from error
    value = getattr(module, variable, None)
    if not isinstance(value, kind):
        found = f"found {variable} = {value!r}" if hasattr(module, variable) else f"found no {variable}"
        raise RecipeError(f"{path}: expected {variable} = tfprep.{kind.__name__}(...), {found}")
    return value


def _located(path: Path, error: BaseException) -> RecipeError:
    """Return what a file raised as a RecipeError, with the last line of the file that was running."""
    if isinstance(error, SyntaxError) and _same(error.filename, path):
        line, what = error.lineno or 0, f"not Python: {error.msg}"
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _same(frame.filename, path)]
        line = frames[-1].lineno or 0 if frames else 0
        what = str(error) if isinstance(error, RecipeError) else summary_of(error)
    if not line:
        return RecipeError(f"{path}: {what}")
    text = path.read_text(encoding="utf-8", errors="replace").splitlines()[line - 1].strip()
    return RecipeError(f"{path}, line {line}: {what}\n    {text}")


def _same(filename: str | None, path: Path) -> bool:
    return filename is not None and os.path.realpath(filename) == os.path.realpath(path)
