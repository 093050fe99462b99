"""Ctrl-C ends a loader that waits for a batch that does not come, at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("tensorflow")

STALLED = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background inherit that it is ignored
import tfprep
from tfprep.read import fill
fill.read_fields = lambda *a, **k: threading.Event().wait(60)
data = tfprep.open({folder!r})
options = dict(verify="always", cache=False)
print("waiting", flush=True)
try:
    {code}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

WAYS = {
    "a loop of one's own": "next(iter(data.loader('train', 8, **options)))",
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
    code = STALLED.format(folder=str(photos.path), code=WAYS[way])
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "waiting\n"
    wait_for_threads(process.pid)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate(timeout=50)
    # In `fit`, before Python 3.13, TensorFlow may pass it on as an error of its own, which ends the process.
    assert told == "interrupted\n" or (way == "fit" and "KeyboardInterrupt" in errors), errors
    assert time.monotonic() - start < 40  # stopping TensorFlow included; the stall would last a minute


def wait_for_threads(pid):
    """Until the reading threads have been seen for a moment: then the main thread waits for them."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        with open(f"/proc/{pid}/status") as status:
            threads = int(next(line for line in status if line.startswith("Threads:")).split()[1])
        time.sleep(0.5)
        if threads >= 3 and _cpu(pid) < 2:
            return
    raise AssertionError("the loader never began to wait")


def _cpu(pid):
    """Clock ticks of CPU time within 0.7 s."""

    def ticks():
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(0.7)
    return ticks() - before
