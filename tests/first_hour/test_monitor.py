"""A newcomer's training is slow, because a `.map` behind the loader is."""

from __future__ import annotations

import time

import pytest

import tfprep

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")


def slow(images, labels):
    def wait(labels):
        time.sleep(0.05)
        return labels

    return images, tf.ensure_shape(tf.numpy_function(wait, [labels], labels.dtype), labels.shape)


def test_the_monitor_names_what_is_slow(photos, tmp_path):
    train = tfprep.open(photos.path).loader("train", batch_size=8, seed=0, inputs="image", targets="label")
    model = keras.Sequential([keras.Input((24, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    monitor = tfprep.train.InputMonitor(tmp_path)
    model.fit(train.map(slow), epochs=4, verbose=0, callbacks=[monitor])
    limit = monitor.summary.splitlines()[-1]
    assert "what comes after the loader limits" in limit, limit
    assert "Move the work of a `.map` behind the loader into the recipe" in limit
    assert "tfprep build" not in limit
