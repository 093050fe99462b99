"""Page-aligned memory for batches, recycled when the last array over it is dropped, and never before.

`Buffers.lease` gives an array whose base is a `_Lease`. Every view of the array, every tensor, Variable or dataset cache
that took it over without a copy keeps that lease alive; when the last of them is gone, Python deletes the lease, and only
then does its memory return to the pool. TensorFlow holds an array beyond the call that handed it over, so no count of calls
could tell.

Recycling matters because a fresh batch of megabytes is page-faulted in by the kernel each time.
"""

from __future__ import annotations

import math
import mmap
from collections import deque
from typing import Any

import numpy as np

from tfprep.fields import Array
from tfprep.load.reader.shared import SharedMemory

HUGE_PAGE = 1 << 21


class Buffers:
    """Memory of one size each: `nbytes` a buffer, at most `keep` of them waiting for their next use.

    Leases are not counted: a consumer may keep as many as its memory holds. Safe to use from any thread.
    """

    def __init__(self, nbytes: int, keep: int, shared: SharedMemory | None = None) -> None:
        """`shared`: where buffers lie that worker processes fill; None: in this process's own memory."""
        self.nbytes = nbytes
        self._keep = keep
        self._shared = shared
        self._free: deque[Array] = deque()

    @property
    def free(self) -> int:
        """Buffers that wait for their next use."""
        return len(self._free)

    def lease(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of this shape and dtype, which fits into `nbytes`, over recycled memory: its content is arbitrary."""
        try:
            memory = self._free.pop()  # the one let go last: it is still in the processor's cache
        except IndexError:
            memory = self._shared.allocate(self.nbytes) if self._shared else allocate(self.nbytes)
        flat: Array = np.asarray(_Lease(self, memory))
        kind = np.dtype(dtype)
        typed: Array = flat[: math.prod(shape) * kind.itemsize].view(kind)
        return typed.reshape(shape)

    def close(self) -> None:
        """Give back the memory that nobody holds, and all other memory as soon as it is let go."""
        self._keep = 0
        while self._free:
            self._release(self._free.pop())

    def _release(self, memory: Array) -> None:
        """Runs in whichever thread let go last, possibly inside another call here: it takes no lock."""
        if len(self._free) < self._keep:
            self._free.append(memory)
        elif self._shared:
            self._shared.free(memory)


class _Lease:
    """Owns one buffer for as long as any array over it lives."""

    def __init__(self, pool: Buffers, memory: Array) -> None:
        self._pool = pool
        self._memory = memory
        address = memory.__array_interface__["data"][0]
        self.__array_interface__ = {"shape": (len(memory),), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(self) -> None:
        self._pool._release(self._memory)


def allocate(nbytes: int) -> Array:
    """Page-aligned memory of this process, uint8 [nbytes], in large pages where the system has them."""
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
