"""Accessors that the loaders of all frameworks have: steps, counters, report and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from tfprep.errors import LoaderError
from tfprep.limits import usable_cpus
from tfprep.load.pipeline import NOTHING, Pipeline
from tfprep.load.plan import MOST_EPOCHS
from tfprep.load.reader.cache import DecodedCache, EncodedCache
from tfprep.load.state import start_step, state_at


def snapshot(pipeline: Pipeline) -> dict[str, Any]:
    """Counters since the loader was made, over all its iterators.

    `batches_ready` and `batches_in_flight` are current values. `wait_s` is how long the consumer waited for batches, in
    `waits` waits; `read_s`, `decode_s` and `idle_s` are summed over the reading threads.
    """
    readers, counts = pipeline.readers, pipeline.counts
    return {
        **{name: counts[name] for name in NOTHING if name != "records"},
        "batches_ready": sum(reader.ready for reader in readers),
        "batches_in_flight": sum(reader.in_flight for reader in readers),
        "prefetch": max((reader.prefetch for reader in readers), default=pipeline.memory.prefetch),
        "threads": sum(len(reader.states) for reader in readers),
        "cache_bytes": 0 if pipeline.cache is None else pipeline.cache.nbytes,
        "requests": pipeline.fetched.requests,
        "bytes_fetched": pipeline.fetched.bytes,
        "bad_records": pipeline.bad.count,
        "rows_lost": pipeline.bad.rows_lost,
    }


def report(pipeline: Pipeline) -> dict[str, Any]:
    """Return what the loader chose (memory, cache, threads) and found (bad records), and its `stats`."""
    memory, options = pipeline.memory, pipeline.options
    return {
        "samples": pipeline.schedule.sampler.size,
        "training": pipeline.training,
        "steps_per_epoch": pipeline.steps_per_epoch,
        "left_out_per_epoch": pipeline.left_out,
        "order": pipeline.schedule.order.name,
        "variants": pipeline.variants.choice,
        "memory": {
            "budget_bytes": memory.budget,
            "batch_bytes": memory.batch_bytes,
            "prefetch": memory.prefetch,
            "batches_bytes": memory.batches_bytes,
            "workers_bytes": pipeline.workers.nbytes,
            "index_bytes": pipeline.table.nbytes,
        },
        "cache": _cache(pipeline),
        "fetching": {**pipeline.fetching, "memory_bytes": memory.fetch_bytes} if pipeline.is_remote else None,
        "local": None
        if pipeline.local is None
        else pipeline.local.report(pipeline.first_needed, pipeline.shard_records),
        "threads": pipeline.options.threads or usable_cpus(),
        "workers": pipeline.workers_report(),
        "verify": options.verify,
        "on_bad": options.on_bad,
        "bad_records": pipeline.bad.report(),
        "stats": snapshot(pipeline),
    }


def summary(pipeline: Pipeline, kind: str, epochs: int | None) -> str:
    """One line: what is read, for what, and how many steps a pass has."""
    names = ", ".join(dict.fromkeys(f"{source.dataset.name}/{source.split}" for source in pipeline.sources))
    size, steps = pipeline.options.batch_size, pipeline.passes.steps(epochs)
    if not pipeline.training:
        return (
            f"<{kind} of {names} for evaluation (training=False): {pipeline.schedule.size:,} samples as they are, in "
            f"{pipeline.schedule.order.name} order, {steps:,} steps of {size}>"
        )
    left = f"; {pipeline.left_out:,} samples are left out, other ones each time" if pipeline.left_out else ""
    passes = {None: "a pass has no end", 1: "a pass is an epoch"}.get(epochs, f"a pass is {epochs} epochs")
    return (
        f"<{kind} of {names} for training (training=True): {passes}; an epoch is {pipeline.schedule.size:,} samples in "
        f"{pipeline.schedule.order.name} order, {pipeline.steps_per_epoch:,} steps of {size}{left}>"
    )


def _cache(pipeline: Pipeline) -> dict[str, Any]:
    cache = pipeline.cache
    if isinstance(cache, DecodedCache):
        summary = {"kind": "decoded", "capacity": cache.capacity, "of": pipeline.table.records}
        return {**summary, "records": cache.records, "bytes": cache.nbytes}
    if isinstance(cache, EncodedCache):
        return {"kind": "encoded", "of": pipeline.table.records, "records": cache.records, "bytes": cache.nbytes}
    return {"kind": "none"}


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
        """Counters over all passes as plain numbers (see `tfprep.load.accessors.snapshot`). Any thread may read them."""
        return snapshot(self.pipeline)

    def report(self) -> dict[str, Any]:
        """Return what the loader chose and found: memory, cache, workers, bad records, and its `stats`."""
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
