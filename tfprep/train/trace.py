"""Profiles: the file that TensorFlow's profiler writes (`*.xplane.pb`), and the Chrome trace that is made from it.

The profiler of TensorFlow 2 writes XSpace protocol buffers only. chrome://tracing and https://ui.perfetto.dev open the Chrome
trace format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfprep.train.messages import message_class

_ROWS = 1000
"""Thread ids of process n begin at n times this number. Perfetto mistakes a thread whose id is 0 or that of its process for
another one, and no profile has as many processes."""


@dataclass(frozen=True)
class TraceEvent:
    """What a thread did for some time.

    Attributes:
        process: The group of threads; in TensorFlow's profiles a plane, such as `/host:CPU` or `/device:GPU:0`.
        thread: The thread, unique in its process.
        name: What was done.
        start: Begin in nanoseconds since the epoch. Whole numbers, because Perfetto drops events that overlap their neighbour
            by a rounding error.
        stop: End in nanoseconds since the epoch.
    """

    process: str
    thread: str
    name: str
    start: int
    stop: int


def read_profile(path: Path) -> list[TraceEvent]:
    """Read the events of one `*.xplane.pb` file."""
    space = message_class("xspace", "XSpace").FromString(path.read_bytes())
    start_ns = _profile_start_ns(space)
    return [event for plane in space.planes for event in _plane_events(plane, start_ns)]


def write_chrome_trace(events: Sequence[TraceEvent], path: Path) -> None:
    """Write a Chrome trace; compressed where `path` ends in `.gz`, which chrome://tracing and Perfetto open too."""
    document = json.dumps({"displayTimeUnit": "ms", "traceEvents": list(chrome_events(events))}).encode()
    path.write_bytes(gzip.compress(document) if path.suffix == ".gz" else document)


def chrome_events(events: Sequence[TraceEvent]) -> Iterator[dict[str, Any]]:
    """Convert to "complete events" of the Chrome trace format, with the names of all processes and threads.

    Args:
        events: Events in any order; each process and thread becomes a row, by name.

    Yields:
        Metadata events (`"ph": "M"`) and complete events (`"ph": "X"`). Times are microseconds since the first event, in eighths:
        those are exact as floats, and so are their sums and their thousandfold.
    """
    begin = min((event.start for event in events), default=0)
    for pid, process in enumerate(dict.fromkeys(event.process for event in events), 1):
        inside = [event for event in events if event.process == process]
        tids = {name: tid for tid, name in enumerate(sorted({event.thread for event in inside}), _ROWS * pid)}
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}}
        for name, tid in tids.items():
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for event in inside:
            start, stop = _microseconds(event.start - begin), _microseconds(event.stop - begin)
            row = {"pid": pid, "tid": tids[event.thread]}
            yield {"ph": "X", **row, "name": event.name, "ts": start, "dur": stop - start}


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds // 125 / 8


def _profile_start_ns(space: Any) -> int:
    """When the profile began, in nanoseconds since the epoch: its lines count from there. 0 where the file does not say."""
    for plane in space.planes:
        names = {entry.key: entry.value.name for entry in plane.stat_metadata}
        for stat in plane.stats:
            if names.get(stat.metadata_id) == "profile_start_time":
                return int(stat.uint64_value)
    return 0


def _plane_events(plane: Any, start_ns: int) -> Iterator[TraceEvent]:
    names = {entry.key: entry.value.name for entry in plane.event_metadata}
    for line in plane.lines:
        thread = f"{line.display_name or line.name} ({line.id})"  # lines may share a name
        begin = start_ns + line.timestamp_ns
        for event in line.events:
            start, stop = event.offset_ps // 1000, (event.offset_ps + event.duration_ps) // 1000
            yield TraceEvent(plane.name, thread, names.get(event.metadata_id, ""), begin + start, begin + stop)
