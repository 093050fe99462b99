"""Kill worker processes, and trainers, at random moments: every batch is right, or there is a clear error, and nothing is left.

    python benchmarks/soak.py workers --count 50 --seed 0 --json FILE

Each round takes one of the loaders of `OPTIONS`. It kills one worker or all workers with SIGKILL, and compares the batches with
those of threads; or it ends a process that trains, by SIGKILL or as Ctrl-C in a terminal does, with SIGINT to its whole process
group, after which no process of it may be left. At the end the counts are printed, and no more descriptors and shared memory may
be in use than at the beginning.
"""

from __future__ import annotations

import collections
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import harness
import loader_data
import numpy as np
import psutil

import tfprep
from tfprep import Recipe, augment, codecs, sources
from tfprep.load.reader.workers import ENTRY

BATCH, IMAGES = 32, 1000
STEPS = 40
MOST_DESCRIPTORS = 4
"""Descriptors that Python itself may open meanwhile."""
OPTIONS: dict[str, dict[str, Any]] = {
    "jpeg": {"inputs": "image", "targets": "label"},
    "cropped": {"fields": ["image", "caption", "key"], "geometry": [augment.Crop(90, 90)]},
    "at load": {
        "fields": ["image", "caption", "label"], "geometry": [augment.Flip(), augment.Crop(100, 100)],
        "mix": [augment.MixUp(0.4), augment.CutMix()],
    },
    "damaged": {"fields": ["image", "caption", "key"], "geometry": [augment.Crop(90, 90)], "on_bad": "skip"},
    "cached text": {"fields": ["image", "caption", "key"], "cache": "decoded", "prefetch": 4},
}  # fmt: skip


def run(options: Any) -> None:
    if options.part:
        train(*options.part)
        return
    chance, counts = random.Random(options.seed), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        uneven = write_captioned(Path(temporary) / "uneven", IMAGES)
        folders = dict.fromkeys(OPTIONS, uneven)
        folders["jpeg"] = loader_data.write(Path(temporary) / "jpeg", codecs.Jpeg(95), IMAGES)
        folders["damaged"] = write_captioned(Path(temporary) / "damaged", IMAGES)
        damage(folders["damaged"])
        folders["cached text"] = write_captioned(Path(temporary) / "even", IMAGES // 4, even=True)
        before = left()
        for number in range(options.count):
            loader = list(OPTIONS)[number % len(OPTIONS)]
            folder = folders[loader]
            whom = chance.choice(["one worker", "all workers", "the trainer", "the trainer by Ctrl-C"])
            if "trainer" in whom:
                end_trainer(folder, loader, chance, signal.SIGINT if "Ctrl-C" in whom else signal.SIGKILL)
            else:
                counts["deaths"] += kill_workers(folder, loader, chance, everyone=whom == "all workers")
            counts[whom] += 1
            counts[loader] += 1
            assert not workers_of(os.getpid()), "a worker process is left"
    gc.collect()
    after = left()
    counts.update({f"{name} left": number - before[name] for name, number in after.items()})
    print(dict(counts))
    assert after["descriptors"] <= before["descriptors"] + MOST_DESCRIPTORS, "descriptors are left"
    assert after["shared bytes"] <= before["shared bytes"], "shared memory is left"
    harness.finish(options, counts)


def left() -> dict[str, int]:
    """Count what may not grow: open descriptors, and bytes of the anonymous files that are still open or mapped."""
    maps = [part for part in psutil.Process().memory_maps() if "memfd:tfprep" in part.path]
    return {"descriptors": len(os.listdir("/proc/self/fd")), "shared bytes": sum(part.rss for part in maps)}


def write_captioned(folder: Path, images: int, *, even: bool = False) -> Path:
    """Builds a dataset of images of 100 to 227 pixels a side, or of 100 with `even`, with texts of up to 600 bytes."""
    raw, rows = folder / "raw", []
    raw.mkdir(parents=True)
    for number, image in enumerate(loader_data.images(images)):
        size = (100, 100) if even else (100 + number * 37 % 128, 100 + number * 53 % 128)
        cv2.imwrite(str(raw / f"{number}.png"), cv2.resize(image, size))
        rows.append({"path": f"{number}.png", "class": f"class {number % 3}", "caption": "é" * (number * 7 % 300)})
    (raw / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = Recipe(
        name="uneven",
        source=sources.Table("table.jsonl", image="path", label="class", fields={"caption": ("text", "caption")}),
        store={"image": codecs.Jpeg(95), "label": codecs.Scalar(), "caption": codecs.Text()},
    )
    tfprep.build(recipe, folder / "built", raw)
    return folder / "built"


def damage(folder: Path) -> None:
    """Changes bytes of every 20th record of the training split."""
    data = tfprep.open(folder)
    places = data.index("train", 0, ["shard", "image_offset"]).to_pylist()
    for place in places[::20]:
        with data.shard_path(data.file("train", 0, place["shard"])).open("r+b") as file:
            file.seek(place["image_offset"] + 30)
            file.write(b"\x00\xff\x00")


def workers_of(parent: int) -> list[psutil.Process]:
    """The worker processes of a process, but for those that have ended."""
    children = psutil.Process(parent).children()
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE and ENTRY in child.cmdline()]


def loader_of(folder: Path, name: str, workers: str) -> Any:
    """The loader of this name, with threads or processes."""
    options = {"seed": 1, "cache": False, "threads": 4, **OPTIONS[name]}
    return tfprep.open(folder).numpy_loader("train", BATCH, workers=workers, **options)


def train(folder: str, name: str) -> None:
    """Train, as the process that is ended does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = loader_of(Path(folder), name, "processes")
    for _ in loader.repeat():
        if loader.report()["workers"]["started"]:
            print("reading", flush=True)


def kill_workers(folder: Path, name: str, chance: random.Random, *, everyone: bool) -> int:
    """Compare some batches while workers are killed; how many died."""
    loader, expected = loader_of(folder, name, "processes"), loader_of(folder, name, "threads")
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
    ours, theirs = (list(part.values()) if isinstance(part, dict) else part for part in (batch, other))
    for values, expected in zip(ours, theirs, strict=True):
        assert len(values) == len(expected)
        same = all(np.array_equal(one, another) for one, another in zip(values, expected, strict=True))
        assert same, f"another batch at step {step}"


def end_trainer(folder: Path, name: str, chance: random.Random, number: signal.Signals) -> None:
    """End a process that trains; its workers must end by themselves, and Ctrl-C must arrive as KeyboardInterrupt."""
    command = [sys.executable, harness.SOAK, "workers", "--part", str(folder), name]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as trainer:
        assert trainer.stdout is not None
        if number == signal.SIGINT or chance.random() < 0.8:  # else while the workers start
            trainer.stdout.readline()
        time.sleep(chance.random() * 0.5)
        workers = workers_of(trainer.pid)
        if number == signal.SIGINT:
            os.killpg(trainer.pid, number)
        else:
            trainer.send_signal(number)
        _, errors = trainer.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors or number == signal.SIGKILL, errors
    end = time.monotonic() + 10
    while any(worker.is_running() for worker in workers) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(worker.is_running() for worker in workers), "a worker process outlives the process that trains"
