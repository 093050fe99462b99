"""A batch while it is being filled, and the memory that batches are made in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfprep.fields import Array
from tfprep.load.order.schedule import BatchIndices, Numbers
from tfprep.load.outputs import Output, row_bytes
from tfprep.load.reader.buffers import Buffers
from tfprep.load.reader.rows import Rows
from tfprep.load.reader.shared import SharedMemory
from tfprep.load.reader.space import ALIGNMENT, Space

LEASED_BYTES = 1 << 16
"""Arrays from this size on lie in recycled memory. Smaller ones are new each time: keeping the labels of every batch must not
keep the pixels' memory busy."""


@dataclass
class Batch:
    """One step's arrays by output: [B, ...] where all samples have one shape, else a list of B arrays.

    While it is filled, `pending` rows are missing; rows in `lost` will stay empty; `attempts` counts
    the samples that were tried in place of a row's own. For worker processes, `located` says where all its records lie,
    `offsets` where its arrays do, and `space` is room for arrays that differ in size. `mixed` says that its rasters are mixed,
    `interrupted` how many processes died of that or meanwhile, `done` that it may be delivered.
    """

    step: int
    indices: BatchIndices
    values: dict[str, Any]
    pending: int = 0
    lost: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    located: Rows | None = None
    offsets: bytes = b""
    space: Space | None = None
    error: BaseException | None = None
    mixed: bool = False
    interrupted: int = 0
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


class VaryingBytes(NamedTuple):
    """Room for arrays that differ in size: that of each row of the table, in units of `ALIGNMENT` bytes, and that of the largest
    batch in bytes."""

    units_of_row: npt.NDArray[np.int32]
    of_batch: int

    def of_rows(self, rows: Numbers) -> Numbers:
        """Bytes of these rows: int64 [N]."""
        nbytes: Numbers = self.units_of_row[rows].astype(np.int64) * ALIGNMENT
        return nbytes


class BatchMemory:
    """Arrays for batches of at most `batch_rows` samples; `keep` batches' memory is kept for their next use."""

    def __init__(
        self,
        outputs: Sequence[Output],
        batch_rows: int,
        keep: int,
        shared: SharedMemory | None = None,
        varying: VaryingBytes | None = None,
    ) -> None:
        """`shared`: where arrays lie that worker processes fill; `varying`: what those take that differ in size."""
        self._outputs, self._varying = outputs, varying
        self._spaces = Buffers(varying.of_batch, keep, shared) if shared and varying else None
        least = 1 if shared else LEASED_BYTES
        sizes = {output.name: batch_rows * row_bytes(output) for output in outputs}
        self._pools = {name: Buffers(size, keep, shared) for name, size in sizes.items() if size >= least}
        self._small = [name for name in self._pools if sizes[name] < LEASED_BYTES]

    def arrays(self, rows: int) -> dict[str, Any]:
        """Arrays of arbitrary content for a batch of `rows` rows."""
        return {output.name: self._array(output, rows) for output in self._outputs}

    def space(self, rows: Numbers) -> Space | None:
        """Room for the arrays of these rows of the table that differ in size, where worker processes make them."""
        if self._spaces is None or self._varying is None:
            return None
        return Space(self._spaces.lease((self._varying.of_batch,), np.uint8), self._varying.of_rows(rows))

    def finish(self, batch: Batch) -> None:
        """Move the small arrays of a full batch into memory of their own, which may be kept for long."""
        for name in self._small:
            if name in batch.values:  # a stored form is not
                batch.values[name] = np.array(batch.values[name])
        batch.space = None

    def close(self) -> None:
        for pool in [*self._pools.values(), *([self._spaces] if self._spaces else [])]:
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
