"""Odd files of other projects: `tfprep init`, then `tfprep build` without an edit, on each file alone and on each folder whole.

    pip download --no-deps --no-binary pillow pillow && tar xzf pillow-*.tar.gz
    pip download --no-deps pydicom-data && unzip pydicom_data-*.whl
    python benchmarks/fuzz_odd_files.py pillow-*/Tests/images data_store/data --json fuzz_odd_files.json

Without a folder, the test files of the installed pydicom are taken. Every file gets a folder of its own. An outcome is one of:
built; rejected (some samples of the file, such as frames of a video, are); refused (a `TfprepError` of `init` or of the build,
such as the one that says that every sample was rejected); warned (a Python warning left the library); crash (any other
exception); slow (more than `--timeout-s`). The run fails if there is a crash, a warning or a slow file.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tfprep
from tfprep.builder import BuildOptions
from tfprep.errors import TfprepError
from tfprep.recipe.file import data_root, load_recipe
from tfprep.recipe.template import recipe_text, recognised


class TooSlowError(Exception):
    """A file took longer than the limit."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooSlowError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def outcome_of(folder: Path, out: Path, timeout_s: float) -> tuple[str, str]:
    """What became of the files of a folder, in a word, and the message."""
    recipe_path = out.with_suffix(".py")
    try:
        with limited(timeout_s), warnings.catch_warnings():
            warnings.simplefilter("error")
            found = recognised(folder)
            recipe_path.write_text(recipe_text(found, folder, recipe_path))
            recipe = load_recipe(recipe_path)
            root = data_root(recipe_path)
            summary = tfprep.build(recipe, out, root, options=BuildOptions(workers=0), on_event=lambda event: None)
    except TooSlowError:
        return "slow", f"more than {timeout_s:g} s"
    except TfprepError as error:
        return "refused", str(error)
    except Warning as warning:
        return "warned", f"{warning}\n{traceback.format_exc()}"
    except Exception:
        return "crash", traceback.format_exc()
    return ("rejected", (out / "rejects.jsonl").read_text()) if summary.rejects else ("built", "")


def alone(file: Path, scratch: Path, timeout_s: float) -> tuple[str, str]:
    """The outcome of one file in a folder of its own."""
    folder = scratch / "raw"
    folder.mkdir()
    shutil.copyfile(file, folder / file.name)
    return outcome_of(folder, scratch / "out", timeout_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, help="Folders of odd files; by default pydicom's test files.")
    parser.add_argument("--timeout-s", type=float, default=60)
    parser.add_argument("--memory-gb", type=float, default=8, help="Address space above that at the start.")
    parser.add_argument("--json", type=Path, help="File for the outcome of every file.")
    options = parser.parse_args()
    folders = options.folders or [pydicom_files()]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(options.memory_gb * 2**30),) * 2)
    outcomes: dict[str, tuple[str, str]] = {}
    for folder in folders:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stderr(io.StringIO()):
                outcomes[str(file)] = alone(file, Path(scratch), options.timeout_s)
            if outcomes[str(file)][0] in ("crash", "slow", "warned"):
                print(f"{outcomes[str(file)][0]}: {file}\n{outcomes[str(file)][1]}", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            whole = outcome_of(folder, Path(scratch) / "out", 20 * options.timeout_s)
        outcomes[f"{folder} as a whole"] = whole
        print(f"{folder} as a whole: {whole[0]} {whole[1]}", flush=True)
    counts = Counter(outcome for outcome, _ in outcomes.values())
    print(", ".join(f"{counts[name]} {name}" for name in sorted(counts)))
    if options.json:
        options.json.write_text(json.dumps(outcomes, indent=1))
    sys.exit(1 if counts["crash"] + counts["slow"] + counts["warned"] else 0)


def pydicom_files() -> Path:
    spec = importlib.util.find_spec("pydicom")
    if spec is None or spec.origin is None:
        raise SystemExit("name a folder of odd files, or pip install pydicom, whose test files are then taken")
    return Path(os.path.dirname(spec.origin)) / "data" / "test_files"


if __name__ == "__main__":
    main()
