"""`Watchdog`: ends a run whose pipeline has stopped, and says where it stopped."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tfprep.errors import TrainError
from tfprep.train.backend import require_backend
from tfprep.train.monitor.pipeline import where_stopped
from tfprep.train.monitor.waits import call_often
from tfprep.train.steps import CustomLoop, Listener, Watched, attach, detach

_LOG = logging.getLogger("tfprep.train")
_LOOKS = 8
"""Looks within `timeout_s`, after the first of a wait. They are counted, not the seconds: a process that was suspended has not
stalled."""


class Watchdog(Listener):
    """Ends the process when no batch comes for some time; names the stage that stopped, and prints every thread's stack.

    In Keras: `model.fit(..., callbacks=[Watchdog(timeout_s=300)])`; it watches the training data, not the validation data. In a
    custom training loop: `for batch in Watchdog(300).watch(dataset)`.

    Only the wait for a batch counts, so a step that computes for long is not a stall. The first batch counts too, so `timeout_s`
    must cover the filling of a shuffle buffer. Nothing can end a wait inside TensorFlow, hence the end of the process; tfprep's
    loaders raise by themselves (`timeout_s`). Under a distribution strategy nothing is watched. Works with Keras on TensorFlow
    and JAX.

    Args:
        timeout_s: Seconds without a batch.
        exit_code: The status with which the process ends, after the stacks on standard error and the report in the log
            `tfprep.train`. None only reports, once for each stall.

    Raises:
        TrainError: An argument is wrong, or Keras runs on another backend.
    """

    def __init__(self, timeout_s: float, *, exit_code: int | None = 70) -> None:
        super().__init__()
        require_backend("Watchdog", "tensorflow", "jax")
        if not isinstance(timeout_s, (int, float)) or not 0 < timeout_s <= threading.TIMEOUT_MAX:
            raise TrainError(f"timeout_s is a number of seconds above 0, got {timeout_s!r}; for example 300")
        self._timeout_s, self._exit_code = timeout_s, exit_code
        self._stop = threading.Event()

    def on_train_begin(self, logs: Any = None) -> None:
        """Attach to the model's train steps."""
        self._begin(attach(self.model, self, timed=True))

    def on_train_end(self, logs: Any = None) -> None:
        """Detach."""
        self._stop.set()
        detach(self.model, self)

    def failed(self) -> None:
        """See `Listener`."""
        self._stop.set()

    def watch(self, data: Any) -> Iterator[Any]:
        """Watch the batches of a Python loop.

        Args:
            data: A `tf.data.Dataset`, a `tf.data.Iterator` or an iterable of batches.

        Yields:
            The elements of `data`.

        Raises:
            TrainError: `data` is something else.
        """
        loop = CustomLoop()
        batches = loop.watch(data)
        self._begin(loop)
        try:
            yield from batches
        finally:
            self._stop.set()
            loop.close()

    def _begin(self, watched: Watched) -> None:
        self._stop.set()
        self._watched, self._looks, self._batches = watched, 0, -1
        self._stop = call_often(self._look, self._timeout_s / _LOOKS, "tfprep-watchdog")

    def _look(self) -> None:
        waits = self._watched.clock.read()
        if not waits.pending_s or waits.batches != self._batches:
            self._looks = 0
        self._looks += waits.pending_s > 0
        self._batches = waits.batches
        if self._looks != _LOOKS + 1:
            return
        with suppress(OSError, ValueError):  # it is closed
            faulthandler.dump_traceback(file=sys.__stderr__ or 2)
        try:
            where = where_stopped(self._watched.source, self._watched.loader)
        except Exception:  # the report has to come all the same
            _LOG.exception("Watchdog: the counters cannot be read")
            where = "the stacks above show where"
        text = f"no batch for {waits.pending_s:.1f} s (timeout_s={self._timeout_s:g}): {where}"
        _LOG.critical("Watchdog: %s", text)  # on standard error, unless the program has configured its logs
        if self._exit_code is not None:
            logging.shutdown()
            os._exit(self._exit_code)
