"""Shards of a dataset at a URL in a cache on a local disk: which ones, in which order, and what becomes of it.

Shards are fetched in the order in which the run needs them first, until the limit is reached, and stay: a *fixed* set. An order
that visits every record once an epoch finds a share p of its records in a fixed set of share p, where a set that always keeps
what was read last would hold little of what comes next. What is not there, or not yet, is read from the store, so that the
order of the run is the same whatever the cache holds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from tfprep.dataset import FileInfo
from tfprep.errors import LoaderError, StorageError
from tfprep.load.budget import parse_bytes
from tfprep.load.order.schedule import Numbers
from tfprep.storage.cache import CachedObject, LocalCache
from tfprep.storage.urls import is_remote

FETCHING_THREADS = 4
"""Shards on their way at a time: a connection to S3 brings some 80 MB/s."""
FIRST_POSITIONS = 1 << 16
"""Positions of the run in which shards are ranked by their first use; shards that come later follow in the order on disk."""
_MOST_ERRORS = 10
LOOK_S = 5.0
"""Time between two looks for shards that other processes fetch, or for which there was no room."""


class LocalShards:
    """The shards of one loader. `paths[number]` is where shard `number` lies now: at its URL, or in the cache."""

    def __init__(self, cache: LocalCache, items: Sequence[CachedObject], paths: list[Any]) -> None:
        """`paths` are changed as shards arrive."""
        self._cache, self._items, self.paths = cache, items, paths
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[int] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._errors: list[str] = []
        self._on_local: Callable[[int], None] = lambda number: None
        cache.lease(items)
        self.refresh(range(len(items)))

    def refresh(self, numbers: Sequence[int]) -> None:
        """Look which of these shards are in the cache: other processes fetch too."""
        for number in numbers:
            if (path := self._cache.find(self._items[number])) is not None:
                self._arrived(number, path)

    def start(self, order: Sequence[int], on_local: Callable[[int], None]) -> None:
        """Begin to fetch the shards, in this order.

        Args:
            order: Numbers of shards.
            on_local: Called with the number of each shard that has arrived, from any thread.
        """
        with self._lock:
            if self._threads or self._ended.is_set():
                return
            self._on_local = on_local
            for number in order:
                self._waiting.put(number)
            for number in range(FETCHING_THREADS):
                thread = threading.Thread(target=self._fetch_all, name=f"tfprep-cache-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def damaged(self, number: int) -> None:
        """Remove a shard with a record that cannot be read, and read it from the store from now on."""
        path = self.paths[number]
        self.paths[number] = self._items[number].url
        if isinstance(path, Path):
            self._cache.drop(path)
            self._note(f"{path.name}: a record was damaged; the copy of {self._items[number].url} was removed")

    def stop(self) -> None:
        """Fetch nothing more."""
        self._ended.set()

    def close(self) -> None:
        """Stop fetching; what has arrived stays in the cache."""
        self.stop()
        for thread in self._threads:
            thread.join(timeout=1.0)  # one that waits for an answer ends by itself when it comes
        self._cache.close()

    @property
    def local(self) -> Numbers:
        """1 for each shard that is in the cache, else 0."""
        return np.array([isinstance(path, Path) for path in self.paths], np.int64)

    def expected(self, order: Sequence[int]) -> list[int]:
        """The shards that the cache will hold: those that it holds, and those that there is room for, in this order."""
        cached = np.flatnonzero(self.local).tolist()
        room = self._cache.room_bytes
        fetched = []
        for number in order:
            size = self._items[number].bytes
            if number not in cached and size <= room:
                fetched.append(number)
                room -= size
        return cached + fetched

    def report(self, order: Sequence[int], records: Numbers) -> dict[str, Any]:
        """Return what the cache holds and will hold; `records` is the number of records that are read of each shard."""
        expected, local = self.expected(order), self.local
        sizes = np.array([item.bytes for item in self._items])
        return {
            "folder": str(self._cache.folder),
            "limit_bytes": self._cache.limit,
            "used_bytes": self._cache.used_bytes,
            "shards": int(local.sum()),
            "of": len(self._items),
            "bytes": int((sizes * local).sum()),
            "bytes_to_fetch": int(sizes[expected].sum() - (sizes * local).sum()),
            "hits": float((records * local).sum() / max(records.sum(), 1)),
            "predicted_hits": float(records[expected].sum() / max(records.sum(), 1)),
            "errors": list(self._errors),
        }

    def _fetch_all(self) -> None:
        elsewhere = []
        while not self._ended.is_set():
            try:
                number = self._waiting.get_nowait()
            except Empty:
                break
            try:
                path = self._cache.fetch(self._items[number], self._ended.is_set)
            except StorageError as error:
                self._note(str(error))
                continue
            if path is not None:
                self._arrived(number, path)
            else:
                elsewhere.append(number)
        while elsewhere and not self._ended.wait(LOOK_S):
            self.refresh(elsewhere)
            elsewhere = [number for number in elsewhere if not isinstance(self.paths[number], Path)]

    def _arrived(self, number: int, path: Path) -> None:
        if not isinstance(self.paths[number], Path):
            self.paths[number] = path
            self._on_local(number)

    def _note(self, error: str) -> None:
        if len(self._errors) < _MOST_ERRORS:
            self._errors.append(error)


def first_needed(files: Numbers, shards: int) -> list[int]:
    """The numbers of all shards, in the order in which they occur first in `files`; those that do not occur come last."""
    numbers, first = np.unique(files, return_index=True)
    order: list[int] = numbers[np.argsort(first, kind="stable")].tolist()
    return order + sorted(set(range(shards)) - set(order))


def local_shards(
    folder: str | os.PathLike[str],
    limit: int | str | None,
    urls: Sequence[Any],
    infos: Sequence[FileInfo],
    *,
    imported: bool,
) -> LocalShards:
    """The shards at these URLs in the folder `local`, of at most `limit` bytes. `imported`: nobody knows their SHA-256.

    Raises:
        LoaderError: They lie in a folder, or nobody knows their SHA-256.
    """
    here = [path for path in urls if not is_remote(path)]
    if here:
        raise LoaderError(
            f"local= keeps shards of datasets at URLs; {here[0].parent} is a folder, which is read as it is"
        )
    if imported:
        rule = "local= compares shards with their SHA-256, which an index of other tools' TFRecords does not hold"
        raise LoaderError(f"{rule}; build a dataset with tfprep, or copy the shards to this machine")
    cache = LocalCache(Path(folder), None if limit is None else parse_bytes(limit, "local_limit"))
    items = [CachedObject(url, info.bytes, info.sha256) for url, info in zip(urls, infos, strict=True)]
    return LocalShards(cache, items, list(urls))
