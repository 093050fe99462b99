"""Batches as NumPy arrays, without any framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.read.batch import Batch
from tfprep.read.pipeline import Pipeline
from tfprep.read.state import start_step, state_at
from tfprep.read.stats import report


class NumpyLoader:
    """Iterate over it for elements as `fields`, `inputs` and `targets` ask: arrays [B, ...]; text as arrays of str; images of
    different sizes as lists.

    Every iteration begins at `start_step` anew. Batches stay as they are for as long as they are kept.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __iter__(self) -> Iterator[Any]:
        return (self.pipeline.outputs.pack(with_text(batch)) for batch in self.pipeline.batches())

    def __len__(self) -> int:
        """Batches of one iteration; LoaderError in training, which has no end."""
        steps = self.pipeline.schedule.steps
        if steps is None:
            raise LoaderError("training has no end; use steps_per_epoch")
        return max(0, steps - self.pipeline.options.start_step)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold one epoch."""
        return self.pipeline.steps_per_epoch

    @property
    def stats(self) -> dict[str, Any]:
        """Counters, as plain numbers (see `tfprep.read.stats.snapshot`)."""
        return self.pipeline.stats()

    def report(self) -> dict[str, Any]:
        """What was chosen and found: memory, cache, bad records."""
        return report(self.pipeline)

    def state_at(self, step: int) -> dict[str, Any]:
        """Where the run stands before this step, as a small JSON object."""
        return state_at(self.pipeline, step)

    def step_of(self, state: Mapping[str, Any]) -> int:
        """The step that the state says comes next; LoaderError where it belongs to another run."""
        return start_step(self.pipeline, state)

    def close(self) -> None:
        """Stop all threads and give the memory back."""
        self.pipeline.close()


def with_text(batch: Batch) -> dict[str, Any]:
    """The batch's values, text decoded."""
    return {name: _decoded(value) for name, value in batch.values.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == object:
        return np.array([text.decode("utf-8", "surrogateescape") for text in value.ravel()], object).reshape(
            value.shape
        )
    return value
