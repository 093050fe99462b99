"""Keras's advice to `.shuffle`: never about a loader, and always about a dataset of the user's own."""

from __future__ import annotations

import warnings

import pytest

import tfprep

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((24, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture
def train(photos):
    return tfprep.open(photos.path).loader("train", batch_size=8, inputs="image", targets="label")


def own(train):
    return tf.data.Dataset.from_tensors((tf.zeros([8, 24, 32, 3]), tf.zeros([8], tf.int64)))


@pytest.mark.parametrize(
    ("dataset", "is_shown"),
    [
        (lambda train: train, False),
        (lambda train: train.map(lambda x, y: (x, y)).prefetch(1), False),
        (own, True),
        (lambda train: own(train).map(lambda x, y: (x, y)), True),
    ],
)
def test_whom_keras_advises(model, train, dataset, is_shown):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        tfprep.load.tensorflow.advice.silence_advice_to_shuffle()  # in front of this block's own filter
        model.fit(dataset(train), verbose=0)
    assert any(".shuffle(buffer_size)" in str(warning.message) for warning in shown) is is_shown


def test_other_warnings_pass_the_filter(train):
    with pytest.warns(UserWarning, match="something else"):
        warnings.warn("something else", UserWarning, stacklevel=1)


def test_the_filter_is_inserted_once(photos, train):
    data = tfprep.open(photos.path)
    before = len(warnings.filters)
    data.loader("train", batch_size=8), data.loader("val", batch_size=8)
    assert len(warnings.filters) == before
