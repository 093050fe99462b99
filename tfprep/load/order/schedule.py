"""Rows of the index that each step's batch holds, for any step, in constant time.

The positions of a run are those of epoch 0, then those of epoch 1, and so on. A step takes the next `batch_size` of them, and
each host a consecutive part of every step, so that the parts of all hosts together are the batch of a single host.

`remainder` decides what happens where an epoch does not end with a full batch:

- "keep": the epoch's last batch is smaller.
- "drop": the epoch's last samples are left out; in a random order each epoch leaves out other ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.order.buckets import BucketOrder
from tfprep.load.order.permutation import EpochOrder, Numbers, Words, mix, seed_key, subkey, words
from tfprep.load.order.samplers import Sampler, Variants

Remainder: TypeAlias = Literal["keep", "drop"]

MOST_EPOCHS = 1 << 32


class BatchIndices(NamedTuple):
    """The records to read: for each sample of a batch its `row` in the table, its `variant`, and its `position` in the run."""

    row: Numbers
    variant: Numbers
    position: Numbers


@dataclass(frozen=True)
class Hosts:
    """This host's number, from 0, and how many there are."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise LoaderError(f"hosts=(index, count) with 0 <= index < count, not ({self.index}, {self.count})")

    def part(self, start: Numbers, stop: Numbers) -> tuple[Numbers, Numbers]:
        """This host's consecutive part of the positions [start, stop) of each step; the parts differ in size by at most one."""
        positions = stop - start
        return start + positions * self.index // self.count, start + positions * (self.index + 1) // self.count


