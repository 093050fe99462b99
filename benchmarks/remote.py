"""Images per second from an object store, by its latency, in the three orders and with the local cache, beside other pipelines.

Run: python benchmarks/remote.py [--images 3000] [--side 224] [--latency 1 10 30 100] [--seconds 4] [--rounds 3]
     [--only NAME ...] [--streaming PYTHON] [--camvid FOLDER] [--json FILE]

A server in a process of its own (`store_server.py`) sends a dataset of photo-like JPEG images of `--side` pixels (14 kB each at
224) in 8 shards, which every candidate decodes to batches of 64. In each round every candidate runs for some seconds, after
as many to fill its buffers; figures are medians over the rounds, and how many cores the whole machine, and of it the server, took
meanwhile: on a machine that does nothing else, all cores together are what limits a candidate that takes all of them.

- "limit": 16 threads fetch ranges of 8 MB and decode nothing: what this server sends.
- "sequential", "block" (of 256 records), "global": numpy_loader without a cache and with memory_budget="512MB".
- "global apart": global order where hardly two records that are needed together lie side by side, as in a dataset of many GB. The
  dataset here is so small that "global" fetches all of it.
- "cache": global order, all shards in the local cache; "folder": the same from a local folder.
- "tf.data", "tf.data records": see `remote_candidates.py`.
- "streaming": MosaicML Streaming from MDS shards on the same server, by a Python that has mosaicml-streaming (`--streaming`).

With `--camvid`, the server sends the dataset of pipelines/camvid_clicks.py instead, raw as the recipe says and with all rasters
as `Zstd`: "raw block" and "Zstd block" from the server, "raw folder" and "Zstd folder" from the disk, and what an epoch fetches.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import loader_data
import psutil
import remote_candidates as candidates

import tfprep
from tfprep import Recipe, codecs, sources

Begin = Callable[[], Iterator[int]]
BLOCKS: dict[str, Any] = {"order": "block", "block": 64, "window": 4}


def main() -> None:
    options = harness.arguments(
        __doc__ or "",
        images=(3000, "Images of the dataset"), side=(224, "Pixels of an image's side, 224 at most"),
        latency=([1.0, 10.0, 30.0, 100.0], "Latencies in milliseconds"),
        seconds=(4.0, "Measured seconds per candidate and round"), rounds=(3, "Rounds"),
        only=([], "Names of the candidates to measure"),
        streaming=("", "Python that has mosaicml-streaming and simplejpeg"),
        camvid=(Path, "Folder of CamVid: serve it, raw and as Zstd"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        facts: dict[str, Any] = {"rates": {}}
        if options.camvid:
            prepare_forms(folder, options.camvid)
        else:
            facts["image_bytes"] = prepare(folder, options.images, options.side, options.streaming)
        for latency in options.latency:
            with harness.store(folder, latency) as (server_id, environment):
                os.environ.update(environment)
                if options.camvid:
                    chosen = of_forms(folder)
                    facts["epoch"] = {form: fetched(form) for form in ("raw", "Zstd")}
                else:
                    chosen = of_s3(folder, facts["image_bytes"], options.streaming)
                rates = measured(chosen, options, psutil.Process(server_id))
            facts["rates"][f"{latency:g} ms"] = rates
            shown = "  ".join(f"{name} {value['images_per_s']:,.0f}" for name, value in rates.items())
            print(f"{latency:g} ms: {shown} images/s", flush=True)
    assert threading.active_count() < 50, "threads of a candidate are still at work"
    harness.finish(options, facts)


# --- the server's data and the candidates ------------------------------------------------------------------------------


def prepare(folder: Path, count: int, side: int, streaming: str) -> float:
    """Write the dataset, and MDS shards of the same images; return the bytes of an image."""
    raw = folder / "raw"
    raw.mkdir()
    for number, image in enumerate(loader_data.images(count)):
        (raw / f"{number:06d}.jpg").write_bytes(codecs.Jpeg(95).encode(image[:side, :side])[""])
    recipe = Recipe("bench", sources.Folder("*.jpg"), {"image": codecs.Original()}, shards={"train": 8})
    tfprep.build(recipe, folder / "data", raw)
    if streaming:
        subprocess.run([streaming, candidates.__file__, "write", str(raw), str(folder / "data/mds")], check=True)
    return tfprep.open(folder / "data").splits["train"].bytes / count


def of_s3(folder: Path, image_bytes: float, streaming: str) -> dict[str, Begin]:
    place, number = "s3://bench/data", itertools.count()
    chosen: dict[str, Begin] = {
        "limit": lambda: candidates.ranges(place, image_bytes),
        "sequential": lambda: candidates.loader(place, order="sequential"),
        "block": lambda: candidates.loader(place, order="block", block=256, window=4),
        "global": lambda: candidates.loader(place),
        "global apart": lambda: candidates.apart(place),
        "cache": lambda: candidates.with_local_cache(place, folder / "cache"),
        "folder": lambda: candidates.loader(str(folder / "data")),
        "tf.data": lambda: candidates.tf_data(place),
        "tf.data records": lambda: candidates.tf_data_records(place),
    }
    if streaming:
        chosen["streaming"] = lambda: candidates.streaming(streaming, place, folder / f"mds{next(number)}")
    return chosen


def prepare_forms(folder: Path, camvid: Path) -> None:
    from story import RECIPE, as_zstd

    tfprep.build(RECIPE, folder / "raw", camvid)
    tfprep.build(as_zstd(RECIPE, camvid), folder / "Zstd", camvid)


def of_forms(folder: Path) -> dict[str, Begin]:
    return {
        f"{form} {where}": partial(candidates.loader, place, **BLOCKS, memory_budget="2GB")
        for form in ("raw", "Zstd")
        for where, place in (("block", f"s3://bench/{form}"), ("folder", str(folder / form)))
    }


def fetched(form: str) -> dict[str, float]:
    """What an epoch fetches."""
    data = tfprep.open(f"s3://bench/{form}")
    with closing(data.numpy_loader("train", candidates.BATCH, **BLOCKS, cache=False)) as loader:
        figures: dict[str, float] = loader.report()["fetching"]
    return figures


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
