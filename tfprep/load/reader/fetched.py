"""Byte ranges of files at URLs: each is fetched once, by the first thread that needs it, and kept until it is removed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfprep.errors import DatasetError, DatasetReplacedError, StorageError
from tfprep.fields import Array
from tfprep.load.order.schedule import Numbers
from tfprep.storage.store import Store, open_store


@dataclass(eq=False)
class ByteRange:
    """A byte range [start, stop) of a file, fetched with one request, for `records`, whose frames begin at `frames`."""

    file: int
    start: int
    stop: int
    last_step: int
    records: Numbers
    frames: tuple[int, ...]
    content: Array | None = None
    error: DatasetError | None = None
    claim: threading.Lock = field(default_factory=threading.Lock)
    ready: threading.Event = field(default_factory=threading.Event)

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class Fetched:
    """The byte ranges of all readers of a loader, by record. It makes the requests and counts them. Any thread may use it."""

    def __init__(self, paths: Sequence[Any]) -> None:
        self._paths = paths
        self._stores: dict[Any, Store] = {}
        self._ranges: dict[tuple[int, int], tuple[ByteRange, ...]] = {}
        self._versions: dict[Any, str] = {}
        self._lock = threading.Lock()
        self.requests, self.bytes = 0, 0

    def add(self, ranges: Sequence[ByteRange]) -> None:
        with self._lock:
            for part in ranges:
                for frame in part.frames:
                    self._ranges[part.file, frame] = (*self._ranges.get((part.file, frame), ()), part)

    def remove(self, ranges: Sequence[ByteRange]) -> None:
        with self._lock:
            for part in ranges:
                for frame in part.frames:
                    others = tuple(other for other in self._ranges.get((part.file, frame), ()) if other is not part)
                    if others:
                        self._ranges[part.file, frame] = others
                    else:
                        self._ranges.pop((part.file, frame), None)

    def read(self, file: int, frame: int, start: int, stop: int) -> Array:
        """Return the bytes [start, stop) of a record, fetched ahead or now; fewer where the file ends before.

        Raises:
            StorageError: The store does not deliver them.
        """
        if start == stop:
            return np.empty(0, np.uint8)
        for part in self._ranges.get((file, frame), ()):
            if part.start <= start and stop <= part.stop:
                content = self.content(part)
                return content[start - part.start : stop - part.start]
        return self.request(file, start, stop)

    def content(self, part: ByteRange) -> Array:
        """Return the bytes of a range: fetch them, or wait for the thread that does."""
        if not self.fetch(part):
            part.ready.wait()
        if part.content is None:
            assert part.error is not None
            raise type(part.error)(str(part.error))  # a new one: many threads may raise it
        return part.content

    def fetch(self, part: ByteRange) -> bool:
        """Fetch a range, unless another thread has begun to; return whether this thread did."""
        if not part.claim.acquire(blocking=False):
            return False
        try:
            part.content = self.request(part.file, part.start, part.stop)
        except (StorageError, DatasetReplacedError) as error:
            part.error = error
        except BaseException as error:
            part.error = StorageError(f"{self._paths[part.file]} cannot be read ({type(error).__name__}: {error})")
            raise
        finally:
            part.ready.set()
        return True

    def request(self, file: int, start: int, stop: int) -> Array:
        """Read bytes of a file with one request.

        Raises:
            DatasetReplacedError: They are of another object than the bytes that were read before.
            StorageError: The store does not deliver them.
        """
        path = self._paths[file]
        data, version = self._store(path).read_version(path.name, start, stop)
        content = np.frombuffer(data, np.uint8)
        with self._lock:
            if version and version != self._versions.setdefault(path, version):
                raise DatasetReplacedError(
                    f"{path} was replaced since the loader began to read it; open the dataset again"
                )
            self.requests, self.bytes = self.requests + 1, self.bytes + len(content)
        return content

    def _store(self, path: Any) -> Store:
        folder = path.parent
        if folder not in self._stores:
            self._stores[folder] = open_store(folder)
        return self._stores[folder]
