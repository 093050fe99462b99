"""Compiled steps and sample weights of Keras, compared with the same data as arrays. Plain `fit` is in tests/backends."""

import numpy as np
import pytest

from tests.load.batches import batches

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

XY = {"inputs": "image", "targets": "label"}


def model_of(data, **options):
    """A model with the same weights each time."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((24, 32, 3), dtype="uint8"),
            data.normalization("image"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


def weights_after(data, *args, **options):
    model = model_of(data)
    model.fit(*args, verbose=0, shuffle=False, **options)
    return [weight.numpy() for weight in model.trainable_weights]


def test_sample_weights(data):
    found = weights_after(data, data.loader("train", 10, seed=3, sample_weight="weight", **XY))
    stored = batches(data, 5, batch_size=10, sample_weight="weight", **XY)
    x, y, w = (np.concatenate(part) for part in zip(*stored, strict=True))
    expected = weights_after(data, x, y, sample_weight=w, batch_size=10)
    plain = weights_after(data, x, y, batch_size=10)
    for one, other, without in zip(found, expected, plain, strict=True):
        assert np.allclose(one, other, atol=1e-6)
        assert not np.allclose(one, without, atol=1e-3)


def test_compiled_by_xla_without_a_second_trace(data):
    """50 samples would leave a smaller batch of 2, which training drops: all have one shape."""
    found, traces = {}, []
    for compiled in (True, False):
        train = data.loader("train", 8, seed=3, **XY)
        model, traced = model_of(data, jit_compile=compiled), []
        call = model.layers[-1].call

        def counted(*args, call=call, traced=traced, **options):
            traced.append(1)
            return call(*args, **options)

        model.layers[-1].call = counted
        model.fit(train.take(1), verbose=0, shuffle=False)
        traces.append(len(traced))
        model.fit(train, epochs=3, verbose=0, shuffle=False)
        assert len(traced) == traces[-1] >= 1
        found[compiled] = [weight.numpy() for weight in model.trainable_weights]
    for one, other in zip(found[True], found[False], strict=True):
        assert np.allclose(one, other, atol=1e-4)
