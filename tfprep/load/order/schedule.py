"""Rows of the index that each step's batch holds, for any step, in constant time.

The positions of a run are those of epoch 0, then those of epoch 1, and so on. A step takes the next `batch_size` of them, and
each host a consecutive part of every step, so that the parts of all hosts together are the batch of a single host.

`remainder` decides what happens where an epoch does not end with a full batch:

- "keep": the epoch's last batch is smaller.
- "drop": the epoch's last samples are left out; in a random order each epoch leaves out other ones.

With buckets, an epoch's items are numbered bucket by bucket, each bucket is cut into batches by the same rule, and every epoch
has its own permutation of all batches. Each step has `batch_size` positions: after a smaller batch, some are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.order.samplers import (
    Numbers,
    Sampler,
    VariantChoice,
    Words,
    below,
    mix,
    permute,
    seed_key,
    subkey,
    variants_of,
    words,
)

OrderName: TypeAlias = Literal["global", "sequential"]
Remainder: TypeAlias = Literal["keep", "drop"]

MOST_EPOCHS = 1 << 32


class Samples(NamedTuple):
    """The samples to read: the `row` of each in the table, its `variant`, and its `position` in the run."""

    row: Numbers
    variant: Numbers
    position: Numbers


@dataclass(frozen=True)
class Hosts:
    """This host's number, from 0, and how many there are."""

    index: int = 0
    count: int = 1


