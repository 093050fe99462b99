"""`Watchdog`: raises when a pipeline stops, and says where it stopped. The operation timeout of TensorFlow 2."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tfprep.errors import StalledPipelineError, TrainError
from tfprep.train.backend import require_backend
from tfprep.train.monitor.clock import call_often
from tfprep.train.monitor.python_relay import PythonRelay, TimedInput, relay_of
from tfprep.train.monitor.stages import Counters, HasStats, Stage, checked, counters, loader_behind, stages, stopped
from tfprep.train.steps import Listener, attach, detach

_LOG = logging.getLogger("tfprep.train")
_GRACE_S = 5.0
"""Time for a cancelled step to come back; on a loaded machine it takes up to a second."""

Look = tuple[tuple[Stage, ...], dict[str, float]]
"""The stages of tf.data, and the counters of a reader."""


class Watchdog(Listener):
    """Raises a `StalledPipelineError` when no batch comes for some time; it names the stage and has every thread's stack.

    In Keras: `model.fit(..., callbacks=[Watchdog(timeout_s=300)])`; it watches the training data, not the validation data. In a
    custom training loop: `for batch in Watchdog(300).watch(dataset)`.

    Only the wait for a batch counts, so a step that computes for long is no stall. The first batch counts too, so `timeout_s`
    must cover the filling of a shuffle buffer. The source is read by a thread of its own, so the step comes back although the
    source never does; that thread stays until the process ends. Under a distribution strategy nothing is watched. Works with
    Keras on TensorFlow and JAX.

    Args:
        timeout_s: Seconds without a batch.
        reader: Counters for the report, as in `InputMonitor`; tfprep's loader is found without it on TensorFlow.
        exit_code: Where the step does not come back within 5 seconds, the report goes to the log, and the process ends with this
            status. None never ends it.

    Raises:
        TrainError: An argument is wrong, or Keras runs on another backend.
    """

    def __init__(
        self, timeout_s: float, *, reader: HasStats | Callable[[], Counters] | None = None, exit_code: int | None = None
    ) -> None:
        super().__init__()
        require_backend("Watchdog", "tensorflow", "jax")
        if not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
            raise TrainError(f"timeout_s is a number of seconds above 0, got {timeout_s!r}; for example 300")
        self._timeout_s = timeout_s
        self._reader = checked(reader)
        self._exit_code = exit_code
        self._watch: _Watch | None = None

    # --- Keras --------------------------------------------------------------------------------------------------------

    def on_train_begin(self, logs: Any = None) -> None:
        """Attach to the model's train steps."""
        self._end()
        self._watch = self._started()
        steps = attach(self.model, self, timed=True)
        steps.cancellable = True
        self._steps = steps

    def on_train_end(self, logs: Any = None) -> None:
        """Detach."""
        self._end()
        detach(self.model, self)

    def input_changed(self) -> None:
        """See `Listener`."""
        if self._watch is not None:
            self._watch.relay = self._steps.relay

    def failed(self, error: BaseException) -> BaseException:
        """See `Listener`."""
        stalled = self._watch.explain(error) if self._watch else error
        self._end()
        return stalled

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    # --- custom training loops ----------------------------------------------------------------------------------------

    def watch(self, data: Any) -> Iterator[Any]:
        """Yield the elements of `data`, a `tf.data.Dataset`, a `tf.data.Iterator` or an iterable of batches, for a Python loop.

        Raises:
            StalledPipelineError: No element came for `timeout_s` seconds.
            TrainError: `data` is something else.
        """
        relay = relay_of(data, cancellable=True)
        watch = self._started()
        watch.relay = relay
        try:
            while True:
                try:
                    element = _next(relay)
                except StopIteration:
                    return
                except Exception as error:
                    raise watch.explain(relay.error or error)  # noqa: B904  (its cause is set there)
                yield element
        finally:
            watch.end()
            relay.close()

    def _started(self) -> _Watch:
        watch = _Watch(self._timeout_s, self._reader, self._exit_code)
        call_often(watch.goes_on, min(1.0, self._timeout_s / 8), watch.ended, "tfprep-watchdog")
        return watch


def _next(relay: Any) -> Any:
    """The next element. `get_next` of tf.data raises an OutOfRange error at the end, which may also be one of the source."""
    if isinstance(relay, PythonRelay):
        return next(relay)
    optional = relay.iterator.get_next_as_optional()
    if not optional.has_value():
        raise StopIteration
    return optional.get_value()


