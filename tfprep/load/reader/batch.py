"""A batch while it is being filled, and decoded records that are kept in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tfprep.fields import Array
from tfprep.load.order.schedule import BatchIndices
from tfprep.load.outputs import Output, fixed_shape, row_bytes
from tfprep.load.reader.rows import Rows
from tfprep.load.slots import SharedMemory, kept_array


@dataclass
class Batch:
    """One step's arrays by output: [B, ...] where all samples have one shape, else a list of B arrays.

    `located` says where its records are. Rows in `lost` stay empty; `attempts` counts the samples that were tried in place of a
    row's own.
    """

    step: int
    indices: BatchIndices
    located: Rows
    values: dict[str, Any]
    lost: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.indices.row)

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.values.values() if isinstance(value, np.ndarray))

    def cut_to(self, rows: int) -> None:
        """Keep the first rows."""
        self.values = {name: value[:rows] for name, value in self.values.items()}
        self.indices = BatchIndices(*(column[:rows] for column in self.indices))

    def drop_lost(self) -> None:
        """Drop lost rows and shrink the arrays."""
        kept = np.setdiff1d(np.arange(self.rows), self.lost)
        for name, value in self.values.items():
            if isinstance(value, list):
                self.values[name] = [value[row] for row in kept]
                continue
            for to, row in enumerate(kept):
                if to != row:
                    value[to] = value[row]
            self.values[name] = value[: len(kept)]
        self.indices = BatchIndices(*(column[kept] for column in self.indices))
        self.lost = []


# --- decoded records --------------------------------------------------------------------------------------------------------

FREE, BEING_WRITTEN = -1, -2
"""Sentinel values of a slot."""


class DecodedCache:
    """Rows of every output, for as many records as fit, so that later epochs read and decode nothing: a hit is one copy.

    It keeps the records that come first and never drops one: under a permutation every record is read equally often, so no other
    choice is better. It takes memory from the system bit by bit, and in large pages.
    """

    def __init__(
        self, outputs: Sequence[Output], records: int, budget: int, shared: SharedMemory | None = None
    ) -> None:
        """`shared`: the memory of the rows, if worker processes read and write them."""
        self.record_bytes = _record_bytes(outputs)
        self.capacity = cached_records(outputs, records, budget)
        self._slots = np.full(records, FREE, np.int64)  # by record
        self.rows: dict[str, Array] = {}
        for output in outputs:
            shape, text = (self.capacity, *fixed_shape(output)), output.dtype == "string"
            self.rows[output.name] = np.empty(shape, object) if text else kept_array(shape, output.dtype, shared)
        self._returned: list[int] = []  # slots that were reserved and not filled
        self._lock = threading.Lock()
        self.records = 0
        """The number of records that it holds by now."""

    def free(self, shared: SharedMemory) -> None:
        """Give back the memory that is shared with worker processes. The cache is not used after this."""
        for rows in self.rows.values():
            if rows.dtype != object and rows.size:
                shared.free(shared.offset(rows), rows.nbytes)

    @property
    def nbytes(self) -> int:
        return self.records * self.record_bytes

    def holds(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of the records it holds."""
        has_slot: npt.NDArray[np.bool_] = self._slots[records] >= 0
        return has_slot

    @property
    def full(self) -> bool:
        """Return True if every record is held, so that nothing is read or decoded any more."""
        return self.records == len(self._slots) and not self._returned

    def reserve(self, records: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the slot of each record, -1 for none, and True where the row is in it; others are to be written there."""
        slots = self._slots[records]
        cached = slots >= 0
        if not cached.all() and (self.records < self.capacity or self._returned):
            with self._lock:
                for number in np.flatnonzero(~cached).tolist():
                    record = int(records[number])
                    slots[number] = -1
                    if self._slots[record] != FREE or (self.records == self.capacity and not self._returned):
                        continue
                    self._slots[record] = BEING_WRITTEN
                    if self._returned:
                        slots[number] = self._returned.pop()
                    else:
                        slots[number] = self.records
                        self.records += 1
        return np.maximum(slots, -1), cached

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
    """Return how many of `records` a `DecodedCache` of these outputs holds within the budget in bytes."""
    return min(records, budget // max(_record_bytes(outputs), 1))
