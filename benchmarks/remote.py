"""Images per second from an object store, by its latency, in the three orders and with the local cache, beside tf.data.

Run: python benchmarks/remote.py [--images 3000] [--side 224] [--latency 1 10 30 100] [--seconds 4] [--rounds 3]
     [--only NAME ...] [--camvid FOLDER] [--json FILE]

A server in a process of its own (`store_server.py`) sends a dataset of photo-like JPEG images of `--side` pixels (14 kB each at
224) in 8 shards, which every candidate decodes to batches of 64. In each round every candidate runs for some seconds, after
as many to fill its buffers; figures are medians over the rounds, with the cores that the whole machine, and the server, took
meanwhile: on a machine that does nothing else, all cores together are what limits a candidate that takes all of them.

- "limit": 16 threads fetch ranges of 8 MB and decode nothing: what this server sends.
- "sequential", "block" (of 256 records), "global": numpy_loader without a cache and with memory_budget="512MB". The dataset is so
  small that "global" fetches all of it; in one of many GB, hardly two records that are needed together are side by side.
- "cache": global order, all shards in the local cache; "folder": the same from a local folder.
- "tf.data": its performance guide as far as an object store lets it (TensorFlow 2.21 has no file system for s3://): ranges of
  8 MB are fetched with obstore in a parallel interleave, the records of 16 of them are mixed and go through a shuffle buffer,
  and decoding is a parallel map.

With `--camvid`, the server sends the dataset of pipelines/camvid_clicks.py instead, raw as the recipe says and with all rasters
as `Zstd`: "raw block" and "Zstd block" from the server, "raw folder" and "Zstd folder" from the disk, and what an epoch fetches.
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
import numpy as np
import psutil

import tfprep
from tfprep import Recipe, codecs, sources
from tfprep.storage.store import open_store

Begin = Callable[[], Iterator[int]]
BATCH = 64
RANGE_BYTES = 8 << 20
THREADS = 16
"""Connections of the candidates that fetch ranges of `RANGE_BYTES`: 128 MB in flight."""
BLOCKS: dict[str, Any] = {"order": "block", "block": 64, "window": 4}


def main() -> None:
    options = harness.arguments(
        __doc__ or "",
        images=(3000, "Images of the dataset"), side=(224, "Pixels of an image's side, 224 at most"),
        latency=([1.0, 10.0, 30.0, 100.0], "Latencies in milliseconds"),
        seconds=(4.0, "Measured seconds per candidate and round"), rounds=(3, "Rounds"),
        only=([], "Names of the candidates to measure"),
        camvid=(Path, "Folder of CamVid: serve it, raw and as Zstd"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        facts: dict[str, Any] = {"rates": {}}
        if options.camvid:
            prepare_forms(folder, options.camvid)
        else:
            facts["image_bytes"] = prepare(folder, options.images, options.side)
        for latency in options.latency:
            with harness.store(folder, latency) as (server_id, environment):
                os.environ.update(environment)
                if options.camvid:
                    chosen = of_forms(folder)
                    facts["epoch"] = {form: fetched(form) for form in ("raw", "Zstd")}
                else:
                    chosen = of_s3(folder, facts["image_bytes"])
                rates = measured(chosen, options, psutil.Process(server_id))
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
        "block": lambda: loader(place, order="block", block=256, window=4),
        "global": lambda: loader(place),
        "cache": lambda: with_local_cache(place, folder / "cache"),
        "folder": lambda: loader(str(folder / "data")),
        "tf.data": lambda: tf_data(place),
    }


def prepare_forms(folder: Path, camvid: Path) -> None:
    from story import RECIPE, as_zstd

    tfprep.build(RECIPE, folder / "raw", camvid)
    tfprep.build(as_zstd(RECIPE, camvid), folder / "Zstd", camvid)


def of_forms(folder: Path) -> dict[str, Begin]:
    return {
        f"{form} {where}": partial(loader, place, **BLOCKS, memory_budget="2GB")
        for form in ("raw", "Zstd")
        for where, place in (("block", f"s3://bench/{form}"), ("folder", str(folder / form)))
    }


def fetched(form: str) -> dict[str, float]:
    """What an epoch fetches."""
    data = tfprep.open(f"s3://bench/{form}")
    with closing(data.numpy_loader("train", BATCH, **BLOCKS, cache=False)) as loader:
        figures: dict[str, float] = loader.report()["fetching"]
    return figures


# --- the candidates: functions that yield numbers of decoded images, batch by batch -------------------------------------


def ranges(place: str, image_bytes: float) -> Iterator[int]:
    """Ranges of `RANGE_BYTES` by `THREADS` threads, as the number of images that have so many bytes."""
    read = open_store(place).read
    files = [file for files in tfprep.open(place).splits["train"].files for file in files]
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


def with_local_cache(place: str, folder: Path) -> Iterator[int]:
    """The loader with all shards in the local cache."""
    with closing(tfprep.open(place).numpy_loader("train", BATCH, cache=False, workers="threads", local=folder)) as cold:
        next(iter(cold))
        while cold.report()["local"]["hits"] < 1.0:
            time.sleep(0.05)
    yield from loader(place, local=folder)


def tf_data(place: str) -> Iterator[int]:
    """Ranges of shards in random order, mixed as tf.data's guide advises."""
    import tensorflow as tf

    store = open_store(place)
    names, shard, offset, size = _images(place)
    last = np.r_[np.flatnonzero(np.diff(shard) | np.diff(offset // RANGE_BYTES)), len(shard) - 1]
    first = np.r_[0, last[:-1] + 1]

    def fetch(begin: Any, end: Any) -> Any:
        start, spans = int(offset[begin]), zip(offset[begin : end + 1], size[begin : end + 1], strict=True)
        content = store.read(names[shard[begin]], start, int(offset[end] + size[end]))
        images = [bytes(content[at - start : at - start + length]) for at, length in spans]
        return np.array(images, object)

    def records(begin: Any, end: Any) -> Any:
        content = tf.numpy_function(fetch, [begin, end], tf.string)
        return tf.data.Dataset.from_tensor_slices(tf.ensure_shape(content, [None]))

    parts = tf.data.Dataset.from_tensor_slices((first, last)).shuffle(len(first)).repeat()
    mixed = parts.interleave(
        records, cycle_length=THREADS, block_length=8, num_parallel_calls=THREADS, deterministic=False
    )
    yield from _decoded(mixed.shuffle(1000))


def _images(place: str) -> tuple[list[str], Any, Any, Any]:
    """The names of the shards, and the shard, offset and size of each image's bytes, in the order of the shards."""
    data = tfprep.open(place)
    index = data.index("train", 0, ["shard", "image_offset", "image_size"])
    columns = [index.column(name).to_numpy().astype(np.int64) for name in ("shard", "image_offset", "image_size")]
    order = np.lexsort((columns[1], columns[0]))
    return ([file.name for file in data.splits["train"].files[0]], *(column[order] for column in columns))


def _decoded(contents: Any) -> Iterator[int]:
    import tensorflow as tf

    def decode(content: Any) -> Any:
        return tf.io.decode_jpeg(content, channels=3, dct_method="INTEGER_ACCURATE")

    auto, options = tf.data.AUTOTUNE, tf.data.Options()
    options.threading.private_threadpool_size = 64  # Python functions that wait for the store take a thread each
    batches = contents.map(decode, num_parallel_calls=auto, deterministic=False).batch(BATCH).prefetch(auto)
    for images in batches.with_options(options):
        yield int(images.shape[0])


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
    """Images per second over `seconds`, after as many that are not counted, and the cores that were busy meanwhile."""
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
