"""Small models and pipelines for the tests of tfprep.train."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import time
from dataclasses import replace

import pytest

from tfprep import limits


@pytest.fixture(scope="session")
def tf():
    import tensorflow

    return tensorflow


@pytest.fixture
def dense(tf):
    """A compiled model of one layer for [B, 8] inputs and [B, 4] targets."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def pairs(tf):
    """`pairs(count, delay)` is a dataset of `count` pairs (x [8], y [4]); sample n takes `delay(n)` seconds."""

    def make(count, delay=lambda number: 0.0):
        def wait(number):
            time.sleep(delay(int(number)))
            return number

        def sample(number):
            done = tf.ensure_shape(tf.numpy_function(wait, [number], tf.int64), [])
            return tf.ones([8]), tf.ones([4]) * tf.cast(done, tf.float32)

        return tf.data.Dataset.range(count).map(sample)

    return make


@pytest.fixture
def slow_step(tf):
    """`slow_step(*seconds)` is a callback that sleeps after each batch, after the last ones for the last number."""

    class SlowStep(tf.keras.callbacks.Callback):
        def __init__(self, *seconds):
            super().__init__()
            self.seconds = seconds

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(self.seconds[min(batch, len(self.seconds) - 1)])

    return SlowStep


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch):
    """No other program seems to run: a verdict about a staged cause must not depend on what else this machine does."""
    now = limits.CpuTimes.now
    monkeypatch.setattr(limits.CpuTimes, "now", lambda: replace(now(), others=0.0))
