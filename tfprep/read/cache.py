"""Records kept in memory, so that later epochs read or decode nothing.

- `DecodedCache` keeps the finished rows of a batch; a hit is one copy.
- `EncodedCache` keeps the fields' bytes as they are on disk: a hit saves the read, not the decoding.

Both keep the first records that fit and never drop one: under a permutation every record is wanted equally often, so nothing
better could be kept.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfprep.fields import Array
from tfprep.read.buffers import HUGE_PAGE
from tfprep.read.outputs import Output, row_bytes


class DecodedCache:
    """Rows of every output for the records below `capacity`. Memory is taken from the system as it fills."""

    def __init__(self, outputs: Sequence[Output], records: int, budget: int) -> None:
        self.record_bytes = sum(max(row_bytes(output), 64) for output in outputs)
        self.capacity = min(records, budget // max(self.record_bytes, 1))
        self._filled = np.zeros(self.capacity, np.uint8)
        self._held: dict[str, Array] = {output.name: _rows(output, self.capacity) for output in outputs}

    @property
    def records(self) -> int:
        """How many records it holds by now."""
        return int(np.count_nonzero(self._filled))

    @property
    def nbytes(self) -> int:
        return self.records * self.record_bytes

    def fetch(self, values: Mapping[str, Any], start: int, records: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Copy what is held into the batch's rows from `start` on; which of the records that were."""
        inside = records < self.capacity
        held = inside & (self._filled[np.where(inside, records, 0)] > 0) if self.capacity else inside
        if held.all():
            for name, rows in self._held.items():
                np.take(rows, records, axis=0, out=values[name][start : start + len(records)], mode="clip")
            return held
        for at in np.flatnonzero(held):
            for name, rows in self._held.items():
                values[name][start + at] = rows[records[at]]
        return held

    def store(self, values: Mapping[str, Any], row: int, record: int) -> None:
        if record < self.capacity and not self._filled[record]:
            for name, rows in self._held.items():
                rows[record] = values[name][row]
            self._filled[record] = 1  # last: another thread may look at any time


class EncodedCache:
    """The fields' bytes by record, up to `budget` bytes."""

    OVERHEAD = 200
    """Bytes of Python's objects around one record's."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held: dict[int, dict[str, bytes]] = {}
        self.nbytes = 0

    @property
    def records(self) -> int:
        return len(self._held)

    def fetch(self, record: int) -> dict[str, Array] | None:
        held = self._held.get(record)
        return None if held is None else {name: np.frombuffer(data, np.uint8) for name, data in held.items()}

    def store(self, record: int, contents: Mapping[str, Array]) -> None:
        size = sum(content.nbytes for content in contents.values()) + self.OVERHEAD
        if self.nbytes + size <= self._budget and record not in self._held:
            self._held[record] = {name: content.tobytes() for name, content in contents.items()}
            self.nbytes += size


def _rows(output: Output, capacity: int) -> Array:
    shape = (capacity, *(size for size in output.shape if size is not None))
    if output.dtype == "string":
        return np.empty(shape, object)
    nbytes = capacity * row_bytes(output)
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    flat: Array = np.frombuffer(memory, np.uint8, nbytes)
    typed: Array = flat.view(output.dtype)
    return typed.reshape(shape)