class _Watch:
    """The thread that looks at the clock of one input, and cancels the wait."""

    def __init__(
        self, timeout_s: float, reader: HasStats | Callable[[], Counters] | None, exit_code: int | None
    ) -> None:
        self.relay: TimedInput | None = None
        self._timeout_s = timeout_s
        self._reader = reader
        self._exit_code = exit_code
        self.ended = threading.Event()
        self._report = ""
        self._halfway: Look | None = None
        self._wait: tuple[int, float] | None = None  # the wait that the last look saw
        self._since = 0.0

    def explain(self, error: BaseException) -> BaseException:
        """Return the stall where the step failed because of one, else `error`."""
        if not self._report:
            return error
        stalled = StalledPipelineError(self._report)
        stalled.__cause__ = error
        return stalled

    def end(self) -> None:
        self.ended.set()

    def goes_on(self) -> bool:
        """Look at the clock once; returns False where the wait was cancelled."""
        relay, now = self.relay, time.monotonic()
        reading = relay.clock.read() if relay else None
        wait = (reading.answered, reading.asked_at) if reading and reading.asked_at else None
        if wait is None or wait != self._wait:
            self._wait, self._since = wait, now
        pending_s = now - self._since  # the clock of `asked_at` may be set meanwhile
        if relay is None or pending_s < self._timeout_s / 2:
            self._halfway = None
        elif pending_s < self._timeout_s:
            self._halfway = self._halfway or self._look(relay)
        else:
            self._cancel(relay, pending_s)
            return False
        return True

    def _look(self, relay: TimedInput) -> Look:
        """The pipeline now. What cannot be looked at is left out of the report, which has to come nevertheless."""
        source = relay.source
        try:
            of_tf_data = () if source is None else stages(source)
            return of_tf_data, counters(self._reader, relay.loader, loader_behind(source))
        except Exception:
            _LOG.exception("Watchdog: the counters cannot be read")
            return (), {}

    def _cancel(self, relay: Any, pending_s: float) -> None:
        self._report = report(pending_s, self._look(relay), self._halfway or ((), {}), self._timeout_s)
        relay.cancel_wait()
        if self.ended.wait(_GRACE_S):
            return
        _LOG.critical("Watchdog: the step does not come back. %s", self._report)
        if self._exit_code is not None:
            logging.shutdown()
            sys.stderr.flush()
            os._exit(self._exit_code)


def report(pending_s: float, now: Look, halfway: Look, timeout_s: float) -> str:
    """Describe a stall.

    Args:
        pending_s: Seconds without a batch.
        now: The pipeline now.
        halfway: The pipeline at half of the time.
        timeout_s: The limit.
    """
    of_tf_data, readers = now
    if of_tf_data:
        verdict = _stage_verdict(of_tf_data, halfway[0])
    elif "batches_ready" in readers:
        verdict = _reader_verdict(readers, halfway[1])
    else:
        verdict = "which stage stopped is not known, for autotune is off in this pipeline; see the stacks below"
    lines = [f"no batch for {pending_s:.1f} s (timeout_s={timeout_s:g}): {verdict}"]
    if of_tf_data:
        lines.append("stages, the consumer's side first:")
        lines += [
            f"  {one.name}: {one.produced:,} handed on, {one.elements:,} in its buffer ({one.bytes:,} bytes)"
            for one in of_tf_data
        ]
    if readers:
        lines.append("the reader: " + ", ".join(f"{name}={value:g}" for name, value in readers.items()))
    return "\n".join([*lines, "threads:", all_stacks()])


def all_stacks() -> str:
    """Return the Python stack of every thread but tfprep's own, first those that TensorFlow started: Python functions of tf.data
    run in them."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    foreign, named = [], []
    for number, frame in sys._current_frames().items():
        name = names.get(number, "of TensorFlow")
        stack = f"thread {name} ({number}):\n{''.join(traceback.format_stack(frame))}"
        if number not in names or name.startswith("Dummy"):
            foreign.append(stack)
        elif not name.startswith("tfprep-"):
            named.append(stack)
    return "\n".join([*foreign, *named])


def _reader_verdict(now: dict[str, float], halfway: dict[str, float]) -> str:
    if now["batches_ready"] > 0:
        return (
            f"stopped behind the loader: {now['batches_ready']:.0f} batches are ready in its reader, and what comes after it, "
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
