"""Ctrl-C in the wait for a batch loses none: the next call returns it."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing

import numpy as np
import pytest

import tfprep
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
