"""The trace: events of the consumer, the reading threads and TensorFlow on one clock, in the format that Perfetto reads."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfprep.bench.profile import Span, profile, trace_events
from tfprep.load import Data

NUMBER = (int, float)
METADATA = {"process_name", "thread_name"}


def check_trace(document: dict[str, Any]) -> None:
    """The JSON Object Format of "Trace Event Format" (Google, 2016), for the two phases that are written: complete events
    ("X": a name, `ts` and `dur` in microseconds, numeric `pid` and `tid`) and metadata ("M": names of processes and threads).

    Beyond it, what Perfetto's importer drops or draws wrongly: times that are no finite numbers, threads named twice, a thread
    whose number is 0 or a process's, and events of one thread that overlap without one lying inside the other.
    """
    assert set(document) <= {
        "traceEvents",
        "displayTimeUnit",
        "systemTraceEvents",
        "otherData",
        "stackFrames",
        "samples",
    }
    assert document.get("displayTimeUnit", "ms") in ("ms", "ns")
    named: set[tuple[int, int | None]] = set()
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in document["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["name"], str)
        if event["ph"] == "M":
            assert event["name"] in METADATA
            assert isinstance(event["args"]["name"], str)
            key = (event["pid"], event.get("tid") if event["name"] == "thread_name" else None)
            assert key not in named, "named twice"
            named.add(key)
            continue
        assert isinstance(event["tid"], int)
        assert isinstance(event["ts"], NUMBER)
        assert isinstance(event["dur"], NUMBER)
        assert math.isfinite(event["ts"])
        assert 0 <= event["dur"] < math.inf
        start, length = int(event["ts"] * 1000), int(event["dur"] * 1000)  # as Perfetto does
        rows[event["pid"], event["tid"]].append((start, start + length))
    processes = {process for process, _ in named}
    assert len({thread for _, thread in rows}) == len(rows), "numbered twice"
    for (process, thread), spans in rows.items():
        assert thread > 0
        assert thread not in processes
        assert (process, thread) in named
        assert (process, None) in named
        check_nested(spans)


def check_nested(spans: list[tuple[int, int]]) -> None:
    """Each lies inside another, or beside it, to the nanosecond: Perfetto drops the others."""
    open_until: list[int] = []
    for start, stop in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or stop <= open_until[-1], f"{start} to {stop} crosses the end at {open_until[-1]}"
        open_until.append(stop)


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({}, True),
        ({"ts": math.nan}, False),
        ({"dur": -1.0}, False),
        ({"tid": "reader"}, False),
        ({"ph": "Q"}, False),
        ({"tid": 7}, False),
        ({"tid": 0}, False),
        ({"ts": 500_000.0, "dur": 800_000.0}, False),
        ({"ts": 999_999.999}, False),
    ],
)
def test_the_check_itself_finds_what_is_wrong(change: dict[str, Any], right: bool) -> None:
    spans = [Span("a", "step", 10_000_000_000, 10_500_000_000), Span("a", "wait", 9_000_000_000, 10_000_000_000)]
    events = list(trace_events([("tfprep", spans)]))
    wrong = [{**event, **change} if event["name"] == "step" else event for event in events]
    if right:
        check_trace({"traceEvents": wrong})
    else:
        with pytest.raises(AssertionError):
            check_trace({"traceEvents": wrong})


def test_spans_as_complete_events() -> None:
    spans = [Span("b", "step", 10_000_000_000, 10_500_000_000), Span("a", "wait", 9_000_000_000, 10_000_000_000)]
    events = list(trace_events([("tfprep", spans), ("other", [Span("c", "op", 9_000_000_125, 9_000_000_250)])]))
    names = {event["args"]["name"]: event.get("tid") for event in events if event["ph"] == "M"}
    assert names == {"tfprep": None, "a": 1000, "b": 1001, "other": None, "c": 2000}
    step = next(event for event in events if event["name"] == "step")
    assert (step["ph"], step["tid"], step["ts"], step["dur"]) == ("X", 1001, 1_000_000, 500_000)
    op = next(event for event in events if event["name"] == "op")
    assert (op["pid"], op["ts"], op["dur"]) == (2, 0.125, 0.125)


def test_neighbours_whose_times_are_no_round_numbers_stay_neighbours() -> None:
    """As seconds since the epoch, and as decimals of a microsecond, floats would make them overlap."""
    times = np.cumsum(np.random.default_rng(3).integers(1, 400_000, 4000)) + 1_795_289_628_583_354_101
    spans = [Span("a", "read", int(start), int(stop)) for start, stop in itertools.pairwise(times)]
    whole = Span("a", "epoch", spans[0].start, spans[-1].stop)
    check_trace({"traceEvents": list(trace_events([("tfprep", [whole, *spans])]))})


def test_a_profile_holds_all_sides_on_one_clock(jpeg_data: Data, tmp_path: Path) -> None:
    path = profile(jpeg_data, "train", 8, tmp_path, step_s=0.005, steps=20, cache=False, threads=2)
    document = json.loads(path.read_text())
    check_trace(document)
    events = document["traceEvents"]
    assert list(tmp_path.rglob("plugins/profile/*/*.xplane.pb"))  # what TensorBoard opens
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
    assert len(inside) >= 15  # TensorFlow's own, on the same clock
    marks = [event for event in theirs if event["name"] == "train"]
    assert len(marks) == 20  # without them TensorBoard knows of no steps
    assert all(mark["dur"] >= 5000 for mark in marks)


def test_a_profile_of_a_loader_that_fails_leaves_no_profiler_running(jpeg_data: Data, tmp_path: Path) -> None:
    import tensorflow as tf

    with pytest.raises(Exception, match="nothing"):
        profile(jpeg_data, "train", 8, tmp_path, steps=2, inputs="nothing")
    tf.profiler.experimental.start(str(tmp_path))  # AlreadyExistsError where one runs
    tf.profiler.experimental.stop(save=False)
