"""The quality of a shuffle, as numbers: for an order computed from the index, and for a shuffle buffer.

Records that are neighbours on disk often belong together: they are from one video, one patient or one class. A good shuffle
separates them. Two measures are 0 for a uniform permutation and 1 without a shuffle:

- **displacement**: how far records move. In a uniform permutation of n records, position and record are independent, and the mean
  distance is (n² - 1) / 3n. The measure is 1 minus the measured mean divided by that.
- **neighbours**: how often records that are neighbours on disk (at most 16 apart) are in one batch. The measure is the share of
  these pairs that are in one batch, minus the share by chance, divided by the same difference without a shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError
from tfprep.load.order.permutation import EpochOrder

Numbers = npt.NDArray[np.int64]
NEAR = 16
"""Records that are at most this far apart on disk are neighbours."""


@dataclass(frozen=True)
class Quality:
    """The quality of a shuffle: `displacement` and `neighbours` as defined above (0 is best), and its memory.

    `fill_records` is the number of records that it reads before it yields the first one.
    """

    name: str
    displacement: float
    neighbours: float
    memory_bytes: float
    fill_records: int

    def fill_s(self, records_per_s: float) -> float:
        """Seconds to fill the buffer at this rate of reading."""
        return self.fill_records / records_per_s


def order_quality(order: EpochOrder, size: int, batch_size: int, epochs: int = 3) -> Quality:
    """The quality of an order of tfprep, which needs no buffer."""
    epochs_of = [order.items(np.arange(size), epoch, size).astype(np.int64) for epoch in range(epochs)]
    name = order.name if order.name != "block" else f"block {order.block} x {order.window}"
    return _quality(f"order={name}", epochs_of, batch_size, 0.0, 0)


def buffer_quality(
    buffer: int, size: int, batch_size: int, record_bytes: float, seed: int = 0, epochs: int = 3
) -> Quality:
    """The quality of `Dataset.shuffle(buffer)` over records in the order on disk."""
    if buffer < 1:
        raise LoaderError(f"a shuffle buffer holds at least 1 record, not {buffer}")
    draws = np.random.default_rng(seed)
    runs = [buffered(size, buffer, draws) for _ in range(epochs)]
    filled = min(buffer, size)
    return _quality(f"shuffle({buffer:,})", runs, batch_size, filled * record_bytes, filled)


def buffered(size: int, buffer: int, draws: np.random.Generator) -> Numbers:
    """The order in which `tf.data.Dataset.shuffle(buffer)` yields 0 .. size - 1.

    The buffer is kept full while there is more to read, and each record is drawn uniformly from it.
    """
    waiting = list(range(min(buffer, size)))
    order = np.empty(size, np.int64)
    uniform = draws.random(size)
    for position in range(size):
        slot = int(uniform[position] * len(waiting))
        order[position] = waiting[slot]
        following = position + buffer
        if following < size:
            waiting[slot] = following
        else:
            waiting[slot] = waiting[-1]
            waiting.pop()
    return order


def comparison(
    size: int, batch_size: int, record_bytes: float, buffers: Sequence[int] = (100, 1_000, 10_000, 100_000)
) -> list[Quality]:
    """tfprep's orders, and shuffle buffers up to the first that holds all records."""
    orders = [EpochOrder("global"), EpochOrder("block"), EpochOrder("sequential")]
    smaller = sum(buffer < size for buffer in buffers)
    return [order_quality(order, size, batch_size) for order in orders] + [
        buffer_quality(buffer, size, batch_size, record_bytes) for buffer in buffers[: smaller + 1]
    ]


def displacement(order: Numbers) -> float:
    """1 less the mean distance of a record from its place over that of a uniform permutation."""
    size = len(order)
    expected = (size * size - 1) / (3 * size)
    return float(1 - np.abs(order - np.arange(size)).mean() / expected) if size > 1 else 0.0


def neighbours(order: Numbers, batch_size: int) -> float:
    """Rate at which neighbours on disk meet in one batch: 0 as often as by chance, 1 as often as without a shuffle."""
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
        float(np.mean([neighbours(order, batch_size) for order in orders])),
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
