"""The loader compared with the limit of the hardware, with tf.data and with FFCV.

Run: python benchmarks/loader.py [--images 10000] [--rounds 28] [--ffcv PYTHON] [--json FILE]

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
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import loader_data
import loader_peers as peers
import psutil
from loader_peers import BATCH, DRAIN, Candidate

from tfprep.bench.machine import this_machine

TURN = 0.25
"""Share of an epoch that a candidate delivers in its turn."""

LONGER = dict.fromkeys((
    "pread", "memory map", "raw: tfprep", "raw: tfprep, read", "raw: tfprep, threads, read", "raw: FFCV", "fit, nothing to read",
    "raw: tfprep, fit", "jpeg: tfprep, fit", "jpeg: tfprep, threads, fit",
), 4)  # fmt: skip
"""Multiple of `TURN` for the fastest candidates, whose turns would otherwise be too short to measure, and for tfprep's in `fit`,
whose turn is an epoch."""

DECODE_ONLY = ("decode only, threads", "decode only, processes")
RATIOS = {
    "jpeg_vs_decode": ("jpeg: tfprep", *DECODE_ONLY),
    "jpeg_fit_vs_decode": ("jpeg: tfprep, fit", *DECODE_ONLY),
    "jpeg_threads_vs_decode": ("jpeg: tfprep, threads", *DECODE_ONLY),
    "jpeg_threads_fit_vs_decode": ("jpeg: tfprep, threads, fit", *DECODE_ONLY),
    "raw_vs_memory": ("raw: tfprep", "pread", "memory map"),
    "raw_read_vs_pread": ("raw: tfprep, read", "pread"),
    "raw_fit_vs_memory": ("raw: tfprep, fit", "pread", "memory map"),
    "jpeg_vs_ffcv": ("jpeg: tfprep", "jpeg: FFCV"),
    "raw_vs_ffcv": ("raw: tfprep, read", "raw: FFCV"),
}
"""A candidate, and those to the fastest of which it is compared."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "", images=(10_000, "Images per dataset"), rounds=(28, "Measured rounds"),
        ffcv=(Path, "Interpreter that has FFCV"),
    )  # fmt: skip
    with loader_data.datasets(options.images) as folder:
        result = {
            "images": options.images,
            "rounds": options.rounds,
            "batch_size": BATCH,
            "machine": this_machine(folder).words,
            **throughput(folder / "jpeg", folder / "raw", options),
        }
    harness.finish(options, result)


# --- rates ------------------------------------------------------------------------------------------------------------


def all_candidates(jpeg: Path, raw: Path, options: argparse.Namespace) -> dict[str, Candidate]:
    from loader_fit import fit, fitted, keras_alone

    tfdata = {
        "raw: tf.data by batch": peers.tfdata_by_batch(raw),
        "raw: tf.data, fixed length": peers.tfdata_fixed_length(raw),
    }
    threads: dict[str, Any] = {"cache": False, "workers": "threads"}
    candidates: dict[str, Candidate] = {
        "decode only, threads": peers.decode_only(jpeg),
        "decode only, processes": peers.decode_processes(jpeg),
        "jpeg: tfprep": peers.loader(jpeg, cache=False),
        "jpeg: tfprep, fit": fit(jpeg, cache=False),
        "jpeg: tfprep, threads": peers.loader(jpeg, **threads),
        "jpeg: tfprep, threads, fit": fit(jpeg, **threads),
        "jpeg: tf.data by record": peers.eager(iter(peers.tfdata_by_record(jpeg))),
        "pread": peers.pread(raw),
        "memory map": peers.memory_map(raw),
        "raw: tfprep": peers.loader(raw),
        "raw: tfprep, read": peers.loader(raw, cache=False),
        "raw: tfprep, threads, read": peers.loader(raw, **threads),
        "raw: tfprep, fit": fit(raw),
        **{name: peers.eager(iter(batches)) for name, batches in tfdata.items()},
        **{f"{name}, fit": fitted(batches) for name, batches in tfdata.items()},
        "fit, nothing to read": keras_alone(),
    }
    if options.ffcv:
        candidates |= {f"{folder.name}: FFCV": peers.ffcv(folder, options.ffcv) for folder in (jpeg, raw)}
    return candidates


def throughput(jpeg: Path, raw: Path, options: argparse.Namespace) -> dict[str, Any]:
    candidates = all_candidates(jpeg, raw, options)
    turns = {name: partial(turn, name, candidate, int(options.images * TURN)) for name, candidate in candidates.items()}
    rest()
    runs = harness.in_turns(turns, options.rounds, warm_up=1)
    seconds = {name: [taken for taken, _ in of_one] for name, of_one in runs.items()}  # per image
    cpu = {name: median(cpu_ms for _, cpu_ms in of_one) for name, of_one in runs.items()}
    rates = {name: median(1 / each for each in taken) for name, taken in seconds.items()}
    slowest = {name: 1 / max(taken) for name, taken in seconds.items()}
    fastest = {name: 1 / min(taken) for name, taken in seconds.items()}
    for name, rate in rates.items():
        spread = f"({slowest[name]:,.0f} to {fastest[name]:,.0f})"
        print(f"{name:32} {rate:10,.0f} images/s   {spread}, {cpu[name]:.3f} ms CPU per image")
    ratios = {}
    for name, (ours, *others) in RATIOS.items():
        if others[0] in seconds:
            best = min((seconds[other] for other in others), key=median)
            ratios[name] = harness.ratio(best, seconds[ours])
            print(f"{name:32} {ratios[name]:6.2f}")
    return {
        **ratios,
        "cpu_ms_each": cpu,
        "images_per_s": rates,
        "slowest": slowest,
        "fastest": fastest,
        "seconds_per_image": seconds,
    }


def turn(name: str, candidate: Candidate, images: int) -> tuple[float, float]:
    """Seconds an image, and processor milliseconds."""
    count = images * LONGER.get(name, 1)
    spent = cpu_s()
    taken = candidate(count) / (count // BATCH * BATCH)
    rest()
    return taken, (cpu_s() - spent) / (count + drained(name) * BATCH) * 1e3


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


if __name__ == "__main__":
    main()
