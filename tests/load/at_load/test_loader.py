"""Flip, crop, MixUp and CutMix in TensorFlow: the direct path compared with the NumPy loader, bit for bit."""

import itertools

import numpy as np
import pytest

import tfprep.load
from tfprep.load import CutMix, MixUp, RandomCrop, RandomFlip

tf = pytest.importorskip("tensorflow")

CUTS = [RandomFlip(), RandomCrop(20, 25), RandomFlip(direction="vertical"), RandomCrop(19, 20)]
RASTERS = ["image", "lossless", "mask", "depth", "clicks", "field"]
NO_MASK = ["image", "depth", "clicks", "field", "label", "key"]


@pytest.fixture(scope="module")
def data(photos):
    return tfprep.load.open(photos.path)


def expected(data, count, **options):
    loader = data.numpy_loader("train", **options).repeat()
    try:
        return list(itertools.islice(loader, count))
    finally:
        loader.close()


def made(data, count, **options):
    loader = data.loader("train", **options).repeat()
    try:
        for element, spec in zip(
            tf.nest.flatten(next(iter(loader))), tf.nest.flatten(loader.element_spec), strict=True
        ):
            assert spec.is_compatible_with(element)
        return list(itertools.islice(loader.at_epoch(0), count))
    finally:
        loader.close()


def same(wanted, given):
    assert len(wanted) == len(given)
    for one, other in zip(wanted, given, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            array = other[name].numpy()
            if value.dtype == object:
                array = np.array([text.decode() for text in array], object)
            assert array.dtype == value.dtype, name
            np.testing.assert_array_equal(array, value, err_msg=name)


def test_direct_has_the_same_pixels_as_numpy(data):
    options = {"batch_size": 8, "seed": 4, "at_load": [*CUTS, MixUp(0.4), CutMix()], "fields": NO_MASK}
    same(expected(data, 7, **options), made(data, 7, **options))


def test_validation_takes_the_centre(data):
    ops = [RandomFlip(1.0), RandomCrop(20, 20), MixUp(0.4), CutMix()]
    options = {"batch_size": 4, "training": False, "fields": ["lossless", "label"]}
    plain = list(data.numpy_loader("val", **options))
    given = list(data.loader("val", at_load=ops, **options))
    for one, other in zip(plain, given, strict=True):
        np.testing.assert_array_equal(other["lossless"].numpy(), one["lossless"][:, 2:22, 6:26])
        np.testing.assert_array_equal(other["label"].numpy(), np.eye(3, dtype=np.float32)[one["label"]])


def test_fit_with_soft_labels(data):
    keras = tf.keras
    train = data.loader(
        "train", 10, inputs="image", targets="label", at_load=[RandomFlip(), RandomCrop(20, 20), MixUp()]
    )
    model = keras.Sequential(
        [keras.layers.Input((20, 20, 3)), keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")]
    )
    model.compile("sgd", keras.losses.CategoricalCrossentropy())
    history = model.fit(train, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"][0])
