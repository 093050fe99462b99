"""Shards of a dataset at a URL in a cache on a local disk.

Shards are fetched one after another until the limit is reached, and stay: a *fixed* set. An order that visits every record once
per epoch finds a share p of its records in a fixed set of share p, where a set that always keeps what was read last would hold
little of what comes next. Other shards are read from the store, so that the order of the run is the same whatever the cache
holds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.dataset import FileInfo
from tfprep.errors import LoaderError, StorageError
from tfprep.load.budget import parse_bytes
from tfprep.load.order.permutation import Numbers
from tfprep.load.threads import Threads, ThreadState
from tfprep.storage.cache import CachedObject, LocalCache
from tfprep.storage.urls import is_remote

FETCHING_THREADS = 4
"""Shards on their way at a time: a connection to S3 brings some 80 MB/s."""
_MOST_ERRORS = 10
LOOK_S = 5.0
"""Time between two looks for shards that other processes fetch, or for which there was no room."""


class LocalShards:
    """The shards of one loader. `paths[number]` is where shard `number` is now: at its URL, or in the cache."""

    def __init__(self, cache: LocalCache, items: Sequence[CachedObject], paths: list[Any]) -> None:
        """`paths` are changed as shards arrive."""
        self._cache, self._items, self.paths = cache, items, paths
        self._threads = Threads("tfprep-cache")
        self._ended = threading.Event()
        self._errors: list[str] = []
        self._on_local: Callable[[int], None] = lambda number: None
        cache.lease(items)
        self._look()

    def start(self, on_local: Callable[[int], None]) -> None:
        """Begin to fetch the shards; a second call does nothing.

        `on_local` is called with the number of each shard that has arrived, from any thread.
        """
        if self._threads.threads or self._ended.is_set():
            return
        self._on_local = on_local
        self._threads.grow(FETCHING_THREADS)
        for number in range(len(self._items)):
            self._threads.submit(partial(self._fetch, number))
        self._threads.submit(self._wait_for_others)

    def damaged(self, number: int) -> None:
        """Remove a shard with a record that cannot be read, and read it from the store from now on."""
        path = self.paths[number]
        if isinstance(path, Path):
            self._cache.drop(path)  # before `_look` could find it again
            self._note(f"{path.name}: a record was damaged; the copy of {self._items[number].url} was removed")
        self.paths[number] = self._items[number].url

    def stop(self) -> None:
        """Fetch nothing more."""
        self._ended.set()

    def close(self) -> None:
        """Stop fetching; what has arrived stays in the cache."""
        self.stop()
        self._threads.stop()
        self._threads.join()  # a thread that waits for an answer ends by itself when it comes
        self._cache.close()

    def report(self, records: Numbers) -> dict[str, Any]:
        """Return what the cache holds and will hold; `records` is the number of records that are read of each shard."""
        local = np.array([isinstance(path, Path) for path in self.paths])
        sizes = np.array([item.bytes for item in self._items])
        expected, room = local.copy(), self._cache.room_bytes
        for number in np.flatnonzero(~local).tolist():
            if sizes[number] <= room:
                expected[number] = True
                room -= sizes[number]
        total = max(records.sum(), 1)
        return {
            "folder": str(self._cache.folder),
            "limit_bytes": self._cache.limit,
            "used_bytes": self._cache.used_bytes,
            "shards": int(local.sum()),
            "of": len(self._items),
            "bytes": int(sizes[local].sum()),
            "bytes_to_fetch": int(sizes[expected & ~local].sum()),
            "hits": float(records[local].sum() / total),
            "predicted_hits": float(records[expected].sum() / total),
            "errors": list(self._errors),
        }

    def _fetch(self, number: int, state: ThreadState) -> None:
        if self._ended.is_set():
            return
        try:
            path = self._cache.fetch(self._items[number], self._ended.is_set)
        except StorageError as error:
            self._note(str(error))
        else:
            self._arrived(number, path)

    def _wait_for_others(self, state: ThreadState) -> None:
        """Look for shards that other processes fetch, or for which there was no room."""
        while not all(isinstance(path, Path) for path in self.paths) and not self._ended.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        for number, item in enumerate(self._items):
            if not isinstance(self.paths[number], Path):
                self._arrived(number, self._cache.find(item))

    def _arrived(self, number: int, path: Path | None) -> None:
        if path is not None and not isinstance(self.paths[number], Path):
            self.paths[number] = path
            self._on_local(number)

    def _note(self, error: str) -> None:
        if len(self._errors) < _MOST_ERRORS:
            self._errors.append(error)


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
        LoaderError: They are in a folder, or nobody knows their SHA-256.
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
