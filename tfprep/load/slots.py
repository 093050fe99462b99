"""Memory of batches. An array is filled again as soon as nobody refers to it.

Each array is an `np.ndarray` of its own over a block of memory that is not an array. NumPy then lets every view of the array,
such as `batch["image"][3]`, refer to the array itself, and so does each framework that takes the array over without a copy. A
reference count therefore says that an array is free. No finalizer does any work: the next batch that needs memory looks for it.

Blocks begin at a page, so that arrays are aligned to 64 bytes. Recycling matters because the kernel maps and clears each page
of new memory: a new batch of megabytes costs more than its decoding.

Memory that worker processes write and this process reads is a file without a name (`memfd_create`), so that no limit of /dev/shm
applies. The file is sparse: its size is a range of addresses, and a page takes memory from its first write until it is freed. A
forked process shares this memory, so that arrays in use at a fork are not filled again.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import Array
from tfprep.limits import available_memory
from tfprep.load.outputs import Output
from tfprep.load.threads import WeakList
from tfprep.pool import open_standard_descriptors

RECYCLED_BYTES = 1 << 16
"""Arrays from this size on are recycled. Smaller ones are new each time: a user who keeps the labels of all batches keeps no
more."""
HUGE_PAGE = 1 << 21
MOST_BYTES, LEAST_BYTES = 1 << 36, 1 << 28
"""Bytes that are mapped: 64 GiB of addresses, or twice the machine's memory; and the least, where the system allows no more."""


def _idle_count() -> int:
    arrays = [np.empty(1)]
    return sys.getrefcount(arrays[0])


IDLE = _idle_count()
"""The reference count of an array that only a list refers to. Versions of Python count differently."""


def private_block(nbytes: int) -> Any:
    """A page-aligned block of this process, in large pages where the system has them."""
    block = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


