"""Images per second from an object store, by its latency, in both orders.

Run: python benchmarks/remote.py [--images 3000] [--side 224] [--latency 1 10 30 100] [--seconds 4] [--rounds 3]
     [--only NAME ...] [--json FILE]

A server in a process of its own (`store_server.py`) sends a dataset of photo-like JPEG images of `--side` pixels (14 kB each at
224) in 8 shards, which every candidate decodes to batches of 64. In each round every candidate runs for some seconds, after the
same time to fill its buffers; figures are medians over the rounds, with the cores that the whole machine, and the server, took
meanwhile: on a machine that does nothing else, all cores together are what limits a candidate that takes all of them.

- "limit": 16 threads fetch ranges of 8 MB and decode nothing: what this server sends.
- "sequential", "global": numpy_loader without a cache and with memory_budget="512MB".
- "folder": global order from a local folder.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import loader_data
import psutil

import tfprep
from tfprep import Recipe, codecs, sources
from tfprep.storage.store import open_store

Begin = Callable[[], Iterator[int]]
BATCH = 64
RANGE_BYTES = 8 << 20
THREADS = 16
"""Connections of the candidates that fetch ranges of `RANGE_BYTES`: 128 MB in flight."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "",
        images=(3000, "Images of the dataset"), side=(224, "Pixels of an image's side, 224 at most"),
        latency=([1.0, 10.0, 30.0, 100.0], "Latencies in milliseconds"),
        seconds=(4.0, "Measured seconds per candidate and round"), rounds=(3, "Rounds"),
        only=([], "Names of the candidates to measure"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        facts: dict[str, Any] = {"rates": {}, "image_bytes": prepare(folder, options.images, options.side)}
        for latency in options.latency:
            with harness.store(folder, latency) as (server_id, environment):
                os.environ.update(environment)
                rates = measured(of_s3(folder, facts["image_bytes"]), options, psutil.Process(server_id))
            facts["rates"][f"{latency:g} ms"] = rates
            shown = "  ".join(f"{name} {value['images_per_s']:,.0f}" for name, value in rates.items())
            print(f"{latency:g} ms: {shown} images/s", flush=True)
    assert threading.active_count() < 50, "threads of a candidate are still at work"
    harness.finish(options, facts)


# --- the server's data and the candidates ------------------------------------------------------------------------------


def prepare(folder: Path, count: int, side: int) -> float:
    """Write the dataset; return the bytes of an image."""
    raw = folder / "raw"
    raw.mkdir()
    for number, image in enumerate(loader_data.images(count)):
        (raw / f"{number:06d}.jpg").write_bytes(codecs.Jpeg(95).encode(image[:side, :side])[""])
    recipe = Recipe("bench", sources.Folder("*.jpg"), {"image": codecs.Original()}, shards={"train": 8})
    tfprep.build(recipe, folder / "data", raw)
    return tfprep.open(folder / "data").splits["train"].bytes / count


def of_s3(folder: Path, image_bytes: float) -> dict[str, Begin]:
    place = "s3://bench/data"
    return {
        "limit": lambda: ranges(place, image_bytes),
        "sequential": lambda: loader(place, order="sequential"),
        "global": lambda: loader(place),
        "folder": lambda: loader(str(folder / "data")),
    }


# --- the candidates: functions that yield numbers of decoded images, batch by batch -------------------------------------


def ranges(place: str, image_bytes: float) -> Iterator[int]:
    """Ranges of `RANGE_BYTES` by `THREADS` threads, as the number of images of that size."""
    data = tfprep.open(place)
    read = open_store(data.shards_folder).read
    files = [file for files in data.splits["train"].files for file in files]
    parts = [
        (f.name, start, min(start + RANGE_BYTES, f.bytes)) for f in files for start in range(0, f.bytes, RANGE_BYTES)
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        while True:
            for size in pool.map(lambda part: len(read(*part)), parts * 8):
                yield round(size / image_bytes)


def loader(place: str, **options: Any) -> Iterator[int]:
    """Batches of NumPy arrays."""
    options = {"cache": False, "memory_budget": "512MB", "seed": 1, "workers": "threads", **options}
    with closing(tfprep.open(place).numpy_loader("train", BATCH, **options).repeat()) as batches:
        for batch in batches:
            yield len(batch["image"])


# --- the measurement ---------------------------------------------------------------------------------------------------


def measured(chosen: dict[str, Begin], options: argparse.Namespace, server: psutil.Process) -> dict[str, Any]:
    """Medians of each candidate, and the rates of all rounds."""
    turns = {
        name: partial(measure, begin, options.seconds, server)
        for name, begin in chosen.items()
        if not options.only or name in options.only
    }
    return {
        name: {key: median(run[key] for run in runs) for key in runs[0]}
        | {"rounds": [run["images_per_s"] for run in runs]}
        for name, runs in harness.in_turns(turns, options.rounds).items()
    }


def measure(begin: Begin, seconds: float, server: psutil.Process) -> dict[str, float]:
    """Images per second over `seconds`, after the same time that does not count, and the cores that were busy meanwhile."""
    with closing(begin()) as batches:  # type: ignore[type-var]
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            next(batches)
        count, began, machine, of_server = 0, time.perf_counter(), busy_s(), sum(server.cpu_times()[:2])
        while time.perf_counter() < began + seconds:
            count += next(batches)
        took = time.perf_counter() - began
        cores, of_server = (busy_s() - machine) / took, (sum(server.cpu_times()[:2]) - of_server) / took
        return {"images_per_s": count / took, "cores": cores, "server_cores": of_server}


def busy_s() -> float:
    """The processor time that the machine's processes have taken."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq


if __name__ == "__main__":
    main()
