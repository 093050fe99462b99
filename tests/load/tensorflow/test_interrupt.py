"""Ctrl-C ends a loader that waits for a batch at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

import tfprep
from tfprep.errors import RecordError
from tfprep.load.reader import rows

pytest.importorskip("tensorflow")

STALLED = """
import threading
import tfprep
from tfprep.load.reader import rows
first = iter([True])

def stall(*args, **options):
    if next(first, False):
        print("reading", flush=True)
    threading.Event().wait()

rows.read_fields = stall
data = tfprep.open({folder!r})
options = dict(verify="always", cache=False, timeout_s=float("inf"))
try:
    {code}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

WAYS = {
    "a custom training loop": "next(iter(data.loader('train', 8, **options)))",
    "fit": """
    import keras
    model = keras.Sequential([keras.Input((24, 32, 3), dtype="uint8"), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    train = data.loader('train', 8, inputs="image", targets="label", **options)
    model.fit(train, steps_per_epoch=3, verbose=0, shuffle=False)""",
    "numpy": "next(iter(data.numpy_loader('train', 8, **options)))",
}


@pytest.mark.parametrize("way", WAYS)
def test_control_c(photos, way):
    """Records are waited for without an end, so that the process ends by Ctrl-C or not at all."""
    command = [sys.executable, "-c", STALLED.format(folder=str(photos.path), code=WAYS[way])]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout.readline() == "reading\n", process.communicate()[1]
            wait_for_sleep(process)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=280)
        finally:
            process.kill()
    # In `fit`, before Python 3.13, TensorFlow may raise it as its own error, which ends the process.
    assert output == "interrupted\n" or (way == "fit" and "KeyboardInterrupt" in errors), errors


def wait_for_sleep(process):
    """Wait until the main thread has slept for a second, as it does while it waits for a batch."""
    seen = []
    while len(seen) < 10 or seen[-10:] != [("S", seen[-1][1])] * 10:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
        fields = Path(f"/proc/{process.pid}/task/{process.pid}/stat").read_text().rpartition(")")[2].split()
        seen.append((fields[0], int(fields[11]) + int(fields[12])))  # its state, and its clock ticks of CPU time


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


@pytest.mark.parametrize("installed", ["before", "after"])
def test_a_handler_of_the_user_is_respected(photos, press, installed):
    """For example a handler that asks the loop to stop after this step: the batches are not affected."""
    caught = []

    def install():
        signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))

    data = tfprep.open(photos.path)
    if installed == "before":
        install()
    train = data.loader("train", 8, **OPTIONS).take(3)  # Read through tf.data, while the main thread waits in C++.
    install()
    press.set()
    assert labels_of(train) == labels_of(islice(data.numpy_loader("train", 8, **OPTIONS), 3))
    assert caught == [signal.SIGINT]


def test_an_eager_iterator_goes_on_after_control_c(photos, press):
    data = tfprep.open(photos.path)
    iterator = iter(data.loader("train", 8, **OPTIONS))
    seen = labels_of([next(iterator)])
    press.set()
    with pytest.raises(KeyboardInterrupt):
        seen.extend(labels[0] for labels in map(labels_of, zip(iterator)))
    seen += labels_of([next(iterator), next(iterator)])
    assert seen == labels_of(islice(data.numpy_loader("train", 8, **OPTIONS), len(seen)))


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


FORKED = """
import os, signal, sys
import tfprep
data = tfprep.open({folder!r})
train = data.loader("train", 8)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(3))
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), train.pipeline.interruption)
"""


def test_control_c_in_a_forked_child_does_not_affect_the_parent(photos):
    done = subprocess.run(
        [sys.executable, "-c", FORKED.format(folder=str(photos.path))],
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    )
    assert done.stdout == "3 None\n"
