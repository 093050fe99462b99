"""`Watchdog`: ends a run whose pipeline has stopped, and says where it stopped."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tfprep.errors import TrainError
from tfprep.train.backend import require_backend
from tfprep.train.monitor.input_monitor import call_often
from tfprep.train.monitor.iterators import timed
from tfprep.train.monitor.pipeline import Counters, HasStats, Stage, checked, counters, loader_of, stages, stopped
from tfprep.train.monitor.waits import WaitClock
from tfprep.train.steps import Listener, TrainSteps, attach, detach

_LOG = logging.getLogger("tfprep.train")
_LOOKS = 8
"""Looks within `timeout_s`. They are counted, not the seconds: a process that was suspended has not stalled."""


class Watchdog(Listener):
    """Ends the process when no batch comes for some time; names the stage that stopped, and has every thread's stack.

    In Keras: `model.fit(..., callbacks=[Watchdog(timeout_s=300)])`; it watches the training data, not the validation data. In a
    custom training loop: `for batch in Watchdog(300).watch(dataset)`.

    Only the wait for a batch counts, so a step that computes for long is not a stall. The first batch counts too, so `timeout_s`
    must cover the filling of a shuffle buffer. Nothing can end a wait inside TensorFlow, hence the end of the process; tfprep's
    loaders raise by themselves (`timeout_s`). Under a distribution strategy nothing is watched. Works with Keras on TensorFlow
    and JAX.

    Args:
        timeout_s: Seconds without a batch.
        reader: Counters for the report, as in `InputMonitor`; tfprep's loader is found without it.
        exit_code: The status with which the process ends, after the report in the log `tfprep.train` and the stacks on standard
            error. None only reports, once for each stall.

    Raises:
        TrainError: An argument is wrong, or Keras runs on another backend.
    """

    def __init__(
        self, timeout_s: float, *, reader: HasStats | Callable[[], Counters] | None = None, exit_code: int | None = 70
    ) -> None:
        super().__init__()
        require_backend("Watchdog", "tensorflow", "jax")
        if not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
            raise TrainError(f"timeout_s is a number of seconds above 0, got {timeout_s!r}; for example 300")
        self._timeout_s = timeout_s
        self._reader = checked(reader)
        self._exit_code = exit_code
        self._steps: TrainSteps | None = None
        self._stop = threading.Event()

    def on_train_begin(self, logs: Any = None) -> None:
        """Attach to the model's train steps."""
        self._steps = attach(self.model, self, timed=True)
        self._begin(self._steps.clock)

    def on_train_end(self, logs: Any = None) -> None:
        """Detach."""
        self._stop.set()
        detach(self.model, self)

    def failed(self) -> None:
        """See `Listener`."""
        self._stop.set()

    def watch(self, data: Any) -> Iterator[Any]:
        """Yield the elements of `data`, a `tf.data.Dataset`, a `tf.data.Iterator` or an iterable of batches, for a Python loop.

        Raises:
            TrainError: `data` is something else.
        """
        clock = WaitClock()
        batches, self._source = timed(data, clock)
        self._begin(clock)
        try:
            yield from batches
        finally:
            self._stop.set()
            self._source = None

    def _begin(self, clock: WaitClock) -> None:
        self._stop.set()
        self._stop = threading.Event()
        self._clock, self._looks, self._waits_for = clock, 0, -1
        self._halfway: tuple[tuple[Stage, ...], dict[str, float]] = (), {}
        call_often(self._goes_on, self._timeout_s / _LOOKS, self._stop, "tfprep-watchdog")

    def _goes_on(self) -> bool:
        """Look at the clock once; returns True."""
        reading = self._clock.read()
        if not reading.pending_s or reading.batches != self._waits_for:
            self._waits_for, self._looks = reading.batches if reading.pending_s else -1, 0
            return True
        self._looks += 1
        if self._looks == _LOOKS // 2:
            self._halfway = self._look()
        elif self._looks == _LOOKS:
            self._report(reading.pending_s)
        return True

    def _look(self) -> tuple[tuple[Stage, ...], dict[str, float]]:
        """Return the pipeline now. What cannot be looked at is left out of the report, which has to come nevertheless."""
        source = self._steps.source if self._steps else self._source
        try:
            loader = self._steps.loader if self._steps else source if hasattr(source, "report") else None
            return () if source is None else stages(source), counters(self._reader, loader, loader_of(source))
        except Exception:
            _LOG.exception("Watchdog: the counters cannot be read")
            return (), {}

    def _report(self, pending_s: float) -> None:
        text = report(pending_s, self._timeout_s, self._look(), self._halfway)
        faulthandler.dump_traceback(file=sys.__stderr__ or 2)  # before a handler of logs takes its time
        _LOG.critical("Watchdog: %s", text)  # on standard error, unless the program has configured its logs
        if self._exit_code is not None:
            logging.shutdown()
            os._exit(self._exit_code)


Look = tuple[tuple[Stage, ...], dict[str, float]]
"""The stages of tf.data, and the counters of a reader."""


def report(pending_s: float, timeout_s: float, now: Look, halfway: Look) -> str:
    """Describe a stall.

    Args:
        pending_s: Seconds without a batch.
        timeout_s: The limit.
        now: The pipeline now.
        halfway: The pipeline at half of the time.
    """
    of_tf_data, readers = now
    if of_tf_data:
        verdict = _stage_verdict(of_tf_data, halfway[0])
    elif "batches_ready" in readers:
        verdict = _reader_verdict(readers, halfway[1])
    else:
        verdict = "which stage stopped is not known, for autotune is off in this pipeline; see the stacks below"
    lines = [f"no batch for {pending_s:.1f} s (timeout_s={timeout_s:g}): {verdict}"]
    lines += [
        f"  stage {one.name}: {one.produced:,} handed on, {one.elements:,} in its buffer ({one.bytes:,} bytes)"
        for one in of_tf_data
    ]
    if readers:
        lines.append("  reader: " + ", ".join(f"{name}={value:g}" for name, value in readers.items()))
    return "\n".join(lines)


def _reader_verdict(now: dict[str, float], halfway: dict[str, float]) -> str:
    if now["batches_ready"] > 0:
        return (
            f"stopped after the loader: {now['batches_ready']:.0f} batches are ready in its reader, and what comes after it, "
            "such as a `.map`, does not take them; see the stacks below"
        )
    counts = ("batches", "records_read", "records_cached", "bytes_read")
    moving = halfway and any(now.get(name, 0) > halfway.get(name, 0) for name in counts)
    return f"{'slow' if moving else 'stopped'} in the loader's reader, which has delivered {now.get('batches', 0):,.0f} batches"


def _stage_verdict(now: tuple[Stage, ...], halfway: tuple[Stage, ...]) -> str:
    earlier = {stage.name: stage for stage in halfway}
    for stage in now:
        before = earlier.get(stage.name)
        if "Shuffle" in stage.kind and before and stage.elements > before.elements:
            return (
                f"it has not stopped, the shuffle buffer (stage {stage.name}) still fills, {stage.elements:,} elements so far; "
                "make it smaller, or timeout_s longer"
            )
    where = " or ".join(f"{one.name}, which has handed on {one.produced:,} elements" for one in stopped(now))
    moving = earlier and any(stage.name in earlier and stage.produced > earlier[stage.name].produced for stage in now)
    return f"{'slow' if moving else 'stopped'} in stage {where}"
