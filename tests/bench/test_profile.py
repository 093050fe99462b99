"""The trace: events of the consumer, the reading threads and TensorFlow with one clock, in the format of Perfetto."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train.test_trace import check_trace
from tfprep.bench.profile import profile
from tfprep.load import Data


def test_a_profile_contains_all_sides_with_one_clock(jpeg_data: Data, tmp_path: Path) -> None:
    path = profile(jpeg_data, "train", 8, tmp_path, step_s=0.005, steps=20, cache=False, threads=2)
    document = json.loads(path.read_text())
    check_trace(document)
    events = document["traceEvents"]
    assert list(tmp_path.rglob("plugins/profile/*/*.xplane.pb"))  # The file that TensorBoard opens.
    ours = [event for event in events if event["pid"] == 1 and event["ph"] == "X"]
    steps = [event for event in ours if event["name"] == "step"]
    assert len(steps) == 20
    assert all(event["dur"] >= 5000 for event in steps)
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1}
    assert {"consumer", "tfprep-read-0", "tfprep-read-1"} <= threads
    assert {"read", "decode"} <= {event["name"] for event in ours}
    theirs = [event for event in events if event["pid"] > 1 and event["ph"] == "X"]
    first, last = min(event["ts"] for event in steps), max(event["ts"] for event in steps)
    inside = [event for event in theirs if first <= event["ts"] <= last]
    assert len(inside) >= 15  # TensorFlow's own events, with the same clock.
    marks = [event for event in theirs if event["name"] == "train"]
    assert len(marks) == 20  # TensorBoard shows no steps without them.
    assert all(mark["dur"] >= 5000 for mark in marks)


def test_a_profile_of_a_loader_that_fails_leaves_no_profiler_running(jpeg_data: Data, tmp_path: Path) -> None:
    import tensorflow as tf

    with pytest.raises(Exception, match="nothing"):
        profile(jpeg_data, "train", 8, tmp_path, steps=2, inputs="nothing")
    tf.profiler.experimental.start(str(tmp_path))  # AlreadyExistsError if a profiler runs.
    tf.profiler.experimental.stop(save=False)
