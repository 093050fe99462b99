"""A batch while it is being filled, and the memory that batches are made in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfprep.fields import Array
from tfprep.read.buffers import Buffers
from tfprep.read.outputs import Output
from tfprep.read.schedule import Picks

LEASED_BYTES = 1 << 16
"""Arrays from this size on lie in recycled memory. Smaller ones are new each time: keeping the labels of every batch must not
keep the pixels' memory busy."""


@dataclass
class Batch:
    """One step's arrays by output: [B, ...] where all samples have one shape, else a list of B arrays."""

    step: int
    picks: Picks
    values: dict[str, Any]
    pending: int = 0
    error: BaseException | None = None
    lost: list[int] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.picks.row)


class BatchMemory:
    """Arrays for batches of at most `batch_rows` samples; `keep` batches' memory is kept for their next use."""

    def __init__(self, outputs: Sequence[Output], batch_rows: int, keep: int) -> None:
        self._outputs = outputs
        self._pools = {
            output.name: Buffers(batch_rows * row_bytes(output), keep)
            for output in outputs
            if batch_rows * row_bytes(output) >= LEASED_BYTES
        }

    def arrays(self, rows: int) -> dict[str, Any]:
        """Arrays of arbitrary content for a batch of so many rows."""
        return {output.name: self._array(output, rows) for output in self._outputs}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _array(self, output: Output, rows: int) -> Array | list[Any]:
        if None in output.shape:
            return [None] * rows
        shape = (rows, *(size for size in output.shape if size is not None))
        if output.dtype == "string":
            return np.empty(shape, object)
        if output.name in self._pools:
            return self._pools[output.name].lease(shape, output.dtype)
        return np.empty(shape, output.dtype)


def row_bytes(output: Output) -> int:
    """Bytes of one sample's array; 0 where that differs or is text."""
    if None in output.shape or output.dtype == "string":
        return 0
    return (
        int(np.prod([size for size in output.shape if size is not None], dtype=np.int64))
        * np.dtype(output.dtype).itemsize
    )
