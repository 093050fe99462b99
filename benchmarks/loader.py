"""The loader compared with the limit of the hardware. `benchmarks/peers` compares it with other libraries.

Run: python benchmarks/loader.py [--images 10000] [--rounds 28] [--ffcv PYTHON] [--json FILE]

Raw images, which are fast enough for the way to the model to matter, are also compared with FFCV, where `--ffcv` names an
interpreter that has it (benchmarks/peers/requirements.txt), and in `fit` with tf.data's records of a fixed length.

The datasets have 10,000 images or more of 224 × 224 pixels; batches of 64 are delivered as uint8, in global order. In every round
each candidate delivers a quarter of the images (the fastest ones all of them), in changing order and from an iterator that has
been warmed up, so 28 rounds are seven epochs. Rounds are short because the speed of a shared machine changes from second to
second. A turn begins when the process is idle, since pipelines go on filling their buffers after their own turn; the batches that
a pipeline has ready are consumed before the clock starts. The limit for JPEG is the faster of two threads and two processes that
only decode. Figures are medians over the rounds; ratios are medians of the ratios within a round.

The files are in the page cache, and the loader's own cache is off. Threads of the process that trains read for the candidates
"threads", and what `workers="auto"` takes on this machine for the others: from 10,000 images on, worker processes.
Processor time includes child processes.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import loader_data
import numpy as np
import simplejpeg

import tfprep
from tfprep.bench.machine import this_machine

Candidate = Callable[[int], float]
"""Takes a number of images, delivers that many, and returns the seconds that this took."""
BATCH = 64
DRAIN = 16
"""Batches consumed before the clock starts."""
STEPS = 8
"""Batches that Keras takes at a time: one by one, Keras itself takes longer than a batch of raw images. DRAIN is a multiple."""
SHAPE = (224, 224, 3)

TURN = 0.25
"""Share of an epoch that a candidate delivers in its turn."""

LONGER = dict.fromkeys((
    "pread", "raw: tfprep, read", "raw: tfprep, threads, read", "raw: FFCV", "jpeg: tfprep, fit", "jpeg: tfprep, threads, fit",
    "raw: tfprep, fit", "raw: tf.data, fit",
), 4)  # fmt: skip
"""Multiple of `TURN` for the fastest candidates, whose turns would otherwise be too short to measure, and for those in `fit`,
whose turn is an epoch."""

DECODE_ONLY = ("decode only, threads", "decode only, processes")
RATIOS = {
    "jpeg_vs_decode": ("jpeg: tfprep", *DECODE_ONLY),
    "jpeg_fit_vs_decode": ("jpeg: tfprep, fit", *DECODE_ONLY),
    "jpeg_threads_vs_decode": ("jpeg: tfprep, threads", *DECODE_ONLY),
    "jpeg_threads_fit_vs_decode": ("jpeg: tfprep, threads, fit", *DECODE_ONLY),
    "raw_read_vs_pread": ("raw: tfprep, read", "pread"),
    "jpeg_vs_ffcv": ("jpeg: tfprep", "jpeg: FFCV"),
    "raw_vs_ffcv": ("raw: tfprep, read", "raw: FFCV"),
    "raw_threads_vs_ffcv": ("raw: tfprep, threads, read", "raw: FFCV"),
    "raw_fit_vs_tf_data": ("raw: tfprep, fit", "raw: tf.data, fit"),
}
"""A candidate, and those whose fastest it is compared with."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "", images=(10_000, "Images per dataset"), rounds=(28, "Measured rounds"),
        ffcv=(Path, "Interpreter that has FFCV"), decode=(Path, argparse.SUPPRESS), beton=(Path, argparse.SUPPRESS),
    )  # fmt: skip
    if options.decode or options.beton:
        candidate = ffcv(options.beton) if options.beton else decode_only(options.decode, 1)
        harness.serve(lambda count: candidate(int(count)))
        return
    if options.images < (least := 2 * DRAIN * BATCH):
        sys.exit(f"--images is at least {least:,}: in `fit`, the first {DRAIN} batches of an epoch do not count")
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


