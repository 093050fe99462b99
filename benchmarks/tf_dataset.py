"""`tf_dataset` beside a tf.data pipeline that is tuned by hand, over the same records.

Run: python benchmarks/tf_dataset.py [--images 4200] [--rounds 9] [--json FILE]

Images of 224 × 224 pixels, as JPEG of quality 95 and as raw bytes, in shuffled batches of 64. The pipeline by hand follows the
guide of tf.data (https://www.tensorflow.org/guide/data_performance), with the fastest settings that were found for each form: a
read buffer of 4 MiB, an interleave of 4 shards in blocks of 8, a shuffle buffer of 1,000 records, JPEG decoded by record, and raw
bytes parsed and decoded by batch. Candidates take turns; a turn is an epoch, with the time that filling the shuffle buffer takes.
Figures are medians; a ratio is taken within a round.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import harness
import loader_data

import tfprep
from tfprep.bench.machine import this_machine

BATCH = 64
SHAPE = (loader_data.SIZE, loader_data.SIZE, 3)
LEAST = 0.95


def by_hand(folder: Path) -> Any:
    """The pipeline of a user who knows tf.data well."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    files = sorted(str(path) for path in tfprep.open(folder).path.glob("*.tfrecord-*") if path.suffix != ".idx")
    shards = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
    records = shards.interleave(
        lambda path: tf.data.TFRecordDataset(path, buffer_size=4 << 20),
        cycle_length=4, block_length=8, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False,
    ).shuffle(1000)  # fmt: skip

    def of_record(record: Any) -> Any:
        values = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(values["image"], channels=3, dct_method="INTEGER_ACCURATE")
        return tf.ensure_shape(image, SHAPE), values["label"]

    def of_batch(records: Any) -> Any:
        values = tf.io.parse_example(records, features)
        return tf.reshape(tf.io.decode_raw(values["image"], tf.uint8), (BATCH, *SHAPE)), values["label"]

    if folder.name == "jpeg":
        batches = records.map(of_record, tf.data.AUTOTUNE).batch(BATCH, drop_remainder=True)
    else:
        batches = records.batch(BATCH, drop_remainder=True).map(of_batch, tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE)


def epoch(batches: Any) -> float:
    """Images per second of an epoch, from its beginning: a shuffle buffer is filled first."""
    start, count = time.perf_counter(), 0
    for _ in batches:
        count += BATCH
    return count / (time.perf_counter() - start)


def main() -> None:
    options = harness.arguments(__doc__ or "", images=(4200, "Images per dataset"), rounds=(9, "Measured rounds"))
    results: dict[str, Any] = {"images": options.images, "rounds": options.rounds}
    with loader_data.datasets(options.images) as folder:
        results["machine"] = this_machine(folder).words
        for form in ("jpeg", "raw"):
            ours = tfprep.open(folder / form).tf_dataset("train", BATCH, inputs="image", targets="label")
            turns = {"tf_dataset": partial(epoch, ours), "by hand": partial(epoch, by_hand(folder / form))}
            rates = harness.in_turns(turns, options.rounds, warm_up=1)
            share = harness.ratio(rates["tf_dataset"], rates["by hand"])
            results[form] = {"ratio": share, **{name: median(each) for name, each in rates.items()}}
            for name, each in rates.items():
                print(f"{form}: {name:12} {median(each):10,.0f} images/s   ({min(each):,.0f} to {max(each):,.0f})")
            print(f"{form}: ratio {share:.2f}")
    harness.finish(options, results, failed=any(results[form]["ratio"] < LEAST for form in ("jpeg", "raw")))


if __name__ == "__main__":
    main()
