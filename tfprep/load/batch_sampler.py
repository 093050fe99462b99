"""The order of a loader as numbers of samples: a batch sampler for PyTorch, with a state that a run resumes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.options import LoaderOptions
from tfprep.load.plan import plan_loader
from tfprep.load.selection import SplitRows, table_rows
from tfprep.load.state import fingerprint, start_step, state_at

AHEAD = 4096
"""Numbers that are drawn at a time: a few thousand cost hardly more than a few."""


class BatchSampler:
    """Lists of numbers of samples, one a batch, in the exact order of a loader. Made by `Data.batch_sampler`.

        photos, batches = data.random_access("train", variant="all"), data.batch_sampler("train", 32, seed=0)
        for batch in DataLoader(photos, batch_sampler=batches, num_workers=8):
            ...

    In training each iterator that is read is the next epoch. The process that trains draws the order, so that it is the same for
    any number of workers. The numbers count within the same split, fold or mix: take `random_access` from that, too.

    A `DataLoader` with workers takes numbers ahead of training: there, `state_dict` is ahead of the batches that have arrived.
    Use torchdata's `StatefulDataLoader`, whose state is right with workers, or count steps and save `state_at(step)`. Where a
    state lies between two epochs, it reads ahead from an iterator that it then drops for another: an iterator that was restored
    to the beginning of an epoch, and is left before its last batch, gives this epoch back. (An epoch of fewer batches than
    the workers read ahead cannot be told from one that was read: there, the run goes on with the epoch behind it.)
    """

    def __init__(self, sources: Sequence[SplitRows], options: LoaderOptions) -> None:
        self._plan = plan = plan_loader(sources, options)
        self._schedule = plan.schedule
        if not isinstance(self._schedule.counts, int):
            raise LoaderError("datasets of different numbers of variants have no numbers in common; give variants=0")
        schedule, hosts = self._schedule, self._schedule.hosts.count
        last = schedule.size % schedule.batch_size
        if schedule.remainder == "keep" and 0 < last < hosts:
            raise LoaderError(
                f"the last batch holds {last} samples, so that some of the {hosts} hosts would get none, which PyTorch cannot "
                "collate; use remainder='drop', or another batch_size"
            )
        self._rows = table_rows(plan.sources, plan.table)
        self._samples = plan.table.samples if self._rows is None else len(self._rows)
        self._start = self._next = options.start_step
        self._latest: _Pass | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the options and the position: another process reads the index anew."""
        step = self._next if self._latest is None else self._latest.step
        return _sampler_at, (self._plan.sources, self._plan.options, step)

    def __iter__(self) -> Iterator[list[int]]:
        """Return the batches of the next epoch, or after `load_state_dict` those that are left of one."""
        return _Pass(self)

    def __len__(self) -> int:
        """The batches of an epoch; in evaluation those from `start_step` on."""
        return self._schedule.steps_per_epoch - (self._start if self._schedule.epochs else 0)

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self._plan.sources)
        size, order = self._plan.options.batch_size, self._schedule.order.name
        files = fingerprint(self._plan.sources)
        return f"<BatchSampler of {names}: {len(self):,} batches of {size} in {order} order, files {files}>"

    def at_epoch(self, number: int) -> BatchSampler:
        """Let the next iterator be this epoch of the run, from 0, and those behind it the epochs that follow."""
        self._next, self._latest = self._schedule.first_step(number), None
        return self

    def state_at(self, step: int) -> dict[str, Any]:
        """Return the state before a step of the run, a small JSON object; steps are counted over all epochs, from 0."""
        return state_at(self._plan, step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the step that the iterator read last gives next, a small JSON object."""
        return state_at(self._plan, self._next if self._latest is None else self._latest.step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator continue where this state was taken, and end where that epoch ends.

        Raises:
            LoaderError: The state belongs to another run: other files, seed, batch size, order or selection.
        """
        step = start_step(self._plan, state)
        ended = self._schedule.epochs and step >= self._schedule.steps_per_epoch
        self._next, self._latest = self._start if ended else step, None

    def _begin(self, reader: _Pass) -> tuple[int, int]:
        """The steps [first, stop) of a pass that begins now."""
        first = self._next
        if self._latest is not None and not self._schedule.epochs and (begun := self._latest.gives_back()) is not None:
            first = begun
        length = self._schedule.steps_per_epoch
        stop = first - first % length + length
        self._next = self._start if self._schedule.epochs else stop
        self._latest = reader
        return first, stop

    def _numbers(self, steps: Sequence[int]) -> list[list[int]]:
        batches = []
        for indices in self._schedule.batch_indices(steps):
            number = indices.row if self._rows is None else np.searchsorted(self._rows, indices.row)
            batches.append((indices.variant * self._samples + number).tolist())
        return batches


class _Pass(Iterator[list[int]]):
    """The batches of one epoch. It begins with its first batch: a `DataLoader` makes iterators that it never reads."""

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler
        self._steps: tuple[int, int] | None = None
        self._first = 0
        self._drawn: list[list[int]] = []
        self._is_restored = False

    def gives_back(self) -> int | None:
        """Return the first step of an epoch that this pass was restored to and not read to its end; None for other passes."""
        if not self._is_restored or self._steps is None or self._steps[0] >= self._steps[1]:
            return None
        return None if self._first % self._sampler._schedule.steps_per_epoch else self._first

    @property
    def step(self) -> int:
        """The step of the next batch."""
        return self._sampler._next if self._steps is None else self._steps[0]

    def __next__(self) -> list[int]:
        if self._steps is None:
            self._steps = self._sampler._begin(self)
            self._first = self._steps[0]
        first, stop = self._steps
        if first >= stop:
            raise StopIteration
        if not self._drawn:
            size = self._sampler._plan.options.batch_size
            steps = range(first, min(stop, first + max(1, AHEAD // size)))
            self._drawn = self._sampler._numbers(steps)[::-1]
        self._steps = first + 1, stop
        return self._drawn.pop()

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the next batch."""
        return self._sampler.state_at(self.step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where this state was taken (see `BatchSampler.load_state_dict`)."""
        self._sampler.load_state_dict(state)
        self._steps, self._drawn, self._is_restored = None, [], True


def _sampler_at(sources: Sequence[SplitRows], options: LoaderOptions, step: int) -> BatchSampler:
    sampler = BatchSampler(sources, options)
    sampler._next = step
    return sampler
