"""Ctrl-C and errors while TensorFlow reads a loader."""

import os
import signal
import threading
import time
from itertools import islice

import numpy as np
import pytest

import tfprep
from tfprep.errors import RecordError
from tfprep.load.reader import rows

pytest.importorskip("tensorflow")


@pytest.fixture
def press(monkeypatch):
    """An event. Once it is set, Ctrl-C is sent at the twelfth record. Reading a record takes some time."""
    read, calls, pressed = rows.read_fields, [], threading.Event()

    def slowly(*args, **options):
        time.sleep(0.05)
        calls.append(1)
        if len(calls) >= 12 and pressed.is_set():
            pressed.clear()
            os.kill(os.getpid(), signal.SIGINT)
        return read(*args, **options)

    monkeypatch.setattr(rows, "read_fields", slowly)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell may have made the process ignore it.
    yield pressed
    signal.signal(signal.SIGINT, before)


OPTIONS = {"seed": 3, "verify": "always", "cache": False, "threads": 1, "fields": ["image", "label"]}


def labels_of(batches):
    return [np.asarray(batch["label"]).tolist() for batch in batches]


def test_a_handler_of_the_user_is_respected(photos, press):
    """For example a handler that asks the loop to stop after this step: the batches are not affected."""
    caught = []
    data = tfprep.open(photos.path)
    train = data.loader("train", 8, **OPTIONS).take(3)  # Read through tf.data, while the main thread waits in C++.
    signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    press.set()
    assert labels_of(train) == labels_of(islice(data.numpy_loader("train", 8, **OPTIONS), 3))
    assert caught == [signal.SIGINT]


@pytest.mark.parametrize("eager", [True, False])
def test_errors_after_control_c_keep_their_type(make_dataset, press, eager, monkeypatch):
    made = make_dataset(samples={"train": 24}, fields=("image", "label"), shards=1)
    path = next(made.path.glob("*.tfrecord*"))
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr("tfprep.load.tensorflow.loader.is_possible", lambda pipeline: eager)
    train = tfprep.open(made.path).loader("train", 8, training=False, **OPTIONS)
    press.set()
    with pytest.raises(KeyboardInterrupt):
        list(train)
    with pytest.raises(RecordError, match="record 23"):
        list(train)


def test_an_error_is_raised_again_by_the_next_call(photos, monkeypatch):
    def fail(*args, **options):
        raise ValueError("this one is damaged")

    monkeypatch.setattr(rows, "read_fields", fail)
    iterator = iter(tfprep.open(photos.path).loader("train", 8, **OPTIONS))
    for _ in range(3):
        with pytest.raises(ValueError, match="damaged"):
            next(iterator)
