"""TFRecords as in TensorFlow's guide: written by `tf.io.TFRecordWriter`, read by interleave, shuffle, parallel map, batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import CROP, Item, encoded, main

SHARDS = 8


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
    from tfprep.cli.quiet import start_tensorflow

    start_tensorflow()
    import tensorflow as tf

    wanted = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: Any) -> Any:
        found = tf.io.parse_single_example(record, wanted)
        if form == "raw":
            image = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), (CROP, CROP, 3))
        else:
            image = tf.io.decode_jpeg(found["image"], channels=3, dct_method="INTEGER_ACCURATE")
        return tf.ensure_shape(image, (CROP, CROP, 3)), found["label"]

    files = tf.data.Dataset.list_files(str(out / "*.tfrecord"), shuffle=True)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE).repeat().shuffle(1000)
    data = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(batch_size).prefetch(tf.data.AUTOTUNE)


if __name__ == "__main__":
    main(build, load)
