"""Kill worker processes, and trainers, at random moments: every batch is right, or there is a clear error, and nothing is left.

    python benchmarks/soak_workers.py --rounds 50 --seed 0

Each round kills with SIGKILL one worker, all workers, or the process that trains. After a killed worker, the batches are
compared with those of threads. After a killed trainer, no process of it may be left. The counts are printed at the end.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import loader_data
import numpy as np
import psutil

import tfprep
from tfprep import codecs
from tfprep.load.reader.worker_handle import PROGRAM

BATCH = 32
STEPS = 40
OPTIONS = {"seed": 1, "cache": False, "inputs": "image", "targets": "label"}
TRAINER = f"""
import sys, tfprep
loader = tfprep.open(sys.argv[1]).numpy_loader("train", {BATCH}, workers="processes", threads=4, **{OPTIONS!r})
for batch in loader.repeat():
    if loader.report()["workers"]["started"]:
        print("reading", flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=1000, help="Records of the dataset")
    options = parser.parse_args()
    chance, counts = random.Random(options.seed), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = loader_data.write(Path(temporary) / "jpeg", codecs.Jpeg(95), options.images)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(options.rounds):
            whom = chance.choice(["one worker", "all workers", "the trainer"])
            if whom == "the trainer":
                kill_trainer(folder, chance)
            else:
                counts["deaths"] += kill_workers(folder, chance, everyone=whom == "all workers")
            counts[whom] += 1
            assert not workers_of(os.getpid()), "a worker process is left"
    counts["descriptors left"] = len(os.listdir("/proc/self/fd")) - before
    print(dict(counts))


def workers_of(parent: int) -> list[psutil.Process]:
    """The worker processes of a process, but for those that have ended."""
    children = psutil.Process(parent).children()
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE and PROGRAM in child.cmdline()]


def kill_workers(folder: Path, chance: random.Random, *, everyone: bool) -> int:
    """Compare some batches while workers are killed; how many died."""
    data = tfprep.open(folder)
    loader = data.numpy_loader("train", BATCH, workers="processes", threads=4, **OPTIONS)
    expected = data.numpy_loader("train", BATCH, workers="threads", **OPTIONS)
    moments = set(chance.sample(range(STEPS), 3))
    for step, (batch, other) in enumerate(zip(loader.repeat(), expected.repeat(), strict=False)):
        if step in moments:
            time.sleep(chance.random() * 0.2)
            kill(workers_of(os.getpid()), chance, everyone=everyone)
        compare(batch, other, step)
        if step == STEPS:
            break
    deaths = len(loader.report()["workers"]["deaths"])
    loader.close()
    expected.close()
    return deaths


def kill(workers: list[psutil.Process], chance: random.Random, *, everyone: bool) -> None:
    for worker in workers if everyone else chance.sample(workers, min(1, len(workers))):
        worker.kill()


def compare(batch: Any, other: Any, step: int) -> None:
    for ours, theirs in zip(batch, other, strict=True):
        assert np.array_equal(ours, theirs), f"another batch at step {step}"


def kill_trainer(folder: Path, chance: random.Random) -> None:
    """Kill a process that trains; its workers must end by themselves."""
    with subprocess.Popen([sys.executable, "-c", TRAINER, str(folder)], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        if chance.random() < 0.8:  # else while the workers start
            trainer.stdout.readline()
        time.sleep(chance.random() * 0.5)
        workers = workers_of(trainer.pid)
        trainer.send_signal(signal.SIGKILL)
    end = time.monotonic() + 10
    while any(worker.is_running() for worker in workers) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(worker.is_running() for worker in workers), "a worker process outlives the process that trains"


if __name__ == "__main__":
    main()
