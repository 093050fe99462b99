"""What the loaders of all frameworks say of the pipeline that they deliver: steps, counters, report and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.pipeline import MOST_EPOCHS, Pipeline
from tfprep.load.state import start_step, state_at
from tfprep.load.stats import report, snapshot


class PipelineAccessors:
    """The methods that every loader has.

    Attributes:
        pipeline: The samples, the options and what reads them.
    """

    pipeline: Pipeline

    def __bool__(self) -> bool:
        return True

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that hold one epoch."""
        return self.pipeline.steps_per_epoch

    @property
    def start_step(self) -> int:
        """The step that the first pass begins with."""
        return self.pipeline.options.start_step

    @property
    def next_step(self) -> int:
        """The step that the next pass begins with."""
        return self.pipeline.passes.next_step

    def at_epoch(self, number: int) -> Self:
        """Let the next pass be this epoch of the run, and those behind it the epochs that follow.

            for images, labels in train.at_epoch(3):
                ...

        Args:
            number: The number of the epoch, from 0.

        Returns:
            This loader.

        Raises:
            LoaderError: It is no whole number from 0, or this loader is for evaluation, which has no epochs.
        """
        if not self.pipeline.training:
            raise LoaderError("at_epoch() is for training; with training=False every pass reads the same samples once")
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < MOST_EPOCHS:
            raise LoaderError(f"epochs are numbered from 0 to {MOST_EPOCHS - 1:,}, not {number!r}")
        self.pipeline.passes.move_to(int(number) * self.steps_per_epoch)
        return self

    @property
    def stats(self) -> dict[str, Any]:
        """Counters over all passes as plain numbers (see `tfprep.load.stats.snapshot`). Any thread may read them."""
        return snapshot(self.pipeline)

    def report(self) -> dict[str, Any]:
        """What the loader chose and found: memory, cache, workers, bad records, and its `stats`."""
        return report(self.pipeline)

    def state_at(self, step: int) -> dict[str, Any]:
        """The state of the run before a step, to be saved with the weights of that moment.

        Args:
            step: The number of steps since the beginning of the run, which is step 0.

        Returns:
            A JSON object of about one kilobyte. It identifies the dataset's files and all options that decide what is delivered.

        Raises:
            LoaderError: `step` is not a whole number from 0.
        """
        return state_at(self.pipeline, step)

    def step_of(self, state: Mapping[str, Any]) -> int:
        """The step that comes next by a state, as the option `start_step` takes it.

        Args:
            state: What `state_at` of a loader with the same options returned.

        Raises:
            LoaderError: The state belongs to another run: other files, seed, batch size, order, selection or values.
        """
        return start_step(self.pipeline, state)

    def close(self) -> None:
        """Stop the reading threads and free the memory. Passes that are still open end with an error."""
        self.pipeline.close()
