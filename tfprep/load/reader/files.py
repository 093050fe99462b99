"""Bytes of records, by offset, from shard files held open, or fetched from a URL."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from tfprep.errors import DatasetError, DatasetReplacedError, RecordError
from tfprep.fields import Array
from tfprep.load.reader.fetched import Fetched
from tfprep.storage.local import FileIdentity, identity_of, regular_descriptor
from tfprep.storage.urls import is_remote

OPEN_FILES = 256
"""Shards held open at a time; the usual limit of a process is 1,024 descriptors."""


class _LocalFile:
    """A descriptor that closes when its last user lets go: a file may leave the cache while a thread reads from it."""

    def __init__(self, path: Path) -> None:
        self.fd = -1  # for `__del__`, if the next line raises
        self.fd = regular_descriptor(path)

    @cached_property
    def content(self) -> Array | None:
        """A memory map of the file, uint8 [bytes]; None where it cannot be mapped, as an empty one, or under `ulimit -v`."""
        try:
            return np.frombuffer(mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ), np.uint8)
        except (OSError, ValueError):
            return None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At the end of the interpreter the name `os` may be gone already, the argument is not.
        if self.fd >= 0:
            close(self.fd)


class Files:
    """Shard files by their number in `paths`, opened when first asked for. Safe to use from any thread.

    A file that is opened must be the one that was there when the loader was made: a build renames its shards to their places, so
    that another inode is another build's. Of one that was written to in place since then, `changed` says so: the checksums of
    each of its records are to be compared.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        identities: Sequence[FileIdentity | None],
        *,
        damaged: Callable[[int], None] | None = None,
        limit: int = OPEN_FILES,
    ) -> None:
        """`identities`: those of the files when the loader was made; None where any file will do, such as a copy of a shard.
        `damaged`: called with the number of a file that is a copy on a local disk, where a record of it is damaged."""
        self.paths, self._identities = paths, identities
        self.remote = np.array([is_remote(path) for path in paths], bool)
        self.fetched = Fetched(paths)
        self.changed = np.zeros(len(paths), bool)
        self._limit, self._damaged = limit, damaged
        self._open: OrderedDict[int, _LocalFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, number: int) -> _LocalFile:
        """The open file; the least recently used is closed where there are too many.

        Raises:
            DatasetReplacedError: Another file has taken its place.
            DatasetError: It cannot be opened.
        """
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
            file = self._open[number] = self._opened(number)
            if len(self._open) > self._limit:
                self._open.popitem(last=False)
            return file

    def _opened(self, number: int) -> _LocalFile:
        path, identity = self.paths[number], self._identities[number]
        try:
            file = _LocalFile(path)
        except DatasetError as error:
            if identity is not None and isinstance(error.__cause__, FileNotFoundError):
                raise _replaced(path, "removed") from error
            raise
        if identity is not None and (now := identity_of(os.fstat(file.fd))) != identity:
            if (now.device, now.inode) != (identity.device, identity.inode):
                raise _replaced(path, "replaced")
            self.changed[number] = True
        return file

    def will_need(self, number: int, offset: int, size: int) -> None:
        """Let the system begin to read these bytes; it does not wait for them."""
        if hasattr(os, "posix_fadvise") and not self.remote[number]:
            os.posix_fadvise(self.get(number).fd, offset, size, os.POSIX_FADV_WILLNEED)

    def arrived(self, number: int) -> None:
        """Read this file from where it lies now: on a local disk."""
        self.remote[number] = is_remote(self.paths[number])

    def recover(self, number: int) -> bool:
        """Give up the local copy of a file with a damaged record; return whether the record is worth another reading."""
        if self._damaged is None:
            return False
        with self._lock:
            if not self.remote[number]:
                self._damaged(number)  # the path is the URL again
                self.remote[number] = True
                self._open.pop(number, None)
        return True

    def close(self) -> None:
        """Close all files as soon as nobody reads from them."""
        with self._lock:
            self._open.clear()


def _replaced(path: Path, how: str) -> DatasetReplacedError:
    return DatasetReplacedError(f"{path} was {how} since the loader was made; open the dataset again")


def read_at(descriptor: int, target: Array, offset: int) -> bool:
    """Fill a uint8 array with the file's bytes from `offset` on, without the GIL; False where one `preadv` does not."""
    try:
        return os.preadv(descriptor, (target,), offset) == target.nbytes  # type: ignore[arg-type] # NumPy's stubs
    except OSError:
        return False


def read_into(file: _LocalFile, path: Path, offset: int, pieces: list[Array], wanted: int) -> None:
    """Fill the uint8 arrays, `wanted` bytes together, with the file's from `offset` on: one `preadv`, without the GIL.

    RecordError where the file ends early, or the disk fails.
    """
    got = 0
    while got < wanted:  # a signal or a network file system may give less at a time
        try:
            more = os.preadv(file.fd, _behind(pieces, got), offset + got)  # type: ignore[arg-type] # before 3.12
        except OSError as error:
            reason = f"cannot be read: {error.strerror} (errno {error.errno})"
            raise RecordError(reason, path=str(path), record=None, offset=offset) from error
        if more == 0:
            raise cut_short(path, offset, got, wanted)
        got += more


def cut_short(path: Path, offset: int, got: int, wanted: int) -> RecordError:
    return RecordError(f"cut short: the file holds {got} of {wanted} bytes", path=str(path), record=None, offset=offset)


def _behind(pieces: list[Array], skip: int) -> list[Array]:
    if not skip:
        return pieces
    rest = []
    for piece in pieces:
        if skip < piece.nbytes:
            rest.append(piece[skip:])
        skip = max(0, skip - piece.nbytes)
    return rest
