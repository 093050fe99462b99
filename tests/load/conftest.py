"""Datasets that the tests of loaders share. No test changes them."""

import threading

import numpy as np
import pytest

import tfprep
from tests.conftest import smooth, write_dataset
from tfprep import codecs
from tfprep.load.reader.files import Files


@pytest.fixture(scope="session")
def data(photos):
    """50 training samples of 3 variants and 11 validation samples of 24 x 32 pixels: see `photos`."""
    return tfprep.open(photos.path)


UNEVEN = {
    "codec": {"image": codecs.Jpeg(95), "mask": codecs.Png(), "boxes": codecs.Scalar(), "caption": codecs.Text()},
    "kinds": {"image": "image", "mask": "mask", "boxes": "boxes", "caption": "text"},
}


@pytest.fixture(scope="session")
def uneven(tmp_path_factory):
    """60 images of 40 to 56 x 38 to 50 pixels with masks, boxes and texts, among them none at all."""

    def make(rng, number):
        height, width, boxes = 40 + number % 17, 50 - number % 13, number % 4
        return {
            "image": smooth(rng, height, width, 3),
            "mask": rng.integers(0, 9, (height, width)).astype(np.uint8),
            "boxes": rng.random((boxes, 4)).astype(np.float32),
            "caption": "é" * (number % 3 * 40),
        }

    path = tmp_path_factory.mktemp("uneven") / "d"
    return write_dataset(path, samples={"train": 60}, fields=tuple(UNEVEN["codec"]), make=make, **UNEVEN)


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """16 raw images of 128 x 128 pixels of their number: batches of four take 192 kB."""

    def make(rng, number):
        return {"image": np.full((128, 128, 3), number, np.uint8)}

    options = {"fields": ("image",), "make": make, "codec": {"image": codecs.Raw()}}
    return tfprep.open(write_dataset(tmp_path_factory.mktemp("large") / "d", samples={"train": 16}, **options).path)


@pytest.fixture
def at_each_record(monkeypatch):
    """`at_each_record(action)`: threads call `action()` before they read the record of a row.

    For loaders with `verify="always"`, no cache and workers="threads".
    """

    def install(action):
        read_of_files = Files.read

        def read(*arguments):
            action()
            return read_of_files(*arguments)

        monkeypatch.setattr(Files, "read", read)

    return install


@pytest.fixture
def gate(at_each_record):
    """Makes reads wait until the event is set."""
    opened = threading.Event()
    at_each_record(lambda: opened.wait(20))
    yield opened
    opened.set()
