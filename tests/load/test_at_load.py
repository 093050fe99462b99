"""Flip, crop, MixUp and CutMix in TensorFlow: the graph path and the direct path against the NumPy loader, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfprep.load
from tfprep import codecs
from tfprep.load import CutMix, MixUp, RandomCrop, RandomFlip

CUTS = [RandomFlip(), RandomCrop(20, 25), RandomFlip(vertical=True), RandomCrop(19, 20)]
RASTERS = ["image", "lossless", "mask", "depth", "clicks", "field"]
NO_MASK = ["image", "depth", "clicks", "field", "label", "key"]


@pytest.fixture(scope="module")
def data(photos):
    return tfprep.load.open(photos.path)


def expected(data, count, **options):
    loader = data.numpy_loader("train", **options)
    try:
        return list(itertools.islice(loader, count))
    finally:
        loader.close()


def made(data, count, path, **options):
    loader = data.loader("train", path=path, **options)
    try:
        for element, spec in zip(
            tf.nest.flatten(next(iter(loader))), tf.nest.flatten(loader.element_spec), strict=True
        ):
            assert spec.is_compatible_with(element)
        return list(itertools.islice(loader, count))
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


@pytest.mark.parametrize(
    "options",
    [
        {"at_load": [*CUTS, MixUp(0.4)], "fields": [*NO_MASK, "caption"], "start_step": 1234567},
        {
            "at_load": [RandomFlip(0.3), CutMix()],
            "fields": [*RASTERS, "label"],
            "order": "block",
            "block": 8,
            "window": 2,
        },
        {"at_load": [MixUp(0.4, p=0.7), CutMix(0.5, p=0.6)], "fields": NO_MASK, "remainder": "keep", "start_step": 3},
        {"at_load": [MixUp(1.0)], "fields": ["image", "field"], "dtype": "float32", "normalize": True},
        {"at_load": [RandomCrop(9, 7), MixUp(1.0)], "fields": ["image", "field"], "dtype": "float16"},
        {"at_load": [CutMix()], "fields": ["lossless", "mask", "label"], "hosts": (1, 3), "remainder": "drop"},
        {"at_load": [RandomFlip(), MixUp(1.0)], "fields": ["image", "label"], "hosts": (2, 3), "batch_size": 9},
        {"at_load": [MixUp(1.0)], "fields": ["image", "label"], "hosts": (3, 4), "remainder": "keep", "order": "block"},
    ],
    ids=lambda options: "-".join(type(op).__name__ for op in options["at_load"]),
)
def test_graph_has_the_same_pixels_as_numpy(data, options):
    options = {"batch_size": 8, "seed": 4} | options
    same(expected(data, 7, **options), made(data, 7, "graph", **options))


def test_direct_has_the_same_pixels_as_numpy(data):
    options = {"batch_size": 8, "seed": 4, "at_load": [*CUTS, MixUp(0.4), CutMix()], "fields": NO_MASK}
    same(expected(data, 7, **options), made(data, 7, "direct", **options))


def test_images_of_different_sizes(make_dataset):
    def make(rng, number):
        size = 20 + number % 7, 30 - number % 5
        return {"image": rng.integers(0, 256, (*size, 3)).astype(np.uint8)}

    options = {"samples": {"train": 30}, "fields": ("image",), "make": make, "codec": {"image": codecs.Png()}}
    data = tfprep.load.open(make_dataset(**options, kinds={"image": "image"}).path)
    cut = {"batch_size": 10, "at_load": [RandomFlip(), RandomCrop(18, 18)]}
    same(expected(data, 4, **cut), made(data, 4, "graph", **cut))
    flip = {"batch_size": 10, "at_load": [RandomFlip()]}
    for one, other in zip(expected(data, 4, **flip), made(data, 4, "graph", **flip), strict=True):
        for row in range(10):
            np.testing.assert_array_equal(other["image"][row].to_tensor().numpy(), one["image"][row])
    loader = data.loader("train", path="graph", batch_size=10, at_load=[RandomCrop(22, 26)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="fewer pixels than RandomCrop"):
        list(itertools.islice(loader, 9))


@pytest.mark.parametrize("path", ["graph", "direct"])
def test_validation_takes_the_centre(data, path):
    ops = [RandomFlip(1.0), RandomCrop(20, 20), MixUp(0.4), CutMix()]
    options = {"batch_size": 4, "training": False, "fields": ["lossless", "label"]}
    plain = list(data.numpy_loader("val", **options))
    given = list(data.loader("val", path=path, at_load=ops, **options))
    for one, other in zip(plain, given, strict=True):
        np.testing.assert_array_equal(other["lossless"].numpy(), one["lossless"][:, 2:22, 6:26])
        np.testing.assert_array_equal(other["label"].numpy(), np.eye(3, dtype=np.float32)[one["label"]])


def test_labels_beyond_the_classes(make_dataset):
    made_of = {"samples": {"train": 8}, "fields": ("image", "grade"), "kinds": {"image": "image", "grade": "label"}}
    codec = {"image": codecs.Png(), "grade": codecs.Scalar()}
    made = make_dataset(
        **made_of, codec=codec, make=lambda rng, n: {"image": np.zeros((8, 8, 3), np.uint8), "grade": 7}
    )
    loader = tfprep.load.open(made.path).loader("train", 4, path="graph", at_load=[MixUp(classes=5)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="there are 5 classes"):
        next(iter(loader))


def test_fit_with_soft_labels(data):
    keras = tf.keras
    train = data.loader(
        "train", 10, inputs="image", targets="label", at_load=[RandomFlip(), RandomCrop(20, 20), MixUp()]
    )
    model = keras.Sequential(
        [keras.layers.Input((20, 20, 3)), keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")]
    )
    model.compile("sgd", keras.losses.CategoricalCrossentropy())
    history = model.fit(train, steps_per_epoch=train.steps_per_epoch, epochs=1, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"][0])
