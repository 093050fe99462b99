"""Text, and arrays that differ in size, on their way out of a worker process.

A batch has room for such arrays in the shared memory: as much as its largest samples need, by the heights and widths of the
index. Each job has the part that belongs to its rows, and its worker packs arrays into it, one after another; the reply says
where they lie. Text travels in the reply itself, and so does an array that does not fit, because the index knew less than that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tfprep.fields import Array
from tfprep.load.order.schedule import Numbers

ALIGNMENT = 64
"""TensorFlow takes arrays over without a copy that begin at multiples of this."""


class Packed(NamedTuple):
    """Where an array lies in the room of its batch."""

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
        """Where the part of these consecutive rows begins, and its length in bytes."""
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
