"""`tfprep build` compared with the limit of the machine, and with the script that most people write.

    python benchmarks/build.py --data data/photos [--repeat 12] [--rounds 5] [--workers 1,2]
        [--only NAME,...] [--megapixels 12] [--json FILE]

Each image is scaled to a shorter side of 256 by area averaging, cropped to 224 x 224 at the centre, encoded as JPEG of quality 95
(4:2:0) and written to TFRecords. The candidates are

- `limit`: processes that do only this, with simplejpeg and OpenCV, each for its share of the files, without checks or an index;
- `pil pool`: the script that most people write (`benchmarks/build_usual.py`): Pillow in a `multiprocessing.Pool`, Examples and
  the writer of TensorFlow. A large part of its time is the import of TensorFlow; `rest` is the time after the first record;
- `lean pil pool`: the same pixels without TensorFlow: no Examples, framed by tfprep's writer;
- `copy`: the bytes of the files are read and written, in processes like those of `limit`, and synced at the end;
- `tfprep`: the recipe below on the command line, with index, receipts, checksums and statistics; also with `Original`, to compare
  with `copy`.

The photos are linked `--repeat` times into one folder, so that a run takes seconds. With `--megapixels`, the first 16 of them are
enlarged to that size before, with a camera's noise, as JPEG of quality 90. The files come from a warm page cache. In each round
every candidate runs once, in alternating order and in new processes, with compiled bytecode as after an installation by pip. The
time includes start-up. Ratios are taken within a round; figures are medians. `cpu` is the processor time of the process tree,
which varies less than wall time on a machine that runs other programs.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
ORIGINAL = """
from tfprep import Recipe, codecs, sources
RECIPE = Recipe("photos", sources.Folder(), {"image": codecs.Original(), "label": codecs.Scalar()})
"""
POLL_S = 0.01
"""Interval of the checks for the first record: 1 % of the second that a start takes."""


@dataclass(frozen=True)
class Run:
    """A run of a candidate: seconds to the end and to the first bytes of a record, and CPU seconds of the process tree."""

    seconds: float
    first_s: float
    cpu_s: float

    @property
    def rest_s(self) -> float:
        """Seconds from the first record to the end."""
        return self.seconds - self.first_s


@dataclass(frozen=True)
class Candidate:
    """A program to measure: `command(folder)` writes to the folder; its first record appears in a file that matches `first`."""

    name: str
    command: Callable[[Path], list[str]]
    first: str


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megapixels", type=float, help="Size to which 16 photos are enlarged")
    parser.add_argument("--part", nargs=6, help=argparse.SUPPRESS)


def main() -> None:
    options = harness.arguments(
        __doc__ or "", _more,
        data=(Path("data/photos"), "Folder of class folders"), repeat=(12, "Number of links to each photo"),
        rounds=(5, "Measured rounds"), workers=("1,2", "Numbers of worker processes, comma-separated"),
        only=("", "Prefixes of the candidates' names, comma-separated"),
    )  # fmt: skip
    if options.part:
        PARTS[options.part[0]](*options.part[1:])
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.megapixels:
            options.data = enlarged(options.data, folder / "large", options.megapixels)
        images = gather(options.data, folder / "data", options.repeat)
        workers = [int(number) for number in options.workers.split(",")]
        chosen = candidates(folder, workers, tuple(options.only.split(",")))
        turns = {one.name: functools.partial(run_once, one, folder) for one in chosen}
        runs = harness.in_turns(turns, options.rounds, warm_up=1)
    result = summary(runs, images, workers)
    print_results(result, runs, images)
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


def enlarged(data: Path, into: Path, megapixels: float) -> Path:
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(0).normal(0, 3, (512, 512, 3))
    for path in sorted(path for path in data.rglob("*") if path.is_file())[:16]:
        with Image.open(path) as image:
            scale = (megapixels * 1e6 / (image.width * image.height)) ** 0.5
            large = np.asarray(image.convert("RGB").resize((round(image.width * scale), round(image.height * scale))))
        tiled = np.tile(noise, (-(-large.shape[0] // 512), -(-large.shape[1] // 512), 1))[
            : large.shape[0], : large.shape[1]
        ]
        target = into / path.parent.name / f"{path.stem}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(large + tiled, 0, 255).astype(np.uint8)).save(target, quality=90)
    return into


# --- candidates -------------------------------------------------------------------------------------------------------


def candidates(folder: Path, workers: list[int], only: tuple[str, ...]) -> list[Candidate]:
    recipes = {"plain": RECIPE, "original": ORIGINAL}
    for name, text in recipes.items():
        (folder / f"{name}.py").write_text(text)
    all_candidates = []
    for count in workers:
        all_candidates += [
            Candidate(f"limit {count}", part("limit", folder, count), "*.tfrecord"),
            Candidate(f"pil pool {count}", usual(folder, count), "*.tfrecord"),
            Candidate(f"lean pil pool {count}", part("pil", folder, count), "*.tfrecord"),
            Candidate(f"copy {count}", part("copy", folder, count), "*.tfrecord"),
            Candidate(f"tfprep {count}", tfprep("plain", folder, count), ".tfprep/new/*"),
            Candidate(f"tfprep original {count}", tfprep("original", folder, count), ".tfprep/new/*"),
        ]
    return [candidate for candidate in all_candidates if candidate.name.startswith(only)]


def tfprep(recipe: str, folder: Path, workers: int) -> Callable[[Path], list[str]]:
    command = [sys.executable, "-m", "tfprep", "build", str(folder / f"{recipe}.py"), "--data", str(folder / "data")]
    return lambda out: [*command, "--workers", str(workers), "--out", str(out), "--quiet"]


def part(name: str, folder: Path, workers: int) -> Callable[[Path], list[str]]:
    command = [sys.executable, __file__, "--part", name, str(folder / "data")]
    return lambda out: [*command, str(out), str(workers), "-1", ""]


def usual(folder: Path, workers: int) -> Callable[[Path], list[str]]:
    script = str(Path(__file__).with_name("build_usual.py"))

    def command(out: Path) -> list[str]:
        out.mkdir()
        return [sys.executable, script, str(folder / "data"), str(out / "all.tfrecord"), str(workers)]

    return command


def limit(data: str, out: str, workers: str, number: str, work: str) -> None:
    """Starts one process per share of the files if `number` is -1, and otherwise converts the share `number`."""
    if number == "-1":
        os.makedirs(out, exist_ok=True)
        command = [sys.executable, __file__, "--part", work or "limit", data, out, workers]
        shares = [subprocess.Popen([*command, str(share), work]) for share in range(int(workers))]
        sys.exit(max(share.wait() for share in shares))
    import cv2
    import simplejpeg

    from tfprep.records import frame

    cv2.setNumThreads(0)
    with open(f"{out}/{number}.tfrecord", "wb") as file:
        for path in share_of(data, int(workers), int(number)):
            pixels = simplejpeg.decode_jpeg(path.read_bytes())
            height, width = pixels.shape[:2]
            scale = 256 / min(height, width)
            size = (round(width * scale), round(height * scale))
            small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
            top, left = (size[1] - 224) // 2, (size[0] - 224) // 2
            crop = small[top : top + 224, left : left + 224].copy()
            file.write(frame(simplejpeg.encode_jpeg(crop, 95, colorsubsampling="420")))


def copy(data: str, out: str, workers: str, number: str, work: str) -> None:
    if number == "-1":
        limit(data, out, workers, number, "copy")
        return
    from tfprep.records import frame

    with open(f"{out}/{number}.tfrecord", "wb") as file:
        for path in share_of(data, int(workers), int(number)):
            file.write(frame(path.read_bytes()))
        file.flush()
        os.fsync(file.fileno())


def pil(data: str, out: str, workers: str, number: str, work: str) -> None:
    from tfprep.records import frame

    os.makedirs(out)
    with multiprocessing.Pool(int(workers)) as pool, open(f"{out}/all.tfrecord", "wb") as file:
        for encoded in pool.imap_unordered(one_with_pil, share_of(data, 1, 0), chunksize=8):
            file.write(frame(encoded))


def one_with_pil(path: Path) -> bytes:
    import io

    from PIL import Image

    with Image.open(path) as image:
        picture = image.convert("RGB")
    scale = 256 / min(picture.size)
    width, height = round(picture.width * scale), round(picture.height * scale)
    picture = picture.resize((width, height))
    left, top = (width - 224) // 2, (height - 224) // 2
    file = io.BytesIO()
    picture.crop((left, top, left + 224, top + 224)).save(file, "JPEG", quality=95)
    return file.getvalue()


def share_of(data: str, workers: int, number: int) -> list[Path]:
    return sorted(Path(data).rglob("*.*"))[number::workers]


PARTS: dict[str, Callable[[str, str, str, str, str], None]] = {"limit": limit, "copy": copy, "pil": pil}


# --- measuring --------------------------------------------------------------------------------------------------------


def run_once(candidate: Candidate, folder: Path) -> Run:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    command = candidate.command(out)
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment(folder))
    first = _First(out, candidate.first, started)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = status
    if status:
        sys.exit(f"{candidate.name} failed")
    return Run(seconds, first.stop() or seconds, usage.ru_utime + usage.ru_stime)


def environment(folder: Path) -> dict[str, str]:
    """The environment of a run: bytecode is kept, as after an installation by pip; the first round compiles it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "TF_CPP_MIN_LOG_LEVEL": "3"}


