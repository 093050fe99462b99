"""The profiler's file as read by tfprep: a trace that Chrome opens, and shares that identify the cause."""

from __future__ import annotations

import gzip
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from tests.train.test_trace import check_trace
from tfprep.errors import TrainError


def test_the_profile_names_a_slow_input(dense: Any, pairs: Any, tmp_path: Path, caplog: Any) -> None:
    from tfprep.train import profile

    callback = profile(tmp_path, steps=(5, 9))
    dataset = pairs(48, lambda number: 0.005).batch(4).prefetch(1)
    with caplog.at_level(logging.WARNING, "tfprep.train"):
        dense.fit(dataset, verbose=0, shuffle=False, callbacks=[callback])
    shares = callback.shares
    assert shares is not None
    assert shares.steps == 5
    assert shares.input > 0.5
    assert shares.device == 0
    assert shares.device + shares.input + shares.host + shares.other == pytest.approx(1)
    assert "the input is what limits" in caplog.text
    assert callback.folder is not None
    with gzip.open(callback.folder / "trace.json.gz", "rt") as file:
        trace = json.load(file)
    check_trace(trace)
    steps = [event for event in trace["traceEvents"] if event["name"] == "train_step"]
    assert len(steps) == 5
    assert sum(event["dur"] for event in steps) == pytest.approx(shares.total_us, abs=1)
    named = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert "/host:CPU" in named


def test_a_slow_step_is_not_attributed_to_the_input(dense: Any, pairs: Any, tmp_path: Path) -> None:
    import keras

    from tfprep.train import profile

    class SlowPython(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.02)

    callback = profile(tmp_path, steps=(3, 6))
    dense.fit(pairs(32).batch(4).prefetch(4), verbose=0, shuffle=False, callbacks=[callback, SlowPython()])
    assert callback.shares is not None
    assert callback.shares.other > 0.5
    assert "Python is what limits" in (callback.words or "")


def _event(name: str, start_us: int, duration_us: int, process: str = "/host:CPU", thread: str = "t") -> Any:
    from tfprep.train.trace import TraceEvent

    return TraceEvent(process, thread, name, 1000 * start_us, 1000 * (start_us + duration_us))


def test_shares_of_a_made_up_gpu_trace(tf: Any) -> None:
    """Two steps of 100 µs: kernels at 0-60 and 100-130, input at 50-80 (10 of it during a kernel) and 130-190, an op at
    150-195."""
    from tfprep.train.shares import shares

    gpu = {"process": "/device:GPU:0", "thread": "Stream #7(Compute)"}
    events = [
        _event("train_step", 0, 100),
        _event("train_step", 100, 100),
        _event("kernel", 0, 60, **gpu),
        _event("kernel", 100, 30, **gpu),
        _event("kernel", 100, 20, **gpu),
        _event("a summary of all kernels", 0, 200, process="/device:GPU:0", thread="Steps"),
        _event("IteratorGetNext", 50, 30),
        _event("IteratorGetNext", 130, 60),
        _event("MatMul", 150, 45, thread="tf_Compute/1"),
    ]
    result = shares(events)
    assert (result.steps, result.total_us) == (2, 200)
    assert result.device == pytest.approx(90 / 200)
    assert result.input == pytest.approx(80 / 200)
    assert result.host == pytest.approx(5 / 200)
    assert result.other == pytest.approx(25 / 200)
    assert "45% computing on the accelerator" in result.in_words()


def test_a_training_that_ends_too_early_is_reported(dense: Any, pairs: Any, tmp_path: Path, caplog: Any) -> None:
    from tfprep.train import profile

    with caplog.at_level(logging.WARNING, "tfprep.train"):
        dense.fit(pairs(8).batch(4), verbose=0, shuffle=False, callbacks=[profile(tmp_path)])
    assert "ended after 2 steps, before step 10; nothing was profiled" in caplog.text


def test_steps_are_checked(tmp_path: Path) -> None:
    from tfprep.train import profile

    with pytest.raises(TrainError, match=r"1 <= first <= last, got \(20, 10\)"):
        profile(tmp_path, steps=(20, 10))
