"""A Keras callback of the loader, for checkpoints of weights only. Importing this imports Keras.

A full checkpoint of Keras (`model.save`, `BackupAndRestore`, Orbax) stores the optimizer's count of steps, so that
`start_step=int(model.optimizer.iterations)` continues the run. A file of weights stores no count.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import keras

from tfprep.errors import LoaderError
from tfprep.storage.urls import durable_write


class SaveLoaderState(keras.callbacks.Callback):  # type: ignore[misc] # Keras is untyped
    """Writes the state of the run as JSON at the end of each epoch, and every `save_freq` batches: `start_step=` takes it.

    train = data.loader("train", start_step=json.loads(path.read_text()) if path.exists() else 0, **options)
    model.fit(train, callbacks=[ModelCheckpoint(weights, save_weights_only=True), SaveLoaderState(train, path)])
    """

    def __init__(self, loader: Any, path: str | os.PathLike[str], save_freq: int = 0) -> None:
        super().__init__()
        self._loader, self._path, self._save_freq = loader, Path(path), save_freq
        self._epoch_step = self._steps = 0
        self._pass_steps: int | None = None
        """The steps of a pass; None where it has no end."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._epoch_step, self._steps = self._loader.next_step, 0
        steps, length = self.params.get("steps"), self._loader.steps_per_epoch
        self._pass_steps = length if self._loader.passes_are_epochs else None
        if self._loader.passes_are_epochs and steps not in (None, length):
            raise LoaderError(
                f"fit reads {steps} of the {length} steps of an epoch: use train.repeat() with steps_per_epoch"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_step, self._steps = self._epoch_step + self._steps, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps = batch + 1  # the last of those that one execution asked for
        if self._pass_steps is not None:  # the last execution of a pass may have found fewer
            self._steps = min(self._steps, self._pass_steps)
        if self._save_freq and self._steps % self._save_freq == 0:
            self.on_epoch_end(0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        durable_write(self._path, json.dumps(self._loader.state_dict(step=self._epoch_step + self._steps)))
