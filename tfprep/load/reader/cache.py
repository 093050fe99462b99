"""Decoded records kept in memory, so that later epochs read and decode nothing: a hit is one copy.

The cache keeps the records that come first, as many as fit, and never drops one: under a permutation every record is read equally
often, so no other choice is better.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tfprep.fields import Array
from tfprep.load.outputs import Output, fixed_shape, row_bytes
from tfprep.load.reader.buffers import SharedMemory, allocate

FREE, BEING_WRITTEN = -1, -2
"""Sentinel values of a slot."""


class DecodedCache:
    """Rows of every output, for as many records as fit, in the order in which they come: the cache takes memory from the
    system bit by bit, and in large pages."""

    def __init__(
        self, outputs: Sequence[Output], records: int, budget: int, shared: SharedMemory | None = None
    ) -> None:
        """`shared`: where the rows lie if worker processes are to read and write them."""
        self.record_bytes = _record_bytes(outputs)
        self.capacity = cached_records(outputs, records, budget)
        self._slots = np.full(records, FREE, np.int64)  # by record
        self.rows: dict[str, Array] = {output.name: _rows(output, self.capacity, shared) for output in outputs}
        self._returned: list[int] = []  # slots that were reserved and not filled
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def records(self) -> int:
        """Return how many records it holds by now."""
        return self._taken

    @property
    def nbytes(self) -> int:
        return self._taken * self.record_bytes

    def holds(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of the records it holds."""
        held: npt.NDArray[np.bool_] = self._slots[records] >= 0
        return held

    @property
    def full(self) -> bool:
        """Return whether every record is held: nothing will be read or decoded any more."""
        return self._taken == len(self._slots) and not self._returned

    def reserve(self, records: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The slot of each record, -1 for none, and whether its row is there; a row that is not is to be written there."""
        slots = self._slots[records]
        cached = slots >= 0
        if not cached.all() and (self._taken < self.capacity or self._returned):
            with self._lock:
                for number in np.flatnonzero(~cached).tolist():
                    slots[number] = self._take(int(records[number]))
        return np.maximum(slots, -1), cached

    def _take(self, record: int) -> int:
        """A free slot for a record that has none; -1 where there is none."""
        if self._slots[record] != FREE or (self._taken == self.capacity and not self._returned):
            return -1
        self._slots[record] = BEING_WRITTEN
        if self._returned:
            return self._returned.pop()
        self._taken += 1
        return self._taken - 1

    def commit(self, records: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]) -> None:
        """The rows of these records have been written."""
        self._slots[records] = slots

    def give_back(self, record: int, slot: int) -> None:
        """The row of this record will not be written."""
        with self._lock:
            self._slots[record] = FREE
            self._returned.append(slot)


def _record_bytes(outputs: Sequence[Output]) -> int:
    return sum(max(row_bytes(output), 64) for output in outputs)


def cached_records(outputs: Sequence[Output], records: int, budget: int) -> int:
    """Of so many records, how many a `DecodedCache` of these outputs holds within the budget, in bytes."""
    return min(records, budget // max(_record_bytes(outputs), 1))


def _rows(output: Output, capacity: int, shared: SharedMemory | None) -> Array:
    shape = (capacity, *fixed_shape(output))
    if output.dtype == "string":
        return np.empty(shape, object)
    nbytes = capacity * row_bytes(output)
    memory = shared.allocate(nbytes) if shared else allocate(nbytes)
    typed: Array = memory[:nbytes].view(output.dtype)
    return typed.reshape(shape)
