"""Which rows of the index a step's batch holds, for any step, in constant time.

The run of a loader is one endless stream of places: epoch 0's, epoch 1's, and so on. A step takes `batch_size` of them, and
each host its own consecutive part of every step, so that the hosts' parts together are the batch of a single host.

What happens where an epoch's end does not fall on a batch's end is `remainder`:

- "wrap": the batch goes on with the next epoch. All batches are full, and every epoch still holds each sample once.
- "keep": the epoch's last batch is smaller.
- "drop": the epoch's last samples are left out; another epoch leaves out others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError
from tfprep.read.draws import Draw
from tfprep.read.order import Order
from tfprep.read.permute import words
from tfprep.read.variants import Variants

Remainder: TypeAlias = Literal["wrap", "keep", "drop"]
Numbers: TypeAlias = npt.NDArray[np.int64]


class Picks(NamedTuple):
    """What to read, one element a sample of the batch: its `row` in the table, its `variant`, and its `place` in the stream."""

    row: Numbers
    variant: Numbers
    place: Numbers


@dataclass(frozen=True)
class Hosts:
    """This host's number, from 0, and how many there are."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise LoaderError(f"hosts=(index, count) with 0 <= index < count, not ({self.index}, {self.count})")

    def part(self, start: int, stop: int) -> tuple[int, int]:
        """This host's share of the places [start, stop): consecutive, sizes differ by one at most."""
        places = stop - start
        return start + places * self.index // self.count, start + places * (self.index + 1) // self.count


@dataclass(frozen=True)
class Schedule:
    """`rows` maps a sample of the draw to its row in the table, and `groups` a row to what it takes its variant with; None
    where that is the number itself. `counts` is how many variants there are, of all rows or of each. `epochs` is None for a
    run without an end."""

    draw: Draw
    order: Order
    variants: Variants
    batch_size: int
    remainder: Remainder = "wrap"
    hosts: Hosts = Hosts()
    epochs: int | None = None
    rows: Numbers | None = None
    groups: Numbers | None = None
    counts: int | Numbers = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise LoaderError(f"batch_size is at least 1, not {self.batch_size}")
        if self.remainder not in get_args(Remainder):
            raise LoaderError(f"remainder is 'wrap', 'keep' or 'drop', not {self.remainder!r}")
        if self.variants.choice == "all" and not isinstance(self.counts, int):
            raise LoaderError("variants='all' with datasets of different numbers of variants; use 'rotate'")
        if self.size == 0:
            raise LoaderError("no sample is left to load; widen `where`, or choose another split")
        if self.steps_per_epoch == 0:
            raise LoaderError(
                f"remainder='drop' leaves no batch: {self.size} samples are fewer than batch_size={self.batch_size}"
            )

    @property
    def size(self) -> int:
        """Items of one epoch."""
        return self.draw.size * self.times

    @property
    def times(self) -> int:
        """How many items of an epoch one sample gives: with "all" as many as it has variants."""
        return self.counts if self.variants.choice == "all" and isinstance(self.counts, int) else 1

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold one epoch, rounded up; with "drop" rounded down."""
        whole = self.size // self.batch_size
        return whole if self.remainder == "drop" else -(-self.size // self.batch_size)

    @property
    def steps(self) -> int | None:
        """Batches of the whole run; None where it has no end."""
        if self.epochs is None:
            return None
        if self.remainder == "wrap":
            return -(-self.size * self.epochs // self.batch_size)
        return self.steps_per_epoch * self.epochs

    def global_span(self, step: int) -> tuple[int, int]:
        """The places [start, stop) of the stream that this step holds, on all hosts together."""
        if self.remainder == "wrap":
            start = step * self.batch_size
            end = start + self.batch_size if self.epochs is None else self.size * self.epochs
            return start, min(start + self.batch_size, end)
        epoch, inside = divmod(step, self.steps_per_epoch)
        start = epoch * self.size + inside * self.batch_size
        return start, min(start + self.batch_size, (epoch + 1) * self.size)

    def span(self, step: int) -> tuple[int, int]:
        """This host's part of `global_span`."""
        return self.hosts.part(*self.global_span(step))

    def picks(self, steps: Sequence[int]) -> list[Picks]:
        """What these steps read on this host. Several at once cost hardly more than one."""
        spans = [self.span(step) for step in steps]
        whole = self.at(np.concatenate([np.arange(start, stop) for start, stop in spans]))
        cuts = np.cumsum([stop - start for start, stop in spans])[:-1]
        return [Picks(*parts) for parts in zip(*(np.split(column, cuts) for column in whole), strict=True)]

    def at(self, place: Numbers) -> Picks:
        """What stands in these places of the stream."""
        epoch, inside = np.divmod(place, self.size)
        item = self.order.items(inside, epoch, self.size)
        if self.times > 1:
            samples = words(self.draw.size)
            sample, _ = self.draw.samples(item % samples, words(epoch))
            return Picks(self._row(sample), (item // samples).astype(np.int64), place)
        sample, visit = self.draw.samples(item, words(epoch))
        row = self._row(sample)
        group = row if self.groups is None else self.groups[row]
        count = self.counts if isinstance(self.counts, int) else self.counts[row]
        variant = self.variants.of(group, visit, count) if self.variants.choice != "all" else np.zeros_like(row)
        return Picks(row, variant.astype(np.int64), place)

    def _row(self, sample: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Numbers:
        number = sample.astype(np.int64)
        return number if self.rows is None else self.rows[number]
