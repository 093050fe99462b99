"""Images per second from an object store, by its latency, in the three orders and with the local cache, beside other pipelines.

Run: python benchmarks/remote.py [--images 3000] [--side 224] [--latency 1 10 30 100] [--seconds 4] [--rounds 3]
     [--only NAME ...] [--streaming PYTHON] [--data FOLDER] [--camvid FOLDER] [--json FILE]

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
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import remote_candidates as candidates

HERE = Path(__file__).parent
Begin = Callable[[], Iterator[int]]
RECIPE = """
from tfprep import Recipe, codecs, sources
RECIPE = Recipe(name="bench", source=sources.Folder("*.jpg"), store={"image": codecs.Original()}, shards={"train": 8})
"""
TICKS = os.sysconf("SC_CLK_TCK")


# --- the server and its data -------------------------------------------------------------------------------------------


def prepare(folder: Path, count: int, side: int, streaming: str | None) -> float:
    """Write the dataset, and MDS shards of the same images, unless they are there; return the bytes of an image."""
    import loader_data

    import tfprep
    from tfprep import codecs

    raw = folder / "raw"
    if len(list(raw.glob("*.jpg"))) != count:
        raw.mkdir(parents=True)
        for number, image in enumerate(loader_data.images(count)):
            content = codecs.Jpeg(95).encode(image[:side, :side])[""]
            (raw / f"{number:06d}.jpg").write_bytes(content[0] if isinstance(content, list) else content)
    (folder / "recipe.py").write_text(RECIPE)
    tfprep.build(folder / "recipe.py", folder / "data", raw)
    if streaming and not (folder / "data/mds").exists():
        script = [streaming, str(HERE / "remote_candidates.py"), "write", str(raw), str(folder / "data/mds")]
        subprocess.run(script, check=True)
    return tfprep.open(folder / "data").splits["train"].bytes / count


# --- the candidates ----------------------------------------------------------------------------------------------------


def of_s3(folder: Path, image_bytes: float, scratch: Path, streaming: str | None) -> dict[str, Begin]:
    place, number = "s3://bench/data", itertools.count()
    chosen: dict[str, Begin] = {
        "limit": lambda: candidates.ranges(place, image_bytes),
        "sequential": lambda: candidates.loader(place, order="sequential"),
        "block": lambda: candidates.loader(place, order="block", block=256, window=4),
        "global": lambda: candidates.loader(place),
        "global apart": lambda: candidates.apart(place),
        "cache": lambda: candidates.with_local_cache(place, scratch / "cache"),
        "folder": lambda: candidates.loader(str(folder / "data")),
        "tf.data": lambda: candidates.tf_data(place),
        "tf.data records": lambda: candidates.tf_data_records(place),
    }
    if streaming:
        chosen["streaming"] = lambda: candidates.streaming(streaming, place, scratch / f"mds{next(number)}")
    return chosen


def prepare_forms(folder: Path, camvid: Path) -> None:
    import tfprep
    from tfprep.bench.trial import strategies
    from tfprep.recipe.file import load_recipe

    recipe = load_recipe(HERE.parent / "pipelines" / "camvid_clicks.py")
    kinds = {**recipe.source.scan(camvid).kinds, **recipe.derived_kinds()}
    packed = next(one.recipe for one in strategies(recipe, kinds) if one.name == "all as Zstd")
    for form, stored in (("raw", recipe), ("Zstd", packed)):
        tfprep.build(stored, folder / form, camvid)


def of_forms(folder: Path) -> dict[str, Begin]:
    return {
        f"{form} {where}": partial(candidates.loader, place, order="block", block=64, window=4, memory_budget="2GB")
        for form in ("raw", "Zstd")
        for where, place in (("block", f"s3://bench/{form}"), ("folder", str(folder / form)))
    }


def fetched(form: str) -> dict[str, float]:
    """What an epoch fetches."""
    import tfprep

    blocks: dict[str, Any] = {"order": "block", "block": 64, "window": 4, "cache": False}
    with closing(tfprep.open(f"s3://bench/{form}").numpy_loader("train", candidates.BATCH, **blocks)) as loader:
        figures: dict[str, float] = loader.report()["fetching"]
    return figures


# --- the measurement ---------------------------------------------------------------------------------------------------


def measure(batches: Iterator[int], seconds: float, server_id: int) -> dict[str, float]:
    """Images per second over `seconds`, after as many that are not counted, and the cores that were busy meanwhile."""
    try:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            next(batches)
        count, begin, machine, server = 0, time.perf_counter(), _machine_s(), _process_s(server_id)
        while time.perf_counter() < begin + seconds:
            count += next(batches)
        took = time.perf_counter() - begin
        machine, server = _machine_s() - machine, _process_s(server_id) - server
        return {"images_per_s": count / took, "cores": machine / took, "server_cores": server / took}
    finally:
        close = getattr(batches, "close", None)
        if close:
            close()


def _machine_s() -> float:
    """The processor time that the machine's processes have taken."""
    user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft_interrupts) / TICKS


