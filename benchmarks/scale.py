"""The loader by the number of its workers, where decoding is replaced by a wait of 250 us outside the interpreter's lock.

    python benchmarks/scale.py --workers 2 16 64 --json scale.json

- `images_per_s`: images a second by the number of workers, in processes, with a consumer that does nothing; `threads_per_s`
  the same with threads, for comparison; `waits_per_s` that of processes that only wait, the limit.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
threads, seconds = int(sys.argv[1]), float(sys.argv[2])
counts = [0] * threads
def wait(number):
    while True:
        time.sleep({WAIT_S})
        counts[number] += 1
for number in range(threads):
    threading.Thread(target=wait, args=(number,), daemon=True).start()
time.sleep(0.2)
before, begin = sum(counts), time.perf_counter()
print(flush=True)
time.sleep(seconds)
print((sum(counts) - before) / (time.perf_counter() - begin))
""".replace("{WAIT_S}", str(WAIT_S))


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--workers", type=int, nargs="+", default=[2, 16, 64], help="Numbers of workers to measure")
        parser.add_argument("--data", type=Path, help="Folder where the dataset is made, or lies already")

    numbers = {"images": (4000, "Records of the dataset"), "rounds": (3, "Measured rounds")}
    options = harness.arguments(__doc__, more, **numbers, seconds=(3.0, "Seconds of each measurement"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = loader_data.write((options.data or Path(temporary)) / "jpeg", codecs.Jpeg(95), options.images)
        results = measure(folder, options)
    print(json.dumps(results, indent=1))
    harness.finish(options, results)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    turns: dict[str, Callable[[], float]] = {
        "step_delay": partial(step_delay, folder, "processes", options.seconds),
        "step_delay_threads": partial(step_delay, folder, "threads", options.seconds),
        "step_delay_limit": partial(step_delay_limit, options.seconds),
        "first_batch_s": partial(first_batch_s, folder),
    }
    figures: dict[str, Any] = dict.fromkeys(turns)
    for n in options.workers:
        turns[f"images_per_s {n}"] = partial(images_per_s, folder, "processes", n, options.seconds)
        turns[f"threads_per_s {n}"] = partial(images_per_s, folder, "threads", n, options.seconds)
        turns[f"waits_per_s {n}"] = partial(waits_per_s, n, options.seconds)
    for turn, values in harness.in_turns(turns, options.rounds).items():
        name, _, workers = turn.partition(" ")
        if workers:
            figures.setdefault(name, {})[workers] = round(median(values))
        else:
            figures[name] = round(median(values), 3)
    return figures


def waiting_loader(folder: Path, kind: str, workers: int) -> Any:
    data = tfprep.open(folder)
    data.codecs["image"] = Waiting(95)
    return data.numpy_loader(
        "train", BATCH, workers=kind, threads=workers, cache=False, verify="never", inputs="image", memory_budget="2GB"
    ).repeat()


def started(folder: Path, kind: str, workers: int) -> tuple[Any, Any]:
    """A loader whose workers have all started, and an iterator over it."""
    loader = waiting_loader(folder, kind, workers)
    batches = iter(loader)
    next(batches)
    while kind == "processes" and not loader.report()["workers"]["started"]:
        next(batches)
    for _ in range(2 * workers):  # what threads filled before is behind
        next(batches)
    return loader, batches


def images_per_s(folder: Path, kind: str, workers: int, seconds: float) -> float:
    loader, batches = started(folder, kind, workers)
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        next(batches)
        count += BATCH
    rate = count / (time.perf_counter() - begin)
    loader.close()
    return rate


def step_delay(folder: Path, kind: str, seconds: float) -> float:
    """Measure what the loop's own Python takes beside the loader, against alone. Waits for batches are not counted."""
    alone = python_seconds(lambda: time.sleep(1e-3), seconds / 2)
    loader, batches = started(folder, kind, DELAY_WORKERS)
    beside = python_seconds(lambda: next(batches), seconds / 2)
    loader.close()
    return beside / alone


def step_delay_limit(seconds: float) -> float:
    """The same beside processes that wait and do nothing else."""
    alone = python_seconds(lambda: time.sleep(1e-3), seconds / 2)
    with only_waiting(DELAY_WORKERS, seconds):
        beside = python_seconds(lambda: time.sleep(1e-3), seconds / 2)
    return beside / alone


def waits_per_s(workers: int, seconds: float) -> float:
    """Waits a second of so many threads in processes that do nothing else: the limit of `images_per_s`."""
    with only_waiting(workers, seconds) as processes:
        return sum(float(process.communicate()[0]) for process in processes)


@contextmanager
def only_waiting(workers: int, seconds: float) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of threads that wait, as many of each as a loader of so many workers has, when all of them have begun."""
    count = min(workers, max(2, workers // THREADS_EACH))
    command = [sys.executable, "-c", ONLY_WAITING, str(workers // count), str(seconds)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


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
    loader = waiting_loader(folder, "processes", DELAY_WORKERS)
    begin = time.perf_counter()
    next(iter(loader))
    seconds = time.perf_counter() - begin
    loader.close()
    return seconds


if __name__ == "__main__":
    main()
