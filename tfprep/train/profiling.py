"""`profile`: some train steps under TensorFlow's profiler, for TensorBoard."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfprep.errors import TrainError
from tfprep.train.backend import require_backend

_LOG = logging.getLogger("tfprep.train")


class profile(keras.callbacks.Callback):  # type: ignore[misc] # named like the functions beside it
    """A Keras callback that profiles some train steps of a `fit`.

    It writes `<log_dir>/plugins/profile/<time>/*.xplane.pb`, which TensorBoard shows on its page *Profile* (with
    `pip install xprof`): the timeline, and the shares of input, accelerator and Python. Profiled steps are somewhat slower.

    Args:
        log_dir: Folder for the profile.
        steps: The first and the last step, counted from 1, both included.

    Attributes:
        folder: Where the profile is; None until the last of the steps.

    Raises:
        TrainError: `steps` is wrong, or Keras does not run on TensorFlow.
    """

    def __init__(self, log_dir: str | Path = "logs", *, steps: tuple[int, int] = (10, 20)) -> None:
        super().__init__()
        require_backend("profile", "tensorflow")
        pair = steps if isinstance(steps, (tuple, list)) and len(steps) == 2 else (0, 0)
        if not 1 <= pair[0] <= pair[1]:
            raise TrainError(f"steps are (first, last) with 1 <= first <= last, got {steps!r}; for example (10, 20)")
        self.folder: Path | None = None
        self._log_dir, (self._first, self._last) = Path(log_dir), pair
        self._mark: Any = None
        self._running = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Count steps from here."""
        self._stop()
        self._step, self.folder = 0, None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Start the profiler at the first step, and mark each: TensorBoard takes `_r=1` for a step."""
        self._step += 1
        if self._step == self._first:
            tf.profiler.experimental.start(str(self._log_dir))
            self._running = True
        if self._running:
            self._mark = tf.profiler.experimental.Trace("train", step_num=self._step, _r=1)
            self._mark.__enter__()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop the profiler after the last step."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        if self._step >= self._last:
            self._stop()

    def on_train_end(self, logs: Any = None) -> None:
        """Stop the profiler; log where the training was too short."""
        self._stop()
        if self.folder is None:
            _LOG.warning("profile: the training ended before step %d; nothing was profiled", self._first)

    def _stop(self) -> None:
        if self._running:
            self._running = False
            tf.profiler.experimental.stop()
            profiles = self._log_dir.glob("plugins/profile/*/*.xplane.pb")
            newest = max(profiles, key=lambda path: path.stat().st_mtime_ns)  # two of one second share a folder
            self.folder = newest.parent
            shows = f"tensorboard --logdir {self._log_dir} shows it (pip install tensorboard xprof)"
            _LOG.warning("profile: wrote %s; %s", self.folder, shows)
