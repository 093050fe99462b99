"""Profiles as Chrome traces, in the format of Perfetto and without errors of rounding."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfprep.train.trace import TraceEvent, chrome_events, read_profile

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
        start, length = int(event["ts"] * 1000), int(event["dur"] * 1000)  # As Perfetto does.
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
    """Each event is inside another or separate from it, to the nanosecond, since Perfetto drops others."""
    open_until: list[int] = []
    for start, stop in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or stop <= open_until[-1], f"{start} to {stop} crosses the end at {open_until[-1]}"
        open_until.append(stop)


def _event(thread: str, name: str, start: int, stop: int) -> TraceEvent:
    return TraceEvent("tfprep", thread, name, start, stop)


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
def test_the_check_finds_invalid_traces(change: dict[str, Any], right: bool) -> None:
    spans = [_event("a", "step", 10_000_000_000, 10_500_000_000), _event("a", "wait", 9_000_000_000, 10_000_000_000)]
    events = list(chrome_events(spans))
    wrong = [{**event, **change} if event["name"] == "step" else event for event in events]
    if right:
        check_trace({"traceEvents": wrong})
    else:
        with pytest.raises(AssertionError):
            check_trace({"traceEvents": wrong})


def test_spans_as_complete_events() -> None:
    spans = [_event("b", "step", 10_000_000_000, 10_500_000_000), _event("a", "wait", 9_000_000_000, 10_000_000_000)]
    events = list(chrome_events([*spans, TraceEvent("other", "c", "op", 9_000_000_125, 9_000_000_250)]))
    names = {event["args"]["name"]: event.get("tid") for event in events if event["ph"] == "M"}
    assert names == {"tfprep": None, "a": 1000, "b": 1001, "other": None, "c": 2000}
    step = next(event for event in events if event["name"] == "step")
    assert (step["ph"], step["tid"], step["ts"], step["dur"]) == ("X", 1001, 1_000_000, 500_000)
    op = next(event for event in events if event["name"] == "op")
    assert (op["pid"], op["ts"], op["dur"]) == (2, 0.125, 0.125)


def test_adjacent_events_do_not_overlap_after_rounding() -> None:
    """As seconds since the epoch, or as decimals of a microsecond, floats would make them overlap."""
    times = np.cumsum(np.random.default_rng(3).integers(1, 400_000, 4000)) + 1_795_289_628_583_354_101
    spans = [_event("a", "read", int(start), int(stop)) for start, stop in itertools.pairwise(times)]
    whole = _event("a", "epoch", spans[0].start, spans[-1].stop)
    check_trace({"traceEvents": list(chrome_events([whole, *spans]))})


def test_a_profile_is_read_like_by_tensorflows_message_class(tmp_path: Path) -> None:
    """Two lines share a name, and an event lasts for a third of a nanosecond."""
    xplane_pb2 = pytest.importorskip("tensorflow.tsl.profiler.protobuf.xplane_pb2")
    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:CPU")
    plane.stat_metadata[3].name = "profile_start_time"
    plane.stats.add(metadata_id=3, uint64_value=1_795_289_628_583_354_101)
    plane.event_metadata[7].name = "MatMul"
    for number in (1, 2):
        line = plane.lines.add(id=number, name="tf_Compute", timestamp_ns=10 * number)
        line.events.add(metadata_id=7, offset_ps=1_000, duration_ps=333)
        line.events.add(metadata_id=7, offset_ps=1_333, duration_ps=5_000)
    (tmp_path / "one.xplane.pb").write_bytes(space.SerializeToString())
    begin = 1_795_289_628_583_354_101
    assert read_profile(tmp_path / "one.xplane.pb") == [
        TraceEvent("/host:CPU", "tf_Compute (1)", "MatMul", begin + 11, begin + 11),
        TraceEvent("/host:CPU", "tf_Compute (1)", "MatMul", begin + 11, begin + 16),
        TraceEvent("/host:CPU", "tf_Compute (2)", "MatMul", begin + 21, begin + 21),
        TraceEvent("/host:CPU", "tf_Compute (2)", "MatMul", begin + 21, begin + 26),
    ]
