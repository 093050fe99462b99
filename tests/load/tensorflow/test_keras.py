"""Features of Keras with a loader besides plain `fit`: compiled steps, weights, validation; compared with the same data as
arrays.
"""

from itertools import islice

import numpy as np
import pytest

import tfprep

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

XY = {"inputs": "image", "targets": "label"}


@pytest.fixture(scope="module")
def data(photos):
    return tfprep.open(photos.path)


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


def weights_after(model, *args, **options):
    history = model.fit(*args, verbose=0, shuffle=False, **options)
    return history.history, [weight.numpy() for weight in model.trainable_weights]


def arrays(data, steps, **options):
    """The batches of the first steps as one array per field."""
    batches = list(islice(data.numpy_loader("train", 10, seed=3, **options), steps))
    return [np.concatenate(column) for column in zip(*batches, strict=True)]


def test_sample_weight(data):
    train = data.loader("train", 10, seed=3, sample_weight="weight", **XY)
    _, found = weights_after(model_of(data), train)
    x, y, w = arrays(data, 5, sample_weight="weight", **XY)
    _, expected = weights_after(model_of(data), x, y, sample_weight=w, batch_size=10)
    _, plain = weights_after(model_of(data), x, y, batch_size=10)
    for one, other, without in zip(found, expected, plain, strict=True):
        assert np.allclose(one, other, atol=1e-6)
        assert not np.allclose(one, without, atol=1e-3)


def test_class_weight(data):
    class_weight = {0: 1.0, 1: 5.0, 2: 0.0}
    train = data.loader("train", 10, seed=3, **XY)
    _, found = weights_after(model_of(data), train, class_weight=class_weight)
    x, y = arrays(data, 5, **XY)
    _, expected = weights_after(model_of(data), x, y, batch_size=10, class_weight=class_weight)
    for one, other in zip(found, expected, strict=True):
        assert np.allclose(one, other, atol=1e-6)


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


def test_a_custom_compiled_function(data):
    @tf.function(jit_compile=True)
    def mean(image):
        return tf.reduce_mean(tf.cast(image, tf.float32), (1, 2, 3))

    for x, _ in data.loader("train", 8, seed=3, **XY).repeat().take(9):
        assert np.allclose(mean(x).numpy(), x.numpy().mean((1, 2, 3)), rtol=1e-5)
    assert mean.experimental_get_tracing_count() == 1


def test_validation_reads_the_whole_split_in_every_epoch(data):
    train = data.loader("train", 10, seed=3, **XY)
    validation = data.loader("val", 4, **XY)
    model = model_of(data)
    training = model.fit(train, epochs=2, validation_data=validation, verbose=0, shuffle=False)
    x, y = [np.concatenate(column) for column in zip(*data.numpy_loader("val", 4, **XY), strict=True)]
    assert len(y) == 11
    assert training.history["val_loss"][-1] == pytest.approx(model.evaluate(x, y, batch_size=11, verbose=0), rel=1e-5)
    assert model.evaluate(validation, verbose=0) == pytest.approx(training.history["val_loss"][-1], rel=1e-6)
    assert model.predict(data.loader("val", 4, inputs="image"), verbose=0).shape == (11, 3)


def test_as_numpy_iterator(data):
    train = data.loader("train", 8, seed=3, **XY)
    expected = data.numpy_loader("train", 8, seed=3, **XY)
    for (x, y), (image, label) in zip(train.as_numpy_iterator(), expected, strict=True):
        assert np.array_equal(x, image)
        assert np.array_equal(y, label)
