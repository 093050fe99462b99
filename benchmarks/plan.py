"""Time and memory of planning a build, for 10^5, 10^6 and 10^7 samples.

    python benchmarks/plan.py [--samples 100000 1000000] [--folder FOLDER] [--json FILE]

Planning is the work before the first shard: it lists the source, reads every file's size and time, hashes the keys, and
distributes the samples over shards. The listing is generated. Its paths have a realistic length, differ, and lead to 17,000 real
files, so `stat` is called for each, with a warm cache. `source_s` is what only the source takes to list, which is a part of
`plan_s` too. Each number of samples runs in a new process. The memory is the peak of that process, with interpreter and
libraries; up to four helper processes take about 80 MB each beside it (Linux).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import harness

from tfprep import Recipe, codecs
from tfprep.builder import plan_build
from tfprep.sources import Entry, Listing

FOLDERS = 1000
PARTS = 17
"""Folders of these folders: more files than a plan looks at together, so that none is looked at once for several samples."""
FILE_BYTES = 110_000
"""Size of a typical photo, which determines the number of shards. The files are sparse."""


@dataclass(frozen=True)
class Generated:
    """`samples` entries over real files."""

    samples: int

    def scan(self, root: Path) -> Listing:
        return Listing({"image": "image", "label": "label"}, ("image",), ("label",), self._entries())

    def _entries(self) -> Iterator[Entry]:
        files = [(path_of(number),) for number in range(FOLDERS * PARTS)]
        folders = [(f"class_{folder:04d}/image_", (folder,)) for folder in range(FOLDERS)]
        for number, (name, values), paths in zip(range(self.samples), cycle(folders), cycle(files)):
            yield Entry(f"{name}{number:011d}.jpg", "train", paths, values)


def path_of(number: int) -> str:
    """The file of a sample."""
    return f"part_{number // FOLDERS % PARTS:02d}/class_{number % FOLDERS:04d}/image_{number % FOLDERS:04d}.jpg"


def main() -> None:
    options = harness.arguments(
        __doc__ or "", samples=([10**5, 10**6, 10**7], "Numbers of samples"),
        folder=(Path, "Folder for scratch files [default: that for temporary files]"), one=(0, argparse.SUPPRESS),
    )  # fmt: skip
    if options.one:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            print(json.dumps(measure(options.one, Path(folder))))
        return
    rows = []
    for samples in options.samples:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", str(samples)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows.append(json.loads(output.splitlines()[-1]))
        print(*(f"{name} {value:,.2f}".removesuffix(".00") for name, value in rows[-1].items()), sep="  ", flush=True)
    harness.finish(options, {name: [row[name] for row in rows] for name in rows[0]})


def measure(samples: int, folder: Path) -> dict[str, Any]:
    root = folder / "data"
    for number in range(FOLDERS * PARTS):
        path = root / path_of(number)
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.truncate(FILE_BYTES)
    recipe = Recipe("bench", Generated(samples), {"image": codecs.Jpeg(), "label": codecs.Scalar()})
    started = time.perf_counter()
    for _ in recipe.source.scan(root).entries:
        pass
    source_s = time.perf_counter() - started
    before, started = cpu_s(), time.perf_counter()
    shards = len(plan_build(recipe, folder / "out", root))
    plan_s = time.perf_counter() - started
    return {
        "samples": samples, "shards": shards, "source_s": source_s, "plan_s": plan_s, "plan_cpu_s": cpu_s() - before,
        "plan_mb": peak_mb(),
    }  # fmt: skip


def cpu_s() -> float:
    """Processor time of this process and of the helpers that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mb() -> float:
    """The peak of this process. `ru_maxrss` would count that of the process which started it too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    main()
