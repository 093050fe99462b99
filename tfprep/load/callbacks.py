"""Keras callbacks of the loader. Importing this imports Keras."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import keras

from tfprep.errors import LoaderError


class SaveLoaderState(keras.callbacks.Callback):  # type: ignore[misc] # Keras is untyped
    """Writes the loader's state beside each checkpoint, as `CHECKPOINT.loader.json`, whole or not at all.

    `filepath` and `save_freq` are those of the `keras.callbacks.ModelCheckpoint` that stands before it in `callbacks`; the
    name should tell epochs apart (`"run/{epoch:04d}.weights.h5"`): then a state says that its checkpoint is complete.

        step = train.step_of(json.loads(Path("run/0007.weights.h5.loader.json").read_text()))
        train = data.loader("train", start_step=step, ...)
    """

    def __init__(
        self, loader: Any, filepath: str | os.PathLike[str], save_freq: Literal["epoch"] | int = "epoch"
    ) -> None:
        super().__init__()
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
            raise LoaderError(f"save_freq is 'epoch' or a number of steps, not {save_freq!r}")
        self._loader = loader
        self._filepath = os.fspath(filepath)
        self._save_freq = save_freq
        self._epoch = 0
        self._first = self._next = int(loader.start_step)
        self._saved = self._first

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._first = epoch, self._next

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """`batch` is the last of those that one execution took."""
        self._next = self._first + batch + 1
        if self._save_freq != "epoch" and self._next - self._saved >= self._save_freq:
            self._saved = self._next
            self._save(batch=batch + 1, **(logs or {}))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._save_freq == "epoch":
            self._save(**(logs or {}))

    def _save(self, **values: Any) -> None:
        checkpoint = self._filepath.format(epoch=self._epoch + 1, **values)
        path = Path(f"{checkpoint}.loader.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self._loader.state_at(self._next)))
        temporary.replace(path)
