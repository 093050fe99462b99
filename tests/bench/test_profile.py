"""The trace: events of the consumer, the reading threads and TensorFlow on one clock, in the format that Perfetto reads."""

from __future__ import annotations

import json
from pathlib import Path

from tfprep.bench.profile import Span, profile, trace_events
from tfprep.load import Data


def test_spans_as_complete_events() -> None:
    events = list(trace_events([Span("b", "step", 10.0, 10.5), Span("a", "wait", 9.0, 10.0)]))
    names = {event["args"]["name"]: event.get("tid") for event in events if event["ph"] == "M"}
    assert names == {"tfprep": None, "a": 0, "b": 1}
    step = next(event for event in events if event["name"] == "step")
    assert (step["ph"], step["tid"], step["ts"], step["dur"]) == ("X", 1, 10_000_000, 500_000)


def test_a_profile_holds_all_sides_on_one_clock(jpeg_data: Data, tmp_path: Path) -> None:
    path = profile(jpeg_data, "train", 8, tmp_path, step_s=0.005, steps=20, cache=False, threads=2)
    events = json.loads(path.read_text())["traceEvents"]
    assert list(tmp_path.rglob("plugins/profile/*/*.xplane.pb"))  # what TensorBoard opens
    ours = [event for event in events if event["pid"] == 1 and event["ph"] == "X"]
    steps = [event for event in ours if event["name"] == "step"]
    assert len(steps) == 20
    assert all(event["dur"] >= 5000 for event in steps)
    assert all(event["dur"] >= 0 for event in ours)
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1}
    assert {"consumer", "tfprep-read-0", "tfprep-read-1"} <= threads
    assert {"read", "decode"} & {event["name"] for event in ours}
    theirs = [event for event in events if event["pid"] >= 100 and event["ph"] == "X"]
    first, last = min(event["ts"] for event in steps), max(event["ts"] for event in steps)
    inside = [event for event in theirs if first <= event["ts"] <= last]
    assert len(inside) >= 15  # TensorFlow's own, on the same clock
