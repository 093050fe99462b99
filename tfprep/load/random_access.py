"""Samples by number, for PyTorch's map-style datasets, Grain and other libraries with an order of their own; and the order of a
loader as such numbers: a batch sampler for PyTorch.

A sample's number is its place in the index; with `variant="all"` the samples of variant 0 come first, then those of variant 1,
and so on, as the records are on disk.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, SupportsIndex

import numpy as np

from tfprep.augment.chain import Custom
from tfprep.augment.transform import GeometryOp
from tfprep.errors import LoaderError
from tfprep.load.augmentation import Unaugmented, check_stages
from tfprep.load.loader import with_text
from tfprep.load.options import LoaderOptions, OnBad, Verify
from tfprep.load.order.schedule import BatchIndices
from tfprep.load.pipeline import Pipeline
from tfprep.load.plan import plan_loader
from tfprep.load.selection import SplitRows, table_rows
from tfprep.load.slots import BatchSlots
from tfprep.load.state import fingerprint, first_step, start_step, state_at

SINGLE_KEPT = 128
"""Samples read one by one whose memory is kept for the next ones once it is let go: two batches, one in use while the other
is read. The system would otherwise find and clear new pages each time."""


class RandomAccess:
    """The samples of a split by number: a sequence of dicts of NumPy arrays by field. Made by `Data.random_access`.

        photos = data.random_access("train", fields=["image", "label"])
        photos[7]["image"]                                              # uint8 [H, W, C]

    It is a map-style dataset for `torch.utils.data.DataLoader`, which gets all samples of a batch in one call, and a
    `grain.RandomAccessDataSource`. Text is str. Any number of threads may read at once; a process that is forked, or gets a
    pickle, opens the files anew. The arrays of samples that are read together share memory: copy what you keep of a few.
    """

    def __init__(self, sources: Sequence[SplitRows], options: LoaderOptions) -> None:
        """`options.variants` is a number or "all"."""
        self._pipeline = Pipeline(sources, options)
        self._rows = table_rows(self._pipeline.sources, self._pipeline.table)
        self._samples = self._pipeline.table.samples if self._rows is None else len(self._rows)
        self._single = BatchSlots(self._pipeline.plan.filled.outputs, 1, SINGLE_KEPT)

    def __reduce__(self) -> tuple[Any, ...]:
        return RandomAccess, (self._pipeline.sources, self._pipeline.options)

    def __len__(self) -> int:
        return self._samples * self._pipeline.schedule.times

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        """The dataset, its files and the options: Grain compares it when it resumes."""
        names = ", ".join(source.name for source in self._pipeline.sources)
        options = self._pipeline.options
        chosen = f"fields={[output.name for output in self._pipeline.outputs.outputs]}, variant={options.variants!r}"
        try:
            ops = self._pipeline.plan.op_texts["geometry"]
        except LoaderError:
            ops = [repr(op) for op in options.geometry]  # with an address, which is never equal in another process
        chosen += f", geometry=[{', '.join(ops)}]" if ops else ""
        chosen += "" if self._rows is None else f", rows {zlib.crc32(self._rows.tobytes()):08x}"
        digest = fingerprint(self._pipeline.sources)
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
        indices = self._indices(numbers)
        values = self._single.arrays(1) if len(indices.row) == 1 else None
        return dict(with_text(self._pipeline.read(indices, values=values).values))

    @property
    def bad_records(self) -> list[dict[str, Any]]:
        """The records that this process could not read and replaced, with on_bad="skip": path, record, key and reason of each."""
        return self._pipeline.bad.report()

    def close(self) -> None:
        """Close the files."""
        self._pipeline.close()
        self._single.close()

    def _indices(self, numbers: Sequence[SupportsIndex]) -> BatchIndices:
        integers, total = [operator.index(number) for number in numbers], len(self)
        for number in integers:
            if not -total <= number < total:
                raise IndexError(
                    f"there are {total:,} samples, numbered from 0; there is no {number} (batch_sampler gives the numbers of "
                    "random_access(variant='all'))"
                )
        place = np.array(integers, np.int64) % total
        choice = self._pipeline.options.variants
        if isinstance(choice, int):
            variant, position = np.full_like(place, choice), place
        else:
            variant, position = np.divmod(place, self._samples)
        return BatchIndices(position if self._rows is None else self._rows[position], variant, place)


def open_random_access(
    sources: Sequence[SplitRows],
    *,
    fields: Sequence[str] | None = None,
    variant: int | Literal["all"] = 0,
    geometry: Sequence[GeometryOp] = (),
    on_bad: OnBad = "raise",
    verify: Verify = "first_epoch",
) -> RandomAccess:
    """Open the samples of these splits (see `Data.random_access`); the shares of a mix do not count."""
    if variant != "all" and (isinstance(variant, bool) or not isinstance(variant, int | np.integer)):
        raise LoaderError(f"variant is 'all' or a number, not {variant!r}")
    check_stages(geometry)
    if any(isinstance(op, Custom) for op in geometry):
        raise LoaderError("geometry: Custom is a function of a whole sample that draws; a loader takes it")
    options = LoaderOptions(
        batch_size=1, training=True, order="sequential", remainder="keep", fields=fields, variants=variant,
        geometry=[Unaugmented(op) for op in geometry], on_bad=on_bad, verify=verify, cache=False, workers="threads",
    )  # fmt: skip
    return RandomAccess([replace(source, share=None) for source in sources], options)


# --- the order of a loader ------------------------------------------------------------------------------------------------

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
    Use torchdata's `StatefulDataLoader`, whose state is right with workers, or count steps and save `state_dict(step)`. Where a
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
        self._start = self._next = first_step(plan)
        self._latest: _Pass | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the options and the position: another process reads the index anew."""
        step = self._next if self._latest is None else self._latest.step
        return BatchSampler, (self._plan.sources, self._plan.options), {"_next": step}

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

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator be this epoch of the run, from 0, and later ones the epochs that follow."""
        self._next, self._latest = self._schedule.first_step(epoch), None

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state before a step of the run, a small JSON object: None for what the iterator that was read last gives next.

        Steps are counted over all epochs, from 0.
        """
        now = self._next if self._latest is None else self._latest.step
        return state_at(self._plan, now if step is None else step)

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
            rows, samples = self._sampler._rows, self._sampler._samples
            drawn = []
            for indices in reversed(self._sampler._schedule.batch_indices(steps)):
                number = indices.row if rows is None else np.searchsorted(rows, indices.row)
                drawn.append((indices.variant * samples + number).tolist())
            self._drawn = drawn  # at once: Ctrl-C may come at any line
        self._steps = first + 1, stop
        return self._drawn.pop()

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the next batch."""
        return self._sampler.state_dict(self.step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where this state was taken (see `BatchSampler.load_state_dict`)."""
        self._sampler.load_state_dict(state)
        self._steps, self._drawn, self._is_restored = None, [], True