def _process_s(process_id: int) -> float:
    user, system = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--latency", type=float, nargs="+", default=[1, 10, 30, 100], help="Latencies in milliseconds")
    parser.add_argument("--only", nargs="+", help="Names of the candidates to measure")
    parser.add_argument("--streaming", metavar="PYTHON", help="Python that has mosaicml-streaming and simplejpeg")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="Folder for the dataset; one that is there is used")
    parser.add_argument("--camvid", type=Path, metavar="FOLDER", help="Folder of CamVid: serve it, raw and as Zstd")
    parser.add_argument("--prepare", action="store_true", help="Write the dataset and measure nothing")


def main() -> None:
    options = harness.arguments(
        __doc__ or "", _more,
        images=(3000, "Images of the dataset"), side=(224, "Pixels of an image's side, 224 at most"),
        seconds=(4.0, "Measured seconds per candidate and round"), rounds=(3, "Rounds"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder, scratch = options.data or Path(name), Path(name) / "scratch"
        scratch.mkdir()
        if options.camvid:
            prepare_forms(folder, options.camvid)
        else:
            image_bytes = prepare(folder, options.images, options.side, options.streaming)
        if options.prepare:
            return
        result: dict[str, Any] = {}
        facts: dict[str, Any] = {} if options.camvid else {"image_bytes": image_bytes}
        for latency in options.latency:
            with harness.store(folder, latency) as (server_id, environment):
                os.environ.update(environment)
                if options.camvid:
                    chosen = of_forms(folder)
                    facts["epoch"] = {form: fetched(form) for form in ("raw", "Zstd")}
                else:
                    chosen = of_s3(folder, image_bytes, scratch, options.streaming)
                result[f"{latency:g} ms"] = _rounds(chosen, options, server_id)
            shown = "  ".join(f"{n} {v['images_per_s']:,.0f}" for n, v in result[f"{latency:g} ms"].items())
            print(f"{latency:g} ms: {shown} images/s", flush=True)
            if options.json:
                options.json.write_text(json.dumps({**facts, "rates": result}, indent=1))
    assert threading.active_count() < 50, "threads of a candidate are still at work"


def _rounds(chosen: dict[str, Begin], options: argparse.Namespace, server_id: int) -> dict[str, Any]:
    """Medians of each candidate, and the rates of all rounds."""
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for name, begin in chosen.items():
            if not options.only or name in options.only:
                runs.setdefault(name, []).append(measure(begin(), options.seconds, server_id))
    return {
        name: {key: statistics.median(run[key] for run in of_one) for key in of_one[0]}
        | {"rounds": [run["images_per_s"] for run in of_one]}
        for name, of_one in runs.items()
    }


if __name__ == "__main__":
    main()