class _First:
    """A thread that notes when the first bytes of a record appear."""

    def __init__(self, out: Path, pattern: str, started: float) -> None:
        self._out, self._pattern, self._started = out, pattern, started
        self._seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            try:
                if any(path.stat().st_size for path in self._out.glob(self._pattern)):
                    self._seconds = time.perf_counter() - self._started
                    return
            except OSError:
                continue  # renamed between the two calls

    def stop(self) -> float:
        self._ended.set()
        self._thread.join()
        return self._seconds


# --- results ----------------------------------------------------------------------------------------------------------


def ratio(runs: dict[str, list[Run]], fast: str, slow: str, of: str = "seconds") -> float | None:
    """The speed of `fast` as a multiple of that of `slow`: the median over the rounds."""
    if fast not in runs or slow not in runs:
        return None
    return statistics.median(getattr(b, of) / getattr(a, of) for a, b in zip(runs[fast], runs[slow], strict=True))


def median_of(runs: list[Run], of: str) -> float:
    return statistics.median(getattr(run, of) for run in runs)


def summary(runs: dict[str, list[Run]], images: int, workers: list[int]) -> dict[str, object]:
    most = max(workers)
    firsts = [run.first_s for name, all_runs in runs.items() if name == f"tfprep {most}" for run in all_runs]
    return {
        "images": images,
        "rounds": len(next(iter(runs.values()))),
        "workers": most,
        "build_vs_limit": ratio(runs, f"tfprep {most}", f"limit {most}"),
        "build_vs_pil_pool": ratio(runs, f"tfprep {most}", f"pil pool {most}"),
        "build_vs_lean_pil_pool": ratio(runs, f"tfprep {most}", f"lean pil pool {most}"),
        "build_vs_lean_pil_pool_cpu": ratio(runs, f"tfprep {most}", f"lean pil pool {most}", "cpu_s"),
        "build_vs_pil_pool_rest": ratio(runs, f"tfprep {most}", f"pil pool {most}", "rest_s"),
        "build_vs_limit_cpu": ratio(runs, f"tfprep {most}", f"limit {most}", "cpu_s"),
        "first_image_s": statistics.median(firsts) if firsts else None,
        "scaling_1_to_2": ratio(runs, "tfprep 2", "tfprep 1"),
        "limit_scaling_1_to_2": ratio(runs, "limit 2", "limit 1"),
        "original_vs_copy": ratio(runs, f"tfprep original {most}", f"copy {most}"),
        "original_vs_copy_cpu": ratio(runs, f"tfprep original {most}", f"copy {most}", "cpu_s"),
        "images_per_s": {name: images / median_of(all_runs, "seconds") for name, all_runs in runs.items()},
        "cpu_ms": {name: 1000 * median_of(all_runs, "cpu_s") / images for name, all_runs in runs.items()},
        "first_s": {name: median_of(all_runs, "first_s") for name, all_runs in runs.items()},
        "seconds": {name: [round(run.seconds, 3) for run in all_runs] for name, all_runs in runs.items()},
    }


def print_results(result: dict[str, object], runs: dict[str, list[Run]], images: int) -> None:
    print(f"{images} images, {result['rounds']} rounds, medians")
    for name, all_runs in runs.items():
        seconds = median_of(all_runs, "seconds")
        print(
            f"{name:22} {images / seconds:7.0f} images/s  {seconds:6.2f} s  "
            f"cpu {median_of(all_runs, 'cpu_s'):6.2f} s  first after {median_of(all_runs, 'first_s'):5.2f} s  "
            f"rest {median_of(all_runs, 'rest_s'):6.2f} s"
        )
    for name, value in result.items():
        if isinstance(value, float):
            print(f"{name:22} {value:7.2f}")


if __name__ == "__main__":
    main()
