"""TFRecords in plain tf.data, as its performance guide advises: https://www.tensorflow.org/guide/data_performance

The files are interleaved in parallel, in blocks of 8 records and with read buffers of 4 MB. Raw images are parsed and decoded
in batches. JPEG has no op for a batch, and `tf.map_fn` over a batch is half as fast as a parallel map over records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import CROP, SHARDS, Item, encoded

READ_BYTES = 4 << 20


def build(items: Sequence[Item], out: Path, form: str) -> None:
    import tensorflow as tf

    out.mkdir(parents=True)
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(out / f"{shard:03d}.tfrecord")) as writer:
            for path, label in items[shard::SHARDS]:
                image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded(path, form)]))
                number = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
                features = tf.train.Features(feature={"image": image, "label": number})
                writer.write(tf.train.Example(features=features).SerializeToString())


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    from tfprep.cli.text import start_tensorflow

    start_tensorflow()
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def decode_record(record: Any) -> Any:
        parsed = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(parsed["image"], channels=3, dct_method="INTEGER_ACCURATE")
        return tf.ensure_shape(image, (CROP, CROP, 3)), parsed["label"]

    def decode_batch(records: Any) -> Any:
        parsed = tf.io.parse_example(records, features)
        return tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), (-1, CROP, CROP, 3)), parsed["label"]

    auto = tf.data.AUTOTUNE
    files = tf.data.Dataset.list_files(str(out / "*.tfrecord"), shuffle=True)
    records = files.interleave(
        lambda name: tf.data.TFRecordDataset(name, buffer_size=READ_BYTES),
        cycle_length=4,
        block_length=8,
        num_parallel_calls=auto,
        deterministic=False,
    )
    shuffled = records.repeat().shuffle(1000)
    if form == "raw":
        return shuffled.batch(batch_size).map(decode_batch, num_parallel_calls=auto).prefetch(auto)
    return shuffled.map(decode_record, num_parallel_calls=auto).batch(batch_size).prefetch(auto)