@dataclass(frozen=True)
class BatchSchedule:
    """Maps steps to samples.

    Batches have forms, which are numbered: the sizes to which geometry resizes (`View.forms`). With `buckets`, the form of a
    batch is the bucket of its samples, and otherwise it holds from one of the epochs `since` on.

    Attributes:
        order: "global" permutes the items of each epoch, "sequential" leaves them in their order.
        rows: The row in the table of each number of the sampler; None for the number itself.
        groups: For each row the group that shares its variant; None for the row itself.
        counts: The number of variants, of all rows or of each.
        partners: True if a batch ends with one more sample, for mixing: the one after this host's part of the global batch, or
            for the last host its first one. A part that is the whole batch has none.
        buckets: The samples of each bucket; the sampler numbers them bucket by bucket.
    """

    sampler: Sampler
    order: OrderName = "global"
    seed: int = 0
    variants: VariantChoice = "rotate"
    batch_size: int = 32
    remainder: Remainder = "keep"
    hosts: Hosts = Hosts()
    rows: Numbers | None = None
    groups: Numbers | None = None
    counts: int | Numbers = 1
    partners: bool = False
    since: tuple[int, ...] = ()
    buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.variants == "all" and not isinstance(self.counts, int):
            raise LoaderError("variants='all' with datasets of different numbers of variants; use 'rotate'")
        if self.size == 0:
            raise LoaderError("no sample is left to load; widen `where`, or choose another split")
        if self.steps_per_epoch == 0:
            raise LoaderError(
                f"remainder='drop' leaves no batch: {self.size} samples are fewer than batch_size={self.batch_size}"
            )

    # --- epochs and steps -----------------------------------------------------------------------------------------------

    @cached_property
    def size(self) -> int:
        """Items of one epoch."""
        return self.sampler.size * self.times

    @cached_property
    def times(self) -> int:
        """Items of an epoch for each sample: with "all" one for each of its variants."""
        return self.counts if self.variants == "all" and isinstance(self.counts, int) else 1

    @cached_property
    def _samples(self) -> Numbers:
        """The samples of each bucket: int64 [buckets]."""
        return np.array(self.buckets or (self.sampler.size,), np.int64)

    @cached_property
    def _batches(self) -> Numbers:
        """The batches of each bucket: int64 [buckets]."""
        items = self._samples * self.times
        return items // self.batch_size if self.remainder == "drop" else -(-items // self.batch_size)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Batches that hold one epoch."""
        return int(self._batches.sum())

    @cached_property
    def cycle(self) -> int:
        """Positions from the beginning of an epoch to that of the next."""
        return self.steps_per_epoch * self.batch_size if self.buckets else self.size

    @cached_property
    def batch_rows(self) -> int:
        """Samples that this host reads for its largest batch."""
        return -(-min(self.size, self.batch_size) // self.hosts.count) + self.partners

    @property
    def left_out(self) -> int:
        """Samples that each epoch leaves out, because they would be a smaller batch."""
        return self.size - self.steps_per_epoch * self.batch_size if self.remainder == "drop" else 0

    @property
    def smaller(self) -> list[int]:
        """The sizes of batches that are smaller than the others, of all hosts together."""
        if self.remainder == "drop":
            return []
        return sorted({int(number) % self.batch_size for number in self._samples * self.times} - {0})

    # --- positions ------------------------------------------------------------------------------------------------------

    def span(self, step: int) -> tuple[int, int]:
        """This host's part of the positions [start, stop) of the run that a step holds."""
        (start,), (stop,) = self._part(*self._global_spans([step]))
        return int(start), int(stop)

    def _global_spans(self, steps: Sequence[int]) -> tuple[Numbers, Numbers]:
        """The positions [start, stop) of each step, on all hosts together."""
        epoch, inside = np.divmod(np.array(steps, np.int64), self.steps_per_epoch)
        bucket, number = self._batch_of(inside, epoch)
        start = epoch * self.cycle + inside * self.batch_size
        remaining = self._samples[bucket] * self.times - number * self.batch_size
        return start, start + np.minimum(remaining, self.batch_size)

    def _part(self, start: Numbers, stop: Numbers) -> tuple[Numbers, Numbers]:
        """This host's consecutive part of these positions of each step; the parts differ in size by at most one."""
        index, count = self.hosts.index, self.hosts.count
        return start + (stop - start) * index // count, start + (stop - start) * (index + 1) // count

    def _batch_of(self, step: Numbers, epoch: Numbers) -> tuple[Numbers, Numbers]:
        """The bucket of the batch at each step of an epoch, and its number among the bucket's batches."""
        if not self.buckets:
            return np.zeros_like(step), step
        if self.order == "global":
            key = subkey(seed_key(self.seed, "order/buckets"), epoch)
            step = permute(step, self.steps_per_epoch, key).astype(np.int64)
        ends = np.cumsum(self._batches)
        bucket = np.searchsorted(ends, step, "right")
        return bucket, step - (ends - self._batches)[bucket]

    def positions(self, steps: Sequence[int]) -> list[Numbers]:
        """The positions in the run of the samples of each step on this host."""
        whole_start, whole_stop = self._global_spans(steps)
        start, stop = self._part(whole_start, whole_stop)
        positions = [np.arange(first, last) for first, last in zip(start.tolist(), stop.tolist(), strict=True)]
        if self.partners:
            partner = np.where(stop == whole_stop, whole_start, stop)
            for number in np.flatnonzero((start < stop) & (stop - start < whole_stop - whole_start)).tolist():
                positions[number] = np.append(positions[number], partner[number])
        return positions

    # --- samples at positions -------------------------------------------------------------------------------------------

    def at(self, position: Numbers) -> Samples:
        """The samples at these positions of the run. Those of several steps at once cost hardly more than those of one."""
        epoch, _, number, variant = self._numbers(position)
        sample, passes = self.sampler.samples(words(number), words(epoch))
        row = self._row(sample)
        if self.variants != "all":
            group = row if self.groups is None else self.groups[row]
            count = self.counts if isinstance(self.counts, int) else self.counts[row]
            variant = variants_of(self.variants, self.seed, group, passes, count).astype(np.int64)
        return Samples(row, variant, position)

    def _numbers(self, position: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """(epoch, bucket, number in the sampler, variant of "all") at these positions.

        A bucket's items are its samples in variant 0, then those in variant 1, and so on.
        """
        epoch, inside = np.divmod(position, self.cycle)
        step, offset = np.divmod(inside, self.batch_size)
        bucket, batch = self._batch_of(step, epoch)
        samples, item = self._samples[bucket], batch * self.batch_size + offset
        if self.order == "global":
            key = subkey(subkey(seed_key(self.seed, "order"), epoch), bucket)
            item = permute(item, samples * self.times, key).astype(np.int64)
        variant, sample = np.divmod(item, samples)
        return epoch, bucket, self._first(bucket) + sample, variant

    def _first(self, bucket: Numbers) -> Numbers:
        first: Numbers = (np.cumsum(self._samples) - self._samples)[bucket]
        return first

    def _row(self, sample: Words) -> Numbers:
        number = sample.astype(np.int64)
        return number if self.rows is None else self.rows[number]

    def substitute(self, position: int, attempt: int) -> int:
        """Another row for this position, drawn as the sampler draws: of the same class, dataset, weight or bucket."""
        draw = mix(subkey(subkey(seed_key(self.seed, "substitute"), position), attempt))
        epoch, bucket, number, _ = self._numbers(np.array([position]))
        if self.buckets:
            other = words(self._first(bucket)) + below(draw, words(self._samples[bucket]))
        else:
            other = self.sampler.substitute(self.sampler.samples(words(number), words(epoch))[0], draw)
        return int(self._row(other)[0])

    def forms_at(self, position: Numbers) -> Numbers:
        """The form of the batch that each of these positions of the run is in."""
        epoch, inside = np.divmod(position, self.cycle)
        if self.buckets:
            return self._batch_of(inside // self.batch_size, epoch)[0]
        return np.maximum(np.searchsorted(self.since, epoch, "right") - 1, 0)

    def form(self, step: int) -> int:
        """The form of a step's batch."""
        return int(self.forms_at(self._global_spans([step])[0])[0])