class SharedMemory:
    """Blocks of memory in a file without a name. Any thread may use it. It belongs to the process that makes it."""

    def __init__(self) -> None:
        """LoaderError where the process may not map enough addresses."""
        open_standard_descriptors()
        self._process = os.getpid()
        self.fd = os.memfd_create("tfprep", os.MFD_CLOEXEC)
        self._lock = threading.Lock()
        self._used = 0
        self._spare: dict[int, list[int]] = defaultdict(list)
        self.size = max(MOST_BYTES, 2 * available_memory() // mmap.PAGESIZE * mmap.PAGESIZE)
        while True:
            try:
                os.ftruncate(self.fd, self.size)
                self.pages = mmap.mmap(self.fd, self.size, flags=mmap.MAP_SHARED)
                break
            except OSError as error:
                if self.size // 2 < LEAST_BYTES:
                    raise LoaderError(
                        f"this process may not map {LEAST_BYTES:,} bytes that it shares with worker processes "
                        f"({error.strerror}): raise the limit of addresses (ulimit -v), or use workers='threads'"
                    ) from error
                self.size //= 2
        self._address = _address(np.frombuffer(self.pages, np.uint8))

    def allocate(self, nbytes: int) -> int:
        """The offset of a block of `nbytes`, rounded up to pages: zeros, or what was freed."""
        size = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            if self._spare[size]:
                return self._spare[size].pop()
            if self._used + size > self.size:
                raise LoaderError(
                    f"the {self.size:,} bytes that are shared with worker processes have no room for {size:,} more: "
                    "raise the limit of addresses (ulimit -v), keep fewer batches, or use workers='threads'"
                )
            start, self._used = self._used, self._used + size
            return start

    def offset(self, array: Array) -> int:
        """The place of an array in this memory, in bytes from the beginning of the file."""
        offset = _address(array) - self._address
        if not 0 <= offset < self.size:
            raise ValueError("the array is not in this memory")
        return offset

    def free(self, offset: int, nbytes: int) -> None:
        """Give the pages of a block back to the system; its addresses are used again.

        Only the process that made the memory does: for one that was forked from it, they are the same pages.
        """
        if os.getpid() != self._process:
            return
        size = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.pages.madvise(mmap.MADV_REMOVE, offset, size)
        with self._lock:
            self._spare[size].append(offset)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "fd"):
            close(self.fd)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class ArraySlots:
    """Arrays of at most `nbytes` each. At most `keep` of them wait for their next use; users may hold any number."""

    def __init__(self, nbytes: int, keep: int, shared: SharedMemory | None = None) -> None:
        """`shared`: the memory that worker processes fill; None for this process's own."""
        self.nbytes, self._keep, self._shared = nbytes, keep, shared
        self._lock = threading.Lock()
        self._arrays: list[Array] = []
        self._blocks: list[tuple[Any, int]] = []  # the memory of each array, and the offset there
        _slots.add(self)

    def __len__(self) -> int:
        return len(self._arrays)

    def take(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of this shape and dtype that nobody else refers to; its content is arbitrary."""
        with self._lock:
            arrays, free = self._arrays, -1
            for number in range(len(arrays) - 1, -1, -1):
                if sys.getrefcount(arrays[number]) > IDLE:
                    continue
                if free >= 0:
                    self._drop(free)
                free = number
                if len(arrays) <= self._keep:
                    break
            if free < 0:
                if self._shared is None:
                    self._blocks.append((private_block(self.nbytes), 0))
                else:
                    self._blocks.append((self._shared.pages, self._shared.allocate(self.nbytes)))
                arrays.append(np.empty(0))
            block, offset = self._blocks[free]
            # Another array each time: a user may have made the last one read-only.
            arrays[free] = np.ndarray(shape, dtype, buffer=block, offset=offset)
            return arrays[free]

    def close(self) -> None:
        """Give back the memory that nobody refers to; that of other arrays returns with them, if it is this process's own."""
        with self._lock:
            for number in range(len(self._arrays) - 1, -1, -1):
                if sys.getrefcount(self._arrays[number]) <= IDLE:
                    self._drop(number)
            self._arrays, self._blocks = [], []

    def retire(self, except_ids: set[int]) -> None:
        """Fill no shared array again that is in use now, but for those with these ids: a forked process has it too."""
        with self._lock:
            for number in range(len(self._arrays) - 1, -1, -1) if self._shared is not None else ():
                in_use = sys.getrefcount(self._arrays[number]) > IDLE
                if in_use and id(self._arrays[number]) not in except_ids:
                    del self._arrays[number], self._blocks[number]

    def _drop(self, number: int) -> None:
        del self._arrays[number]
        _, offset = self._blocks.pop(number)
        if self._shared is not None:
            self._shared.free(offset, self.nbytes)


class BatchSlots:
    """Arrays for batches of at most `batch_rows` samples; the memory of `keep` batches waits for its next use."""

    def __init__(
        self, outputs: Sequence[Output], batch_rows: int, keep: int, shared: SharedMemory | None = None
    ) -> None:
        """`shared`: the memory that worker processes fill."""
        self._outputs = outputs
        least = 0 if shared else RECYCLED_BYTES
        sizes = {output.name: batch_rows * output.row_bytes for output in outputs if output.has_array}
        self._slots = {name: ArraySlots(size, keep, shared) for name, size in sizes.items() if size >= least}
        self._copied = [name for name in self._slots if sizes[name] < RECYCLED_BYTES]

    def arrays(self, rows: int, form: int = 0) -> dict[str, Any]:
        """Arrays of arbitrary content for a batch of `rows` rows, of this form."""
        arrays: dict[str, Any] = {}
        for output in [output.of_form(form) for output in self._outputs]:
            shape, slots = (rows, *output.fixed_shape), self._slots.get(output.name)
            arrays[output.name] = output.empty(rows) if slots is None else slots.take(shape, output.dtype)
        return arrays

    def finish(self, values: dict[str, Any]) -> None:
        """Copy the small arrays of a full batch into memory of their own, which may be kept for long."""
        for name in self._copied:
            if name in values:  # a stored form is not
                values[name] = np.array(values[name])

    def close(self) -> None:
        for slots in self._slots.values():
            slots.close()


# --- forks --------------------------------------------------------------------------------------------------------------

_slots: WeakList[ArraySlots] = WeakList()


def retire_shared(in_work: Iterable[Array]) -> None:
    """Before a fork: retire the shared arrays in use but these, which are being filled and which no forked process can reach."""
    filled = {id(array) for array in in_work}
    for slots in _slots:
        slots.retire(filled)


def _after_fork_in_child() -> None:
    for slots in _slots:
        slots._lock = threading.Lock()  # a thread that is not here may hold the other one


os.register_at_fork(after_in_child=_after_fork_in_child)
