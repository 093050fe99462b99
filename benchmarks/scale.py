"""The loader by the number of its workers, where decoding is replaced by a wait of 250 us outside the interpreter's lock.

    python benchmarks/scale.py --workers 2 16 64 --json scale.json

- `images_per_s`: images a second by the number of workers, in processes, with a consumer that does nothing.
- `step_delay`: 0.4 ms of Python in the training loop beside 16 workers, against the same loop with a batch that is there
  already: the median of the ratio over the rounds. `step_delay_limit` is the same beside 16 threads of four processes that
  only wait, without a loader: what a machine of few cores loses to wake-ups alone.
- `first_batch_s`: seconds from `iter(loader)` to the first batch, the median over new loaders.

Rounds are interleaved. The batches are 64 images of 224 x 224, so every worker has rows to work on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import harness
import loader_data
from waiting import WAIT_S, Waiting

import tfprep
from tfprep import codecs
from tfprep.load.workers import THREADS_EACH

BATCH = 64
STEP_S = 0.4e-3
DELAY_WORKERS = 16
ONLY_WAITING = """
import sys, threading, time
def wait():
    while True:
        time.sleep(float(sys.argv[2]))
for _ in range(int(sys.argv[1])):
    threading.Thread(target=wait, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


def main() -> None:
    options = harness.arguments(
        __doc__ or "", workers=([2, 16, 64], "Numbers of workers to measure"), images=(4000, "Records of the dataset"),
        rounds=(3, "Measured rounds"), seconds=(3.0, "Seconds of each measurement"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        folder = loader_data.write(Path(temporary) / "jpeg", codecs.Jpeg(95), options.images)
        results = measure(folder, options)
    print(json.dumps(results, indent=1))
    harness.finish(options, results)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    turns: dict[str, Callable[[], float]] = {
        "step_delay": partial(step_delay, folder, options.seconds),
        "step_delay_limit": partial(step_delay_limit, options.seconds),
        "first_batch_s": partial(first_batch_s, folder),
        **{f"images_per_s {n}": partial(images_per_s, folder, n, options.seconds) for n in options.workers},
    }
    figures: dict[str, Any] = {"images_per_s": {}}
    for turn, values in harness.in_turns(turns, options.rounds).items():
        name, _, workers = turn.partition(" ")
        if workers:
            figures[name][workers] = round(median(values))
        else:
            figures[name] = round(median(values), 3)
    return figures


def waiting_loader(folder: Path, workers: int) -> Any:
    data = tfprep.open(folder)
    data.codecs["image"] = Waiting(95)
    return data.numpy_loader(
        "train",
        BATCH,
        workers="processes",
        threads=workers,
        cache=False,
        verify="never",
        inputs="image",
        memory_budget="2GB",
    ).repeat()


def started(folder: Path, workers: int) -> tuple[Any, Any]:
    """A loader whose workers have all started, and an iterator over it."""
    loader = waiting_loader(folder, workers)
    batches = iter(loader)
    next(batches)
    while not loader.report()["workers"]["started"]:
        next(batches)
    for _ in range(2 * workers):  # what threads filled before is behind
        next(batches)
    return loader, batches


def images_per_s(folder: Path, workers: int, seconds: float) -> float:
    loader, batches = started(folder, workers)
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        next(batches)
        count += BATCH
    rate = count / (time.perf_counter() - begin)
    loader.close()
    return rate


def step_delay(folder: Path, seconds: float) -> float:
    """Measure what the loop's own Python takes beside the loader, against alone. Waits for batches are not counted."""
    alone = python_seconds(lambda: time.sleep(1e-3), seconds / 2)
    loader, batches = started(folder, DELAY_WORKERS)
    beside = python_seconds(lambda: next(batches), seconds / 2)
    loader.close()
    return beside / alone


def step_delay_limit(seconds: float) -> float:
    """The same beside processes of threads that wait and do nothing else, as many of each as a loader of so many workers has."""
    alone = python_seconds(lambda: time.sleep(1e-3), seconds / 2)
    count = max(2, DELAY_WORKERS // THREADS_EACH)
    command = [sys.executable, "-c", ONLY_WAITING, str(DELAY_WORKERS // count), str(WAIT_S)]
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        return python_seconds(lambda: time.sleep(1e-3), seconds / 2) / alone


def python_seconds(wait: Any, seconds: float) -> float:
    """The mean of how long the fixed piece of Python takes, with `wait` called in between."""
    rounds = _rounds()
    spent, steps, end = 0.0, 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        wait()
        begin = time.perf_counter()
        _python(rounds)
        spent += time.perf_counter() - begin
        steps += 1
    return spent / steps


def _rounds() -> int:
    """Rounds of `_python` that take `STEP_S` with nothing else to do."""
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        _python(1000)
        times.append(time.perf_counter() - begin)
    return max(1, round(1000 * STEP_S / min(times)))


def _python(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number
    return total


def first_batch_s(folder: Path) -> float:
    loader = waiting_loader(folder, DELAY_WORKERS)
    begin = time.perf_counter()
    next(iter(loader))
    seconds = time.perf_counter() - begin
    loader.close()
    return seconds


if __name__ == "__main__":
    main()
