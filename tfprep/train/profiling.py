"""`profile`: some train steps under TensorFlow's profiler, for TensorBoard, as a Chrome trace, and in words."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfprep.errors import TrainError
from tfprep.train.backend import require_backend
from tfprep.train.shares import STEP, Shares, shares
from tfprep.train.trace import read_profile, write_chrome_trace

_LOG = logging.getLogger("tfprep.train")


def profile(log_dir: str | Path = "logs", *, steps: tuple[int, int] = (10, 20)) -> Profile:
    """Profile some train steps of a `fit`.

    The callback writes `<log_dir>/plugins/profile/<time>/`: `*.xplane.pb` for TensorBoard (with `pip install xprof`) and
    `trace.json.gz` for https://ui.perfetto.dev or chrome://tracing. The log `tfprep.train` gets the shares in words. Profiled
    steps are somewhat slower.

    Args:
        log_dir: Folder for the profile.
        steps: The first and the last step, counted from 1, both included.

    Returns:
        A Keras callback; its `shares`, `words` and `folder` are set after the last of the steps.

    Raises:
        TrainError: `steps` is wrong, or Keras does not run on TensorFlow.
    """
    pair = steps if isinstance(steps, (tuple, list)) and len(steps) == 2 else (0, 0)
    if not 1 <= pair[0] <= pair[1]:
        raise TrainError(f"steps are (first, last) with 1 <= first <= last, got {steps!r}; for example (10, 20)")
    return Profile(Path(log_dir), *pair)


class Profile(keras.callbacks.Callback):  # type: ignore[misc]
    """The callback that `profile` returns.

    Attributes:
        folder: Where the profile is; None until the last step, as the others.
        shares: Where the time went.
        words: The same in words.
    """

    def __init__(self, log_dir: Path, first: int, last: int) -> None:
        super().__init__()
        require_backend("profile", "tensorflow")
        self.folder: Path | None = None
        self.shares: Shares | None = None
        self.words: str | None = None
        self._log_dir = log_dir
        self._first, self._last = first, last
        self._trace: Any = None
        self._running = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Count steps from here."""
        self._stop()
        self._step = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Start the profiler at the first step, and mark each."""
        self._step += 1
        if self._step == self._first:
            tf.profiler.experimental.start(str(self._log_dir))
            self._running = True
        if self._running:
            self._trace = tf.profiler.experimental.Trace(STEP, step_num=self._step, _r=1)
            self._trace.__enter__()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop the profiler after the last step."""
        if self._trace is not None:
            self._trace.__exit__(None, None, None)
            self._trace = None
        if self._step >= self._last:
            self._stop()

    def on_train_end(self, logs: Any = None) -> None:
        """Stop the profiler; log where the training was too short."""
        if self.folder is None and not self._running:
            _LOG.warning(
                "profile: the training ended after %d steps, before step %d; nothing was profiled",
                self._step,
                self._first,
            )
        self._stop()

    def _stop(self) -> None:
        if not self._running:
            return
        self._running = False
        tf.profiler.experimental.stop()
        newest = max(self._log_dir.glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
        events = read_profile(newest)
        write_chrome_trace(events, newest.parent / "trace.json.gz")
        self.folder, self.shares = newest.parent, shares(events)
        self.words = self.shares.in_words()
        _LOG.warning("profile: %s (%s)", self.words, self.folder)
