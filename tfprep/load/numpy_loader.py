"""Batches as NumPy arrays, without any framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tfprep.load.pipeline import Pipeline, repeated
from tfprep.load.reader.batch import Batch
from tfprep.load.state import start_step, state_at
from tfprep.load.stats import report, snapshot, summary


class NumpyLoader:
    """An iterable of elements as `fields`, `inputs` and `targets` describe them. Made by `Data.numpy_loader`.

    Arrays are [B, ...], text comes as arrays of str, images of different sizes as lists of arrays. In training each iteration
    delivers one epoch, and the next iteration the next epoch (see `tfprep.load.passes`). The memory of a batch is not used again
    while any array or view of it exists.
    """

    def __init__(self, pipeline: Pipeline, epochs: int | None = 1) -> None:
        """`epochs`: those of one iteration in training; None for an iteration without an end."""
        self.pipeline, self._epochs = pipeline, epochs

    def __iter__(self) -> Iterator[Any]:
        pack = self.pipeline.outputs.pack
        return self.pipeline.batches(lambda batch: pack(with_text(batch)), epochs=self._epochs)

    def __len__(self) -> int:
        """Batches of one iteration; TypeError for `repeat()`, which has no end."""
        steps = self.pipeline.passes.steps(self._epochs)
        if steps is None:
            raise TypeError("repeat() has no end; len(loader) is the number of steps of an epoch")
        return steps

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return summary(self.pipeline, type(self).__name__, self._epochs)

    def repeat(self, count: int | None = None) -> NumpyLoader:
        """The epochs one after another in one iteration: `count` of them, or without an end.

        Raises:
            LoaderError: `count` is not a number from 1 or None, or this loader is for evaluation, which has no epochs.
        """
        return NumpyLoader(self.pipeline, repeated(self.pipeline, count))

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that hold one epoch."""
        return self.pipeline.steps_per_epoch

    @property
    def start_step(self) -> int:
        """The step that the first iteration begins with."""
        return self.pipeline.options.start_step

    @property
    def next_step(self) -> int:
        """The step that the next iteration begins with."""
        return self.pipeline.passes.next_step

    @property
    def stats(self) -> dict[str, Any]:
        """Counters as plain numbers (see `tfprep.load.stats.snapshot`)."""
        return snapshot(self.pipeline)

    def report(self) -> dict[str, Any]:
        """What the loader chose and found: memory, cache, bad records."""
        return report(self.pipeline)

    def state_at(self, step: int) -> dict[str, Any]:
        """The state before this step, as a small JSON object."""
        return state_at(self.pipeline, step)

    def step_of(self, state: Mapping[str, Any]) -> int:
        """The next step of a state; LoaderError where the state belongs to another run."""
        return start_step(self.pipeline, state)

    def close(self) -> None:
        """Stop all threads and give the memory back."""
        self.pipeline.close()


def with_text(batch: Batch) -> dict[str, Any]:
    """The batch's values, with text decoded."""
    return {name: _decoded(value) for name, value in batch.values.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return np.array([text.decode("utf-8", "surrogateescape") for text in value.ravel()], object).reshape(
            value.shape
        )
    return value
