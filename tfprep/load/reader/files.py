"""Bytes of files by their offsets: of shard files held open, or of byte ranges fetched from a URL."""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfprep.errors import DatasetError, RecordError
from tfprep.fields import Array
from tfprep.storage.local import regular_descriptor
from tfprep.storage.store import Store, open_store
from tfprep.storage.urls import is_remote


class ByteRange(NamedTuple):
    """The bytes [start, stop) of a file, by its number."""

    file: int
    start: int
    stop: int


class RemoteFiles:
    """The files at URLs. It makes the requests and counts them. Any thread may use it."""

    def __init__(self, paths: Sequence[Any]) -> None:
        self._paths = paths
        self._stores: dict[Any, Store] = {}
        self._versions: dict[Any, str] = {}
        self._lock = threading.Lock()
        self.requests, self.bytes = 0, 0

    def request(self, file: int, start: int, stop: int) -> Array:
        """Read bytes of a file with one request; fewer where the file ends before.

        Raises:
            DatasetError: They are of another object than the bytes that were read before.
            StorageError: The store does not deliver them.
        """
        if start == stop:  # HTTP has no range of no bytes
            return np.empty(0, np.uint8)
        path = self._paths[file]
        if path.parent not in self._stores:
            self._stores[path.parent] = open_store(path.parent)
        data, version = self._stores[path.parent].read_version(path.name, start, stop)
        content = np.frombuffer(data, np.uint8)
        with self._lock:
            if version and version != self._versions.setdefault(path, version):
                raise DatasetError(f"{path} was replaced since the loader began to read it; open the dataset again")
            self.requests, self.bytes = self.requests + 1, self.bytes + len(content)
        return content


class Fetched:
    """What a batch needs from URLs, in byte ranges. Any thread may use it."""

    def __init__(self, remote: RemoteFiles, ranges: Sequence[ByteRange] = ()) -> None:
        """`ranges` ascend and do not overlap."""
        self._remote, self._ranges = remote, ranges
        self._contents: dict[ByteRange, Array] = {}

    def fetch(self, part: ByteRange) -> None:
        """Fetch a range. The errors are those of `RemoteFiles.request`."""
        self._contents[part] = self._remote.request(*part)

    def read(self, file: int, start: int, stop: int) -> Array:
        """Return the bytes [start, stop) of a file, from the ranges or by a request; fewer where the file ends before."""
        after = bisect_right(self._ranges, (file, start, sys.maxsize))
        if after:
            part = self._ranges[after - 1]
            if part.file == file and stop <= part.stop:
                return self._contents[part][start - part.start : stop - part.start]
        return self._remote.request(file, start, stop)


OPEN_FILES = 256
"""Shards held open at a time; the usual limit of a process is 1,024 descriptors."""


class _LocalFile:
    """A descriptor that closes when its last user lets go: a file may leave the cache while a thread reads from it."""

    def __init__(self, path: Path) -> None:
        self.fd = -1  # for `__del__`, if the next line raises
        self.fd = regular_descriptor(path)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At the end of the interpreter the name `os` may be gone already, the argument is not.
        if self.fd >= 0:
            close(self.fd)


class Files:
    """Shard files by their number in `paths`, opened when first asked for. Safe to use from any thread."""

    def __init__(self, paths: Sequence[Path], *, limit: int = OPEN_FILES) -> None:
        self.paths = paths
        self.remote = np.array([is_remote(path) for path in paths], bool)
        self.store = RemoteFiles(paths)
        self._limit = limit
        self._open: dict[int, _LocalFile] = {}
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
        """Return the bytes of a file from `start` that fill `target`: read into it, or those that were fetched.

        Args:
            number: The number of the file.
            start: Place of the bytes in the file.
            target: uint8 [N].
            fetched: What was fetched from URLs; None to request the bytes now.

        Raises:
            RecordError: The file ends early, or the disk fails.
            DatasetError: The file cannot be opened, or the store does not deliver.
        """
        size, got = len(target), 0
        if self.remote[number]:
            target = (fetched or Fetched(self.store)).read(number, start, start + size)
            got = len(target)
        else:
            file = self.get(number)
            while got < size:  # a signal or a network file system may give less at a time
                try:
                    more = os.preadv(file.fd, (target[got:],), start + got)  # type: ignore[arg-type] # NumPy's stubs
                except OSError as error:
                    reason = f"cannot be read: {error.strerror} (errno {error.errno})"
                    raise _wrong(self.paths[number], start, reason) from error
                if more == 0:
                    break
                got += more
        if got < size:
            raise _wrong(self.paths[number], start, f"cut short: the file holds {got} of {size} bytes")
        return target

    def will_need(self, number: int, offset: int, size: int) -> None:
        """Let the system begin to read these bytes; it does not wait for them."""
        if hasattr(os, "posix_fadvise") and not self.remote[number]:
            file = self.get(number)  # this name keeps it open: another thread may push it out of the cache meanwhile
            os.posix_fadvise(file.fd, offset, size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close all files as soon as no thread reads from them."""
        with self._lock:
            self._open.clear()


def _wrong(path: Path, offset: int, reason: str) -> RecordError:
    return RecordError(reason, path=str(path), record=None, offset=offset)
