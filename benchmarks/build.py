"""`tfprep build` compared with the limit of the machine, and with the script that most people write.

    python benchmarks/build.py --data data/photos [--repeat 12] [--rounds 5] [--workers 1,2]
        [--only NAME,...] [--json FILE]

Each image is scaled to a shorter side of 256 by area averaging, cropped to 224 x 224 at the center, encoded as JPEG of quality 95
(4:2:0) and written to TFRecords. The candidates are

- `limit`: processes that do only this, with simplejpeg and OpenCV, each for its share of the files, without checks or an index;
- `pil pool`: the script that most people write (`benchmarks/build_usual.py`): Pillow in a `multiprocessing.Pool`, Examples and
  the writer of TensorFlow. A large part of its time is the import of TensorFlow;
- `tfprep`: the recipe below on the command line, with index, receipts, checksums and statistics.

The photos are linked `--repeat` times into one folder, so that a run takes seconds. The files come from a warm page cache. In
each round every candidate runs once, in alternating order and in new processes, with compiled bytecode as after an installation
by pip. The time includes start-up. Ratios are taken within a round; figures are medians. `cpu` is the processor time of the
process tree, which varies less than wall time on a machine that runs other programs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

import harness

RECIPE = """
from tfprep import Recipe, augment, codecs, sources
RECIPE = Recipe(
    name="photos",
    source=sources.Folder(),
    geometry=[augment.Resize(shorter=256), augment.CenterCrop(224, 224)],
    store={"image": codecs.Jpeg(95), "label": codecs.Scalar()},
)
"""


@dataclass(frozen=True)
class Run:
    """A run of a candidate: seconds to the end, and CPU seconds of the process tree."""

    seconds: float
    cpu_s: float


def main() -> None:
    options = harness.arguments(
        __doc__ or "",
        data=(Path("data/photos"), "Folder of class folders"), repeat=(12, "Number of links to each photo"),
        rounds=(5, "Measured rounds"), workers=("1,2", "Numbers of worker processes, comma-separated"),
        only=("", "Prefixes of the candidates' names, comma-separated"),
        part=([], argparse.SUPPRESS),
    )  # fmt: skip
    if options.part:
        in_shares(*options.part)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        images = gather(options.data, folder / "data", options.repeat)
        workers = options.workers.split(",")
        turns = {
            name: partial(run_once, command, folder)
            for count in workers
            for name, command in candidates(folder, count).items()
            if name.startswith(tuple(options.only.split(",")))
        }
        runs = harness.in_turns(turns, options.rounds, warm_up=1)
    result = summary(runs, images, max(workers, key=int))
    for name in runs:
        figures = {of: result[of][name] for of in ("images_per_s", "cpu_ms")}
        print(f"{name:22} " + "  ".join(f"{of} {value:.4g}" for of, value in figures.items()))
    print({name: value for name, value in result.items() if name.startswith("build_vs")})
    harness.finish(options, result)


def gather(data: Path, into: Path, repeat: int) -> int:
    files = sorted(path for path in data.rglob("*") if path.is_file())
    if not files:
        sys.exit(f"{data} contains no photos; give a folder of class folders (see data/README.md)")
    for path in files:
        for number in range(repeat):
            link = into / path.parent.name / f"{number}_{path.name}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
    return len(files) * repeat


# --- candidates -------------------------------------------------------------------------------------------------------


def candidates(folder: Path, workers: str) -> dict[str, list[str]]:
    """The commands by name; the folder of the result is `folder / "out"`."""
    data, out, here = str(folder / "data"), str(folder / "out"), Path(__file__)
    recipe = folder / "plain.py"
    recipe.write_text(RECIPE)
    tfprep = [sys.executable, "-m", "tfprep", "build", str(recipe), "--data", data]
    part = [sys.executable, str(here), "--part"]
    return {
        f"limit {workers}": [*part, "limit", data, out, workers],
        f"pil pool {workers}": [sys.executable, str(here.with_name("build_usual.py")), data, out, workers],
        f"tfprep {workers}": [*tfprep, "--workers", workers, "--out", out, "--quiet"],
    }


def in_shares(name: str, data: str, out: str, workers: str, number: str = "") -> None:
    """Start a process for each share of the files, or do the work of the share `number`."""
    if not number:
        os.makedirs(out)
        command = [sys.executable, __file__, "--part", name, data, out, workers]
        shares = [subprocess.Popen([*command, str(share)]) for share in range(int(workers))]
        sys.exit(max(share.wait() for share in shares))
    with open(f"{out}/{number}.tfrecord", "wb") as file:
        limit(files_of(data)[int(number) :: int(workers)], file)


def limit(paths: list[Path], file: BinaryIO) -> None:
    import cv2
    import simplejpeg

    from tfprep.records import frame

    cv2.setNumThreads(0)
    for path in paths:
        pixels = simplejpeg.decode_jpeg(path.read_bytes())
        height, width = pixels.shape[:2]
        scale = 256 / min(height, width)
        size = (round(width * scale), round(height * scale))
        small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        top, left = (size[1] - 224) // 2, (size[0] - 224) // 2
        crop = small[top : top + 224, left : left + 224].copy()
        file.write(frame(simplejpeg.encode_jpeg(crop, 95, colorsubsampling="420")))


def files_of(data: str) -> list[Path]:
    return sorted(Path(data).rglob("*.*"))


# --- measuring --------------------------------------------------------------------------------------------------------


def run_once(command: list[str], folder: Path) -> Run:
    """Bytecode is kept, as after an installation by pip; the first round compiles it."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    os.sync()
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = status
    if status:
        sys.exit(f"{command} failed")
    return Run(seconds, usage.ru_utime + usage.ru_stime)


def summary(runs: dict[str, list[Run]], images: int, workers: str) -> dict[str, Any]:
    """Medians of each candidate, and for the largest number of workers how many times as fast a build is as the others."""

    def each(value: Callable[[Run], float]) -> dict[str, float]:
        return {name: median(value(run) for run in of_one) for name, of_one in runs.items()}

    ours, times = runs.get(f"tfprep {workers}", []), {}
    for other in ("limit", "pil pool"):
        if pairs := list(zip(ours, runs.get(f"{other} {workers}", []), strict=False)):
            name = f"build_vs_{other.replace(' ', '_')}"
            times[name] = median(theirs.seconds / mine.seconds for mine, theirs in pairs)
            times[f"{name}_cpu"] = median(theirs.cpu_s / mine.cpu_s for mine, theirs in pairs)
    return {
        "images": images,
        **times,
        "images_per_s": each(lambda run: images / run.seconds),
        "cpu_ms": each(lambda run: 1000 * run.cpu_s / images),
        "seconds": {name: [round(run.seconds, 3) for run in of_one] for name, of_one in runs.items()},
    }


if __name__ == "__main__":
    main()
