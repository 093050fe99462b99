"""A profile of the loader under a step: for TensorBoard, and as a Chrome trace that Perfetto opens.

TensorFlow's profiler writes `plugins/profile/*/*.xplane.pb` only. `trace.json` holds its events and what it does not see: the
waits and steps of the consumer, and what each reading thread did (read, decode, wait for work).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfprep.bench.measure.loaders import Iteration, opened
from tfprep.load import Data
from tfprep.load.options import LoaderOptions
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.worker import Worker
from tfprep.train.trace import TraceEvent, read_profile, write_chrome_trace

_PROCESS = "tfprep"


def profile(
    data: Data | str, split: str, batch_size: int, out: Path, *, step_s: float = 0.01, steps: int = 50, **options: Any
) -> Path:
    """Profile a loader under a consumer that sleeps in each step.

    Batches come through tf.data, as in `fit`, so that TensorBoard's input pipeline analyzer sees them.

    Args:
        data: The dataset, or the folder or URL of one.
        split: Name of the split to read.
        batch_size: Samples in a batch.
        out: Folder for the profile.
        step_s: Seconds that a step sleeps.
        steps: Number of steps.
        **options: Further options of the loader.

    Returns:
        The path of `trace.json`.
    """
    import tensorflow as tf

    from tfprep.load.tensorflow.loader import make_loader

    pipeline = (
        opened(data).subset(split).pipeline(LoaderOptions(batch_size=batch_size, **{"training": True, **options}))
    )
    loader = make_loader(pipeline, epochs=None)
    iteration = Iteration(loader, iter(loader.with_options(tf.data.Options())))
    try:
        next(iteration)
        tf.profiler.experimental.start(str(out))
        try:
            events = _steps(iteration, pipeline, step_s, steps)
        finally:
            tf.profiler.experimental.stop()
    finally:
        iteration.close()
    profiled = [event for path in sorted(out.rglob("*.xplane.pb")) for event in read_profile(path)]
    trace = out / "trace.json"
    write_chrome_trace([*events, *profiled], trace)
    return trace


def _steps(iteration: Iteration, pipeline: Pipeline, step_s: float, steps: int) -> list[TraceEvent]:
    import tensorflow as tf

    workers = [worker for reader in pipeline.readers for worker in reader.workers]
    for worker in workers:
        worker.ended = []
    events = []
    for number in range(steps):
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1):  # TensorBoard takes `_r=1` for a step
            asked = time.time_ns()
            next(iteration)
            received = time.time_ns()
            time.sleep(step_s)
        done = time.time_ns()
        events.append(TraceEvent(_PROCESS, "consumer", "wait for a batch", asked, received))
        events.append(TraceEvent(_PROCESS, "consumer", "step", received, done))
    return events + [event for worker in workers for event in _worker_events(worker)]


def _worker_events(worker: Worker) -> Iterator[TraceEvent]:
    # Workers note seconds of the monotonic clock; the profiler counts from the epoch.
    offset = time.time_ns() - time.monotonic_ns()
    stages, worker.ended = worker.ended or [], None
    for stage, start, stop in stages:
        yield TraceEvent(_PROCESS, worker.name, stage, int(start * 1e9) + offset, int(stop * 1e9) + offset)
