"""How good a shuffle is, as numbers: of an order computed from the index, and of a shuffle buffer.

Records that lie together on disk often belong together: one video, one patient, one class. A good shuffle pulls them apart.
Two measures, both 0 for a uniform permutation and 1 for no shuffle at all:

- **displacement**: how far records come to lie from where they were. In a uniform permutation of n, place and record are
  independent, and the mean distance between them is (n² - 1) / 3n (n/3 for large n). One less the measured mean over that.
- **company**: how often two records that lie together on disk meet in one batch. Of the pairs of records that are less
  than a batch apart on disk, the share that meets in a batch, less the share that meets by chance (b - 1)/(n - 1), over
  what no shuffle gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError
from tfprep.read.order import Order

Numbers = npt.NDArray[np.int64]
NEAR = 16
"""Records at most so far apart on disk lie together."""


@dataclass(frozen=True)
class Quality:
    """`displacement` and `company` as above, 0 is best; `memory_bytes` and `fill_s` what it takes before the first batch,
    it holds before it gives the first record."""

    name: str
    displacement: float
    company: float
    memory_bytes: float
    fill_records: int

    def fill_s(self, records_per_s: float) -> float:
        """Seconds to fill it at this rate of reading."""
        return self.fill_records / records_per_s


def order_quality(order: Order, size: int, batch_size: int, record_bytes: float = 0.0, epochs: int = 3) -> Quality:
    """Of tfprep's own order: it holds nothing and fills nothing. `record_bytes` is not used by it."""
    epochs_of = [order.items(np.arange(size), epoch, size).astype(np.int64) for epoch in range(epochs)]
    name = order.name if order.name != "block" else f"block {order.block} x {order.window}"
    return _quality(f"order={name}", epochs_of, batch_size, 0.0, 0)


def buffer_quality(
    buffer: int, size: int, batch_size: int, record_bytes: float, seed: int = 0, epochs: int = 3
) -> Quality:
    """Of `Dataset.shuffle(buffer)` over records read in the order on disk."""
    if buffer < 1:
        raise LoaderError(f"a shuffle buffer holds at least 1 record, not {buffer}")
    draws = np.random.default_rng(seed)
    runs = [buffered(size, buffer, draws) for _ in range(epochs)]
    held = min(buffer, size)
    return _quality(f"shuffle({buffer:,})", runs, batch_size, held * record_bytes, held)


def buffered(size: int, buffer: int, draws: np.random.Generator) -> Numbers:
    """The order in which a buffer of `buffer` records gives 0 .. size - 1, as `tf.data.Dataset.shuffle` does: it is kept
    full while there is more to read, and each record given is drawn uniformly from what it holds."""
    held = list(range(min(buffer, size)))
    given = np.empty(size, np.int64)
    picks = draws.random(size)
    for place in range(size):
        slot = int(picks[place] * len(held))
        given[place] = held[slot]
        following = place + buffer
        if following < size:
            held[slot] = following
        else:
            held[slot] = held[-1]
            held.pop()
    return given


def comparison(
    size: int, batch_size: int, record_bytes: float, buffers: Sequence[int] = (100, 1_000, 10_000, 100_000)
) -> list[Quality]:
    """tfprep's orders, and shuffle buffers up to the first that holds all records."""
    orders = [Order("global"), Order("block"), Order("sequential")]
    found = [order_quality(order, size, batch_size) for order in orders]
    return found + [buffer_quality(buffer, size, batch_size, record_bytes) for buffer in _up_to(buffers, size)]


def displacement(order: Numbers) -> float:
    """1 less the mean distance of a record from its place over that of a uniform permutation."""
    size = len(order)
    expected = (size * size - 1) / (3 * size)
    return float(1 - np.abs(order - np.arange(size)).mean() / expected) if size > 1 else 0.0


def company(order: Numbers, batch_size: int) -> float:
    """How often neighbours on disk meet in one batch: 0 as often as by chance, 1 as often as without a shuffle."""
    size = len(order)
    batch_of = np.empty(size, np.int64)
    batch_of[order] = np.arange(size) // batch_size
    chance = _meeting_by_chance(size, batch_size)
    unshuffled = _meetings(np.arange(size) // batch_size)
    return float((_meetings(batch_of) - chance) / (unshuffled - chance)) if unshuffled > chance else 0.0


def _quality(name: str, orders: Sequence[Numbers], batch_size: int, memory: float, fill: int) -> Quality:
    return Quality(
        name,
        float(np.mean([displacement(order) for order in orders])),
        float(np.mean([company(order, batch_size) for order in orders])),
        memory,
        fill,
    )


def _meetings(batch_of: Numbers) -> float:
    """The share of the pairs at most `NEAR` apart on disk that are in one batch."""
    met = [batch_of[apart:] == batch_of[:-apart] for apart in range(1, min(NEAR, len(batch_of) - 1) + 1)]
    return float(np.concatenate(met).mean()) if met else 0.0


def _meeting_by_chance(size: int, batch_size: int) -> float:
    """The share of all pairs that are in one batch."""
    whole, rest = divmod(size, batch_size)
    pairs = whole * batch_size * (batch_size - 1) + rest * (rest - 1)
    return pairs / (size * (size - 1)) if size > 1 else 0.0


def _up_to(buffers: Sequence[int], size: int) -> Iterator[int]:
    for buffer in buffers:
        yield buffer
        if buffer >= size:
            return
