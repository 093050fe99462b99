"""Python files of users: those that define `RECIPE` or `FIELDS`, whose errors are reported with their line, and any other."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import traceback
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from tfprep.errors import RecipeError, summary_of
from tfprep.pool import import_from
from tfprep.recipe.checks import check_kinds, importing
from tfprep.recipe.model_fields import ModelFields
from tfprep.recipe.recipe import Recipe
from tfprep.storage.urls import PathOrUrl, folder_at, is_remote

Defined = TypeVar("Defined", Recipe, ModelFields)


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
            check_kinds(vars(recipe), kinds())
        except RecipeError as error:
            raise RecipeError(f"{path}: {error}") from error
    return recipe


def load_fields(path: Path) -> ModelFields:
    """Load the `FIELDS` of a Python file.

    Raises:
        RecipeError: There is no such file, or it is wrong; the message says what.
    """
    if path.suffix != ".py" or not path.is_file():
        raise RecipeError(f"{path}: no such file; fields are a Python file with FIELDS = tfprep.ModelFields(...)")
    return _defined(path, _module_name(path, "fields"), "FIELDS", ModelFields)


def data_root(path: Path | None, data: PathOrUrl | None = None) -> Path:
    """Return the folder or URL of the raw files: `data`, else what the recipe file names as `DATA`, where a folder is relative to
    the file, else the current folder."""
    if data is not None:
        return folder_at(data if is_remote(data) else os.path.expanduser(data))
    if path is not None:
        load_recipe(path)
        if (named := getattr(sys.modules[_module_name(path)], "DATA", None)) is not None:
            folder = folder_at(named)
            return folder if is_remote(folder) else path.parent / folder
    return Path.cwd()


def _module_name(path: Path, what: str = "recipe") -> str:
    """Return a name that no other file has: two recipes of one process may be `recipe.py` in two folders."""
    return f"tfprep_{what}_{path.stem}_{blake2b(bytes(path.resolve()), digest_size=4).hexdigest()}"


def _defined(path: Path, module_name: str, variable: str, kind: type[Defined]) -> Defined:
    try:
        module = import_file(path, module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit and what else a module raises
        raise _located(path, error) from error
    value: Any = getattr(module, variable, None)
    if not isinstance(value, kind):
        found = f"found {variable} = {value!r}" if hasattr(module, variable) else f"found no {variable}"
        raise RecipeError(f"{path}: expected {variable} = tfprep.{kind.__name__}(...), {found}")
    # What `ops.SIZE = 5` or `ops.configure(5)` does is shown by no option: the file is part of the fingerprint.
    defined: Defined = replace(value, depends=[*value.depends, module]) if _acts(path) else value
    return defined


def _acts(path: Path) -> bool:
    """Return True if a statement of a file, outside of its functions and classes, sets an attribute or an item of something, or
    is a call whose value is not used."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    statements = [one for one in ast.parse(path.read_bytes()).body if not isinstance(one, definitions)]
    nodes = [node for one in statements for node in ast.walk(one)]
    sets = any(isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load) for node in nodes)
    return sets or any(isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant) for node in nodes)


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


# --- any Python file of the user ----------------------------------------------------------------------------------------


def import_file(path: Path, name: str) -> ModuleType:
    """Run a Python file as a module, as `python FILE` would: it can import modules of its own folder.

    Args:
        path: The file; its name ends in `.py`.
        name: The module's name in `sys.modules`. A module of that name is replaced.

    Returns:
        The module.

    Raises:
        OSError: The file cannot be read.
        Exception: Anything that the file itself raises.
    """
    if path.suffix != ".py":
        raise OSError(f"{path} is not a Python file: its name does not end in .py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # it is None for names of another kind only
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    import_from(folder)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look up the module of a class there
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # also for modules of the user that it imports
    token = importing.set(Path(folder))
    try:
        # Compiled each time. Python's cache of bytecode compares the size and the second of a file's last change: a digit that is
        # edited within a second would give the code of before.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    finally:
        importing.reset(token)
        sys.dont_write_bytecode = before
    return module
