"""Keras's advice to `.shuffle`: never about a loader, and always about a dataset of the user's own."""

import pickle
import re
import warnings

import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from tfprep.load.tensorflow.private import SHUFFLE_ADVICE, silence_advice_to_shuffle  # noqa: E402 - it imports TensorFlow


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((24, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture
def train(data):
    return data.loader("train", batch_size=8, inputs="image", targets="label")


def own(train):
    return tf.data.Dataset.from_tensors((tf.zeros([8, 24, 32, 3]), tf.zeros([8], tf.int64)))


def advice(model, dataset, silence):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        silence()  # in front of this block's own filter
        model.fit(dataset, verbose=0)
    return [str(warning.message) for warning in shown if ".shuffle(buffer_size)" in str(warning.message)]


@pytest.mark.parametrize(
    "dataset", [lambda train: train, lambda train: train.map(lambda x, y: (x, y)).prefetch(1)], ids=["itself", "map"]
)
def test_none_for_a_loader(model, train, dataset):
    assert advice(model, dataset(train), silence_advice_to_shuffle) == []


@pytest.mark.parametrize("dataset", [own, lambda train: own(train).map(lambda x, y: (x, y))], ids=["itself", "map"])
def test_as_before_for_other_datasets(model, train, dataset):
    """Older versions of Keras advise nobody."""
    assert advice(model, dataset(train), silence_advice_to_shuffle) == advice(model, dataset(train), lambda: None)
    if version(keras.__version__) >= (3, 15):
        assert advice(model, dataset(train), silence_advice_to_shuffle)


def version(text):
    return tuple(int(part) for part in text.split(".")[:2])


def test_the_filter_can_be_sent_to_another_process(train):
    (sent,) = [item for item in pickle.loads(pickle.dumps(warnings.filters)) if "`shuffle=True`" in str(item[1])]
    assert isinstance(sent[1], re.Pattern)
    assert sent[1].match(SHUFFLE_ADVICE)


def test_the_filter_is_inserted_once(data, train):
    before = len(warnings.filters)
    data.loader("train", batch_size=8), data.loader("val", batch_size=8)
    assert len(warnings.filters) == before
