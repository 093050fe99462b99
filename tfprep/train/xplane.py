"""What the profiler wrote (`*.xplane.pb`): read, turned into a Chrome trace, and summed up in shares.

The profiler of TensorFlow 2 writes XSpace protocol buffers only. Chrome's trace format (the "Trace Event Format" of
chrome://tracing and https://ui.perfetto.dev) is made here from them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Interval: TypeAlias = tuple[float, float]
"""(from, to) in microseconds."""

STEP = "train_step"
"""The name that `profile` gives to each step."""


@dataclass(frozen=True)
class Event:
    """`process` is a plane (`/host:CPU`, `/device:GPU:0`), `thread` a line of it; times in microseconds."""

    process: str
    thread: str
    thread_id: int
    name: str
    start_us: float
    duration_us: float

    @property
    def interval(self) -> Interval:
        return self.start_us, self.start_us + self.duration_us


@dataclass(frozen=True)
class Shares:
    """Of the time of `steps` train steps (`total_us`), the shares of: the accelerator at work; input waited for
    meanwhile idle; TensorFlow's ops on the CPU; and all else (Python, dispatch). They sum to 1."""

    steps: int
    total_us: float
    device: float
    input: float
    host: float
    other: float

    def in_words(self) -> str:
        each = f"{self.steps} steps of {self.total_us / max(1, self.steps) / 1e3:.1f} ms"
        parts = [
            f"{self.device:.0%} computing on the accelerator" if self.device else "no accelerator at work",
            f"{self.input:.0%} waiting for input",
            f"{self.host:.0%} ops on the CPU",
            f"{self.other:.0%} Python and dispatch",
        ]
        return f"{each}: {', '.join(parts)}; {self._advice()}"

    def _advice(self) -> str:
        shares = {"device": self.device, "input": self.input, "host": self.host, "other": self.other}
        return {
            "device": "the accelerator is what limits: mixed precision or a smaller model would help, a faster input would not",
            "input": "the input is what limits: build ahead, or read and decode in more threads",
            "host": "the CPU's ops are what limits: without an accelerator that is the model itself",
            "other": "Python is what limits: raise steps_per_execution, and keep work out of callbacks",
        }[max(shares, key=lambda name: shares[name])]


def read_events(path: Path) -> list[Event]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    return [event for plane in space.planes for event in _events(plane)]


def write_chrome_trace(events: list[Event], path: Path) -> None:
    """`path` ends in `.json.gz`; chrome://tracing and Perfetto open it as it is."""
    processes = {name: number for number, name in enumerate(dict.fromkeys(event.process for event in events))}
    told = [*_names(events, processes), *(_chrome(event, processes) for event in events)]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"displayTimeUnit": "ms", "traceEvents": told}, file)


def shares(events: list[Event]) -> Shares:
    """Where the time of the steps went; where two things went on at once, the one named first in `Shares` has it."""
    steps = [event.interval for event in events if event.name == STEP]
    total = _length(_union(steps))
    device = _length(_clipped([e.interval for e in events if e.process.startswith("/device:") and _busy(e)], steps))
    fed = [e.interval for e in events if e.process.startswith("/device:") and _busy(e)]
    waiting = [e.interval for e in events if e.name.startswith("IteratorGetNext")]
    working = [e.interval for e in events if e.thread.startswith("tf_Compute") or e.name.startswith("PyFunc")]
    with_input = _length(_clipped([*fed, *waiting], steps))
    with_host = _length(_clipped([*fed, *waiting, *working], steps))
    if not total:
        return Shares(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Shares(
        steps=len(steps),
        total_us=total,
        device=device / total,
        input=(with_input - device) / total,
        host=(with_host - with_input) / total,
        other=1 - with_host / total,
    )


def _busy(event: Event) -> bool:
    """Kernels and copies lie on lines that are named after streams; the others are summaries of them."""
    return event.thread.startswith("Stream") or "XLA Ops" in event.thread


def _events(plane: Any) -> Iterator[Event]:
    for line in plane.lines:
        for event in line.events:
            yield Event(
                process=plane.name,
                thread=line.display_name or line.name,
                thread_id=line.display_id or line.id,
                name=plane.event_metadata[event.metadata_id].name,
                start_us=line.timestamp_ns / 1e3 + event.offset_ps / 1e6,
                duration_us=event.duration_ps / 1e6,
            )


def _names(events: list[Event], processes: dict[str, int]) -> Iterator[dict[str, Any]]:
    for name, number in processes.items():
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
    for process, thread, thread_id in dict.fromkeys((e.process, e.thread, e.thread_id) for e in events):
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": processes[process],
            "tid": _tid(thread_id),
            "args": {"name": thread},
        }


def _chrome(event: Event, processes: dict[str, int]) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": processes[event.process],
        "tid": _tid(event.thread_id),
        "name": event.name,
        "ts": event.start_us,
        "dur": event.duration_us,
    }


def _tid(thread_id: int) -> int:
    """JavaScript keeps 53 bits of a number."""
    return thread_id % (1 << 53)


def _union(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _clipped(intervals: list[Interval], windows: list[Interval]) -> list[Interval]:
    """The union of `intervals` inside the union of `windows`."""
    inside = []
    cut = _union(windows)
    for start, end in _union(intervals):
        inside += [(max(start, low), min(end, high)) for low, high in cut if start < high and low < end]
    return inside


def _length(intervals: list[Interval]) -> float:
    return sum(end - start for start, end in intervals)
