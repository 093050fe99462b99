"""TensorFlow Datasets: 8 shards written by a `GeneratorBasedBuilder`, read with `as_dataset` and a shuffle buffer of 1,000.

As its performance tips advise (https://www.tensorflow.org/datasets/performances), decoding is skipped in `as_dataset`; the
shuffled records are then decoded, JPEG with `decode_jpeg` and raw pixels by batch. Raw pixels are stored as bytes
(`Encoding.BYTES`), and files are read 4 at a time, in blocks of 8 records, with buffers of 4 MB. Processor time of a raw
image: 0.20 ms; decoding by TFDS before the shuffle buffer: 0.21 ms. Its cache is off, as those of the other peers are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import CROP, SHARDS, Item, encoded, prepared

READ_BYTES = 4 << 20


def builder(items: Sequence[Item], out: Path, form: str) -> Any:
    from tfprep.cli.quiet import start_tensorflow

    start_tensorflow()
    import tensorflow_datasets as tfds

    logging.getLogger("absl").setLevel(logging.ERROR)
    tfds.disable_progress_bar()
    shape = (CROP, CROP, 3)
    pixels = tfds.features.Tensor(shape=shape, dtype=np.uint8, encoding=tfds.features.Encoding.BYTES)
    image = pixels if form == "raw" else tfds.features.Image(shape=shape)

    class Photos(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = Path(__file__).parent

        def _info(self) -> Any:
            classes = tfds.features.ClassLabel(num_classes=1000)
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict({"image": image, "label": classes})
            )

        def _split_generators(self, manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[Any]:
            for number, (path, label) in enumerate(items):
                value = prepared(path) if form == "raw" else io_bytes(encoded(path, form))
                yield number, {"image": value, "label": label}

    return Photos(data_dir=str(out))


def io_bytes(content: bytes) -> Any:
    """The content as a file object, which TFDS stores without encoding it again."""
    import io

    return io.BytesIO(content)


def build(items: Sequence[Item], out: Path, form: str) -> None:
    import tensorflow_datasets as tfds

    config = tfds.download.DownloadConfig(num_shards=SHARDS)
    builder(items, out, form).download_and_prepare(download_config=config)


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    source = builder([], out, form)
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def decode_record(record: Any) -> Any:
        image = tf.io.decode_jpeg(record["image"], channels=3, dct_method="INTEGER_ACCURATE")
        return tf.ensure_shape(image, (CROP, CROP, 3)), record["label"]

    def decode_batch(records: Any) -> Any:
        return tf.reshape(tf.io.decode_raw(records["image"], tf.uint8), (-1, CROP, CROP, 3)), records["label"]

    config = tfds.ReadConfig(
        try_autocache=False,  # TFDS caches small datasets in memory, the other peers do not
        interleave_cycle_length=4,
        interleave_block_length=8,
        override_buffer_size=READ_BYTES,
    )
    skip = {"image": tfds.decode.SkipDecoding()}
    records = source.as_dataset(split="train", shuffle_files=True, read_config=config, decoders=skip)
    shuffled, auto = records.repeat().shuffle(1000), tf.data.AUTOTUNE
    if form == "raw":
        return shuffled.batch(batch_size).map(decode_batch, num_parallel_calls=auto).prefetch(auto)
    return shuffled.map(decode_record, num_parallel_calls=auto).batch(batch_size).prefetch(auto)
