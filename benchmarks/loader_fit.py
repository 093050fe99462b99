"""Candidates of benchmarks/loader.py that run `model.fit`. Importing this module imports Keras."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from loader_peers import BATCH, DRAIN, Candidate

import tfprep

STEPS = 8
"""Batches that Keras takes at a time: one by one, Keras itself takes longer than a batch of raw images. DRAIN is a multiple."""


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


def fit(folder: Path, **options: Any) -> Candidate:
    """`fit` of a model that reads one pixel, so that the delivery of batches takes most of the time. A turn is an epoch."""
    loader = tfprep.open(folder).loader("train", BATCH, inputs="image", targets="label", **options)
    return fitted(loader, len(loader))


def keras_alone() -> Candidate:
    """`fit` of the same model on one constant batch, which measures the time of Keras."""
    batch = tf.zeros((BATCH, 224, 224, 3), tf.uint8), tf.zeros((BATCH,), tf.int64)
    return fitted(tf.data.Dataset.from_tensors(batch).repeat())


def fitted(train: tf.data.Dataset, epoch: int = 0) -> Candidate:
    """`fit` of the same model on batches of images and labels. `epoch`: the number of batches, unless there is no end.

    Keras takes `STEPS` batches at a time, also the last time, so an epoch has a multiple of them or ends by itself.
    """
    model = keras.Sequential([keras.Input((224, 224, 3), dtype="uint8"), OnePixel(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=STEPS)
    clock = Clock()

    def run(count: int) -> float:
        batches = count // BATCH
        steps = epoch or -(-(batches + DRAIN) // STEPS) * STEPS
        model.fit(train, steps_per_epoch=None if epoch else steps, verbose=0, shuffle=False, callbacks=[clock])
        return clock.seconds * batches / (steps - DRAIN)

    return run
