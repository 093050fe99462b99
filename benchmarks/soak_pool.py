"""Kill workers of builds, and interrupt loops over loaders, at random moments.

    python benchmarks/soak.py pool --count 100 --seed 0 --json FILE

- A build loses workers by SIGKILL until it ends; its shards must have the bytes of a build without a kill.
- A loop over a loader with worker processes gets SIGINT, with its whole process group, as from a terminal. Each must arrive in
  the loop as KeyboardInterrupt. After some of them the loader is closed; after the last one no process of the group may be left.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import harness
import loader_data
import psutil

import tfprep
from tfprep import codecs

BATCH, IMAGES = 8, 150
CLOSED_EVERY = 10
"""Interrupts after which the loader is closed, and the next loop begins with a new one."""
LATEST_S = 60.0
"""Time in which an interrupt must have arrived, and the loader is closed where it is."""
RECIPE = """
import time
from tfprep import Recipe, codecs, derive, sources

def slow(sample, generator):
    time.sleep(0.02)
    return sample["image"][..., 0] // 2

RECIPE = Recipe(
    name="slow", source=sources.Table("samples.csv", "{number}.png", label="label", key="number"), derive={"slow": slow},
    variants={"train": 2}, shards={"train": 30}, seed=3,
    store={"image": codecs.Jpeg(90), "slow": codecs.Png(), "label": codecs.Scalar()},
)
"""


def run(options: Any) -> None:
    if options.part:
        loop(Path(options.part[0]))
        return
    chance, counts = random.Random(options.seed), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        kill_in_builds(Path(temporary), options.count, chance, counts)
        interrupt_loops(Path(temporary), 5 * options.count, chance, counts)
    print(json.dumps(counts, indent=1))
    failed = counts["builds"] != counts["equal builds"] or counts["interrupts"] != counts["arrived"] or counts["left"]
    harness.finish(options, counts, failed=bool(failed))


# --- builds ---------------------------------------------------------------------------------------------------------------


def kill_in_builds(folder: Path, kills: int, chance: random.Random, counts: collections.Counter[str]) -> None:
    (folder / "slow.py").write_text(RECIPE)
    loader_data.raw_files(folder / "raw", IMAGES)
    expected = digests(build(folder, "expected"))
    while counts["kills"] < kills:
        process = start_build(folder, f"out{counts['builds']}")
        while process.poll() is None:
            # A sample whose worker is killed twice in a row would be rejected: kills are further apart than new workers take.
            time.sleep(chance.uniform(1.5, 6.0))
            with suppress(psutil.Error, IndexError):
                chance.choice(psutil.Process(process.pid).children()).kill()
                counts["kills"] += 1
        out = folder / f"out{counts['builds']}"
        counts["builds"] += 1
        has_ended = process.returncode == 0
        counts["given up"] += not has_ended
        counts["rejected samples"] += tfprep.open(out).manifest.rejected if has_ended else 0
        counts["equal builds"] += has_ended and digests(out) == expected
        print(f"{counts['kills']} kills: {counts['equal builds']} of {counts['builds']} builds equal", file=sys.stderr)


def start_build(folder: Path, out: str) -> subprocess.Popen[bytes]:
    places = [str(folder / "slow.py"), "--data", str(folder / "raw"), "--out", str(folder / out)]
    return subprocess.Popen([sys.executable, "-m", "tfprep", "build", *places, "--workers", "2", "--quiet"])


def build(folder: Path, out: str) -> Path:
    assert start_build(folder, out).wait() == 0
    return folder / out


def digests(out: Path) -> list[str]:
    """The digests of the dataset's shards."""
    data = tfprep.open(out)
    files = [file for info in data.manifest.splits.values() for files in info.files for file in files]
    return [hashlib.sha256(data.shard_path(file).read_bytes()).hexdigest() for file in files]


# --- loops ----------------------------------------------------------------------------------------------------------------


def interrupt_loops(folder: Path, interrupts: int, chance: random.Random, counts: collections.Counter[str]) -> None:
    data = loader_data.write(folder / "jpeg", codecs.Jpeg(95), 400)
    command = [sys.executable, harness.SOAK, "pool", "--part", str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    while counts["interrupts"] < interrupts:
        time.sleep(0.005 + chance.random() * 0.1)
        os.killpg(process.pid, signal.SIGINT)
        counts["interrupts"] += 1
        ready, _, _ = select.select([process.stdout], [], [], LATEST_S)  # one that is lost says nothing
        counts["arrived"] += bool(ready) and process.stdout.readline() == "interrupted\n"
    os.kill(process.pid, signal.SIGTERM)
    process.wait()
    end = time.monotonic() + 10
    while (left := group_of(process.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    counts["left"] = len(left)


def group_of(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def loop(path: Path) -> None:
    """Take batches for ever, as the process that is interrupted does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts = 0
    loader = None
    while True:
        try:
            if loader is None:
                loader = tfprep.open(path).numpy_loader("train", BATCH, cache=False, workers="processes", threads=4)
                print("begun", flush=True) if not interrupts else None
            for _ in loader.repeat():
                pass
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts % CLOSED_EVERY == 0 and loader is not None:
                loader.close()
                loader = None
            print("interrupted", flush=True)
