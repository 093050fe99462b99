"""The candidates of benchmarks/loader.py: tfprep's loader, the limit of the hardware, FFCV and the fastest forms of tf.data.

A candidate is a function that takes a number of images, delivers that many, and returns the seconds that this took. It consumes
the batches that its pipeline has ready before it starts the clock.

tf.data runs in several forms, and a ratio is taken to the fastest of them in the same run. The following were tried on two cores
and were not faster: `num_parallel_calls` of 2 and none, a private thread pool, `map_and_batch`, JPEG in batches with `tf.map_fn`.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
import numpy as np
import simplejpeg

import tfprep
from tfprep.dataset import open_dataset

Candidate = Callable[[int], float]
BATCH = 64
DRAIN = 16
"""Batches consumed before the clock starts."""
SHAPE = (224, 224, 3)
SHUFFLE = 1000
"""Records of tf.data's shuffle buffers, as in TensorFlow's guide."""
READ_BYTES = 4 << 20
"""Read buffer of tf.data in bytes. The default of 256 kB contains less than two raw images."""


def record_spans(folder: Path) -> tuple[list[Path], np.ndarray, np.ndarray, np.ndarray]:
    """Returns (files, file of each image, offset and size of each image's bytes)."""
    dataset = open_dataset(folder)
    index = dataset.index("train", 0, ["shard", "image_offset", "image_size"])
    files = [folder / file.name for file in dataset.split("train").files[0]]
    return (files, *(index.column(name).to_numpy() for name in ("shard", "image_offset", "image_size")))


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


def contents(folder: Path) -> list[bytes]:
    """The bytes of each image."""
    files, file, offset, size = record_spans(folder)
    data = [path.read_bytes() for path in files]
    return [data[f][o : o + s] for f, o, s in zip(file.tolist(), offset.tolist(), size.tolist(), strict=True)]


def decode_only(folder: Path, threads: int = 2) -> Candidate:
    """Limit for JPEG: threads decode JPEG bytes from memory into the memory of a batch."""
    jpegs, rows = contents(folder), batch_memory().reshape(2, BATCH, *SHAPE)

    def work(order: np.ndarray, thread: int) -> None:
        for at, number in enumerate((order % len(jpegs)).tolist()):
            simplejpeg.decode_jpeg(jpegs[number], buffer=rows[thread, at % BATCH])

    return lambda count: in_threads(work, count, threads)


def decode_processes(folder: Path) -> Candidate:
    """The other limit for JPEG: two processes that decode the same bytes, as `decode_only` does with threads. They share no
    interpreter, but the kernel moves them between cores more often than threads: either limit may be the higher one."""
    return in_processes([[sys.executable, __file__, "decode", folder, "jpeg"]] * 2)


def ffcv(folder: Path, python: Path) -> Candidate:
    """FFCV on the same images, in a process of its own with its own interpreter."""
    return in_processes([[python, __file__, "ffcv", folder, folder.name]])


def in_processes(commands: Sequence[Sequence[object]]) -> Candidate:
    """Processes that each deliver a part of a number of images."""
    running = [harness.Process(command) for command in commands]

    def run(count: int) -> float:
        for process in running:
            process.tell(count // len(running))
        return max(float(process.answer()) for process in running)

    return run


def batches_of_ffcv(folder: Path, form: str) -> Candidate:
    """The options are those of benchmarks/peers/peer_ffcv.py, which says what was tried."""
    import loader_data
    import peer_ffcv

    out = folder.parent / f"{form}-ffcv"
    images = list(loader_data.images(len(record_spans(folder)[1])))
    peer_ffcv.write([(image, number % loader_data.CLASSES) for number, image in enumerate(images)], out, form)
    return eager(iter(peer_ffcv.load(out, form, BATCH, workers=2)))


def pread(folder: Path) -> Candidate:
    """Limit for raw images: two threads read them into the memory of a batch with `preadv`."""
    files, file, offset, _ = record_spans(folder)
    descriptors = [os.open(path, os.O_RDONLY) for path in files]
    fds, offsets = [descriptors[f] for f in file.tolist()], offset.tolist()
    rows = [[memoryview(row) for row in half] for half in batch_memory()]

    def work(order: np.ndarray, thread: int) -> None:
        mine = rows[thread]
        for at, number in enumerate((order % len(fds)).tolist()):
            os.preadv(fds[number], (mine[at % BATCH],), offsets[number])

    return lambda count: in_threads(work, count)


def pixel_file(folder: Path) -> Path:
    """A file with only the pixels of a raw dataset, in the order of its records; the first call writes it."""
    path = folder.parent / "pixels.bin"
    if not path.exists():
        path.write_bytes(b"".join(contents(folder)))
    return path


def memory_map(folder: Path) -> Candidate:
    """Limit for raw images: two threads gather batches from a memory map of the pixels with `numpy.take`, 64 rows per call."""
    pixels = np.memmap(pixel_file(folder), np.uint8, "r").reshape(-1, math.prod(SHAPE))
    memory = batch_memory()

    def work(order: np.ndarray, thread: int) -> None:
        numbers = order % len(pixels)
        for start in range(0, len(numbers), BATCH):
            chosen = numbers[start : start + BATCH]
            np.take(pixels, chosen, axis=0, out=memory[thread, : len(chosen)], mode="clip")

    return lambda count: in_threads(work, count)


def tfdata_by_record(folder: Path) -> Any:
    """tf.data on JPEG as in TensorFlow's guide: a parallel map parses and decodes every record."""
    import tensorflow as tf

    def decode(record: Any) -> tuple[Any, Any]:
        parsed = tf.io.parse_single_example(record, _features())
        return tf.ensure_shape(tf.io.decode_jpeg(parsed["image"], channels=3), SHAPE), parsed["label"]

    decoded = _records(folder).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return _buffered(decoded.batch(BATCH, drop_remainder=True))


def tfdata_by_batch(folder: Path) -> Any:
    """tf.data on raw images: one call parses and decodes 64 records. JPEG has no such op, and `tf.map_fn` is half as fast."""
    import tensorflow as tf

    def decode(records: Any) -> tuple[Any, Any]:
        parsed = tf.io.parse_example(records, _features())
        return tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), (-1, *SHAPE)), parsed["label"]

    batches = _records(folder).batch(BATCH, drop_remainder=True)
    return _buffered(batches.map(decode, num_parallel_calls=tf.data.AUTOTUNE))


