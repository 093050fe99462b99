"""A batch while it is being filled, and the memory that batches are made in.

Where worker processes fill a batch, it has room in the shared memory for arrays that differ in size: as much as its largest
samples need, by the heights and widths of the index. Each job has the part that belongs to its rows, and its worker packs
arrays into it, one after another; the reply says where they lie. Text travels in the reply itself, and so does an array that
does not fit, because the index knew less than that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tfprep.fields import Array
from tfprep.load.order.schedule import BatchIndices, Numbers
from tfprep.load.outputs import Output, fixed_shape, has_array, row_bytes
from tfprep.load.reader.buffers import Buffers, SharedMemory
from tfprep.load.reader.rows import Rows

ALIGNMENT = 64
"""TensorFlow takes arrays over without a copy that begin at multiples of this."""


class Packed(NamedTuple):
    """Place of an array in the room of its batch."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


Values: TypeAlias = Mapping[str, Mapping[int, Any]]
"""By output and row the value, or the `Packed` that stands for it."""


class Space:
    """The room of one batch."""

    def __init__(self, memory: Array, row_bytes: Numbers) -> None:
        """`memory`: uint8 [N]; `row_bytes`: what each row's arrays take, rounded up to `ALIGNMENT` each."""
        self.memory = memory
        self._begins = np.minimum(np.append(0, np.cumsum(row_bytes)), len(memory))

    def part(self, rows: Sequence[int] | Numbers) -> tuple[int, int]:
        """Return where the part of these consecutive rows begins, and its length in bytes."""
        begin, end = self._begins[rows[0]], self._begins[rows[-1] + 1]
        return int(begin), int(end - begin)

    def array(self, packed: Packed) -> Array:
        """The array that lies there: a view, which keeps this memory from being used again."""
        dtype = np.dtype(packed.dtype)
        end = packed.offset + math.prod(packed.shape) * dtype.itemsize
        array: Array = self.memory[packed.offset : end].view(dtype).reshape(packed.shape)
        return array


def unpack(values: Values, target: Mapping[str, Any], space: Space | None) -> None:
    """Put what a worker has sent into the lists of a batch."""
    for name, by_row in values.items():
        for row, value in by_row.items():
            target[name][row] = _array(value, space) if isinstance(value, Packed) else value


def _array(packed: Packed, space: Space | None) -> Array:
    assert space is not None
    return space.array(packed)


class Packer:
    """A worker's values of one job, by output and row."""

    def __init__(self, outputs: Sequence[str], memory: Array, offset: int) -> None:
        """`memory`: the job's part of the room, which begins at `offset` in that."""
        self.values: dict[str, _PackedRows] = {name: _PackedRows(self) for name in outputs}
        self._memory, self._offset, self._used = memory, offset, 0

    def pack(self, value: Any) -> Any:
        """Copy an array into the room; return where it lies, or what does not belong there as it is."""
        if not isinstance(value, np.ndarray) or value.dtype == object or self._used + value.nbytes > len(self._memory):
            return value
        begin = self._used
        self._used += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        place: Array = self._memory[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape)
        np.copyto(place, value)
        return Packed(self._offset + begin, value.shape, value.dtype.name)


class _PackedRows(dict[int, Any]):
    """Takes the values of an output's rows."""

    def __init__(self, packer: Packer) -> None:
        super().__init__()
        self._packer = packer

    def __setitem__(self, row: int, value: Any) -> None:
        super().__setitem__(row, self._packer.pack(value))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (list(self.items()),)


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
    offsets: Sequence[int] = ()
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
        if output.name in self._pools and has_array(output):
            return self._pools[output.name].lease((rows, *fixed_shape(output)), output.dtype)
        return empty_array(output, rows)


def empty_array(output: Output, rows: int) -> Array | list[Any]:
    """An array of arbitrary content, or a list of nothing, for an output of `rows` rows."""
    if None in output.shape:
        return [None] * rows
    return np.empty((rows, *fixed_shape(output)), object if output.dtype == "string" else output.dtype)
