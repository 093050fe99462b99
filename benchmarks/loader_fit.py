"""Candidates of benchmarks/loader.py that run `model.fit`. Importing this module imports Keras."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from loader_peers import BATCH, DRAIN, Candidate

import tfprep


class OnePixel(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return keras.ops.cast(inputs[:, 0, 0, :], "float32") / 255


class Clock(keras.callbacks.Callback):
    """Seconds of an epoch without its first batches, which were ready before it began."""

    batches = 0
    seconds = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == DRAIN - 1:
            self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds = time.perf_counter() - self._start


def fit(folder: Path, **options: Any) -> Candidate:
    """`fit` of a model that reads one pixel, so that the delivery of batches takes most of the time."""
    loader = tfprep.open(folder).loader("train", BATCH, inputs="image", targets="label", tuning=False, **options)
    return fitted(loader.repeat())


def keras_alone() -> Candidate:
    """`fit` of the same model on one constant batch, which measures the time of Keras."""
    batch = tf.zeros((BATCH, 224, 224, 3), tf.uint8), tf.zeros((BATCH,), tf.int64)
    return fitted(tf.data.Dataset.from_tensors(batch).repeat())


def fitted(train: tf.data.Dataset) -> Candidate:
    """`fit` of the same model on batches of images and labels."""
    model = keras.Sequential([keras.Input((224, 224, 3), dtype="uint8"), OnePixel(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=8)  # Keras itself takes longer than a batch of raw images
    clock = Clock()

    def run(count: int) -> float:
        clock.batches = count // BATCH
        model.fit(train, steps_per_epoch=clock.batches + DRAIN, verbose=0, shuffle=False, callbacks=[clock])
        return clock.seconds

    return run
