"""A profile of the loader under a step: for TensorBoard, and as a Chrome trace that Perfetto opens.

TensorFlow's profiler writes `plugins/profile/*/*.xplane.pb` only; `trace.json` is made from that, and from what the profiler
does not see: the consumer's waits and steps, and what each reading thread was doing (read, decode, waiting for work).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfprep.bench.loaders import Iteration, opened
from tfprep.load import Data
from tfprep.read import LoaderOptions, Pipeline

SAMPLE_S = 0.0005
"""How often the reading threads are looked at; each notes itself when its stage began, so what is seen is exact."""
_OURS, _THEIRS = 1, 100


@dataclass(frozen=True)
class Span:
    """What a thread did from `start` to `stop`, seconds since the epoch."""

    thread: str
    name: str
    start: float
    stop: float


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
    events = [*trace_events(spans), *_of_profiler(out)]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return path


def _steps(iteration: Iteration, pipeline: Pipeline, step_s: float, steps: int) -> list[Span]:
    import tensorflow as tf

    with _Watch(pipeline) as watch:
        spans = []
        for number in range(steps):
            with tf.profiler.experimental.Trace("train", step_num=number, _r=1):  # what TensorBoard takes for a step
                asked = time.time()
                next(iteration)
                came = time.time()
                time.sleep(step_s)
            spans += [
                Span("consumer", "wait for a batch", asked, came), Span("consumer", "step", came, time.time())
            ]  # fmt: skip
    return [*spans, *watch.spans]


class _Watch:
    """Looks at the reading threads of a pipeline for as long as the block runs."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._seen: dict[str, tuple[str, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfprep-profile", daemon=True)
        self.spans: list[Span] = []

    def __enter__(self) -> _Watch:
        self._ahead_s = time.time() - time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            for reader in self._pipeline.readers:
                for worker in reader.workers:
                    self._note(worker.name, worker.stage, worker.since)

    def _note(self, thread: str, stage: str, since: float) -> None:
        before = self._seen.get(thread)
        if before is None or before[1] != since:
            if before is not None:
                self.spans.append(Span(thread, before[0], before[1] + self._ahead_s, since + self._ahead_s))
            self._seen[thread] = (stage, since)


def trace_events(spans: Sequence[Span], process: int = _OURS, process_name: str = "tfprep") -> Iterator[dict[str, Any]]:
    """Complete events of the Chrome trace format, times in microseconds, one row a thread.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": process_name}}
    threads = {name: number for number, name in enumerate(sorted({span.thread for span in spans}))}
    for name, number in threads.items():
        yield {"ph": "M", "pid": process, "tid": number, "name": "thread_name", "args": {"name": name}}
    for span in spans:
        yield {
            "ph": "X", "pid": process, "tid": threads[span.thread], "name": span.name,
            "ts": 1e6 * span.start, "dur": 1e6 * (span.stop - span.start),
        }  # fmt: skip


def _of_profiler(out: Path) -> Iterator[dict[str, Any]]:
    """The events of every `.xplane.pb` below `out`."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for path in sorted(out.rglob("*.xplane.pb")):
        space = xplane_pb2.XSpace()
        space.ParseFromString(path.read_bytes())
        started = _started_ns(space)
        for number, plane in enumerate(space.planes):
            yield from trace_events(list(_of_plane(plane, started)), _THEIRS + number, plane.name)


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
            start = (started_ns + line.timestamp_ns) / 1e9 + event.offset_ps / 1e12
            yield Span(thread, plane.event_metadata[event.metadata_id].name, start, start + event.duration_ps / 1e12)
