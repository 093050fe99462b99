"""The loader compared with the limit of the hardware, with tf.data and with FFCV.

Run: python benchmarks/loader.py [--images 10000] [--rounds 28] [--ffcv PYTHON] [--json FILE] [--data FOLDER]

FFCV takes part where `--ffcv` names an interpreter that has it (benchmarks/peers/requirements.txt).

The datasets have 10,000 images or more of 224 × 224 pixels; batches of 64 are delivered as uint8, in global order. In every round
each candidate delivers a quarter of the images (the fastest ones all of them), in changing order and from an iterator that has
been warmed up, so 28 rounds are seven epochs. Rounds are short because the speed of a shared machine changes from second to
second. A turn begins when the process is idle, since pipelines go on filling their buffers after their own turn; the batches that
a pipeline has ready are consumed before the clock starts. The limit for JPEG is the faster of two threads and two processes that
only decode. Figures are medians over the rounds; ratios are medians of the ratios within a round.

The files are in the page cache. JPEG images are read without the loader's cache, with which nothing would be decoded from the
second epoch on. Raw images are read with the default options, which keep the rows in memory if all fit, as the page cache does
for the limit, and in the candidate "read" without that cache. Threads of the process that trains read for the candidates
"threads", and what `workers="auto"` takes on this machine for the others: from 10,000 images on, worker processes where nothing
is cached.
Processor time includes child processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import loader_data
import psutil
from loader_peers import (
    BATCH,
    DRAIN,
    Candidate,
    decode_only,
    decode_processes,
    eager,
    ffcv,
    loader,
    memory_map,
    pread,
    tfdata_by_batch,
    tfdata_by_record,
    tfdata_fixed_length,
)

from tfprep import codecs
from tfprep.bench.machine import this_machine

TURN = 0.25
"""Share of an epoch that a candidate delivers in its turn."""

FASTEST = (
    "pread", "memory map", "raw: tfprep", "raw: tfprep, read", "raw: tfprep, threads, read", "raw: FFCV", "fit, nothing to read",
    "raw: tfprep, fit", "jpeg: tfprep, fit", "jpeg: tfprep, threads, fit",
)  # fmt: skip
LONGER = dict.fromkeys(FASTEST, 4)
"""Multiple of `TURN` for the fastest candidates, whose turns would otherwise be too short to measure, and for tfprep's in `fit`,
whose turn is an epoch."""

DECODE_ONLY = ("decode only, threads", "decode only, processes")
RAW_TFDATA = ("raw: tf.data by record", "raw: tf.data by batch", "raw: tf.data, fixed length")
RAW_TFDATA_FIT = tuple(f"{name}, fit" for name in RAW_TFDATA[1:])  # the one by record is five times slower than these


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="Folder of the datasets, which are generated if they do not exist")
    parser.add_argument("--ffcv", type=Path, metavar="PYTHON", help="Interpreter that has FFCV")


def main() -> None:
    options = harness.arguments(
        __doc__ or "", _more, images=(10_000, "Images per dataset"), rounds=(28, "Measured rounds")
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data or Path(temporary)
        jpeg = loader_data.write(folder / f"jpeg-{options.images}", codecs.Jpeg(95), options.images)
        raw = loader_data.write(folder / f"raw-{options.images}", codecs.Raw(), options.images)
        result = {
            "images": options.images,
            "rounds": options.rounds,
            "batch_size": BATCH,
            "machine": this_machine(folder).words,
        }
        result |= throughput(jpeg, raw, options)
    harness.finish(options, result)


# --- rates ------------------------------------------------------------------------------------------------------------


def all_candidates(jpeg: Path, raw: Path, options: argparse.Namespace) -> dict[str, Candidate]:
    from loader_fit import fit, fitted, keras_alone

    tfdata = {"by record": tfdata_by_record(raw, raw=True), "by batch": tfdata_by_batch(raw)}
    tfdata["fixed length"] = tfdata_fixed_length(raw)
    threads: dict[str, Any] = {"cache": False, "workers": "threads"}
    candidates: dict[str, Candidate] = {
        "decode only, threads": decode_only(jpeg),
        "decode only, processes": decode_processes(jpeg),
        "jpeg: tfprep": loader(jpeg, cache=False),
        "jpeg: tfprep, fit": fit(jpeg, cache=False),
        "jpeg: tfprep, threads": loader(jpeg, **threads),
        "jpeg: tfprep, threads, fit": fit(jpeg, **threads),
        "jpeg: tf.data by record": eager(iter(tfdata_by_record(jpeg, raw=False))),
        "pread": pread(raw),
        "memory map": memory_map(raw),
        "raw: tfprep": loader(raw),
        "raw: tfprep, read": loader(raw, cache=False),
        "raw: tfprep, threads, read": loader(raw, **threads),
        "raw: tfprep, fit": fit(raw),
        **dict(zip(RAW_TFDATA, (eager(iter(batches)) for batches in tfdata.values()), strict=True)),
        **dict(zip(RAW_TFDATA_FIT, (fitted(batches) for batches in list(tfdata.values())[1:]), strict=True)),
        "fit, nothing to read": keras_alone(),
    }
    if options.ffcv:
        candidates |= {"jpeg: FFCV": ffcv(jpeg, "jpeg", options.ffcv), "raw: FFCV": ffcv(raw, "raw", options.ffcv)}
    return candidates


def throughput(jpeg: Path, raw: Path, options: argparse.Namespace) -> dict[str, Any]:
    images, rounds = options.images, options.rounds
    candidates = all_candidates(jpeg, raw, options)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}  # per image
    cpu_ms: dict[str, list[float]] = {name: [] for name in candidates}  # per image
    rest()
    for number in range(-1, rounds):  # the first round warms up and is not counted
        for name in sorted(candidates, key=lambda name: hash((number, name))):
            count = int(images * TURN) * LONGER.get(name, 1)
            spent = cpu_s()
            taken = candidates[name](count) / (count // BATCH * BATCH)
            rest()
            if number >= 0:
                seconds[name].append(taken)
                cpu_ms[name].append((cpu_s() - spent) / (count + drained(name) * BATCH) * 1e3)
    rates = {name: statistics.median(1 / each for each in taken) for name, taken in seconds.items()}
    cpu = {name: statistics.median(each) for name, each in cpu_ms.items()}
    for name, rate in rates.items():
        spread = sorted(1 / each for each in seconds[name])
        print(
            f"{name:32} {rate:10,.0f} images/s   ({spread[0]:,.0f} to {spread[-1]:,.0f}), {cpu[name]:.3f} ms CPU per image"
        )
    memory = ("pread", "memory map")
    ratios = {
        "jpeg_vs_decode": ratio(seconds, "jpeg: tfprep", *DECODE_ONLY),
        "jpeg_fit_vs_decode": ratio(seconds, "jpeg: tfprep, fit", *DECODE_ONLY),
        "jpeg_threads_vs_decode": ratio(seconds, "jpeg: tfprep, threads", *DECODE_ONLY),
        "jpeg_threads_fit_vs_decode": ratio(seconds, "jpeg: tfprep, threads, fit", *DECODE_ONLY),
        "jpeg_vs_tfdata": ratio(seconds, "jpeg: tfprep", "jpeg: tf.data by record"),
        "raw_vs_memory": ratio(seconds, "raw: tfprep", *memory),
        "raw_read_vs_pread": ratio(seconds, "raw: tfprep, read", "pread"),
        "raw_fit_vs_memory": ratio(seconds, "raw: tfprep, fit", *memory),
        "raw_vs_tfdata": ratio(seconds, "raw: tfprep", *RAW_TFDATA),
        "raw_read_vs_tfdata": ratio(seconds, "raw: tfprep, read", *RAW_TFDATA),
        "raw_fit_vs_tfdata": ratio(seconds, "raw: tfprep, fit", *RAW_TFDATA_FIT),
    }
    if options.ffcv:
        ratios["jpeg_vs_ffcv"] = ratio(seconds, "jpeg: tfprep", "jpeg: FFCV")
        ratios["jpeg_threads_vs_ffcv"] = ratio(seconds, "jpeg: tfprep, threads", "jpeg: FFCV")
        ratios["raw_threads_vs_ffcv"] = ratio(seconds, "raw: tfprep, threads, read", "raw: FFCV")
        ratios["raw_vs_ffcv"] = ratio(seconds, "raw: tfprep, read", "raw: FFCV")
    for name, value in ratios.items():
        print(f"{name:32} {value:6.2f}")
    return {
        **ratios,
        "cpu_ms": cpu["jpeg: tfprep"],
        "cpu_ms_each": cpu,
        "images_per_s": rates,
        "slowest": {name: 1 / max(taken) for name, taken in seconds.items()},
        "fastest": {name: 1 / min(taken) for name, taken in seconds.items()},
        "seconds_per_image": seconds,
    }


def drained(name: str) -> int:
    """Number of batches that a candidate delivers before its clock starts."""
    if "tfprep" in name and "fit" in name:  # an epoch, the first batches of which are not in the time
        return 0
    return DRAIN if any(word in name for word in ("tf", "fit", "FFCV")) else 0


def rest(timeout_s: float = 10.0) -> None:
    """Waits until all pipelines have filled their buffers: this process and its children use less than a tenth of a core."""
    end = time.perf_counter() + timeout_s
    while time.perf_counter() < end:
        spent = cpu_s()
        time.sleep(0.1)
        if cpu_s() - spent < 0.01:  # children's time is counted in hundredths of a second
            return


def cpu_s() -> float:
    """Processor time of this process and its children so far."""
    seconds = time.process_time()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(child.cpu_times()[:2])
    return seconds


def ratio(seconds: dict[str, list[float]], ours: str, *peers: str) -> float:
    """The speed of `ours` as a multiple of that of the fastest peer: the median over the rounds."""
    best = min((seconds[peer] for peer in peers), key=statistics.median)
    return statistics.median(b / a for a, b in zip(seconds[ours], best, strict=True))


if __name__ == "__main__":
    main()
