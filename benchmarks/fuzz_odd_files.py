"""Odd files of other projects: `tfprep init`, then `tfprep build` without an edit, on each file and on each folder.

    pip download --no-deps --no-binary pillow pillow && tar xzf pillow-*.tar.gz
    pip download --no-deps pydicom-data && unzip pydicom_data-*.whl
    python benchmarks/fuzz.py odd-files --folders pillow-*/Tests/images data_store/data --json fuzz_odd_files.json

Without a folder, the test files of the installed pydicom are taken. Every file gets a folder of its own. An outcome is one of:
built; rejected (some samples of the file, such as frames of a video, are); refused (a `TfprepError` of `init` or of the build,
such as the one that says that every sample was rejected); a hang (more than `TIMEOUT_S`); any other exception, or a Python
warning that left the library. The run fails if there is one of the last two.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness

import tfprep
from tfprep.builder import BuildOptions
from tfprep.errors import TfprepError
from tfprep.recipe.file import data_root, load_recipe
from tfprep.recipe.template import recipe_text, recognized

TIMEOUT_S = 60.0


def outcome_of(folder: Path, out: Path) -> str:
    """What became of the files of a folder; a warning of the library is an error."""
    recipe_path = out.with_suffix(".py")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            recipe_path.write_text(recipe_text(recognized(folder), folder, recipe_path))
            recipe, root = load_recipe(recipe_path), data_root(recipe_path)
            summary = tfprep.build(recipe, out, root, options=BuildOptions(workers=0), on_event=lambda event: None)
        except TfprepError:
            return "refused"
    return "rejected" if summary.rejected else "built"


def one_file(file: Path) -> str:
    """The outcome of one file in a folder of its own."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(scratch) / "raw"
        folder.mkdir()
        shutil.copyfile(file, folder / file.name)
        return outcome_of(folder, Path(scratch) / "out")


def whole(folder: Path) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        return outcome_of(folder, Path(scratch) / "out")


def run(options: Any) -> None:
    harness.limit_memory(8)
    cases: list[tuple[str, Callable[[], str], float]] = []
    for folder in map(Path, options.folders or [pydicom_files()]):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        cases += [(str(file), partial(one_file, file), TIMEOUT_S) for file in files]
        cases.append((f"{folder} as a whole", partial(whole, folder), 20 * TIMEOUT_S))
    harness.run_cases(options, cases, allowed=lambda outcome: outcome in ("built", "rejected", "refused"))


def pydicom_files() -> Path:
    spec = importlib.util.find_spec("pydicom")
    if spec is None or spec.origin is None:
        raise SystemExit("name a folder of odd files, or pip install pydicom, whose test files are then taken")
    return Path(os.path.dirname(spec.origin)) / "data" / "test_files"