@dataclass(frozen=True)
class BatchSchedule:
    """Maps steps to batch indices.

    Batches have forms, which are numbered: the sizes to which geometry resizes (`View.forms`). With `buckets`, the form of a
    batch is the bucket of its samples, and otherwise it holds from one of the epochs `since` on.

    Attributes:
        rows: The row in the table of each number of the sampler; None for the number itself.
        groups: For each row the group that shares its variant; None for the row itself.
        counts: The number of variants, of all rows or of each.
        epochs: The epochs of a run; None for a run without an end.
        partners: True if a batch ends with one more sample, for mixing: the one after this host's part of the global batch, or
            for the last host its first one. A part that is the whole batch has none.
    """

    sampler: Sampler
    order: EpochOrder
    variants: Variants
    batch_size: int
    remainder: Remainder = "keep"
    hosts: Hosts = Hosts()
    epochs: int | None = None
    rows: Numbers | None = None
    groups: Numbers | None = None
    counts: int | Numbers = 1
    partners: bool = False
    since: tuple[int, ...] = ()
    buckets: BucketOrder | None = None

    def __post_init__(self) -> None:
        if self.variants.choice == "all" and not isinstance(self.counts, int):
            raise LoaderError("variants='all' with datasets of different numbers of variants; use 'rotate'")
        if self.size == 0:
            raise LoaderError("no sample is left to load; widen `where`, or choose another split")
        if self.steps_per_epoch == 0:
            raise LoaderError(
                f"remainder='drop' leaves no batch: {self.size} samples are fewer than batch_size={self.batch_size}"
            )

    @cached_property
    def size(self) -> int:
        """Items of one epoch."""
        return self.sampler.size * self.times

    @cached_property
    def times(self) -> int:
        """Items of an epoch for each sample: with "all" one for each of its variants."""
        return self.counts if self.variants.choice == "all" and isinstance(self.counts, int) else 1

    @cached_property
    def cycle(self) -> int:
        """Positions from the beginning of an epoch to that of the next."""
        return self.size if self.buckets is None else self.buckets.steps * self.batch_size

    @cached_property
    def steps_per_epoch(self) -> int:
        """Batches that hold one epoch, rounded up; with "drop" rounded down."""
        if self.buckets is not None:
            return self.buckets.steps
        whole = self.size // self.batch_size
        return whole if self.remainder == "drop" else -(-self.size // self.batch_size)

    @property
    def left_out(self) -> int:
        """Samples that each epoch leaves out, because they would be a smaller batch."""
        return self.size - self.steps_per_epoch * self.batch_size if self.remainder == "drop" else 0

    @property
    def smaller(self) -> list[int]:
        """The sizes of batches that are smaller than the others, of all hosts together."""
        if self.remainder == "drop":
            return []
        items = (self.size,) if self.buckets is None else self.buckets.sizes
        return sorted({number % self.batch_size for number in items} - {0})

    @property
    def steps(self) -> int | None:
        """Batches of the whole run; None where it has no end."""
        return None if self.epochs is None else self.steps_per_epoch * self.epochs

    def first_step(self, epoch: int) -> int:
        """The first step of an epoch of training; LoaderError for another value, and in evaluation, which has no epochs."""
        if self.epochs is not None:
            raise LoaderError("set_epoch() is for training; with training=False every pass reads the same samples once")
        if isinstance(epoch, bool) or not isinstance(epoch, int | np.integer) or not 0 <= epoch < MOST_EPOCHS:
            raise LoaderError(f"epochs are numbered from 0 to {MOST_EPOCHS - 1:,}, not {epoch!r}")
        return int(epoch) * self.steps_per_epoch

    def global_span(self, step: int) -> tuple[int, int]:
        """The positions [start, stop) of the run that this step holds, on all hosts together."""
        start, stop = self._global_spans([step])
        return int(start[0]), int(stop[0])

    def _global_spans(self, steps: Sequence[int]) -> tuple[Numbers, Numbers]:
        epoch, inside = np.divmod(np.array(steps, np.int64), self.steps_per_epoch)
        start = epoch * self.cycle + inside * self.batch_size
        if self.buckets is None:
            return start, np.minimum(start + self.batch_size, (epoch + 1) * self.size)
        places = zip(inside.tolist(), epoch.tolist(), strict=True)
        return start, start + np.array([self.buckets.count(*place) for place in places], np.int64)

    def span(self, step: int) -> tuple[int, int]:
        """This host's part of `global_span`."""
        start, stop = self.hosts.part(*self._global_spans([step]))
        return int(start[0]), int(stop[0])

    def batch_indices(self, steps: Sequence[int]) -> list[BatchIndices]:
        """The batch indices of these steps on this host. Several steps at once cost hardly more than one."""
        whole_start, whole_stop = self._global_spans(steps)
        start, stop = self.hosts.part(whole_start, whole_stop)
        positions = [np.arange(first, last) for first, last in zip(start.tolist(), stop.tolist(), strict=True)]
        if self.partners:
            partner = np.where(stop == whole_stop, whole_start, stop)
            for number in np.flatnonzero((start < stop) & (stop - start < whole_stop - whole_start)).tolist():
                positions[number] = np.append(positions[number], partner[number])
        row, variant, position = self.at(np.concatenate(positions))
        ends = np.cumsum([len(each) for each in positions]).tolist()
        return [
            BatchIndices(row[start:end], variant[start:end], position[start:end])
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def at(self, position: Numbers) -> BatchIndices:
        """The batch indices at these positions of the run."""
        epoch, inside = np.divmod(position, self.cycle)
        if self.buckets is None:
            item = self.order.items(inside, epoch, self.size)
        else:
            item = self._in_bucket(*self.buckets.items(inside, epoch))
        if self.times > 1:
            samples = words(self.sampler.size)
            sample, _ = self.sampler.samples(item % samples, words(epoch))
            return BatchIndices(self._row(sample), (item // samples).astype(np.int64), position)
        sample, passes = self.sampler.samples(item, words(epoch))
        row = self._row(sample)
        group = row if self.groups is None else self.groups[row]
        count = self.counts if isinstance(self.counts, int) else self.counts[row]
        variant = self.variants.of(group, passes, count) if self.variants.choice != "all" else np.zeros_like(row)
        return BatchIndices(row, variant.astype(np.int64), position)

    def substitute(self, position: int, attempt: int) -> int:
        """Another row for this position, drawn as the sampler draws: of the same class, dataset or weight."""
        epoch, inside = divmod(position, self.cycle)
        key = subkey(subkey(seed_key(self.order.seed, "substitute"), position), attempt)
        if self.buckets is not None:
            item = self._in_bucket(*self.buckets.substitute(inside, epoch, key))
            return int(self._row(item % words(self.sampler.size))[0])
        item = self.order.items(inside, epoch, self.size)
        sample, _ = self.sampler.samples(item % words(self.sampler.size), words(epoch))
        return int(self._row(self.sampler.substitute(sample, mix(key)))[0])

    def forms_at(self, position: Numbers) -> Numbers:
        """The form of the batch that each of these positions of the run is in."""
        epoch, inside = np.divmod(position, self.cycle)
        if self.buckets is not None:
            return self.buckets.bucket(inside // self.batch_size, epoch)
        return np.maximum(np.searchsorted(self.since, epoch, "right") - 1, 0)

    def form(self, step: int) -> int:
        """The form of a step's batch."""
        return int(self.forms_at(np.array([self.global_span(step)[0]]))[0])

    def _in_bucket(self, bucket: Any, item: Any) -> Words:
        """The number of an item: all items are samples of variant 0, bucket by bucket, then those of variant 1, and so on."""
        assert self.buckets is not None
        samples = np.array(self.buckets.sizes, np.int64) // self.times
        variant, sample = np.divmod(item, samples[bucket])
        return words((np.cumsum(samples) - samples)[bucket] + sample + variant * self.sampler.size)

    def _row(self, sample: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Numbers:
        number = sample.astype(np.int64)
        return number if self.rows is None else self.rows[number]
