"""Preparation of the photos and measurement, which are the same for all peers; run.py runs this script for each of them.

The module of a peer, `peer_NAME.py`, says how that is used:

- `build(items, out, form)` writes every prepared item to the folder `out`; `form` is "jpeg" or "raw";
- `load(out, form, batch_size, workers)` returns an endless iterable of shuffled batches (images uint8 [B, 224, 224, 3], labels).

A peer of `SAME_DATASET` is the function `NAME` of another peer's module, in the place of `load`.

Each of them runs in a new process, so that the threads, memory and imports of one library do not affect the figures of another.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np
import simplejpeg

from tfprep.bench.rounds import Budget, Candidate, Meter, measure

SIDE, CROP, QUALITY, BATCH, SHARDS = 256, 224, 95, 64, 8
WARM_UP_S = 2.0
"""Time after the first batch that does not count: workers start and tf.data tunes its parallelism."""
SAME_DATASET = {"tfprep_processes": "tfprep", "tf_dataset": "tfprep"}
"""Peers that read the dataset that another one builds."""
Item: TypeAlias = tuple[str, int]
Build: TypeAlias = Callable[[Sequence[Item], Path, str], None]
Write: TypeAlias = Callable[[Item, int, Path, str], None]
WriteShard: TypeAlias = Callable[[Sequence[Item], Path, str], None]
Load: TypeAlias = Callable[[Path, str, int, int], Iterable[Any]]


def items_of(folder: Path) -> list[Item]:
    """(path, class number) of every photo in the class folders of `folder`, ordered by name."""
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    return [(str(path), number) for number, name in enumerate(classes) for path in sorted((folder / name).iterdir())]


def prepared(path: str) -> Any:
    """uint8 [224, 224, 3]: the photo with its shorter side scaled to 256 by area averaging, cropped at the center."""
    cv2.setNumThreads(0)
    pixels = cv2.cvtColor(cv2.imread(path, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    height, width = pixels.shape[:2]
    scale = SIDE / min(height, width)
    size = (max(CROP, round(width * scale)), max(CROP, round(height * scale)))
    pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    top, left = (pixels.shape[0] - CROP) // 2, (pixels.shape[1] - CROP) // 2
    return np.ascontiguousarray(pixels[top : top + CROP, left : left + CROP])


def encoded(path: str, form: str) -> bytes:
    """A prepared photo as JPEG of quality 95, or as raw bytes."""
    pixels = prepared(path)
    return pixels.tobytes() if form == "raw" else simplejpeg.encode_jpeg(pixels, QUALITY, "RGB", "420")


def in_class_folders(write: Write, items: Sequence[Item], out: Path, form: str) -> None:
    """Makes a folder for each class and calls `write(item, number, out, form)` for every item, in a pool of processes."""
    for label in {label for _, label in items}:
        (out / f"{label:05d}").mkdir(parents=True)
    with Pool() as pool:
        pool.starmap(write, [(item, number, out, form) for number, item in enumerate(items)], chunksize=8)


def in_shards(write: WriteShard, items: Sequence[Item], out: Path, suffix: str, form: str) -> None:
    """Calls `write(items, path, form)` for 8 files that share the items, in a pool of processes."""
    out.mkdir(parents=True)
    with Pool() as pool:
        pool.starmap(write, [(items[n::SHARDS], out / f"{n:03d}.{suffix}", form) for n in range(SHARDS)])


def decode_into(row: Any, content: Any, form: str) -> None:
    """The pixels of an encoded photo, into uint8 [224, 224, 3] that is already a part of the batch. The decoder is the one of
    tfprep, so that decoding takes the same time for all peers."""
    if form == "raw":
        row.reshape(-1)[:] = np.frombuffer(content, np.uint8)
    else:
        simplejpeg.decode_jpeg(content, "RGB", buffer=row)


def forever(epoch: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The batches of one epoch after another, without end."""
    while True:
        yield from epoch()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer")
    parser.add_argument("what", choices=["build", "load"])
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--form", choices=["jpeg", "raw"], required=True)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    peer = importlib.import_module(f"peer_{SAME_DATASET.get(options.peer, options.peer)}")
    load = getattr(peer, options.peer if options.peer in SAME_DATASET else "load")
    print(json.dumps(_built(peer.build, options) if options.what == "build" else _loaded(load, options)))


def _built(build: Build, options: argparse.Namespace) -> dict[str, float]:
    items = items_of(options.photos)
    with Meter() as meter:
        build(items, options.out, options.form)
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    return {
        "images_per_s": len(items) / meter.used.seconds,
        "cpu_ms": 1000 * meter.used.cpu_s / len(items),
        "rss_mb": meter.used.rss_peak / 1e6,
        "bytes_an_image": size / len(items),
    }


def _loaded(load: Load, options: argparse.Namespace) -> dict[str, float]:
    def begin() -> Iterator[Any]:
        """The batches, if they have the number of images and labels that all peers deliver, as uint8."""
        for images, labels in load(options.out, options.form, BATCH, len(os.sched_getaffinity(0))):
            assert tuple(images.shape) == (BATCH, CROP, CROP, 3), images.shape
            assert "uint8" in str(images.dtype), images.dtype
            assert len(labels) == BATCH, len(labels)
            yield images, labels

    started = time.perf_counter()
    measurement = measure(Candidate("peer", begin), Budget(1, options.seconds, WARM_UP_S, least_batches=8))
    return {
        "images_per_s": measurement.images_per_s,
        "cpu_ms": measurement.cpu_ms,
        "rss_mb": measurement.used.rss_peak / 1e6,
        "first_batch_s": measurement.first_batch_s,
        "others": measurement.used.others or 0.0,
        "wall_s": time.perf_counter() - started,
    }


if __name__ == "__main__":
    main()