def tfdata_fixed_length(folder: Path) -> Any:
    """tf.data on fixed-length records that contain only pixels and need no parsing. They have no labels: here these are zero."""
    import tensorflow as tf

    files = tf.data.Dataset.from_tensors(str(pixel_file(folder))).repeat()
    records = files.flat_map(
        lambda name: tf.data.FixedLengthRecordDataset(name, math.prod(SHAPE), buffer_size=READ_BYTES)
    )
    batches = records.shuffle(SHUFFLE).batch(BATCH, drop_remainder=True)
    labels = tf.zeros((BATCH,), tf.int64)
    return _buffered(
        batches.map(
            lambda records: (tf.reshape(tf.io.decode_raw(records, tf.uint8), (-1, *SHAPE)), labels),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    )


def _records(folder: Path) -> Any:
    """Serialized examples as in the guide (https://www.tensorflow.org/guide/data_performance): parallel interleave with blocks of
    records and large read buffers, then a shuffle buffer."""
    import tensorflow as tf

    files = tf.data.Dataset.from_tensor_slices([str(path) for path in record_spans(folder)[0]]).shuffle(100).repeat()
    return files.interleave(
        lambda name: tf.data.TFRecordDataset(name, buffer_size=READ_BYTES),
        cycle_length=4,
        block_length=8,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    ).shuffle(SHUFFLE)


def _features() -> dict[str, Any]:
    import tensorflow as tf

    return {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def _buffered(batches: Any) -> Any:
    """Batches with a prefetch buffer of fixed length. With AUTOTUNE it would grow to hundreds of batches in this loop, which only
    takes batches, and would be full when the next turn begins."""
    return batches.prefetch(DRAIN // 2)


def loader(folder: Path, **options: Any) -> Candidate:
    """tfprep's loader."""
    return eager(iter(tfprep.open(folder).loader("train", BATCH, inputs="image", targets="label", **options).repeat()))


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


if __name__ == "__main__":
    what, form, place = sys.argv[1], sys.argv[3], Path(sys.argv[2])
    candidate = decode_only(place, 1) if what == "decode" else batches_of_ffcv(place, form)
    harness.serve(lambda count: candidate(int(count)))
