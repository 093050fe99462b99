"""Bytes of files by their offsets: of shard files held open, or of byte ranges fetched from URLs.

Bytes at URLs that a batch needs and that are close together in one file are fetched with one request. They are let go when the
batch is filled. What is not fetched ahead, such as a substitute of a bad record, is a request of its own.
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfprep.errors import DatasetError, RecordError
from tfprep.fields import Array
from tfprep.load.order.samplers import Numbers
from tfprep.storage.local import regular_descriptor
from tfprep.storage.store import Store, open_store
from tfprep.storage.urls import is_remote

OPEN_FILES = 256
"""Shards held open at a time, or a quarter of the descriptors that the process may have where that is less (usually 1,024)."""
GAP_BYTES = 64 << 10
"""A gap of at most this between two ranges is fetched along with them, which takes a connection of 100 MB/s less than 1 ms."""
REQUEST_BYTES = 8 << 20
"""The largest request: AWS recommends 8 to 16 MB for ranges of large objects (S3's performance guidelines)."""
REQUESTS = 64
"""Requests in flight: at 30 ms, 2,000 per second."""
REQUESTS_OF_ONE = 16
"""Requests in flight for a single batch that the caller waits for."""
_FILE_SHIFT = 44  # offsets stay below 16 TiB, S3's largest object has 48.8


class _LocalFile:
    """A descriptor that closes when its last user lets go: a file may leave the cache while a thread reads from it."""

    def __init__(self, path: Path) -> None:
        self.fd = -1  # for `__del__`, if the next line raises
        self.fd = regular_descriptor(path)

    @cached_property
    def mapping(self) -> Array | None:
        """The whole file, uint8 [N], read-only; None where it is empty, or the system does not map it."""
        with suppress(ValueError, OSError):
            return np.frombuffer(mmap.mmap(self.fd, 0, prot=mmap.PROT_READ), np.uint8)
        return None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At the end of the interpreter the name `os` may be gone already, the argument is not.
        if self.fd >= 0:
            close(self.fd)


class Files:
    """Shard files by their number in `paths`, opened when first asked for. Safe to use from any thread.

    Attributes:
        paths: The files.
        remote: Which of them are at URLs: bool [files].
        requests: The number of requests that were made.
        bytes_fetched: The bytes that these brought.
    """

    def __init__(self, paths: Sequence[Any], *, limit: int = 0) -> None:
        self.paths = paths
        self.remote = np.array([is_remote(path) for path in paths], bool)
        self.requests = self.bytes_fetched = 0
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # -1: any number
        self._limit = limit or (min(OPEN_FILES, max(1, allowed // 4)) if allowed > 0 else OPEN_FILES)
        self._open: dict[int, _LocalFile] = {}
        self._stores: dict[Any, Store] = {}
        self._versions: dict[Any, str] = {}
        self._lock = threading.Lock()

    def get(self, number: int) -> _LocalFile:
        """The open file; the one that was opened first is closed where there are too many.

        Raises:
            DatasetError: It cannot be opened.
        """
        file = self._open.get(number)
        if file is None:
            with self._lock:
                file = self._open[number] = self._open.get(number) or _LocalFile(self.paths[number])
                if len(self._open) > self._limit:
                    del self._open[next(iter(self._open))]
        return file

    def read(self, number: int, start: int, target: Array, fetched: Fetched | None = None) -> Array:
        """Return the bytes of a file from `start` that fill `target`, uint8 [N]: read into it, or fetched from a URL, now if
        they have not been.

        Raises:
            RecordError: The file ends early, or the disk fails.
            DatasetError: The file cannot be opened, or the store does not deliver.
        """
        size, got = len(target), 0
        if self.remote[number]:
            target = (fetched or Fetched(self)).read(number, start, start + size)
            got = len(target)
        else:
            file = self.get(number)
            while got < size:  # a signal or a network file system may give less at a time
                try:
                    more = os.preadv(file.fd, (target[got:],), start + got)  # type: ignore[arg-type] # NumPy's stubs
                except OSError as error:
                    reason = f"cannot be read: {error.strerror} (errno {error.errno})"
                    raise self._wrong(number, start, reason) from error
                if more == 0:
                    break
                got += more
        if got < size:
            raise self._wrong(number, start, f"cut short: the file holds {got} of {size} bytes")
        return target

    def mapping(self, number: int) -> Array | None:
        """A local file in memory, uint8 [N], read-only; None where it is empty, or the system does not map it.

        A copy from it takes two thirds of the time of `read`. A file that becomes shorter, or a disk that fails, ends the process
        (SIGBUS): only worker processes use it, whose rows another one reads again.
        """
        return None if self.remote[number] else self.get(number).mapping

    def request(self, number: int, start: int, stop: int) -> Array:
        """Read the bytes [start, stop) of a file at a URL with one request; fewer where the file ends before.

        Raises:
            DatasetError: They are of another object than the bytes that were read before.
            StorageError: The store does not deliver them.
        """
        if start == stop:  # HTTP has no range of no bytes
            return np.empty(0, np.uint8)
        path = self.paths[number]
        if path.parent not in self._stores:
            self._stores[path.parent] = open_store(path.parent)
        data, version = self._stores[path.parent].read_version(path.name, start, stop)
        content = np.frombuffer(data, np.uint8)
        with self._lock:
            if version and version != self._versions.setdefault(path, version):
                raise DatasetError(f"{path} was replaced since the loader began to read it; open the dataset again")
            self.requests, self.bytes_fetched = self.requests + 1, self.bytes_fetched + len(content)
        return content

    def needed(self, spans: ByteSpans) -> Fetched:
        """These bytes from URLs, which are still to be fetched."""
        return Fetched(self, ranges_of(spans))

    def fetch(self, spans: ByteSpans) -> Fetched:
        """Fetch these bytes from URLs, and wait for them. The errors are those of `request`."""
        fetched = self.needed(spans)
        if len(fetched.ranges) == 1:
            fetched.fetch(fetched.ranges[0])
        elif fetched.ranges:
            with ThreadPoolExecutor(min(len(fetched.ranges), REQUESTS_OF_ONE)) as pool:
                list(pool.map(fetched.fetch, fetched.ranges))
        return fetched

    def will_need(self, number: int, offset: int, size: int) -> None:
        """Let the system begin to read these bytes; it does not wait for them."""
        if hasattr(os, "posix_fadvise") and not self.remote[number]:
            file = self.get(number)  # this name keeps it open: another thread may push it out of the cache meanwhile
            os.posix_fadvise(file.fd, offset, size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close all files as soon as no thread reads from them."""
        with self._lock:
            self._open.clear()

    def _wrong(self, number: int, offset: int, reason: str) -> RecordError:
        return RecordError(reason, path=str(self.paths[number]), record=None, offset=offset)


# --- bytes at URLs ----------------------------------------------------------------------------------------------------


class ByteSpans(NamedTuple):
    """Bytes of records: for each span the row's number, the file, and the span [start, stop)."""

    row: Numbers
    file: Numbers
    start: Numbers
    stop: Numbers


class ByteRange(NamedTuple):
    """The bytes [start, stop) of a file, by its number."""

    file: int
    start: int
    stop: int


def ranges_of(spans: ByteSpans) -> list[ByteRange]:
    """Join spans that are close together in one file to ranges of about `REQUEST_BYTES` at most.

    The ranges ascend and do not overlap.
    """
    row, file, start, stop = spans
    if not len(row):
        return []
    first, last = (file << _FILE_SHIFT) + start, (file << _FILE_SHIFT) + stop
    order = np.argsort(first, kind="stable")
    row, first, last = row[order], first[order], last[order]
    ends: Numbers = np.maximum.accumulate(last)
    breaks = np.concatenate([[True], first[1:] > ends[:-1] + GAP_BYTES])
    begins = np.maximum.accumulate(np.where(breaks, first, 0))
    number = (first - begins) // REQUEST_BYTES
    breaks[1:] |= (number[1:] != number[:-1]) & (row[1:] != row[:-1]) & (first[1:] >= ends[:-1])
    at = np.flatnonzero(breaks)
    ranges = []
    for begin, end in zip(first[at].tolist(), np.maximum.reduceat(last, at).tolist(), strict=True):
        base = (begin >> _FILE_SHIFT) << _FILE_SHIFT
        ranges.append(ByteRange(begin >> _FILE_SHIFT, begin - base, end - base))
    return ranges


class Fetched:
    """What a batch needs from URLs, in byte ranges that ascend and do not overlap. Any thread may use it."""

    def __init__(self, files: Files, ranges: Sequence[ByteRange] = ()) -> None:
        self.ranges, self._files = ranges, files
        self.nbytes = sum([part.stop - part.start for part in ranges])
        self._contents: dict[ByteRange, Array] = {}
        self._lock = threading.Lock()

    def fetch(self, part: ByteRange) -> bool:
        """Fetch a range; return True if all are there then. The errors are those of `Files.request`."""
        content = self._files.request(*part)
        with self._lock:
            self._contents[part] = content
            return len(self._contents) == len(self.ranges)

    def read(self, file: int, start: int, stop: int) -> Array:
        """Return the bytes [start, stop) of a file, from the ranges or by a request; fewer where the file ends before."""
        after = bisect_right(self.ranges, (file, start, sys.maxsize))
        if after:
            part = self.ranges[after - 1]
            if part.file == file and stop <= part.stop:
                return self._contents[part][start - part.start : stop - part.start]
        return self._files.request(file, start, stop)
