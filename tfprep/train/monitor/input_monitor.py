"""`InputMonitor`: whether the train step waits for its input, and why."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from tfprep.errors import TrainError
from tfprep.limits import CpuTimes, available_memory, usable_cpus
from tfprep.train.backend import accelerator_memory, compilations, require_backend
from tfprep.train.monitor.causes import Verdict, verdict_of, warning_of
from tfprep.train.monitor.samples import InputLog, Sample, StageTotals, counters, pipeline_of
from tfprep.train.monitor.waits import Waits
from tfprep.train.steps import CustomLoop, Listener, Watched, attach, count_traces, detach

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
    cause: to the log `tfprep.train`, to `warnings` and to the JSON lines. The waits are right within compiled steps. With
    `steps_per_execution` above 1, TensorFlow fetches a batch during the step before it, and what takes longer than that step is
    a wait. Under a distribution strategy waits and buffers are not measured; memory is. Works with Keras on TensorFlow, JAX and
    PyTorch. On PyTorch, with an input other than tfprep's, the time of later callbacks counts as waiting too: list it last.

    Args:
        log_dir: Folder for `input.jsonl` and TensorBoard's files; made if it does not exist.
        every_s: Seconds between two samples.
        wait_share: Share of the time spent waiting for input, from 0 to 1, above which the input limits and a warning is written.
        on_sample: Called with each sample as a dict, as it is written to `input.jsonl`, from a thread of the monitor.

    Attributes:
        samples: The last 1,000 samples of this run, oldest first.
        warnings: The warnings of this run, with `cause` and `text`.
        summary: Two lines about the run without the first step of `fit`, which traces. Set when the run has ended. `fit` prints
            them unless `verbose=0`.

    Raises:
        TrainError: An argument is wrong, or Keras runs on another backend.
    """

    def __init__(
        self,
        log_dir: str | Path,
        *,
        every_s: float = 5.0,
        wait_share: float = 0.1,
        on_sample: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        super().__init__()
        require_backend("InputMonitor", "tensorflow", "jax", "torch")
        if not isinstance(every_s, (int, float)) or not 0 < every_s <= threading.TIMEOUT_MAX:
            raise TrainError(f"every_s is a number of seconds above 0, got {every_s!r}; for example 5")
        if not isinstance(wait_share, (int, float)) or not 0 <= wait_share <= 1:
            raise TrainError(f"wait_share is a share of the time, from 0 to 1, got {wait_share!r}; for example 0.1")
        if "://" in str(log_dir):  # `Path` would make a folder "gs:" here
            raise TrainError(f"log_dir is a local folder, got {str(log_dir)!r}; copy the folder, or take on_sample=")
        if on_sample is not None and not callable(on_sample):
            raise TrainError(f"on_sample is a function that is called with a dict, got {on_sample!r}")
        self.log_dir = Path(log_dir)
        self.warnings: list[Verdict] = []
        self.samples: list[Sample] = []
        self.summary = ""
        self._every_s = every_s
        self._wait_share = wait_share
        self._on_sample = on_sample
        self._lock = threading.RLock()
        self._watched: Watched = CustomLoop()
        self._log: InputLog | None = None
        self._stop = threading.Event()
        self._stages = StageTotals()
        self._begun = False  # the first step, which traces for longer than the others, has ended
        self._baseline: Sample | None = None  # after it
        self._last: Sample | None = None  # the last sample, with the waits since the beginning
        self._validation_s = self._test_since = 0.0

    # --- Keras --------------------------------------------------------------------------------------------------------

    def set_model(self, model: Any) -> None:
        """Count the traces of the model's train step."""
        super().set_model(model)
        count_traces(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Attach to the model's train steps."""
        self._end()
        self._begin(attach(self.model, self, timed=True))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count time from now on."""
        self._watched.clock.resume()
        self._watched.fetching()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keras goes on to the next batch."""
        self._watched.fetching()

    def on_test_begin(self, logs: Any = None) -> None:
        """Validation is not training time."""
        self._watched.pause()
        self._test_since = time.monotonic()

    def on_test_end(self, logs: Any = None) -> None:
        """Validation ends an epoch; the next one resumes."""
        self._validation_s += time.monotonic() - self._test_since

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The time between epochs does not count."""
        self._watched.pause()

    def on_train_end(self, logs: Any = None) -> None:
        """Detach, and print the summary."""
        self._end()
        detach(self.model, self)
        if self.summary and (self.params or {}).get("verbose", 1):
            print(self.summary)

    def failed(self) -> None:
        """See `Listener`."""
        self._end()

    # --- custom training loops ----------------------------------------------------------------------------------------

    def watch(self, data: Any, *, step: Any = None) -> Any:
        """Return an iterator over `data` whose waits are measured, for a loop of Python.

        Args:
            data: A `tf.data.Dataset`, a `tf.data.Iterator` or another iterable of batches, such as tfprep's loaders.
            step: The `tf.function` that trains, whose traces are counted. On JAX compilations are counted without it.

        Raises:
            TrainError: `data` or `step` is something else, or the monitor does not run.
        """
        if step is not None and not hasattr(step, "experimental_get_tracing_count"):
            raise TrainError(f"step is a tf.function, whose traces are counted, got {step!r}; leave it out")
        if self._log is None or not isinstance(self._watched, CustomLoop):
            raise TrainError("watch() measures inside `with InputMonitor(...) as monitor:`; call it there")
        batches = self._watched.watch(data, step)
        self.step_done()
        return batches

    def __enter__(self) -> InputMonitor:
        self._end()
        self._begin(CustomLoop())
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
            now, before = self._look(), self._last
            spent = now if before is None else now.since(before)
            self._last, sample = now, replace(now, waits=spent.waits)
            self.samples = [*self.samples[1 - _KEPT :], sample]
            self._log.sample(sample)
            warning = None if before is None else warning_of(spent, self._wait_share)
            if warning is not None and warning.cause not in {other.cause for other in self.warnings}:
                self.warnings.append(warning)
                self._log.warning(warning.cause, warning.text)
                _LOG.warning("InputMonitor: %s", warning.text)
            if self._on_sample is not None:
                self._on_sample(sample.as_json())
            return sample

    def total(self) -> Verdict | None:
        """Return the waits and causes of the run so far; None where fewer than two waits were measured."""
        with self._lock:
            if self._last is None or self._baseline is None:
                return None
            total = verdict_of(self._last.since(self._baseline), self._wait_share)
            return total if total is not None and total.waits.batches > 1 else None

    def _look(self) -> Sample:
        watched = self._watched
        return Sample(
            time=time.time(),
            step=watched.count,
            waits=watched.clock.read() if watched.measured else Waits(),
            cpu=CpuTimes.now(),
            cpus=usable_cpus(),
            rss=psutil.Process().memory_info().rss,
            available=available_memory(),
            gpus=accelerator_memory(),
            stages=self._stages.look(watched.source),
            readers=counters(watched.loader, watched.source),
            between_s=watched.between_s,
            validation_s=self._validation_s,
            traces=watched.traces,
            compile_s=watched.compile_s,
            pipeline=pipeline_of(watched.source),
        )

    def _begin(self, watched: Watched) -> None:
        self.samples, self.warnings, self.summary = [], [], ""
        self._watched, self._stages, self._begun, self._baseline, self._last = watched, StageTotals(), False, None, None
        self._validation_s = 0.0
        compilations()  # counts from here on
        self._log = InputLog(self.log_dir)
        self._stop = threading.Event()
        arguments = weakref.WeakMethod(self._sample_in_time), self._every_s, self._stop
        threading.Thread(target=_call_often, args=arguments, name="tfprep-monitor", daemon=True).start()

    def step_done(self) -> None:
        """See `Listener`. What the first step took does not count."""
        if self._begun:
            return
        self._begun = True
        try:
            with self._lock:
                self._baseline = self._look()
        except Exception:  # a monitor never ends a training
            _LOG.exception("InputMonitor: the first look failed, so there will be no summary")

    def _sample_in_time(self) -> None:
        try:
            with suppress(TrainError):  # ended just now
                self.sample()
        except Exception:  # a monitor never ends a training
            _LOG.exception("InputMonitor: a sample failed")

    def _end(self) -> None:
        with self._lock:
            self._stop.set()
            if self._log is None:
                return
            try:
                self.sample()
            except Exception:  # a monitor never ends a training, nor hides why one ended
                _LOG.exception("InputMonitor: the last sample failed")
            with suppress(OSError):
                self._log.close()
            self._log = None
            total = self.total()
            self.summary = f"InputMonitor: {total.waits.in_words()}\nInputMonitor: {total.limit}" if total else ""
            if isinstance(self._watched, CustomLoop):
                self._watched.close()


def _call_often(look: weakref.WeakMethod[Any], every_s: float, stopped: threading.Event) -> None:
    """Take samples until the monitor stops, or is gone because a training broke off: a thread does not keep it."""
    while not stopped.wait(every_s):
        if (sample := look()) is None:
            return
        sample()
        del sample
