"""A folder of a local disk that holds whole objects, named by their SHA-256. Several processes may use it at once.

    DIR/<sha256>.whole    an object, complete and verified
    DIR/<sha256>.part     an object on its way; it has its full size from the beginning, and its writer holds a lock on it
    DIR/<digest>.lease    names of objects that a process uses; the process holds a lock on it
    DIR/lock              held for a moment, while room is given out

An object appears under its name after its bytes were compared with its SHA-256 and synced. A `.part` without a lock was left by a
process that was killed and is removed. The limit holds for all files together. Objects that fill the folder stay; where room is
needed for others, those that no process has leased are removed, those first whose lease is oldest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tfprep.errors import StorageError
from tfprep.storage.address import Url
from tfprep.storage.local import free_bytes, locked, sync_folder, whole_file
from tfprep.storage.store import open_store

PART_BYTES = 8 << 20
"""A request's size (see `tfprep.load.reader.ahead.REQUEST_BYTES`)."""
KEPT_FREE_BYTES = 1 << 30
"""Room that is left on the disk for others, whatever the limit."""
_OURS = re.compile(r"[0-9a-f]{64}\.(whole|part)")


@dataclass(frozen=True)
class CachedObject:
    """An object that may be cached: where it is, its size, and its SHA-256 in hexadecimal."""

    url: Url
    bytes: int
    sha256: str


class LocalCache:
    """The folder, for one user of it. Safe to use from any thread."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        """`limit` is in bytes; None for what the disk has left, but for `KEPT_FREE_BYTES`.

        Raises:
            StorageError: The folder cannot be written to.
        """
        self.folder, self.limit = folder, limit
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "lock").touch()
        self._lease = -1

    def find(self, item: CachedObject) -> Path | None:
        """Return where the object is; None where it is not cached."""
        path = self.folder / f"{item.sha256}.whole"
        try:
            return path if path.stat().st_size == item.bytes else None
        except FileNotFoundError:
            return None

    def lease(self, items: Sequence[CachedObject]) -> None:
        """Keep these objects from being removed while this process runs, or until `close`."""
        names = "\n".join(sorted({item.sha256 for item in items}))
        path = self.folder / f"{hashlib.sha256(names.encode()).hexdigest()}.lease"
        with locked(self.folder / "lock"):
            if not path.exists():
                with whole_file(path) as file:
                    file.write(names.encode())
            os.utime(path)
            self._lease = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lease, fcntl.LOCK_SH)

    def close(self) -> None:
        """Give the lease up. What is cached stays."""
        if self._lease >= 0:
            os.close(self._lease)
            self._lease = -1

    def fetch(self, item: CachedObject, stopped: Callable[[], bool] = lambda: False) -> Path | None:
        """Fetch an object, unless it is there, another process fetches it, or there is no room; return where it is then.

        Args:
            item: The object.
            stopped: Asked before each request; the object is given up where it returns True.

        Raises:
            StorageError: The store does not deliver it, or delivers other bytes than its SHA-256 says, or the disk fails.
        """
        path = self.folder / f"{item.sha256}.part"
        with locked(self.folder / "lock"):
            if (whole := self.find(item)) is not None:
                return whole
            if not self._make_room(item.bytes, path):
                return None
            with _writing(path):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free: `_make_room` looked
                os.ftruncate(descriptor, item.bytes)
        whole = None
        try:
            if self._download(item, descriptor, stopped):
                whole = self._publish(path)
        finally:
            if whole is None:  # Once it is renamed, a file of this name belongs to the next fetch.
                path.unlink(missing_ok=True)
            os.close(descriptor)
        return whole

    def drop(self, path: Path) -> None:
        """Remove a cached object that turned out to be damaged."""
        if _OURS.fullmatch(path.name) and path.parent == self.folder:
            path.unlink(missing_ok=True)

    @property
    def room_bytes(self) -> int:
        """Bytes that there is room for, with what nobody leases removed."""
        return max(0, -self._missing(0) + sum(path.stat().st_size for path in self._unleased()))

    @property
    def used_bytes(self) -> int:
        """The bytes of all objects in the folder, those on their way with their full size."""
        return sum(size for _, size in self._objects())

    def _objects(self) -> Iterator[tuple[Path, int]]:
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    yield path, path.stat().st_size

    def _make_room(self, nbytes: int, part: Path) -> bool:
        """Remove what killed processes left, and what nobody leases if it must be; return whether there is room then."""
        for path, _ in list(self._objects()):
            if path.suffix == ".part" and not _is_locked(path):
                path.unlink(missing_ok=True)
        if part.exists():  # another process fetches it
            return False
        missing = self._missing(nbytes)
        if missing > 0:
            for path in self._unleased():
                missing -= path.stat().st_size
                path.unlink()
                if missing <= 0:
                    break
        return self._missing(nbytes) <= 0

    def _missing(self, nbytes: int) -> int:
        """Return how many bytes too many there are with `nbytes` more."""
        beyond_disk = nbytes + KEPT_FREE_BYTES - free_bytes(self.folder)
        return beyond_disk if self.limit is None else max(beyond_disk, self.used_bytes + nbytes - self.limit)

    def _unleased(self) -> list[Path]:
        """Objects that no process has leased, those first whose lease is oldest."""
        age: dict[str, float] = {}
        for lease in self.folder.glob("*.lease"):
            with contextlib.suppress(FileNotFoundError):
                since = float("inf") if _is_locked(lease) else lease.stat().st_mtime
                for name in lease.read_text().split():
                    age[name] = max(age.get(name, 0.0), since)
        whole = [path for path, _ in self._objects() if path.suffix == ".whole"]
        free = [path for path in whole if age.get(path.stem, 0.0) != float("inf")]
        return sorted(free, key=lambda path: age.get(path.stem, 0.0))

    def _download(self, item: CachedObject, descriptor: int, stopped: Callable[[], bool]) -> bool:
        store, digest, position = open_store(item.url.parent), hashlib.sha256(), 0
        while position < item.bytes:
            if stopped():
                return False
            content = store.read(item.url.name, position, min(position + PART_BYTES, item.bytes))
            if not len(content):
                break
            digest.update(content)
            with _writing(self.folder / f"{item.sha256}.part"):
                while len(content):
                    written = os.pwrite(descriptor, content, position)
                    content, position = content[written:], position + written
        if digest.hexdigest() != item.sha256:
            raise StorageError(f"{item.url}: its SHA-256 is not that of the build; it is read by range and not cached")
        return True

    def _publish(self, part: Path) -> Path:
        whole = part.with_suffix(".whole")
        with _writing(whole):
            descriptor = os.open(part, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with locked(self.folder / "lock"):  # Who looks for both files under the lock sees exactly one of them.
                part.rename(whole)
        sync_folder(self.folder)
        return whole


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"the local cache cannot write {path}: {error.strerror or error}") from error


def _is_locked(path: Path) -> bool:
    """Return True if a process, also this one, holds a lock on the file, or it has just been renamed or removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
