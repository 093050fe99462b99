"""Memory that worker processes write and this process reads: an anonymous file (`memfd_create`), so no limit of /dev/shm applies.

The file is sparse: its size is a range of addresses, and a page takes memory from when it is first written until it is freed.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import Array

SEGMENT_BYTES = 1 << 36
"""Bytes that are mapped at a time, 64 GiB of addresses. Each mapping takes one file descriptor."""
LEAST_SEGMENT_BYTES = 1 << 28
"""Where the system allows no larger mapping (`ulimit -v`)."""


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
        """Where an array that lies in this memory begins, in bytes from the beginning of the file."""
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
