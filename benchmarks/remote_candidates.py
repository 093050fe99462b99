"""The candidates of benchmarks/remote.py. Each one is a function that yields numbers of decoded images, batch by batch.

Of tf.data there are two forms. "tf.data" follows its performance guide as far as an object store lets it (TensorFlow 2.21 has no
file system for s3://): ranges of 8 MB are fetched with obstore in a parallel interleave, the records of 16 of them are mixed and
go through a shuffle buffer, and decoding is a parallel map. "tf.data records" has the exact global order, with a request a
record, 64 at a time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 64
RANGE_BYTES = 8 << 20
THREADS = 16
"""Connections of the candidates that fetch ranges of `RANGE_BYTES`: 128 MB in flight."""


# --- what the server sends ---------------------------------------------------------------------------------------------


def ranges(place: str, image_bytes: float) -> Iterator[int]:
    """Ranges of `RANGE_BYTES` by `THREADS` threads, as the number of images that have so many bytes."""
    import tfprep
    from tfprep.storage.store import open_store

    read = open_store(place).read
    files = [file for files in tfprep.open(place).splits["train"].files for file in files]
    parts = [
        (f.name, start, min(start + RANGE_BYTES, f.bytes)) for f in files for start in range(0, f.bytes, RANGE_BYTES)
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        while True:
            for size in pool.map(lambda part: len(read(*part)), parts * 8):
                yield round(size / image_bytes)


# --- tfprep -------------------------------------------------------------------------------------------------------------


def loader(place: str, **options: Any) -> Iterator[int]:
    """Batches of NumPy arrays."""
    import tfprep

    options = {"cache": False, "memory_budget": "512MB", "seed": 1, "workers": "threads", **options}
    with closing(tfprep.open(place).numpy_loader("train", BATCH, **options).repeat()) as batches:
        for batch in batches:
            yield len(batch["image"])


def with_local_cache(place: str, folder: Path) -> Iterator[int]:
    """The loader with all shards in the local cache."""
    import tfprep

    with closing(tfprep.open(place).numpy_loader("train", BATCH, cache=False, workers="threads", local=folder)) as cold:
        next(iter(cold))
        while cold.report()["local"]["hits"] < 1.0:
            time.sleep(0.05)
    yield from loader(place, local=folder)


def apart(place: str) -> Iterator[int]:
    """Global order as in a dataset of many GB, where hardly two records that are needed together lie side by side."""
    from unittest.mock import patch

    from tfprep.load.reader import ahead

    join = ahead._ranges

    def one_each(*arguments: Any) -> Any:
        with patch.object(ahead, "GAP_BYTES", -(1 << 60)):
            return join(*arguments)

    with patch.object(ahead, "_ranges", one_each):
        yield from loader(place)


# --- tf.data ------------------------------------------------------------------------------------------------------------


def tf_data(place: str) -> Iterator[int]:
    """Ranges of shards in random order, mixed as tf.data's guide advises."""
    import tensorflow as tf

    from tfprep.storage.store import open_store

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


def tf_data_records(place: str) -> Iterator[int]:
    """Records in global order, each a request."""
    import tensorflow as tf

    from tfprep.storage.store import open_store

    store = open_store(place)
    names, shard, offset, size = _images(place)

    def fetch(number: Any) -> bytes:
        first = int(offset[number])
        return bytes(store.read(names[shard[number]], first, first + int(size[number])))

    numbers = tf.data.Dataset.range(len(shard)).shuffle(len(shard)).repeat()
    yield from _decoded(
        numbers.map(lambda n: tf.numpy_function(fetch, [n], tf.string), num_parallel_calls=64, deterministic=False)
    )


def _images(place: str) -> tuple[list[str], Any, Any, Any]:
    """The names of the shards, and the shard, offset and size of each image's bytes, in the order of the shards."""
    import tfprep

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


# --- MosaicML Streaming -------------------------------------------------------------------------------------------------


def streaming(python: str, place: str, local: Path) -> Iterator[int]:
    """MosaicML Streaming from the MDS shards beside the dataset, in a process of its own (`streaming_batches`)."""
    command = [python, __file__, place, str(local)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout
    try:
        for line in process.stdout:
            yield int(line)
        raise RuntimeError(f"MosaicML Streaming ended with status {process.wait()}")
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with its workers
        process.wait()


def streaming_batches(place: str, local: Path) -> None:
    """Print the number of images of each batch. Two worker processes decode, as tfprep's two threads; each epoch fetches anew.

    The index is fetched beforehand. Where Streaming fetches it, the workers inherit that connection and read each other's
    answers: 586 of 3,000 images were damaged (mosaicml-streaming 0.13 with forked workers).
    """
    import itertools

    import boto3
    import torch
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    bucket, _, key = place.removeprefix("s3://").partition("/")
    for epoch in itertools.count():
        (local / f"{epoch}").mkdir(parents=True)
        client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
        client.download_file(bucket, f"{key}/mds/index.json", str(local / f"{epoch}/index.json"))
        data = StreamingDataset(remote=f"{place}/mds", local=str(local / f"{epoch}"), shuffle=True, batch_size=BATCH)
        for images in torch.utils.data.DataLoader(data, BATCH, num_workers=2, collate_fn=_stacked):
            print(len(images), flush=True)


def _stacked(samples: Any) -> Any:
    import simplejpeg

    return np.stack([simplejpeg.decode_jpeg(sample["image"]) for sample in samples])


def write_mds(images: Path, out: Path) -> None:
    """Write MDS shards of JPEG files."""
    from streaming import MDSWriter

    with MDSWriter(out=str(out), columns={"image": "bytes"}, size_limit=1 << 24) as writer:
        for path in sorted(images.glob("*.jpg")):
            writer.write({"image": path.read_bytes()})


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write_mds(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        streaming_batches(sys.argv[1], Path(sys.argv[2]))
