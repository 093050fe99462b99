"""Recipe files: Python files that define `RECIPE`. Mistakes are reported with their line."""

from __future__ import annotations

import ast
import difflib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

from tfprep.errors import RecipeError, summary_of
from tfprep.recipe.python_file import import_file
from tfprep.recipe.recipe import Recipe
from tfprep.storage.urls import folder_at, is_remote

RECIPE_MODULE = "tfprep_recipe_"
"""The beginning of the names that recipes have in `sys.modules`."""
_PARTS = "augment", "codecs", "derive", "sources"


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
        recipes = [name for name, value in vars(module).items() if isinstance(value, Recipe)]
        instead = f"found {', '.join(recipes)}; call the one to build RECIPE" if recipes else "found no RECIPE"
        if isinstance(recipe, list | tuple | Mapping):
            rule = f"found a {type(recipe).__name__} of {len(recipe)}"
            instead = f"{rule}; a file holds one recipe, put each into a file of its own"
        elif hasattr(module, "RECIPE"):
            instead = f"found RECIPE = {recipe!r}"
        raise RecipeError(f"{path}: expected RECIPE = tfprep.Recipe(...), {instead}")
    if callable(kinds := getattr(recipe.source, "kinds", None)):
        try:
            recipe.check_kinds(kinds())
        except RecipeError as error:
            raise locate(path, error) from error
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


def locate(path: Path, error: RecipeError) -> RecipeError:
    """Return the same error with the line of the option that it is about, if the option is in the file literally."""
    line = _line_of(path, error.where)
    return _with_line(path, line, str(error)) if line else error


def _located(path: Path, error: BaseException) -> RecipeError:
    if isinstance(error, SyntaxError) and _same(error.filename, path):
        return _with_line(path, error.lineno or 0, f"not Python: {error.msg}")
    line = _line_of(path, error.where) if isinstance(error, RecipeError) else 0
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _same(frame.filename, path)]
    what = str(error) if isinstance(error, RecipeError) else f"{summary_of(error)}{_suggestion(error)}"
    return _with_line(path, line or (frames[-1].lineno or 0 if frames else 0), what)


def _suggestion(error: BaseException) -> str:
    """A suggestion for a misspelt name of tfprep."""
    name = str(getattr(error, "name", None) or "")
    if isinstance(error, NameError) and name in ("Recipe", *_PARTS):
        return f"; the file should begin with: from tfprep import Recipe, {', '.join(_PARTS)}"
    if isinstance(error, AttributeError) and getattr(error.obj, "__name__", "").startswith("tfprep."):
        return _nearest(name, getattr(error.obj, "__all__", ()))
    unknown = re.match(
        r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", summary_of(error).partition(": ")[2]
    )
    if isinstance(error, TypeError) and unknown:
        homes = [Recipe, *(getattr(importlib.import_module(f"tfprep.{part}"), unknown[1], None) for part in _PARTS)]
        for home in homes:
            if is_dataclass(home) and getattr(home, "__name__", "") == unknown[1]:
                options = [one.name for one in fields(home) if one.init]
                return f"; its options are {', '.join(options)}{_nearest(unknown[2], options)}"
    return ""


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _same(filename: str | None, path: Path) -> bool:
    return filename is not None and os.path.realpath(filename) == os.path.realpath(path)


def _with_line(path: Path, line: int, what: str) -> RecipeError:
    if not line:
        return RecipeError(f"{path}: {what}")
    text = path.read_text(encoding="utf-8", errors="replace").splitlines()[line - 1].strip()
    return RecipeError(f"{path}, line {line}: {what}\n    {text}")


def _line_of(path: Path, where: tuple[str, ...]) -> int:
    """Return the line of `Recipe(option={key: ...})` in the file; 0 if it does not stand there literally."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))) if where else ():
        if not isinstance(node, ast.keyword) or node.arg != where[0]:
            continue
        value, key = node.value, where[1] if where[1:] else ""
        if isinstance(value, ast.List | ast.Tuple) and key.isdigit() and int(key) < len(value.elts):
            return value.elts[int(key)].lineno
        keys = value.keys if isinstance(value, ast.Dict) and where[1:] else []
        lines = [one.lineno for one in keys if isinstance(one, ast.Constant) and one.value == key]
        return (lines or [value.lineno])[0]
    return 0
