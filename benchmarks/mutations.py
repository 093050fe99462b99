"""Puts one fault after another into a copy of tfprep and runs the tests of fidelity: prints which faults no test finds.

python benchmarks/mutations.py [--only TEXT] [--processes 2] [--json FILE]

A mutant (`mutants.txt`) replaces a text that stands exactly once in the package, wherever that is, so that moved code is still
found and no mutant changes nothing. The tests of the mutant's own area run first. The exit status is 1 if a mutant survives that
`SURVIVORS` does not explain, or one is found that it names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import harness

ROOT = Path(__file__).resolve().parents[1]
AREAS = ("geometry", "policies", "color", "derive", "images", "codecs", "load", "load_ops")
SURVIVORS: dict[str, str] = {}
"""Why no test can find a mutant, by its name; at most one of 20."""


@dataclass(frozen=True)
class Mutant:
    """The fault `name`: `new` stands where `old` stood."""

    area: str
    name: str
    old: str
    new: str


def read_mutants() -> list[Mutant]:
    """The mutants of `mutants.txt`: `area: name`, then `-` before each line of the old text and `+` before each of the new."""
    mutants = []
    for block in (ROOT / "benchmarks" / "mutants.txt").read_text().strip("\n").split("\n\n"):
        title, *lines = block.split("\n")
        area, name = title.split(": ", 1)
        old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        mutants.append(Mutant(area, name, old, new))
    return mutants


MUTANTS = read_mutants()


def main() -> None:
    options = harness.arguments(
        __doc__ or "", only=("", "Run the mutants whose area or name contains this text"),
        processes=(2, "Mutants that run at once"),
    )  # fmt: skip
    chosen = [mutant for mutant in MUTANTS if options.only in f"{mutant.area} {mutant.name}"]
    sources = package_sources()
    for mutant in chosen:
        place(mutant, sources)
    if failing := run(None)["found_by"]:
        sys.exit(f"the tests fail without any fault: {failing}")
    rows = []
    with ThreadPoolExecutor(options.processes) as pool:
        for row in pool.map(run, chosen):
            rows.append(row)
            print(f"{row['area']:9} {row['name']:55} {row['found_by'] or 'SURVIVES'}", flush=True)
    survivors = {row["name"] for row in rows if not row["found_by"]}
    print(f"\n{len(survivors)} of {len(rows)} survive")
    for name in sorted(survivors):
        print(f"  {name}: {SURVIVORS.get(name, 'no reason is known: a test is missing')}")
    known = {mutant.name for mutant in chosen} & set(SURVIVORS)
    harness.finish(
        options, {"mutants": len(rows), "survivors": sorted(survivors), "rows": rows}, failed=survivors != known
    )


def package_sources() -> dict[Path, str]:
    """The text of every module of the package, by its path below the repository."""
    return {path.relative_to(ROOT): path.read_text() for path in sorted((ROOT / "tfprep").rglob("*.py"))}


def place(mutant: Mutant, sources: dict[Path, str]) -> tuple[Path, str]:
    """The file that a mutant changes, and its text with the fault. ValueError unless `old` stands once in the package."""
    counts = {path: text.count(mutant.old) for path, text in sources.items() if mutant.old in text}
    if sum(counts.values()) != 1:
        where = ", ".join(f"{path} ({count})" for path, count in counts.items()) or "nowhere"
        raise ValueError(
            f"mutant {mutant.name!r} changes a text that must stand once, and stands {where}:\n{mutant.old}"
        )
    (path,) = counts
    return path, sources[path].replace(mutant.old, mutant.new)


def run(mutant: Mutant | None) -> dict[str, Any]:
    """Run the tests on a copy of the package with this fault, those of its area first."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tfprep-mutant-") as folder:
        copy = Path(folder)
        for name in ("tfprep", "tests"):
            shutil.copytree(ROOT / name, copy / name)  # with the compiled modules, whose sources keep their times
        shutil.copy2(ROOT / "pyproject.toml", copy)
        if mutant is not None:
            path, text = place(mutant, package_sources())
            (copy / path).write_text(text)
        files = [f"tests/fidelity/test_{area}.py" for area in AREAS]
        first = [file for file in files if mutant is not None and mutant.area in file]
        found_by = ""
        for part in (first, [file for file in files if file not in first]):
            if part and not found_by:
                found_by = failing_test(copy, part)
    described = {"area": mutant.area, "name": mutant.name} if mutant else {"area": "", "name": "unchanged"}
    return {**described, "found_by": found_by, "seconds": round(time.perf_counter() - begin, 1)}


def failing_test(copy: Path, files: list[str]) -> str:
    """The first test that fails; "" if all pass. RuntimeError if they did not run."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", *files]
    environment = {**os.environ, "PYTHONPATH": str(copy), "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        ran = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=1200,  # ten times what they take, since many may run at once
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "the tests did not end"
    if ran.returncode == 0 and re.search(r"\d+ passed", ran.stdout):
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) tests/fidelity/(\S+?\.py::\w+)", ran.stdout, re.MULTILINE)
    if ran.returncode != 1 or not failed:
        raise RuntimeError(f"pytest ended with status {ran.returncode}:\n{ran.stdout[-3000:]}\n{ran.stderr[-1000:]}")
    return failed[1]


if __name__ == "__main__":
    main()
