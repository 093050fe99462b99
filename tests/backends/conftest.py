"""Tests of Keras on the backend that KERAS_BACKEND names: `scripts/test_backends` runs them on JAX and on PyTorch."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from pathlib import Path

import numpy as np
import pytest

import tfprep

HERE = Path(__file__).parent
keras = pytest.importorskip("keras")


def pytest_collection_modifyitems(items):
    """Keras 3.15 on JAX warns of itself with NumPy 2 whenever the values of a variable are read."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"))


@pytest.fixture(scope="session")
def data(photos):
    """50 training samples of 3 variants and 11 validation samples, with images of 24 x 32 pixels and labels of 3 classes."""
    return tfprep.open(photos.path)


@pytest.fixture(scope="session")
def weights():
    """The weights that every model begins with."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(24 * 32 * 3, 3)).astype("float32") * 0.01, np.zeros(3, "float32")]


@pytest.fixture
def make_model(weights):
    """`make_model(built)`: a compiled model of one layer, whose training depends on every batch and their order."""

    def make(built=True):
        layers = keras.layers
        stack = [layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(3)]
        model = keras.Sequential([keras.Input([24, 32, 3]), *stack] if built else stack)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, metrics=["accuracy"])
        if built:
            model.set_weights(weights)
        return model

    return make
