"""Processor time of the steps of a build, in ms an image, beside those of the limit of `benchmarks/build.py`.

    python benchmarks/build_steps.py --data data/photos [--rounds 5] [--json FILE]

Both run in this process, in turns, over the same photos, so that no start of a process and no second core counts. The time of a
step is that of the thread, without the steps inside it; the least of the rounds is kept, since other programs only add to it.
`start_s` is the processor time of the command's processes for 16 photos: what does not depend on the number of images.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
from build import RECIPE, limit  # beside this file

Steps = dict[str, float]


def main() -> None:
    photos = (Path("data/photos"), "Folder of class folders of JPEG files")
    options = harness.arguments(__doc__ or "", data=photos, rounds=(5, "Measured rounds"))
    images = sum(path.is_file() for path in options.data.rglob("*"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "photos.py").write_text(RECIPE)
        steps: dict[str, Steps] = {"limit": {}, "build": {}}
        run = {"limit": timed_limit(options.data, folder), "build": timed_build(options.data, folder)}
        for number in range(options.rounds + 1):
            for name, once in run.items():
                seconds = once()
                for step, value in seconds.items() if number else ():  # the first round warms up
                    ms = 1000 * value / images
                    steps[name][step] = min(ms, steps[name].get(step, ms))
        result: dict[str, Any] = {
            "images": images,
            "ms": steps,
            "start_s": starts(options.data, folder, options.rounds),
        }
    result["total_ms"] = {name: sum(of.values()) for name, of in steps.items()}
    for name, of in steps.items():
        print(f"{name}: {sum(of.values()):.3f} ms an image, {result['start_s'][name]:.2f} s at the start and the end")
        for step, value in sorted(of.items(), key=lambda one: -one[1]):
            print(f"  {step:28} {value:.3f}")
    harness.finish(options, result)


class Stopwatch:
    """Adds up the time of functions, each without that of the others that it calls."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inside: list[float] = []

    def watch(self, owner: Any, name: str, step: str) -> None:
        """Replace a function of a module or class by one that is timed."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            self._inside.append(0.0)
            started = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                whole = time.thread_time() - started
                self.seconds[step] += whole - self._inside.pop()
                if self._inside:
                    self._inside[-1] += whole

        setattr(owner, name, timed)


def timed_limit(data: Path, folder: Path) -> Callable[[], Steps]:
    import cv2
    import simplejpeg

    from tfprep import records

    watch, out = Stopwatch(), folder / "limit"
    out.mkdir()
    for owner, name, step in (
        (Path, "read_bytes", "read"),
        (simplejpeg, "decode_jpeg", "decode"),
        (cv2, "resize", "area average"),
        (simplejpeg, "encode_jpeg", "encode"),
        (records, "frame", "frame"),
    ):
        watch.watch(owner, name, step)

    def once() -> Steps:
        watch.seconds.clear()
        limit(str(data), str(out), "1", "0", "")
        return dict(watch.seconds)

    return once


def timed_build(data: Path, folder: Path) -> Callable[[], Steps]:
    import tfprep
    from tfprep.builder import BuildOptions
    from tfprep.builder.shards import inputs, make_sample, shard, unfinished

    watch, out = Stopwatch(), folder / "built"
    for owner, name, step in (
        (inputs, "read_files", "read"),
        (inputs.Inputs, "read", "SHA-256 of the file"),
        (make_sample.SampleMaker, "_upright_size", "size and orientation"),
        (make_sample.SampleMaker, "_decode", "decode"),
        (make_sample.SampleMaker, "_warp", "area average"),
        (make_sample.SampleMaker, "_encode", "encode"),
        (shard._Shard, "_sums", "sums of pixels, classes"),
        (shard._Shard, "_hash", "perceptual hash"),
        (shard._Shard, "_profile", "colour profile"),
        (shard, "encode", "Example"),
        (unfinished.UnfinishedShard, "write", "frame, SHA-256, write"),
        (unfinished.UnfinishedShard, "note", "journal"),
        (shard, "_commit", "receipt, sync"),
        (shard, "_build", "rest: checks, rows, forms"),
    ):
        watch.watch(owner, name, step)

    def once() -> Steps:
        watch.seconds.clear()
        shutil.rmtree(out, ignore_errors=True)
        tfprep.build(folder / "photos.py", out, data, options=BuildOptions(workers=0), on_event=lambda event: None)
        return dict(watch.seconds)

    return once


def starts(data: Path, folder: Path, rounds: int) -> dict[str, float]:
    """The processor time of both commands, with two processes, for 16 of the photos: the median."""
    few = folder / "few"
    for path in sorted(path for path in data.rglob("*") if path.is_file())[:16]:
        (few / path.parent.name).mkdir(parents=True, exist_ok=True)
        (few / path.parent.name / path.name).symlink_to(path.resolve())
    script, recipe = str(Path(__file__).with_name("build.py")), str(folder / "photos.py")
    commands = {
        "limit": [script, "--part", "limit", str(few), str(folder / "l"), "2", "-1", ""],
        "build": ["-m", "tfprep", "build", recipe, "--data", str(few), "--out", str(folder / "b"), "--workers", "2"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            shutil.rmtree(folder / name[0], ignore_errors=True)
            process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = status
            if status:
                sys.exit(f"{name} failed")
            seconds[name].append(usage.ru_utime + usage.ru_stime)
    return {name: sorted(all_rounds)[len(all_rounds) // 2] for name, all_rounds in seconds.items()}


if __name__ == "__main__":
    main()
