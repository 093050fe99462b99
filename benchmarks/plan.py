"""Time and memory of planning a build, of publishing it, and of opening it, for 10^5, 10^6 and 10^7 samples.

    python benchmarks/plan.py [--samples 100000 1000000] [--publish] [--folder FOLDER] [--json FILE]

Planning is the work before the first shard: it lists the source, reads every file's size and time, hashes the keys, distributes
the samples over shards, and computes every shard's signature, as it does to compare them with receipts. The listing is generated.
Its paths have a realistic length, differ, and lead to 17,000 real files, so `stat` is called for each, with a warm cache.
`source_s` is what the source alone takes to list, which is a part of `plan_s` too. Each number of samples runs in a new process.
The memory is the peak of that process, with interpreter and libraries; up to four helper processes take about 80 MB each beside
it (Linux).

With `--publish`, receipts are then written for all shards, as workers would write them (not measured). Measured are:

- `publish_s`, `publish_mb`: publication from the receipts, and the peak of the process at the end, its plan included.
- `noop_s`: a whole build that finds nothing to do.
- `open_s`, `open_mb`: `tfprep.open` to the first batch of 256 in global order, by a new process without the imports, and that
  process's peak of its own memory and of mapped pages together.

The records are small, and shards with as many records are hard links to one file, so that the disk holds the metadata alone: some
500 bytes a sample at the most, half of them scratch files of the plan (estimated from the sizes of rows).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import harness
import numpy as np

from tfprep import Recipe, codecs, records
from tfprep.builder import BuildOptions, build
from tfprep.builder.layout import Layout
from tfprep.builder.planning.plan import Plan, make_plan, maker_versions, remember_recipes, remember_shards
from tfprep.builder.planning.state import shard_states
from tfprep.builder.publish import manifest_of, publish
from tfprep.builder.receipts import Contents, Receipt, read_receipt, write_receipt
from tfprep.builder.shards.sums import FieldForm, form_of, most_common
from tfprep.dataset import FileInfo
from tfprep.dataset.manifest import sha256_of
from tfprep.dataset.names import shard_name
from tfprep.fields import FieldSpec
from tfprep.images import encode_jpeg
from tfprep.sources import Entry, Listing

FOLDERS = 1000
PARTS = 17
"""Folders of these folders: more files than a plan looks at together, so that none is looked at once for several samples."""
FILE_BYTES = 110_000
"""Size of a typical photo, which determines the number of shards. The files are sparse."""
SIDE = 16
LOAD = """
import sys, time
from pathlib import Path
import tfprep.load.loader
start = time.perf_counter()
loader = tfprep.open(sys.argv[1]).numpy_loader("train", 256, seed=1, cache=False)
batch = next(iter(loader))
seconds = time.perf_counter() - start
assert batch["image"].shape == (256, 16, 16, 3)
print(seconds, next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM")) / 1024)
loader.close()
"""


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
        __doc__ or "", samples=([10**5, 10**6, 10**7], "Numbers of samples"), publish=(False, "Publish and open the dataset too"),
        folder=(Path, "Folder for scratch files [default: that for temporary files]"), one=(0, argparse.SUPPRESS),
    )  # fmt: skip
    if options.one:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            print(json.dumps(measure(options.one, Path(folder), options.publish)))
        return
    rows = []
    for samples in options.samples:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", str(samples)]
        rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    harness.finish(options, {name: [row[name] for row in rows] for name in rows[0]})


def measure(samples: int, folder: Path, with_publication: bool) -> dict[str, float]:
    root, layout = folder / "data", Layout(folder / "out")
    for number in range(FOLDERS * PARTS):
        path = root / path_of(number)
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.truncate(FILE_BYTES)
    recipe = Recipe("bench", Generated(samples), {"image": codecs.Jpeg(), "label": codecs.Scalar()})
    layout.make()
    row = {"samples": samples} | planning(recipe, root, layout, folder if with_publication else None)
    return row | (using(recipe, root, layout) if with_publication else {})


def planning(recipe: Recipe, root: Path, layout: Layout, folder: Path | None) -> dict[str, float]:
    """Plan, and publish if there is a folder for shards. At the end the scratch files of the plan are gone."""
    started = time.perf_counter()
    for _ in recipe.source.scan(root).entries:
        pass
    source_s = time.perf_counter() - started
    before, started = cpu_s(), time.perf_counter()
    plan = make_plan(recipe, root, layout)
    planned = time.perf_counter()
    shards = sum(1 for _ in shard_states(plan, layout))
    for split, shard in plan.starts:  # without receipts, `shard_states` does not compute the signatures
        plan.signature(split, shard)
    ended = time.perf_counter()
    row = {
        "shards": shards, "source_s": source_s, "plan_s": ended - started, "listing_s": planned - started,
        "plan_cpu_s": cpu_s() - before, "plan_mb": peak_mb(),
    }  # fmt: skip
    shown(row)
    return row | (publication(plan, layout, folder) if folder else {})


def shown(row: dict[str, float]) -> None:
    """Print figures as soon as they are known: what follows may take an hour, or more room than the disk has."""
    print(
        *(f"{name} {value:,.2f}".removesuffix(".00") for name, value in row.items()),
        sep="  ",
        file=sys.stderr,
        flush=True,
    )


def cpu_s() -> float:
    """Processor time of this process and of the helpers that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mb() -> float:
    """The peak of this process. `ru_maxrss` would count that of the process which started it too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


# --- publication ------------------------------------------------------------------------------------------------------


def publication(plan: Plan, layout: Layout, folder: Path) -> dict[str, float]:
    Shards(plan, layout, folder / "shards").write()
    remember_shards(plan, layout)
    remember_recipes(plan, layout)
    started = time.perf_counter()
    receipts = [receipt for place in plan.starts if (receipt := read_receipt(layout, *place)) is not None]
    manifest = manifest_of(plan, receipts, most_common(receipt.forms for receipt in receipts), None)
    publish(layout, None, manifest, receipts)
    row = {"publish_s": time.perf_counter() - started, "publish_mb": peak_mb()}
    shown(row)
    return row


def using(recipe: Recipe, root: Path, layout: Layout) -> dict[str, float]:
    """A build that finds nothing to do, and opening the dataset."""
    started = time.perf_counter()
    if build(recipe, layout.out, root, options=BuildOptions(workers=0)).built_shards:
        sys.exit("the build found something to do")
    row = {"noop_s": time.perf_counter() - started}
    output = subprocess.run([sys.executable, "-c", LOAD, layout.out], check=True, stdout=subprocess.PIPE, text=True)
    row["open_s"], row["open_mb"] = map(float, output.stdout.split())
    shown(row)
    return row


class Shards:
    """Writes shards of one record over and over, and their receipts."""

    def __init__(self, plan: Plan, layout: Layout, folder: Path) -> None:
        self._plan, self._layout, self._folder = plan, layout, folder
        folder.mkdir()
        pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        payload, spans = records.encode({"image": encode_jpeg(pixels, 95, "420"), "label": np.zeros(1, np.int64)})
        self._frame = records.frame(payload)
        crc = int.from_bytes(self._frame[-4:], "little")
        self._facts = [len(self._frame), crc, 0, SIDE, SIDE, "00" * 16]
        self._spans = [(12 + spans[name].offset, spans[name].size) for name in ("image", "label")]
        specs = {"image": FieldSpec("image", (SIDE, SIDE, 3), "uint8"), "label": FieldSpec("label", (), "int64")}
        self._specs = {name: (form_of(spec), spec) for name, spec in specs.items()}

    def write(self) -> None:
        for split, shard in self._plan.starts:
            name = shard_name("bench", split, 0, shard, self._plan.shards[split])
            count = self._plan.size(split, shard)
            path, digest, rows = self._shard(count)
            os.link(path, self._layout.staged / name)
            os.link(f"{path}.idx", self._layout.staged / f"{name}.idx")
            first = self._plan.task(split, shard).samples[0][0]  # ties the dataset to the plan
            rows = [[f"{shard:06d}/{number:06d}.jpg" if number else first, *row] for number, row in enumerate(rows)]
            file = FileInfo(name, count, len(self._frame) * count, digest)
            forms = {name: {form: FieldForm(count, spec)} for name, (form, spec) in self._specs.items()}
            receipt = Receipt(
                split, shard, self._plan.shards[split], self._plan.fingerprints[split], maker_versions(),
                self._plan.signature(split, shard), self._plan.identity(split, shard), "", (file,), forms, {}, {}, {}, (), {}, {},
            )  # fmt: skip
            write_receipt(self._layout, receipt, Contents(list(self._specs), [rows], {}))

    @cache  # noqa: B019 # one instance
    def _shard(self, count: int) -> tuple[Path, str, list[list[Any]]]:
        """The file of a shard of so many records, its SHA-256, and its rows of the index without the keys."""
        path, size = self._folder / str(count), len(self._frame)
        path.write_bytes(self._frame * count)
        frames = [records.Frame(number * size, size) for number in range(count)]
        Path(f"{path}.idx").write_text(records.format_index(frames))
        return path, sha256_of(path), [self._row(frame.offset) for frame in frames]

    def _row(self, offset: int) -> list[Any]:
        spans = [number for first, size in self._spans for number in (offset + first, size)]
        return [offset, *self._facts, *spans, None, None]


if __name__ == "__main__":
    main()