def all_candidates(jpeg: Path, raw: Path, python: Path | None) -> dict[str, Candidate]:
    threads: dict[str, Any] = {"cache": False, "workers": "threads"}
    return {
        "decode only, threads": decode_only(jpeg),
        "decode only, processes": decode_processes(jpeg),
        "jpeg: tfprep": loader(jpeg, cache=False),
        "jpeg: tfprep, fit": fit(jpeg, cache=False),
        "jpeg: tfprep, threads": loader(jpeg, **threads),
        "jpeg: tfprep, threads, fit": fit(jpeg, **threads),
        "pread": pread(raw),
        "raw: tfprep, read": loader(raw, cache=False),
        "raw: tfprep, threads, read": loader(raw, **threads),
        "raw: tfprep, fit": fit(raw, cache=False),
        "raw: tf.data, fit": fit_fixed_length(raw),
        **(
            {f"{data.name}: FFCV": in_processes([python, __file__, "--beton", data]) for data in (jpeg, raw)}
            if python
            else {}
        ),
    }


def throughput(jpeg: Path, raw: Path, options: argparse.Namespace) -> dict[str, Any]:
    candidates = all_candidates(jpeg, raw, options.ffcv)
    turns = {name: partial(turn, name, candidate, int(options.images * TURN)) for name, candidate in candidates.items()}
    harness.rest()
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
    spent = harness.cpu_s()
    taken = candidate(count) / (count // BATCH * BATCH)
    harness.rest()
    return taken, (harness.cpu_s() - spent) / (count + drained(name) * BATCH) * 1e3


def drained(name: str) -> int:
    """Number of batches that a candidate delivers before its clock starts."""
    if "fit" in name:  # an epoch whose first batches are not in the time
        return 0
    return DRAIN if "tfprep" in name or "FFCV" in name else 0


# --- candidates -------------------------------------------------------------------------------------------------------


def in_threads(work: Callable[[Any, int], None], count: int, threads: int = 2) -> float:
    """Seconds in which the threads call `work(numbers, thread)`, each with its part of a random order of `count` numbers."""
    order = np.random.default_rng().integers(0, 1 << 62, count)
    parts = [(order[number::threads], number) for number in range(threads)]
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: work(*part), parts))
    return time.perf_counter() - start


def batch_memory() -> np.ndarray:
    """uint8 [2 threads, 64, 224 · 224 · 3], page-aligned; all pages are allocated."""
    memory = np.frombuffer(mmap.mmap(-1, 2 * BATCH * 224 * 224 * 3), np.uint8).reshape(2, BATCH, -1)
    memory[:] = 1
    return memory


def decode_only(folder: Path, threads: int = 2) -> Candidate:
    """Limit for JPEG: threads decode JPEG bytes from memory into the memory of a batch."""
    jpegs, rows = loader_data.contents(folder), batch_memory().reshape(2, BATCH, *SHAPE)

    def work(order: np.ndarray, thread: int) -> None:
        for at, number in enumerate((order % len(jpegs)).tolist()):
            simplejpeg.decode_jpeg(jpegs[number], buffer=rows[thread, at % BATCH])

    return lambda count: in_threads(work, count, threads)


def decode_processes(folder: Path) -> Candidate:
    """The other limit for JPEG: two processes that decode the same bytes, as `decode_only` does with threads. They share no
    interpreter, but the kernel moves them between cores more often than threads: either limit may be the higher one."""
    return in_processes([sys.executable, __file__, "--decode", folder], 2)


