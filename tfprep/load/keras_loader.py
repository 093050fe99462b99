"""Batches for `fit`, `evaluate` and `predict` of Keras on JAX and PyTorch, without TensorFlow: a `keras.utils.PyDataset`.

Keras asks a `PyDataset` for the batches of a pass by number, from 0. Number 0 begins a pass of the loader, and the numbers after
it take the batches of this pass in their order. `fit` draws the numbers in a random order unless it gets `shuffle=False`; this is
refused, because the loader shuffles the samples itself and fills the next batches ahead.

`SaveLoaderState` is a callback for checkpoints of weights only. A full checkpoint of Keras (`model.save`, `BackupAndRestore`,
Orbax) stores the optimizer's count of steps, so that `start_step=int(model.optimizer.iterations)` continues the run. A file of
weights stores no count.
"""

from __future__ import annotations

import json
import os
from math import inf
from pathlib import Path
from typing import Any

import keras

from tfprep.errors import LoaderError
from tfprep.load.jax_loader import check_distribution, check_elements, check_equal_parts, in_types_of_jax, jax_hosts
from tfprep.load.loader import BatchPass, Loader
from tfprep.load.pipeline import Pipeline
from tfprep.load.threads import note_loader
from tfprep.storage.urls import durable_write


class KerasLoader(Loader, keras.utils.PyDataset):  # type: ignore[misc] # Keras is untyped
    """Input of `fit`, `evaluate` and `predict` on JAX or PyTorch. Made by `Data.keras_loader`.

        model.fit(train, epochs=10, validation_data=val, shuffle=False)

    The order, the passes, the length and the state are those of `numpy_loader`, which also a plain `for` gets. With several
    processes of JAX or of `torch.distributed`, each process gets its part of every batch. `train[number]` is for Keras.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        backend = keras.backend.backend()
        check_elements(pipeline.outputs, f"Keras on {backend}", text=False)
        self._is_jax = backend == "jax"
        if self._is_jax:
            check_distribution("keras_loader()")
            check_equal_parts(pipeline.schedule)
        Loader.__init__(self, pipeline)
        keras.utils.PyDataset.__init__(self)
        self._pass: BatchPass | None = None

    @property
    def num_batches(self) -> int | None:
        """Batches of one pass; None for a pass without an end."""
        return None if self._epochs is None else len(self)

    def __getitem__(self, number: int) -> Any:
        """The batch that Keras asks for; 0 begins a pass. Other loaders take the step of a run here.

        Raises:
            LoaderError: It is not the next batch of the pass, or the batch has no samples.
            IndexError: The pass has no such batch.
        """
        if number == 0:
            if self._is_jax:
                check_distribution("keras_loader()")
            if self._epochs is not None:
                self.progress.warn_of_looks(1)
            self._pass = BatchPass(self, for_framework=True)
        following = 0 if self._pass is None or self._pass.first < 0 else self._pass.step - self._pass.first
        if self._pass is None or number != following:
            raise LoaderError(
                f"Keras asks for batch {number} of a pass, and {following} comes next: use fit(..., shuffle=False), since the "
                "loader shuffles, leave workers=1 and use_multiprocessing=False, since it fills batches ahead, and use a loader "
                "for each fit or evaluate that runs at the same time"
            )
        note_loader(self)
        element = next(self._pass, None)
        if element is None:
            raise IndexError(f"the pass has {number} batches, numbered from 0; there is no {number}")
        if not all(len(array) for array in keras.tree.flatten(element)):  # their mean loss would be NaN
            if self.pipeline.options.on_bad == "raise":
                cause, fix = f"this process has no part in batch {number}", "remainder='drop'"
            else:
                cause = f"all samples of batch {number} are damaged, and on_bad='skip' leaves them out"
                fix = "tfprep build --verify, which makes damaged shards again"
            raise LoaderError(f"{cause}; Keras cannot average over an empty batch: use a larger batch_size, or {fix}")
        if self._is_jax:
            element = keras.tree.map_structure(in_types_of_jax, element)
        return element if isinstance(element, tuple | dict) else (element,)


def keras_hosts() -> tuple[int, int] | None:
    """(index, count) of this process on the backend of Keras, as the option `hosts` takes it; None for a single one."""
    backend = keras.backend.backend()
    if backend == "jax":
        check_distribution("keras_loader()", by_process=True)
        return jax_hosts()
    if backend != "torch":
        return None
    from tfprep.load.torch_loader import torch_hosts

    return torch_hosts()


class SaveLoaderState(keras.callbacks.Callback):  # type: ignore[misc] # Keras is untyped
    """Writes the state of the run as JSON at the end of each epoch, or every `save_freq` batches in place of that, as
    `ModelCheckpoint` writes the weights: `start_step=` takes it.

        train = data.loader("train", start_step=json.loads(path.read_text()) if path.exists() else 0, **options)
        model.fit(train, callbacks=[ModelCheckpoint(weights, save_weights_only=True), SaveLoaderState(train, path)])
    """

    def __init__(self, loader: Any, path: str | os.PathLike[str], save_freq: int = 0) -> None:
        super().__init__()
        self._loader, self._path, self._save_freq = loader, Path(path), save_freq
        self._epoch_step = self._steps = self._unsaved = 0
        self._pass_steps = inf

    def on_train_begin(self, logs: Any = None) -> None:
        self._epoch_step, self._steps = self._loader.next_step, 0
        steps, length = self.params.get("steps"), self._loader.steps_per_epoch
        self._pass_steps = length if self._loader._epochs == 1 else inf
        if self._loader._epochs == 1 and steps not in (None, length):
            raise LoaderError(
                f"fit reads {steps} of the {length} steps of an epoch: use train.repeat() with steps_per_epoch"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_step, self._steps = self._epoch_step + self._steps, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # The last of those that one execution asked for; the last execution of a pass may have found fewer.
        before, self._steps = self._steps, int(min(batch + 1, self._pass_steps))
        self._unsaved += self._steps - before
        if self._save_freq and self._unsaved >= self._save_freq:
            self._unsaved = 0
            self._write()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._save_freq:
            self._write()

    def _write(self) -> None:
        durable_write(self._path, json.dumps(self._loader.state_dict(step=self._epoch_step + self._steps)))
