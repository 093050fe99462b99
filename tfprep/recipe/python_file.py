"""Python files of users (recipes, steps of a benchmark), imported by their path."""

from __future__ import annotations

import importlib.util
import sys
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from tfprep.pool import import_from

_importing: ContextVar[Path | None] = ContextVar("importing", default=None)
"""The folder of the file that `import_file` runs; None outside."""


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
    token = _importing.set(Path(folder))
    try:
        # Compiled each time. Python's cache of bytecode compares the size and the second of a file's last change: a digit that is
        # edited within a second would give the code of before.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    finally:
        _importing.reset(token)
        sys.dont_write_bytecode = before
    return module


def running_folder() -> Path:
    """Return the folder of the file that `import_file` runs now, and else the current folder."""
    return _importing.get() or Path.cwd()