def in_processes(command: Sequence[object], processes: int = 1) -> Candidate:
    """Processes that each deliver a part of the images."""
    running = [harness.Process(command) for _ in range(processes)]

    def run(count: int) -> float:
        for process in running:
            process.tell(count // processes)
        return max(float(process.answer()) for process in running)

    return run


def ffcv(folder: Path) -> Candidate:
    """FFCV on the same images, with the options of benchmarks/peers/peer_ffcv.py, which says what was tried."""
    import peer_ffcv

    images = enumerate(loader_data.images(len(loader_data.record_spans(folder)[1])))
    out = folder.parent / f"{folder.name}-ffcv"
    peer_ffcv.write([(image, number % loader_data.CLASSES) for number, image in images], out, folder.name)
    return eager(iter(peer_ffcv.load(out, folder.name, BATCH, workers=2)))


def pread(folder: Path) -> Candidate:
    """Limit for raw images: two threads read them into the memory of a batch with `preadv`."""
    files, file, offset, _ = loader_data.record_spans(folder)
    descriptors = [os.open(path, os.O_RDONLY) for path in files]
    fds, offsets = [descriptors[f] for f in file.tolist()], offset.tolist()
    rows = [[memoryview(row) for row in half] for half in batch_memory()]

    def work(order: np.ndarray, thread: int) -> None:
        mine = rows[thread]
        for at, number in enumerate((order % len(fds)).tolist()):
            os.preadv(fds[number], (mine[at % BATCH],), offsets[number])

    return lambda count: in_threads(work, count)


def loader(folder: Path, **options: Any) -> Candidate:
    """tfprep's loader."""
    train = tfprep.open(folder).loader("train", BATCH, inputs="image", targets="label", **options)
    return eager(iter(train.repeat().eager()))


def eager(batches: Iterator[Any]) -> Candidate:
    """Batches taken in a loop that does not use them."""

    def run(count: int) -> float:
        for _ in range(DRAIN):
            next(batches)
        start = time.perf_counter()
        for _ in range(count // BATCH):
            next(batches)
        return time.perf_counter() - start

    return run


def fit(folder: Path, **options: Any) -> Candidate:
    """tfprep's loader in `fit`."""
    train = tfprep.open(folder).loader("train", BATCH, inputs="image", targets="label", **options)
    return fitted(train, len(train))


def fit_fixed_length(folder: Path) -> Candidate:
    """tf.data in `fit`, on a file of nothing but pixels, which needs no parsing and no labels, with a shuffle buffer."""
    import tensorflow as tf

    images, file = loader_data.contents(folder), folder.parent / "pixels"
    file.write_bytes(b"".join(images))
    records = tf.data.FixedLengthRecordDataset(str(file), len(images[0]), buffer_size=4 << 20).shuffle(1000)
    pixels = records.batch(BATCH, drop_remainder=True).map(
        lambda batch: (tf.reshape(tf.io.decode_raw(batch, tf.uint8), (-1, *SHAPE)), tf.zeros(BATCH, tf.int64)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    steps = len(images) // BATCH
    return fitted(pixels.apply(tf.data.experimental.assert_cardinality(steps)).prefetch(8), steps)


def fitted(train: Any, steps: int) -> Candidate:
    """`fit` of a model that reads one pixel, so that the delivery of batches takes most of the time.

    A turn is an epoch of `steps` batches. Keras takes `STEPS` batches at a time.
    """
    import keras

    class OnePixel(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return keras.ops.cast(inputs[:, 0, 0, :], "float32") / 255

    class Clock(keras.callbacks.Callback):
        """Seconds of an epoch without its first batches, which were ready before it began."""

        seconds = 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == DRAIN - 1:
                self._start = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds = time.perf_counter() - self._start

    model = keras.Sequential([keras.Input(SHAPE, dtype="uint8"), OnePixel(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=STEPS)
    clock = Clock()

    def run(count: int) -> float:
        model.fit(train, verbose=0, shuffle=False, callbacks=[clock])
        return clock.seconds * (count // BATCH) / (steps - DRAIN)

    return run


if __name__ == "__main__":
    main()
