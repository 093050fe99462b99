"""Thousands of iterators that the garbage collector finalises: threads, descriptors and resident memory that they leave.

    python benchmarks/soak.py iterators [--count 10000] [--kinds numpy eager tf.data] [--json soak.json]

Each iterator is kept by a trainer that also keeps a bound method of itself. The garbage collector finalises such a cycle, at
Python's default thresholds: at any allocation, in any thread, so also in a thread that reads for the iterator. The kinds are
iterators of `numpy_loader`, of `loader` in eager code, and of tf.data over `loader`. Each kind runs in a process of its own, over
64 images of 224 x 224 and without a cache, so that threads are at work when their iterator is dropped.

The counts "before" are those after the first tenth of the iterators, when the frameworks have their threads and memory. The exit
status is 1 if threads or descriptors are left, or if an iterator takes longer than five minutes, in which case the stacks of all
threads are printed.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import loader_data
import psutil

import tfprep
from tfprep import codecs

KINDS = ("numpy", "eager", "tf.data")
LEFT = ("threads", "descriptors")
"""Counts that may not grow."""
IMAGES = 64
OPTIONS = {"batch_size": 8, "threads": 4, "prefetch": 2, "cache": False, "workers": "threads"}
STALLED_S = 300.0
"""An iterator takes some milliseconds; this is for machines that are busy, or suspended for a while."""


class Trainer:
    """An iterator in a reference cycle."""

    def __init__(self, iterable: Any) -> None:
        self.batches = iter(iterable)
        self.step = self.take

    def take(self) -> Any:
        return next(self.batches)


def run(options: Any) -> None:
    if options.part:
        print(json.dumps(soak(options.kinds[0], Path(options.part[0]), options.count)))
        return
    results = run_all(options.kinds or list(KINDS), options.count)
    more = [result for result in results.values() for name in LEFT if result["after"][name] > result["before"][name]]
    harness.finish(options, results, failed=more)


def run_all(kinds: list[str], count: int) -> dict[str, Any]:
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        data = loader_data.write(Path(folder) / "raw", codecs.Raw(), IMAGES)
        for kind in kinds:
            command = [
                sys.executable,
                harness.SOAK,
                "iterators",
                "--kinds",
                kind,
                "--count",
                str(count),
                "--part",
                str(data),
            ]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=environment)
            if done.returncode:
                sys.exit(f"{kind}: the process ended with status {done.returncode}")
            results[kind] = result = json.loads(done.stdout.splitlines()[-1])
            columns = [f"{name} {result['before'][name]} -> {result['after'][name]}" for name in result["before"]]
            print(f"{kind:8s} {count} iterators in {result['seconds']:.0f} s: {', '.join(columns)}", flush=True)
    return results


def soak(kind: str, data: Path, count: int) -> dict[str, Any]:
    """Use and drop `count` iterators. Returns the counts after a tenth of them and at the end, and the seconds."""
    dataset = tfprep.open(data)
    loader = dataset.numpy_loader("train", **OPTIONS) if kind == "numpy" else dataset.loader("train", **OPTIONS)
    loader = loader.repeat()  # every iterator reads on until it is dropped
    iterable = {"tf.data": loader, "eager": getattr(loader, "eager", lambda: loader)(), "numpy": loader}[kind]
    start, first = time.monotonic(), max(1, count // 10)
    use(iterable, first)
    before = leftovers(loader)
    gc.freeze()  # Full collections become rarer as the heap grows, and only TensorFlow's modules have a million objects.
    use(iterable, count - first)
    after = leftovers(loader)
    return {"iterators": count, "seconds": time.monotonic() - start, "before": before, "after": after}


def use(iterable: Any, count: int) -> None:
    for number in range(count):
        faulthandler.dump_traceback_later(STALLED_S, exit=True)
        trainer = Trainer(iterable)
        for _ in range(1 + number % 3):  # the threads are at different work when the iterator is dropped
            trainer.step()
    faulthandler.cancel_dump_traceback_later()


def leftovers(loader: Any) -> dict[str, float]:
    """Threads, descriptors and resident MB (10**6 bytes) once nothing is left to collect and no batch is being filled."""
    gc.collect()
    settled(lambda: loader.stats["batches_in_flight"] == 0)
    gc.collect()
    process = psutil.Process()
    return {
        "threads": process.num_threads(),
        "descriptors": process.num_fds(),
        "resident_mb": round(process.memory_info().rss / 1e6, 1),
    }


def settled(condition: Callable[[], bool], timeout_s: float = STALLED_S) -> None:
    """Wait until the condition holds, but not for ever: what is left then shows in the counts."""
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
