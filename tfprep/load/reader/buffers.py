"""Page-aligned memory for batches, recycled when the last array over it is dropped, and never before.

`Buffers.lease` gives an array whose base is a `_Lease`. Every view of the array, every tensor, Variable or dataset cache that
took it over without a copy keeps that lease alive; when the last of them is gone, Python deletes the lease, and only then does
its memory return to the pool. TensorFlow holds an array beyond the call that handed it over, so no count of calls could tell.

Recycling matters because a fresh batch of megabytes is page-faulted in by the kernel each time.

A forked process has the memory of threads as it was, as all private memory. Memory that worker processes fill is shared, so a
fork copies the batches that were delivered, to the same addresses, before anybody uses that memory again.

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
import select
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import Array

SEGMENT_BYTES = 1 << 36
"""Bytes that are mapped at a time, 64 GiB of addresses. Each mapping takes one file descriptor."""
LEAST_SEGMENT_BYTES = 1 << 28
"""The least mapping, where the system allows no larger one (`ulimit -v`)."""


class SharedMemory:
    """Blocks of memory in a file without a name. Any thread may call `allocate`; `free` takes no lock, for finalisers.

    It belongs to the process that makes it. A fork of that has the same blocks, and neither knows which the other uses.
    """

    def __init__(self) -> None:
        """LoaderError where the process may not map as much."""
        self.fd = os.memfd_create("tfprep", os.MFD_CLOEXEC)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._segments.append(self._new_segment(1))
        self._used = 0  # of the last segment
        self._spare: dict[int, deque[Array]] = defaultdict(deque)

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
            if self._used + size > self._segments[-1].nbytes:
                self._segments.append(self._new_segment(size))
                self._used = 0
            start, self._used = self._used, self._used + size
            return self._segments[-1].memory[start : start + size]

    def offset(self, array: Array) -> int:
        """Return where an array that lies in this memory begins, in bytes from the beginning of the file."""
        address = array.__array_interface__["data"][0]
        for segment in self._segments:
            if segment.address <= address < segment.address + segment.nbytes:
                return int(segment.offset + address - segment.address)
        raise ValueError("the array does not lie in this memory")

    def free(self, memory: Array) -> None:
        """Give the pages of a block back to the system; its addresses are used again. A forked process does nothing."""
        if os.getpid() != self._process:
            return
        address = memory.__array_interface__["data"][0]
        for segment in self._segments:
            if segment.address <= address < segment.address + segment.nbytes:
                segment.pages.madvise(mmap.MADV_REMOVE, address - segment.address, len(memory))
        self._spare[len(memory)].append(memory)

    def _new_segment(self, nbytes: int) -> _Segment:
        offset = self._segments[-1].offset + self._segments[-1].nbytes if self._segments else 0
        size = max(SEGMENT_BYTES, nbytes)
        while True:
            try:
                os.ftruncate(self.fd, offset + size)
                return _Segment(self.fd, offset, size)
            except OSError as error:
                if size // 2 < max(nbytes, LEAST_SEGMENT_BYTES):
                    raise LoaderError(
                        f"this process may not map {max(nbytes, LEAST_SEGMENT_BYTES):,} bytes that it shares with worker "
                        f"processes ({error.strerror}): raise the limit of addresses (ulimit -v), or use workers='threads'"
                    ) from error
                size //= 2

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "fd"):
            close(self.fd)


class MappedMemory:
    """The same memory in a worker process, by offset."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._segments: list[_Segment] = []

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """The array that lies there. ValueError where none does."""
        for segment in self._segments:
            if segment.offset <= offset < segment.offset + segment.nbytes:
                kind = np.dtype(dtype)
                start, nbytes = offset - segment.offset, math.prod(shape) * kind.itemsize
                memory = segment.memory[start : start + nbytes]
                if len(memory) != nbytes:
                    raise ValueError(f"an array of {nbytes} bytes at {offset} does not lie in the shared memory")
                typed: Array = memory.view(kind)
                return typed.reshape(shape)
        end = self._segments[-1].offset + self._segments[-1].nbytes if self._segments else 0
        self._segments.append(_Segment(self._fd, end, os.fstat(self._fd).st_size - end))
        return self.array(offset, shape, dtype)


class _Segment:
    """A mapped range of the file."""

    def __init__(self, fd: int, offset: int, nbytes: int) -> None:
        self.offset, self.nbytes = offset, nbytes
        self.pages = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, offset=offset)
        self.memory: Array = np.frombuffer(self.pages, np.uint8)
        self.address = self.memory.__array_interface__["data"][0]


HUGE_PAGE = 1 << 21
COPY_S = 10.0
"""Time that a fork waits for its child to copy the batches that were delivered: 10 of 100 MB take half a second."""


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
        if self._shared and _forks:
            _released.append((self, memory))
        elif len(self._free) < self._keep:
            self._free.append(memory)
        elif self._shared:
            self._shared.free(memory)


class _Lease:
    """Owns one buffer for as long as any array over it lives."""

    def __init__(self, pool: Buffers, memory: Array) -> None:
        self._pool, self.memory = pool, memory
        self.delivered = self.retired = False
        address = memory.__array_interface__["data"][0]
        self.__array_interface__ = {"shape": (len(memory),), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(self) -> None:
        if not self.retired:
            self._pool._release(self.memory)


def allocate(nbytes: int) -> Array:
    """Page-aligned memory of this process, uint8 [nbytes], in large pages where the system has them."""
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


# --- forks --------------------------------------------------------------------------------------------------------------

_shared_leases: weakref.WeakSet[_Lease] = weakref.WeakSet()
_forks: list[int] = []
"""The pipes of the forks that go on at this moment: memory that is released meanwhile waits in `_released`."""
_released: list[tuple[Buffers, Array]] = []
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
    _of_thread.pipe = os.pipe() if len(_shared_leases) else None
    if _of_thread.pipe:
        _forks.append(_of_thread.pipe[0])


def _after_fork_in_child() -> None:
    pipe, _of_thread.pipe = _of_thread.pipe, None
    _forks.clear()  # the leases that ended meanwhile are the other process's
    _released.clear()
    if pipe is not None:
        try:
            for lease in list(_shared_leases):
                if lease.delivered:
                    _make_private(lease.memory)
            os.write(pipe[1], b"!")
        finally:
            os.close(pipe[0])
            os.close(pipe[1])


def _after_fork_in_parent() -> None:
    """Wait until the child has copied what it shares; where it does not, nobody uses that memory again."""
    pipe, _of_thread.pipe = _of_thread.pipe, None
    if pipe is None:
        return
    os.close(pipe[1])
    readable, _, _ = select.select([pipe[0]], [], [], COPY_S)
    copied = bool(readable and os.read(pipe[0], 1))
    os.close(pipe[0])
    if not copied:
        for lease in _delivered_leases():
            lease.retired = True
        _released.clear()
    _forks.remove(pipe[0])
    while _released and not _forks:
        pool, memory = _released.pop()
        pool._release(memory)


def _delivered_leases() -> list[_Lease]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has leased memory meanwhile
            return [lease for lease in _shared_leases if lease.delivered]


def _make_private(memory: Array) -> None:
    """Put a copy that belongs to this process alone in the place of shared memory, at the same addresses."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
    target, size = memory.__array_interface__["data"][0], ctypes.c_size_t(len(memory))
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
