"""A batch while it is being filled, and the memory that batches are made in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfprep.fields import Array
from tfprep.load.order.schedule import BatchIndices
from tfprep.load.outputs import Output, fixed_shape, has_array, row_bytes
from tfprep.load.reader.buffers import Buffers, SharedMemory
from tfprep.load.reader.rows import Rows

LEASED_BYTES = 1 << 16
"""Arrays from this size on lie in recycled memory. Smaller ones are new each time: keeping the labels of every batch must not
keep the pixels' memory busy."""


@dataclass
class Batch:
    """One step's arrays by output: [B, ...] where all samples have one shape, else a list of B arrays.

    `located` says where its records lie. While it is filled, `pending` rows are missing; rows in `lost` will stay empty;
    `attempts` counts the samples that were tried in place of a row's own. It may be delivered when it is `done`.
    """

    step: int
    indices: BatchIndices
    located: Rows
    values: dict[str, Any]
    pending: int = 0
    lost: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    error: BaseException | None = None
    done: bool = False

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
        """Move the rows behind lost ones up; arrays become as much shorter."""
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


class BatchMemory:
    """Arrays for batches of at most `batch_rows` samples; `keep` batches' memory is kept for their next use."""

    def __init__(
        self, outputs: Sequence[Output], batch_rows: int, keep: int, shared: SharedMemory | None = None
    ) -> None:
        """`shared`: where arrays lie that worker processes fill."""
        self._outputs = outputs
        least = 1 if shared else LEASED_BYTES
        sizes = {output.name: batch_rows * row_bytes(output) for output in outputs}
        self._pools = {name: Buffers(size, keep, shared) for name, size in sizes.items() if size >= least}
        self._small = [name for name in self._pools if sizes[name] < LEASED_BYTES]

    def arrays(self, rows: int) -> dict[str, Any]:
        """Arrays of arbitrary content for a batch of `rows` rows."""
        return {output.name: self._array(output, rows) for output in self._outputs}

    def finish(self, batch: Batch) -> None:
        """Move the small arrays of a full batch into memory of their own, which may be kept for long."""
        for name in self._small:
            if name in batch.values:  # a stored form is not
                batch.values[name] = np.array(batch.values[name])

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _array(self, output: Output, rows: int) -> Array | list[Any]:
        if output.name in self._pools and has_array(output):
            return self._pools[output.name].lease((rows, *fixed_shape(output)), output.dtype)
        return empty_array(output, rows)


def empty_array(output: Output, rows: int) -> Array | list[Any]:
    """An array of arbitrary content, or a list of nothing, for an output of `rows` rows."""
    if None in output.shape:
        return [None] * rows
    return np.empty((rows, *fixed_shape(output)), object if output.dtype == "string" else output.dtype)
