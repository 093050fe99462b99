"""Samples by number, for PyTorch's map-style datasets, Grain and other libraries with an order of their own; and the order of a
loader as such numbers: a batch sampler for PyTorch.

A sample's number is its place in the index; with `variant="all"` the samples of variant 0 come first, then those of variant 1,
and so on, as the records are on disk.
"""

from __future__ import annotations

import math
import operator
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.loader import LOOK, Pass, Progress, Run
from tfprep.load.options import LoaderOptions
from tfprep.load.order.schedule import Samples
from tfprep.load.pipeline import Pipeline
from tfprep.load.plan import plan_loader
from tfprep.load.reader.table import SplitRows
from tfprep.load.slots import BatchSlots

SINGLE_KEPT = 128
"""Samples read one by one whose memory is kept for the next ones once it is let go: two batches, one in use while the other
is read. The system would otherwise find and clear new pages each time."""


class RandomAccess:
    """The samples of a split by number: a sequence of dicts of NumPy arrays by field. Made by `Data.random_access`.

        photos = data.random_access("train", fields=["image", "label"])
        photos[7]["image"]                                              # uint8 [H, W, C]

    It is a map-style dataset for `torch.utils.data.DataLoader`, which gets all samples of a batch in one call, and a
    `grain.RandomAccessDataSource`. Text is str. Any number of threads may read at once; a process that is forked, or gets a
    pickle, opens the files again. The arrays of samples that are read together share memory: copy what you keep of a few.
    """

    def __init__(self, sources: Sequence[SplitRows], options: LoaderOptions) -> None:
        """`options.variants` is a number or "all"."""
        self._pipeline = Pipeline(sources, options)
        self._schedule = self._pipeline.schedule
        self._single = BatchSlots(self._pipeline.plan.filled.outputs, 1, SINGLE_KEPT)

    def __reduce__(self) -> tuple[Any, ...]:
        return RandomAccess, (self._pipeline.sources, self._pipeline.options)

    def __len__(self) -> int:
        return self._schedule.size

    def __repr__(self) -> str:
        """The dataset, its files and the options: Grain compares it when it resumes."""
        names = ", ".join(source.name for source in self._pipeline.sources)
        fields, variant = [output.name for output in self._pipeline.outputs.outputs], self._pipeline.options.variants
        chosen = f"fields={fields}, variant={variant!r}"
        chosen += "" if self._schedule.rows is None else f", rows {zlib.crc32(self._schedule.rows.tobytes()):08x}"
        digest = self._pipeline.plan.table.fingerprint
        return f"<RandomAccess to {len(self):,} samples of {names}: {chosen}, files {digest}>"

    def __getitem__(self, number: SupportsIndex) -> dict[str, Any]:
        """Return one sample.

        Raises:
            IndexError: There is no such number.
            RecordError: The record cannot be read; the message names it.
        """
        return self.__getitems__([number])[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))

    def __getitems__(self, numbers: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Return several samples, which are read and decoded together: less time a sample than one by one.

        Raises:
            IndexError: There is no such number.
            RecordError: A record cannot be read; the message names it.
        """
        values = self.batch(numbers) if len(numbers) else {}
        return [{name: value[row] for name, value in values.items()} for row in range(len(numbers))]

    def batch(self, numbers: Sequence[SupportsIndex]) -> dict[str, Any]:
        """Return several samples, at least one, as arrays [B, ...] by field, and as lists where samples differ in size.

        Raises:
            IndexError: There is no such number.
            RecordError: A record cannot be read; the message names it.
        """
        samples = self._samples(numbers)
        values = self._single.arrays(1) if len(samples.row) == 1 else None
        return self._pipeline.read(samples, values=values).values

    @property
    def bad_records(self) -> list[dict[str, Any]]:
        """The records that this process could not read and replaced, with on_bad="skip": path, record, key and reason of each."""
        return self._pipeline.bad.report()

    def close(self) -> None:
        """Close the files."""
        self._pipeline.close()
        self._single.close()

    def _samples(self, numbers: Sequence[SupportsIndex]) -> Samples:
        integers, total = [operator.index(number) for number in numbers], len(self)
        for number in integers:
            if not -total <= number < total:
                raise IndexError(
                    f"there are {total:,} samples, numbered from 0; there is no {number} (batch_sampler gives the numbers of "
                    "random_access(variant='all'))"
                )
        return self._schedule.at(np.array(integers, np.int64) % total)


# --- the order of a loader ------------------------------------------------------------------------------------------------

AHEAD = 4096
"""Numbers that are drawn at a time: a few thousand cost hardly more than a few."""


class BatchSampler(Run):
    """Lists of numbers of samples, one per batch, in the exact order of a loader. Made by `Data.batch_sampler`.

        photos, batches = data.random_access("train", variant="all"), data.batch_sampler("train", 32, seed=0)
        for batch in DataLoader(photos, batch_sampler=batches, num_workers=8):
            ...

    Passes use epochs as those of the loaders do. The process that trains draws the order, so that it is the same for any number
    of workers. The numbers count within the same split, fold or mix: take `random_access` from that, too.

    A `DataLoader` with workers takes numbers ahead of training: there, `state_dict` is ahead of the batches that have arrived.
    Use torchdata's `StatefulDataLoader`, whose state is right with workers, or count steps and save `state_dict(step)`. After a
    state between two epochs, it reads ahead from an iterator that it then drops for another: an iterator that was restored to the
    beginning of an epoch uses this epoch with its last batch only. (An epoch of fewer batches than the workers read ahead cannot
    be told from one that was read: there, the run goes on with the next epoch.)
    """

    def __init__(self, sources: Sequence[SplitRows], options: LoaderOptions) -> None:
        plan = plan_loader(sources, options)
        schedule = plan.schedule
        if not isinstance(schedule.counts, int):
            raise LoaderError("datasets of different numbers of variants have no numbers in common; give variants=0")
        hosts, last = schedule.hosts.count, schedule.size % schedule.batch_size
        if schedule.remainder == "keep" and 0 < last < hosts:
            raise LoaderError(
                f"the last batch holds {last} samples, so that some of the {hosts} hosts would get none, which PyTorch cannot "
                "collate; use remainder='drop', or another batch_size"
            )
        self._rows = plan.table.rows
        self._samples = plan.table.samples if self._rows is None else len(self._rows)
        self.progress = Progress(plan, plan.first_step)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the options: another process reads the index, and begins with `start_step`."""
        return BatchSampler, (self.plan.sources, self.plan.options)

    def __iter__(self) -> Iterator[list[int]]:
        """Return the batches of the next epoch, or after `load_state_dict` those that are left of one."""
        return _NumbersPass(self)

    def __len__(self) -> int:
        """The batches of an epoch."""
        return self.steps_per_epoch

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.plan.sources)
        size, order = self.plan.options.batch_size, self.plan.schedule.order
        files = self.plan.table.fingerprint
        return f"<BatchSampler of {names}: {len(self):,} batches of {size} in {order} order, files {files}>"

    def numbers(self, steps: Sequence[int]) -> list[list[int]]:
        positions = self.plan.schedule.positions(steps)
        row, variant, _ = self.plan.schedule.at(np.concatenate(positions))
        number = row if self._rows is None else np.searchsorted(self._rows, row)
        ends = np.cumsum([len(position) for position in positions])
        return [some.tolist() for some in np.split(variant * self._samples + number, ends[:-1])]


class _NumbersPass(Pass):
    """The batches of one epoch. It begins with its first batch: a `DataLoader` makes iterators that it never reads."""

    def __init__(self, sampler: BatchSampler) -> None:
        super().__init__(sampler.progress)
        self._sampler = sampler
        self._drawn: dict[int, list[int]] = {}

    def _element(self, step: int) -> list[int]:
        if step not in self._drawn:
            most = step + max(1, AHEAD // self._sampler.plan.options.batch_size)
            steps = range(step, most if self._stop is None else min(self._stop, most))
            self._drawn = dict(zip(steps, self._sampler.numbers(steps), strict=True))
        return self._drawn[step]

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the next batch."""
        return self._sampler.state_dict(self.step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where this state was taken (see `BatchSampler.load_state_dict`)."""
        self._sampler.load_state_dict(state)
        self.restart()
        self.look = LOOK if self.step % self._progress.length else math.inf
