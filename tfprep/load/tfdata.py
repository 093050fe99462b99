"""The loader as a `tf.data.Dataset`: TensorFlow takes each batch over as it lies in memory, without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfprep.read.outputs import Output
from tfprep.read.pipeline import Pipeline

PREFETCH = 2
"""Batches that wait on TensorFlow's side of the hand-over; all others wait in the reader."""


class Loader(tf.data.Dataset):  # type: ignore[misc] # TensorFlow is untyped
    """A `tf.data.Dataset`, and what a trainer wants to know of it."""

    def __init__(self, pipeline: Pipeline, dataset: tf.data.Dataset) -> None:
        self._pipeline = pipeline
        self._dataset = dataset
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold one epoch."""
        return self._pipeline.steps_per_epoch

    def close(self) -> None:
        """Stop the reading threads and give the memory back; iterators still open end with an error."""
        self._pipeline.close()


def make_loader(pipeline: Pipeline) -> Loader:
    outputs = pipeline.outputs
    flat = tuple(_signature(output, pipeline) for output in outputs.outputs)

    def batches() -> Iterator[tuple[Any, ...]]:
        for batch in pipeline.batches():
            yield tuple(batch.values[output.name] for output in outputs.outputs)

    dataset = tf.data.Dataset.from_generator(batches, output_signature=flat)
    names = [output.name for output in outputs.outputs]
    dataset = dataset.map(lambda *values: outputs.pack(dict(zip(names, values, strict=True))))
    steps = pipeline.schedule.steps
    left = tf.data.INFINITE_CARDINALITY if steps is None else max(0, steps - pipeline.options.start_step)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(left)).prefetch(PREFETCH)
    return Loader(pipeline, dataset.with_options(_options()))


def _signature(output: Output, pipeline: Pipeline) -> tf.TensorSpec:
    schedule = pipeline.schedule
    full = schedule.remainder != "keep" and (schedule.epochs is None or schedule.remainder == "drop")
    even = schedule.batch_size % schedule.hosts.count == 0
    rows = schedule.batch_size // schedule.hosts.count if full and even else None
    return tf.TensorSpec((rows, *output.shape), tf.dtypes.as_dtype(output.dtype))


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.autotune.enabled = (
        False  # it has nothing to tune here, and dropping an iterator under it can block for seconds
    )
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
