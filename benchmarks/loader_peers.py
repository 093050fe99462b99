"""What the loader is measured against in benchmarks/loader.py: the floor that the hardware sets, and tf.data tuned by its guide.

Each contestant is a function that takes a number of images, delivers so many, and returns the seconds that it took. What a
pipeline had ready beforehand is used up before the clock starts.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

import tfprep
from tfprep.dataset import Dataset

Contestant = Callable[[int], float]
BATCH = 64
DRAIN = 16
"""Batches taken before the clock starts."""


def places(folder: Path) -> tuple[list[Path], np.ndarray, np.ndarray, np.ndarray]:
    """(files, file, offset and size of each image's bytes)."""
    dataset = Dataset.open(folder)
    index = dataset.index("train", 0, ["shard", "image_offset", "image_size"])
    files = [folder / file.name for file in dataset.split("train").files[0]]
    return (files, *(index.column(name).to_numpy() for name in ("shard", "image_offset", "image_size")))


def two_threads(work: Callable[[Any, int], None], count: int) -> float:
    """Seconds until two threads have each worked on their half of a random order; `work(numbers, thread)`."""
    order = np.random.default_rng().integers(0, 1 << 62, count)
    threads = [threading.Thread(target=work, args=(order[number::2], number)) for number in range(2)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def batch_memory() -> np.ndarray:
    """uint8 [2 threads, 64, 224 · 224 · 3], page-aligned, touched."""
    memory = np.frombuffer(mmap.mmap(-1, 2 * BATCH * 224 * 224 * 3), np.uint8).reshape(2, BATCH, -1)
    memory[:] = 1
    return memory


def decode_only(folder: Path) -> Contestant:
    """(a) Two threads that decode JPEG bytes from memory into a batch's memory, and do nothing else."""
    files, file, offset, size = places(folder)
    data = [path.read_bytes() for path in files]
    jpegs = [data[f][o : o + s] for f, o, s in zip(file.tolist(), offset.tolist(), size.tolist(), strict=True)]
    rows = batch_memory().reshape(2, BATCH, 224, 224, 3)

    def work(order: np.ndarray, thread: int) -> None:
        for at, number in enumerate((order % len(jpegs)).tolist()):
            simplejpeg.decode_jpeg(jpegs[number], buffer=rows[thread, at % BATCH])

    return lambda count: two_threads(work, count)


def pread(folder: Path) -> Contestant:
    """(b) Two threads of `pread` of raw images into a batch's memory."""
    files, file, offset, _ = places(folder)
    descriptors = [os.open(path, os.O_RDONLY) for path in files]
    fds, offsets = [descriptors[f] for f in file.tolist()], offset.tolist()
    rows = [[memoryview(row) for row in half] for half in batch_memory()]

    def work(order: np.ndarray, thread: int) -> None:
        mine = rows[thread]
        for at, number in enumerate((order % len(fds)).tolist()):
            os.preadv(fds[number], (mine[at % BATCH],), offsets[number])

    return lambda count: two_threads(work, count)


def memory_map(folder: Path) -> Contestant:
    """(b) Two threads that gather batches from a memory map of nothing but pixels: `numpy.take`, 64 rows a call."""
    pixels = folder / "pixels.bin"
    files, file, offset, size = places(folder)
    if not pixels.exists():
        data = [path.read_bytes() for path in files]
        rows = zip(file.tolist(), offset.tolist(), size.tolist(), strict=True)
        pixels.write_bytes(b"".join(data[f][o : o + s] for f, o, s in rows))
    held = np.memmap(pixels, np.uint8, "r").reshape(len(file), -1)
    memory = batch_memory()

    def work(order: np.ndarray, thread: int) -> None:
        numbers = order % len(held)
        for start in range(0, len(numbers), BATCH):
            chosen = numbers[start : start + BATCH]
            np.take(held, chosen, axis=0, out=memory[thread, : len(chosen)], mode="clip")

    return lambda count: two_threads(work, count)


def tfdata(folder: Path, *, raw: bool) -> Contestant:
    """(c) tf.data as its performance guide tunes it: parallel interleave over the files, a shuffle buffer of 1,000 records,
    parallel map, batch, prefetch; AUTOTUNE but for the last. Under a loop that only takes, AUTOTUNE makes that buffer hundreds
    of batches long, which a later turn would find filled."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def decode(record: Any) -> tuple[Any, Any]:
        parsed = tf.io.parse_single_example(record, features)
        if raw:
            image = tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), (224, 224, 3))
        else:
            image = tf.ensure_shape(tf.io.decode_jpeg(parsed["image"], channels=3), (224, 224, 3))
        return image, parsed["label"]

    auto = tf.data.AUTOTUNE
    files = tf.data.Dataset.from_tensor_slices([str(path) for path in places(folder)[0]]).shuffle(100).repeat()
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=auto, deterministic=False)
    batches = records.shuffle(1000).map(decode, num_parallel_calls=auto).batch(BATCH, drop_remainder=True)
    return eager(iter(batches.prefetch(DRAIN // 2)))


def loader(folder: Path, **options: Any) -> Contestant:
    """tfprep's loader: global order, uint8."""
    return eager(
        iter(tfprep.open(folder).loader("train", BATCH, inputs="image", targets="label", tuning=False, **options))
    )


def eager(batches: Iterator[Any]) -> Contestant:
    """Batches as tensors, in a loop that does nothing with them."""

    def run(count: int) -> float:
        for _ in range(DRAIN):
            next(batches)
        start = time.perf_counter()
        for _ in range(count // BATCH):
            next(batches)
        return time.perf_counter() - start

    return run
