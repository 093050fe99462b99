"""Page-aligned memory for batches, recycled when the last array over it is dropped, and never before.

`Buffers.lease` gives an array whose base is a `_Lease`. Every view of the array, every tensor, Variable or dataset cache that
took it over without a copy keeps that lease alive; when the last of them is gone, Python deletes the lease, and only then does
its memory return to the pool. TensorFlow holds an array beyond the call that handed it over, so no count of calls could tell.

Recycling matters because a fresh batch of megabytes is page-faulted in by the kernel each time.

A forked process has the memory of threads as it was, as all private memory. Memory that worker processes fill is shared, so a
forked process copies the batches that were delivered, to the same addresses, before anybody uses that memory again.

Memory that worker processes write and this process reads is an anonymous file (`memfd_create`), so no limit of /dev/shm
applies. The file is sparse: its size is a range of addresses, and a page takes memory from when it is first written until it is
freed.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import Array
from tfprep.limits import available_memory
from tfprep.pool import open_standard_descriptors

MOST_BYTES, LEAST_BYTES = 1 << 36, 1 << 28
"""Bytes that are mapped: 64 GiB of addresses, or twice the machine's memory; and the least, where the system allows no more."""


class SharedMemory:
    """Blocks of memory in a file without a name. Any thread may call `allocate`; `free` takes no lock, for finalisers.

    It belongs to the process that makes it. A fork of that has the same blocks, and neither knows which the other uses.
    """

    def __init__(self) -> None:
        """LoaderError where the process may not map as much."""
        open_standard_descriptors()
        self.fd = os.memfd_create("tfprep", os.MFD_CLOEXEC)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._used = 0
        self._spare: dict[int, deque[Array]] = defaultdict(deque)
        size = max(MOST_BYTES, 2 * available_memory() // mmap.PAGESIZE * mmap.PAGESIZE)
        while True:
            try:
                os.ftruncate(self.fd, size)
                self._pages = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED)
                break
            except OSError as error:
                if size // 2 < LEAST_BYTES:
                    raise LoaderError(
                        f"this process may not map {LEAST_BYTES:,} bytes that it shares with worker processes "
                        f"({error.strerror}): raise the limit of addresses (ulimit -v), or use workers='threads'"
                    ) from error
                size //= 2
        self._memory: Array = np.frombuffer(self._pages, np.uint8)
        self._address = _address(self._memory)

    def allocate(self, nbytes: int) -> Array:
        """Page-aligned memory, uint8 [nbytes rounded up to pages]: zeros, or what was freed. LoaderError in a forked process."""
        if os.getpid() != self._process:
            raise LoaderError(
                "this loader has worker processes, and a forked process cannot use it: make a loader in that process, or start "
                "it with the method 'spawn'"
            )
        size = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            if self._spare[size]:
                return self._spare[size].pop()
            if self._used + size > len(self._memory):
                raise LoaderError(
                    f"the {len(self._memory):,} bytes that are shared with worker processes have no room for {size:,} more: "
                    "raise the limit of addresses (ulimit -v), keep fewer batches, or use workers='threads'"
                )
            start, self._used = self._used, self._used + size
            return self._memory[start : start + size]

    def offset(self, array: Array) -> int:
        """Return where an array that lies in this memory begins, in bytes from the beginning of the file."""
        offset = _address(array) - self._address
        if not 0 <= offset < len(self._memory):
            raise ValueError("the array does not lie in this memory")
        return offset

    def free(self, memory: Array) -> None:
        """Give the pages of a block back to the system; its addresses are used again. A forked process does nothing."""
        if os.getpid() == self._process:
            self._pages.madvise(mmap.MADV_REMOVE, self.offset(memory), len(memory))
            self._spare[len(memory)].append(memory)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "fd"):
            close(self.fd)


class MappedMemory:
    """The same memory in a worker process, by offset."""

    def __init__(self, fd: int) -> None:
        self._memory: Array = np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_SHARED), np.uint8)

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """The array that lies there. ValueError where none does."""
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        memory = self._memory[offset : offset + nbytes]
        if len(memory) != nbytes:
            raise ValueError(f"an array of {nbytes} bytes at {offset} does not lie in the shared memory")
        typed: Array = memory.view(kind)
        return typed.reshape(shape)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


HUGE_PAGE = 1 << 21
COPY_S = 10.0
"""Time that a fork waits for its child to copy the batches that were delivered: 10 of 100 MB take half a second."""
COPY_POLL_S = 0.0002
"""Time between two looks whether it has."""


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
        lease = _Lease(self, memory)
        if self._shared:
            _shared_leases.add(lease)
        flat: Array = np.asarray(lease)
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
        self._pool, self.memory = pool, memory
        self.delivered = False
        data = _address(memory), False
        self.__array_interface__ = {"shape": (len(memory),), "typestr": "|u1", "data": data, "version": 3}

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # then the system takes all memory back
            self._pool._release(self.memory)


def allocate(nbytes: int) -> Array:
    """Page-aligned memory of this process, uint8 [nbytes], in large pages where the system has them."""
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


# --- forks --------------------------------------------------------------------------------------------------------------

_shared_leases: weakref.WeakSet[_Lease] = weakref.WeakSet()
_retired: list[_Lease] = []
"""Leases of memory that is not used again, because a forked process may hold it without a copy of its own."""
_of_thread = threading.local()


def note_delivery(values: Mapping[str, Any]) -> None:
    """Note that the consumer has these arrays, or lists of arrays: a forked process may use them."""
    for value in values.values():
        for array in value if isinstance(value, list) else [value]:
            base = array
            while isinstance(base, np.ndarray):
                base = base.base
            if isinstance(base, _Lease):
                base.delivered = True


def _before_fork() -> None:
    leases, copied = None, None
    while leases is None:
        with contextlib.suppress(RuntimeError):  # another thread has leased memory meanwhile
            leases = [lease for lease in list(_shared_leases) if lease.delivered]
    if leases:
        try:
            copied = mmap.mmap(-1, 1)  # both processes see it; a pipe would take descriptors, of which none may be left
        except OSError:
            _retired.extend(leases)
    _of_thread.fork = copied, leases


def _after_fork_in_child() -> None:
    (copied, leases), _of_thread.fork = _of_thread.fork, None
    for lease in leases:
        _make_private(lease.memory)
    if copied:
        copied[0] = 1


def _after_fork_in_parent() -> None:
    """Wait until the child has copied what it shares; where it does not, nobody uses that memory again."""
    (copied, leases), _of_thread.fork = _of_thread.fork, None
    if copied is None:
        return
    end = time.monotonic() + COPY_S
    try:
        while not copied[0] and time.monotonic() < end:
            time.sleep(COPY_POLL_S)
    finally:
        if not copied[0]:
            _retired.extend(leases)


def _make_private(memory: Array) -> None:
    """Put a copy that belongs to this process alone in the place of shared memory, at the same addresses."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
    target, size = _address(memory), ctypes.c_size_t(len(memory))
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    copy = libc.mmap(None, size, protection, flags, -1, ctypes.c_long(0))
    if copy != ctypes.c_void_p(-1).value:
        ctypes.memmove(copy, target, len(memory))
        may_move, fixed = 1, 2  # from linux/mman.h
        if libc.mremap(ctypes.c_void_p(copy), size, size, may_move | fixed, ctypes.c_void_p(target)) == target:
            return
    reason = os.strerror(ctypes.get_errno())
    raise MemoryError(f"the batches that a forked process has taken over cannot be copied ({reason})")


if hasattr(os, "memfd_create"):  # otherwise there is no shared memory
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child, after_in_parent=_after_fork_in_parent)
