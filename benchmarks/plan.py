"""Time and memory of planning a build, for 10^5, 10^6 and 10^7 samples.

    python benchmarks/plan.py [--samples 100000,1000000] [--json FILE]

Planning is the work before the first shard: it lists the source, reads every file's size and time, hashes the keys, distributes
the samples over shards, and computes every shard's signature, as it does to compare them with receipts. The listing is generated.
Its paths have a realistic length and point to a thousand real files, so `stat` is called for real, with a warm cache. Each number
of samples runs in a new process; the memory is the peak of that process, with interpreter and libraries.
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
from pathlib import Path

from tfprep import Recipe, codecs
from tfprep.builder.layout import Layout
from tfprep.builder.planning.plan import make_plan
from tfprep.builder.planning.state import shard_states
from tfprep.sources import Entry, Listing

FOLDERS = 1000
FILE_BYTES = 110_000
"""Size of a typical photo, which determines the number of shards. The files are sparse."""


@dataclass(frozen=True)
class Generated:
    """`samples` entries over `FOLDERS` real files."""

    samples: int

    def scan(self, root: Path) -> Listing:
        return Listing({"image": "image", "label": "label"}, ("image",), ("label",), self._entries())

    def _entries(self) -> Iterator[Entry]:
        for number in range(self.samples):
            folder = number % FOLDERS
            path = f"class_{folder:04d}/././././image_{folder:04d}.jpg"
            yield Entry(f"class_{folder:04d}/image_{number:011d}.jpg", "train", (path,), (folder,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", default="100000,1000000,10000000", help="Numbers of samples, comma-separated")
    parser.add_argument("--json", type=Path, help="File for the results")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    rows = [_in_new_process(int(samples)) for samples in options.samples.split(",")]
    for row in rows:
        print(
            f"{row['samples']:>12,} samples  {row['shards']:>7,} shards  {row['seconds']:8.2f} s "
            f"(listing and layout {row['plan_s']:.2f}, signatures {row['states_s']:.2f})  "
            f"cpu {row['cpu_s']:8.2f} s  {row['rss_mb']:8.0f} MB at peak"
        )
    if options.json:
        options.json.write_text(json.dumps({name: [row[name] for row in rows] for name in rows[0]}, indent=1) + "\n")


def measure(samples: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "data")
        for number in range(FOLDERS):
            path = root / f"class_{number:04d}" / f"image_{number:04d}.jpg"
            path.parent.mkdir(parents=True)
            path.touch()
            path.open("r+b").truncate(FILE_BYTES)
        recipe = Recipe("bench", Generated(samples), {"image": codecs.Jpeg(), "label": codecs.Scalar()})
        layout = Layout(Path(folder, "out"))
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        plan = make_plan(recipe, root, layout)
        planned = time.perf_counter()
        shards = sum(1 for _ in shard_states(plan, layout))
        for split, shard in plan.starts:  # without receipts, `shard_states` does not compute the signatures
            plan.signature(split, shard)
        ended = time.perf_counter()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "samples": samples, "shards": shards, "seconds": ended - started, "plan_s": planned - started,
        "states_s": ended - planned, "cpu_s": cpu_s(usage) - cpu_s(before),
        "rss_mb": usage.ru_maxrss / 1024,
    }  # fmt: skip


def cpu_s(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _in_new_process(samples: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", str(samples)]
    row: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return row


if __name__ == "__main__":
    main()
