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
from tfprep.load.outputs import Output
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


class DecodedCache:
    """Rows of every output, for the records that fit, so that later epochs read and decode nothing: a hit is one copy.

    It keeps the records that come first and never drops one: under a permutation every record is read equally often, so no other
    choice is better. It takes memory from the system bit by bit, and in large pages. Two threads that read the same record write
    the same bytes.
    """

    def __init__(
        self, outputs: Sequence[Output], records: int, budget: int, shared: SharedMemory | None = None
    ) -> None:
        """`shared`: the memory of the rows, if worker processes read and write them."""
        self.record_bytes = _record_bytes(outputs)
        self.capacity = cached_records(outputs, records, budget)
        self._slots = np.full(records, -1, np.int64)  # by record
        self._assigned = 0
        self._written = np.zeros(self.capacity, bool)  # by slot
        self.rows: dict[str, Array] = {}
        for output in outputs:
            shape, text = (self.capacity, *output.fixed_shape), output.dtype == "string"
            self.rows[output.name] = np.empty(shape, object) if text else kept_array(shape, output.dtype, shared)
        self._lock = threading.Lock()
        self._full = False

    def free(self, shared: SharedMemory) -> None:
        """Give back the memory that is shared with worker processes. The cache is not used after this."""
        for rows in self.rows.values():
            if rows.dtype != object and rows.size:
                shared.free(shared.offset(rows), rows.nbytes)

    @property
    def records(self) -> int:
        """The number of records that it holds by now."""
        return int(np.count_nonzero(self._written))

    @property
    def nbytes(self) -> int:
        return self.records * self.record_bytes

    @property
    def full(self) -> bool:
        """Return True if every record is held, so that nothing is read or decoded any more."""
        self._full = self._full or (self._assigned == len(self._slots) and bool(self._written.all()))
        return self._full

    def holds(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of the records it holds."""
        slots = self._slots[records]
        held = slots >= 0
        held[held] = self._written[slots[held]]
        return held

    def slots(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the slot of each record, where its row is, or is to be written; -1 for none."""
        if self._assigned < self.capacity:
            with self._lock:
                new = np.unique(records[self._slots[records] < 0])[: self.capacity - self._assigned]
                self._slots[new] = self._assigned + np.arange(len(new))
                self._assigned += len(new)
        slots: npt.NDArray[np.int64] = self._slots[records]
        return slots

    def commit(self, slots: npt.NDArray[np.int64]) -> None:
        """Note that the rows in these slots have been written."""
        self._written[slots] = True


def _record_bytes(outputs: Sequence[Output]) -> int:
    return sum(max(output.row_bytes, 64) for output in outputs)


def cached_records(outputs: Sequence[Output], records: int, budget: int) -> int:
    """Return how many of `records` a `DecodedCache` of these outputs holds within the budget in bytes."""
    return min(records, budget // max(_record_bytes(outputs), 1))
