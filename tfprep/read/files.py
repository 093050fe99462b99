"""Bytes of records, by offset, from shard files held open."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

from tfprep.errors import DatasetError, RecordError
from tfprep.fields import Array

OPEN_FILES = 256
"""Shards held open at a time; the usual limit of a process is 1,024 descriptors."""


class _File:
    """A descriptor that closes when its last user lets go: a file may leave the cache while a thread reads from it."""

    def __init__(self, path: Path) -> None:
        self.fd = -1
        try:
            self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise DatasetError(f"{path} cannot be opened ({error.strerror}); is the dataset complete?") from error

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class Files:
    """Open shard files by path, the least recently used closed first. Safe to use from any thread."""

    def __init__(self, limit: int = OPEN_FILES) -> None:
        self._limit = limit
        self._open: OrderedDict[Path, _File] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path) -> _File:
        with self._lock:
            if path in self._open:
                self._open.move_to_end(path)
                return self._open[path]
            file = self._open[path] = _File(path)
            if len(self._open) > self._limit:
                self._open.popitem(last=False)
            return file

    def close(self) -> None:
        with self._lock:
            self._open.clear()


def read_into(files: Files, path: Path, offset: int, pieces: list[Array]) -> None:
    """Fill the uint8 arrays one after another with the file's bytes from `offset` on: one `preadv`, without the GIL.

    RecordError where the file ends early.
    """
    file = files.get(path)
    wanted = sum(piece.nbytes for piece in pieces)
    got = os.preadv(file.fd, pieces, offset)  # type: ignore[arg-type] # NumPy's stubs name no buffer before 3.12
    while got < wanted:  # a signal or a network file system may give less at a time
        more = os.preadv(file.fd, _behind(pieces, got), offset + got)  # type: ignore[arg-type]
        if more == 0:
            reason = f"cut short: the file holds {got} of {wanted} bytes"
            raise RecordError(reason, path=str(path), record=None, offset=offset)
        got += more


def _behind(pieces: list[Array], skip: int) -> list[Array]:
    rest = []
    for piece in pieces:
        if skip < piece.nbytes:
            rest.append(piece[skip:])
        skip = max(0, skip - piece.nbytes)
    return rest
