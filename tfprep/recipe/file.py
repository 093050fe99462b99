"""Recipe files: Python files that define `RECIPE`. What they raise is reported with its line."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from tfprep.errors import RecipeError, summary_of
from tfprep.recipe.python_file import import_file
from tfprep.recipe.recipe import Recipe
from tfprep.storage.urls import folder_at, is_remote

RECIPE_MODULE = "tfprep_recipe_"
"""The beginning of the names that recipes have in `sys.modules`."""


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
    try:
        module = import_file(path, _module_name(path))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit and what else a module raises
        raise _located(path, error) from error
    recipe = getattr(module, "RECIPE", None)
    if not isinstance(recipe, Recipe):
        found = f"found RECIPE = {recipe!r}" if hasattr(module, "RECIPE") else "found no RECIPE"
        raise RecipeError(f"{path}: expected RECIPE = tfprep.Recipe(...), {found}")
    if callable(kinds := getattr(recipe.source, "kinds", None)):
        try:
            recipe.check_kinds(kinds())
        except RecipeError as error:
            raise RecipeError(f"{path}: {error}") from error
    return recipe


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
    return f"{RECIPE_MODULE}{path.stem}"


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
