"""A profile of the loader under a step: for TensorBoard, and as a Chrome trace that Perfetto opens.

TensorFlow's profiler writes `plugins/profile/*/*.xplane.pb` only; `trace.json` is made from that, and from what the profiler
does not see: the consumer's waits and steps, and what each reading thread was doing (read, decode, waiting for work).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfprep.bench.loaders import Iteration, opened
from tfprep.load import Data
from tfprep.read import LoaderOptions, Pipeline
from tfprep.read.worker import Worker


@dataclass(frozen=True)
class Span:
    """What a thread did from `start` to `stop`, nanoseconds since the epoch. Whole numbers: Perfetto drops what overlaps its
    neighbour by a rounding."""

    thread: str
    name: str
    start: int
    stop: int


def profile(
    data: Data | str, split: str, batch_size: int, out: Path, *, step_s: float = 0.01, steps: int = 50, **options: Any
) -> Path:
    """Run `steps` steps of a sleeping consumer under TensorFlow's profiler; returns the path of `trace.json`.

    Batches come through tf.data, as in `fit`, so that TensorBoard's input pipeline analyzer sees them.
    """
    import tensorflow as tf

    from tfprep.load.tfdata import make_loader

    pipeline = opened(data).part(split).pipeline(LoaderOptions(batch_size=batch_size, **options))
    loader = make_loader(pipeline)
    iteration = Iteration(loader, iter(loader.with_options(tf.data.Options())))
    try:
        next(iteration)
        tf.profiler.experimental.start(str(out))
        try:
            spans = _steps(iteration, pipeline, step_s, steps)
        finally:
            tf.profiler.experimental.stop()
    finally:
        iteration.close()
    path = out / "trace.json"
    processes = [("tfprep", spans), *_of_profiler(out)]
    events = list(trace_events(processes))
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return path


def _steps(iteration: Iteration, pipeline: Pipeline, step_s: float, steps: int) -> list[Span]:
    import tensorflow as tf

    workers = [worker for reader in pipeline.readers for worker in reader.workers]
    for worker in workers:
        worker.ended = []
    spans = []
    for number in range(steps):
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):  # what TensorBoard takes for a step
            asked = time.time_ns()
            next(iteration)
            came = time.time_ns()
            time.sleep(step_s)
        done = time.time_ns()
        spans += [Span("consumer", "wait for a batch", asked, came), Span("consumer", "step", came, done)]
    return spans + [span for worker in workers for span in _of_worker(worker)]


def _of_worker(worker: Worker) -> Iterator[Span]:
    ahead = time.time_ns() - time.monotonic_ns()
    stages, worker.ended = worker.ended or [], None
    for stage, start, stop in stages:
        yield Span(worker.name, stage, int(start * 1e9) + ahead, int(stop * 1e9) + ahead)


def trace_events(processes: Sequence[tuple[str, Sequence[Span]]]) -> Iterator[dict[str, Any]]:
    """Complete events of the Chrome trace format, one row a thread; each process has a name and spans.

    Times are microseconds since the first event, in eighths: those are exact as floats, and so are their sums and their
    thousandfold, so that Perfetto, which drops events that overlap, finds neighbours beside each other.
    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    begin = min((span.start for _, spans in processes for span in spans), default=0)
    for number, (process, spans) in enumerate(processes, 1):
        yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": process}}
        # A row's number is its own in the whole file and above all of processes: Perfetto takes 0, and that of its process, for
        # another thread.
        names = sorted({span.thread for span in spans})
        threads = {name: row for row, name in enumerate(names, 1000 * number)}
        for name, row in threads.items():
            yield {"ph": "M", "pid": number, "tid": row, "name": "thread_name", "args": {"name": name}}
        for span in spans:
            start, stop = _microseconds(span.start - begin), _microseconds(span.stop - begin)
            yield {
                "ph": "X", "pid": number, "tid": threads[span.thread], "name": span.name, "ts": start, "dur": stop - start,
            }  # fmt: skip


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds // 125 / 8


def _of_profiler(out: Path) -> Iterator[tuple[str, list[Span]]]:
    """Name and spans of every plane of every `.xplane.pb` below `out`."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for path in sorted(out.rglob("*.xplane.pb")):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        started = _started_ns(space)
        yield from ((plane.name, list(_of_plane(plane, started))) for plane in space.planes)


def _started_ns(space: Any) -> int:
    """When the profile began, in nanoseconds since the epoch: its lines count from there. 0 where it does not say."""
    for plane in space.planes:
        for stat in plane.stats:
            if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
                return int(stat.uint64_value)
    return 0


def _of_plane(plane: Any, started_ns: int) -> Iterator[Span]:
    for line in plane.lines:
        thread = f"{line.display_name or line.name} ({line.id})"
        for event in line.events:
            start, stop = event.offset_ps // 1000, (event.offset_ps + event.duration_ps) // 1000
            begin = started_ns + line.timestamp_ns
            yield Span(thread, plane.event_metadata[event.metadata_id].name, begin + start, begin + stop)
