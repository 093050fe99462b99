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

import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

import harness

import tfprep
from tfprep.builder import BuildOptions
from tfprep.errors import TfprepError
from tfprep.recipe.file import data_root, load_recipe
from tfprep.recipe.template import recipe_text, recognised


def outcome_of(folder: Path, out: Path, timeout_s: float) -> tuple[str, str]:
    """What became of the files of a folder, in a word, and the message."""
    recipe_path = out.with_suffix(".py")
    try:
        with harness.at_most(timeout_s), warnings.catch_warnings():
            warnings.simplefilter("error")
            found = recognised(folder)
            recipe_path.write_text(recipe_text(found, folder, recipe_path))
            recipe = load_recipe(recipe_path)
            root = data_root(recipe_path)
            summary = tfprep.build(recipe, out, root, options=BuildOptions(workers=0), on_event=lambda event: None)
    except harness.TooSlow:
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
    text = "Folders of odd files; by default pydicom's test files"
    options = harness.arguments(
        __doc__,
        lambda parser: parser.add_argument("folders", nargs="*", type=Path, help=text),
        timeout_s=(60.0, "Seconds for each file"),
        memory_gb=(8.0, "Address space above that at the start"),
    )
    folders = options.folders or [pydicom_files()]
    harness.limit_memory(options.memory_gb)
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
    harness.finish(options, outcomes, failed=counts["crash"] + counts["slow"] + counts["warned"])


def pydicom_files() -> Path:
    spec = importlib.util.find_spec("pydicom")
    if spec is None or spec.origin is None:
        raise SystemExit("name a folder of odd files, or pip install pydicom, whose test files are then taken")
    return Path(os.path.dirname(spec.origin)) / "data" / "test_files"


if __name__ == "__main__":
    main()
