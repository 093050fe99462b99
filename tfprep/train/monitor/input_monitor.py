"""`InputMonitor`: whether the train step waits for its input, and why. The queue graph of TensorFlow 2."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfprep.errors import TrainError
from tfprep.train.backend import compilations, require_backend
from tfprep.train.monitor.causes import InputWarning, Thresholds, TrainingSummary, summary, warnings_of
from tfprep.train.monitor.clock import InputWindow, Waits, added, call_often
from tfprep.train.monitor.python_relay import PythonRelay, relay_of
from tfprep.train.monitor.samples import InputLog, Sample, look
from tfprep.train.monitor.stages import (
    Counters,
    HasStats,
    checked,
    counters,
    loader_behind,
    pipeline_behind,
    reader_stage,
    stages,
)
from tfprep.train.steps import Listener, TrainSteps, attach, detach

_LOG = logging.getLogger("tfprep.train")
_KEPT = 1000
"""Samples to keep: 80 minutes at one every 5 seconds; the JSON lines have all."""


class InputMonitor(Listener):
    """Measures how long the train step waits for input, and says what limits.

    In Keras: `model.fit(..., callbacks=[InputMonitor("logs")])`. In a custom training loop:

        with InputMonitor("logs") as monitor:
            for batch in monitor.watch(dataset):
                train_step(batch)

    Every `every_s` seconds a sample goes to TensorBoard and to `<log_dir>/input.jsonl`. A warning is written once for each
    cause: to the log `tfprep.train`, to `warnings` and to the JSON lines. The waits are measured inside tf.data, so they are
    right within compiled steps and with `steps_per_execution` above 1. Under a distribution strategy waits and buffers are not
    measured; memory and swap are. Works with Keras on TensorFlow, JAX and PyTorch. On PyTorch, with an input other than tfprep's,
    the time of callbacks that are called after this one counts as waiting too: list it last there.

    Args:
        log_dir: Folder for `input.jsonl` and TensorBoard's files; made if it does not exist.
        every_s: Seconds between two samples.
        reader: An object with `stats`, or a callable, that returns counters of a reader outside tf.data. tfprep's loader is
            found without it, on TensorFlow also before a `.map`.
        thresholds: When to warn.

    Attributes:
        samples: The last 1,000 samples of this run, oldest first.
        warnings: The warnings of this run.
        summary: Two lines about the run without the first step of `fit`, which traces; of a run of more than 1,000 samples,
            about those alone. Set when the run has ended. `fit` prints them unless `verbose=0`.

    Raises:
        TrainError: An argument is wrong, or Keras runs on another backend.
    """

    def __init__(
        self,
        log_dir: str | Path,
        *,
        every_s: float = 5.0,
        reader: HasStats | Callable[[], Counters] | None = None,
        thresholds: Thresholds | None = None,
    ) -> None:
        super().__init__()
        require_backend("InputMonitor", "tensorflow", "jax", "torch")
        if not isinstance(every_s, (int, float)) or not every_s > 0:
            raise TrainError(f"every_s is a number of seconds above 0, got {every_s!r}; for example 5")
        self.log_dir = Path(log_dir)
        self.warnings: list[InputWarning] = []
        self.samples: list[Sample] = []
        self.summary = ""
        self._every_s = every_s
        self._reader = checked(reader)
        self._thresholds = thresholds or Thresholds()
        self._lock = threading.RLock()
        self._window = InputWindow()
        self._steps: TrainSteps | None = None
        self._step: Any = None
        self._log: InputLog | None = None
        self._stop = threading.Event()
        self._step_before = self._batches = 0
        self._validation_s = self._test_since = 0.0
        self._start: Waits | None = None
        self._baseline: Sample | None = None

    # --- Keras --------------------------------------------------------------------------------------------------------

    def on_train_begin(self, logs: Any = None) -> None:
        """Attach to the model's train steps."""
        self._steps = attach(self.model, self, timed=True)
        self._begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count time from now on."""
        self._window.resume()
        if self._steps is not None:
            self._steps.fetching()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keras goes on to the next batch."""
        if self._steps is not None:
            self._steps.fetching()

    def on_test_begin(self, logs: Any = None) -> None:
        """Validation is no training time."""
        self._pause()
        self._test_since = time.monotonic()

    def on_test_end(self, logs: Any = None) -> None:
        """Validation ends an epoch; the next one resumes."""
        self._validation_s += time.monotonic() - self._test_since
        self._pause()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The time between epochs does not count."""
        self._pause()

    def on_train_end(self, logs: Any = None) -> None:
        """Detach, and print the summary."""
        self._end()
        detach(self.model, self)
        if self.summary and (self.params or {}).get("verbose", 1):
            print(self.summary)

    def input_changed(self) -> None:
        """See `Listener`."""
        self._window.switch(self._steps.relay if self._steps else None)

    def step_done(self) -> None:
        """See `Listener`."""
        if self._start is None:
            with self._lock:  # the first step may trace for longer than `every_s`
                windows = [*(sample.waits for sample in self.samples), self._window.so_far()]
                self._start = added([waits for waits in windows if waits is not None])
                self._baseline = self._look(None)

    def failed(self, error: BaseException) -> BaseException:
        """See `Listener`."""
        self._end()
        return error

    def _pause(self) -> None:
        self._window.pause()
        if self._steps is not None:
            self._steps.pause()

    # --- custom training loops ----------------------------------------------------------------------------------------

    def watch(self, data: Any, *, step: Any = None) -> Any:
        """Return an iterator over `data` whose waits are measured, for Python loops and functions of `tf.function`.

        Args:
            data: A `tf.data.Dataset` or `tf.data.Iterator`, of which a `tf.data.Iterator` comes back; or an iterable of batches,
                such as tfprep's other loaders.
            step: The `tf.function` that trains, whose traces are counted. On JAX compilations are counted without it.

        Raises:
            TrainError: `data` or `step` is something else, or the monitor does not run.
        """
        if step is not None and not hasattr(step, "experimental_get_tracing_count"):
            raise TrainError(f"step is a tf.function, whose traces are counted, got {step!r}; leave it out")
        self._step = step
        if self._log is None:
            raise TrainError("watch() measures inside `with InputMonitor(...) as monitor:`; call it there")
        relay = relay_of(data)
        if self._reader is None and isinstance(relay, PythonRelay) and hasattr(data, "stats"):
            self._reader = data
        self._window.switch(relay)
        self._window.resume()
        self._baseline = self._baseline or self._look(None)
        return relay.handed_over()

    def __enter__(self) -> InputMonitor:
        self._steps = self._step = None
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    # --- sampling -----------------------------------------------------------------------------------------------------

    def sample(self) -> Sample:
        """Take a sample now, write it, and return it.

        Raises:
            TrainError: The monitor does not run.
        """
        with self._lock:
            if self._log is None:
                raise TrainError("the monitor does not run: sample() is called during fit or inside `with`")
            sample = self._look(self._window.take())
            before = self.samples[-1] if self.samples else None
            self._log.sample(sample, before)
            for warning in warnings_of(sample, before, self._thresholds):
                known = {(other.kind, other.cause) for other in self.warnings}
                if self._log is not None and (warning.kind, warning.cause) not in known:
                    self.warnings.append(warning)
                    self._log.warning(warning)
                    _LOG.warning("InputMonitor: %s", warning.text)
            self.samples = [*self.samples[1 - _KEPT :], sample]
            return sample

    def _begin(self) -> None:
        self._end()
        self.samples, self.warnings, self.summary = [], [], ""
        self._step_before, self._batches = self._steps.count if self._steps else 0, 0
        self._window, self._start, self._baseline = InputWindow(), None, None
        self._validation_s = 0.0
        compilations()  # counts from here on
        self._log = InputLog(self.log_dir)
        self._stop = threading.Event()
        call_often(self._sampled, self._every_s, self._stop, "tfprep-monitor")

    def _sampled(self) -> bool:
        """Take a sample; returns False where the monitor does not run."""
        try:
            self.sample()
        except TrainError:  # ended just now
            return False
        except Exception:  # a monitor never ends a training
            _LOG.exception("InputMonitor: a sample failed")
        return True

    def _end(self) -> None:
        with self._lock:
            self._stop.set()
            if self._log is None:
                return
            try:
                self.sample()
            except Exception:  # a monitor never ends a training, nor hides why one ended
                _LOG.exception("InputMonitor: the last sample failed")
            self._window.switch(None)
            with contextlib.suppress(OSError):
                self._log.close()
            self._log = None
            total = self.total()
            self.summary = total.in_words() if total else ""

    def total(self) -> TrainingSummary | None:
        """Return the waits and causes of the samples that are kept; None where fewer than two waits were measured."""
        share = self._thresholds.wait_share
        if len(self.samples) < _KEPT:
            return summary(self.samples, self._start, self._baseline, share)
        return summary(self.samples[1:], None, self.samples[0], share)

    def _look(self, waits: Waits | None) -> Sample:
        source = self._window.relay and self._window.relay.source
        self._batches += waits.batches if waits else 0
        unmeasured = self._steps.count if self._steps and waits is None else 0
        loader = self._steps.loader if self._steps else None
        readers = counters(self._reader, loader, loader_behind(source))
        of_tf_data = stages(source) if source is not None else ()
        traces, compile_s = compilations()
        traces += self._step.experimental_get_tracing_count() if self._step is not None else 0
        return Sample(
            time=time.time(),
            step=max(unmeasured, self._step_before + self._batches),
            waits=waits,
            machine=look(),
            stages=(*of_tf_data, *reader_stage(readers, len(of_tf_data) + 1)),
            readers=readers,
            between_s=self._steps.between_s if self._steps else None,
            validation_s=self._validation_s,
            traces=self._steps.traces if self._steps else traces,
            compile_s=self._steps.compile_s if self._steps else compile_s,
            pipeline=pipeline_behind(source),
        )
