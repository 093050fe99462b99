"""The loader by the number of its workers, where decoding is replaced by a wait of 250 us outside the interpreter's lock.

    python benchmarks/scale.py --workers 2 16 64 --json scale.json

- `images_per_s`: images a second by the number of workers, in processes, with a consumer that does nothing.
- `waits_per_s`: waits a second of the same number of threads in processes that only wait: the limit of `images_per_s`.
- `share`: the first as a share of the second, the median over the rounds.

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
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import harness
import loader_data
from waiting import WAIT_S, Waiting

import tfprep
from tfprep import codecs

BATCH = 64
THREADS_EACH = 8
"""Threads of a process that only waits."""
ONLY_WAITING = """
import sys, threading, time
threads, wait_s, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
counts = [0] * threads
def wait(number):
    while True:
        time.sleep(wait_s)
        counts[number] += 1
for number in range(threads):
    threading.Thread(target=wait, args=(number,), daemon=True).start()
time.sleep(0.2)
before, begin = sum(counts), time.perf_counter()
print(flush=True)
time.sleep(seconds)
print((sum(counts) - before) / (time.perf_counter() - begin))
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
        **{f"images_per_s {n}": partial(images_per_s, folder, n, options.seconds) for n in options.workers},
        **{f"waits_per_s {n}": partial(waits_per_s, n, options.seconds) for n in options.workers},
    }
    figures: dict[str, Any] = {"images_per_s": {}, "waits_per_s": {}}
    rounds = harness.in_turns(turns, options.rounds)
    figures["share"] = {
        n: round(median(map(truediv, rounds[f"images_per_s {n}"], rounds[f"waits_per_s {n}"])), 3)
        for n in options.workers
    }
    for turn, values in rounds.items():
        name, _, workers = turn.partition(" ")
        figures[name][workers] = round(median(values))
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
    for _ in range(2 * workers):  # past what threads have filled before
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


def waits_per_s(workers: int, seconds: float) -> float:
    """Waits a second of processes that do nothing else, counted from when all have begun."""
    count = min(workers, max(2, workers // THREADS_EACH))
    command = [sys.executable, "-c", ONLY_WAITING, str(workers // count), str(WAIT_S), str(seconds)]
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            processes.append(stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE)))
            stack.callback(processes[-1].kill)
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        return sum(float(process.communicate()[0]) for process in processes)


if __name__ == "__main__":
    main()
