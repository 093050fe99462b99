"""Ctrl-C in the wait for a batch ends the wait at once, and loses no batch: the next call returns it."""

import json
import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import tfprep
from benchmarks import loader_data
from tests.warm_python import run_python
from tfprep import codecs
from tfprep.load.reader import rows

KINDS = ["numpy_loader", "torch_loader", "jax_loader", "loader"]
PACKAGES = {"torch_loader": "torch", "jax_loader": "jax", "loader": "tensorflow"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_call_returns_the_batch_that_was_waited_for(photos, kind, monkeypatch):
    if kind in PACKAGES:
        pytest.importorskip(PACKAGES[kind])
    data = tfprep.open(photos.path)
    options = {"seed": 3, "fields": ["label", "pose"], "cache": False, "verify": "always", "workers": "threads"}
    with closing(data.numpy_loader("train", 5, **options)) as loader:
        expected = [batch["pose"] for batch in loader]
    read_fields = rows.read_fields

    def slow(*arguments, **keywords):
        time.sleep(0.03)
        return read_fields(*arguments, **keywords)

    monkeypatch.setattr(rows, "read_fields", slow)
    with closing(getattr(data, kind)("train", 5, prefetch=1, threads=1, **options)) as loader:
        batches, seen, interrupts = iter(loader), [], 0
        while True:
            timer = None
            if len(seen) + interrupts < 12 and interrupts <= len(seen):
                timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
            try:
                seen.append(np.asarray(next(batches)["pose"]))
            except KeyboardInterrupt:
                interrupts += 1
            except StopIteration:
                break
            finally:
                if timer is not None:
                    timer.cancel()
    assert interrupts >= 3
    assert len(seen) == len(expected) == 10
    assert all(map(np.array_equal, seen, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_the_wait_ends_at_once(photos, kind, monkeypatch):
    """Records are waited for without an end, so that the wait ends by Ctrl-C or not at all."""
    if kind in PACKAGES:
        pytest.importorskip(PACKAGES[kind])
    go_on = threading.Event()

    def stall(*arguments, **keywords):
        go_on.wait()
        raise OSError("the test has ended")

    monkeypatch.setattr(rows, "read_fields", stall)
    options = {"cache": False, "verify": "always", "workers": "threads", "timeout_s": float("inf")}
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with closing(getattr(tfprep.open(photos.path), kind)("train", 5, fields=["label", "pose"], **options)) as loader:
        batches = iter(loader)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        go_on.set()


SOAK = Path(__file__).parents[2] / "benchmarks" / "soak_iterators.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return loader_data.write(tmp_path_factory.mktemp("soak") / "raw", codecs.Raw(), 64)


@pytest.mark.parametrize("kind", ["eager", "tf.data"])
def test_iterators_in_reference_cycles(images, kind):
    """Those of NumPy's loader are in reader/test_reader.py. The batches of 45 iterators that stayed would take over 200 MB."""
    done = run_python([str(SOAK), "--kinds", kind, "--count", "50", "--data", str(images)])
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["iterators"] == 50
    for name in ("threads", "descriptors"):
        assert result["after"][name] <= result["before"][name]
    assert result["after"]["resident_mb"] < result["before"]["resident_mb"] + 100
