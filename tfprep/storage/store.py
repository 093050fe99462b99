"""One interface for local folders and object stores: list, read ranges, write whole, replace only if unchanged, delete.

`open_store` returns the store of a folder or URL. Names are relative to it, with `/` between their parts. An object appears whole
under its name or not at all, so a reader never sees half of one.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from tfprep.errors import DatasetError, ObjectChangedError, StorageError
from tfprep.storage.address import ObjectInfo, Url, parse_url
from tfprep.storage.local import locked, open_regular, sync_folder, whole_file, writing
from tfprep.storage.objects import ObjectStore

Content: TypeAlias = bytes | Path
"""What is written: bytes, or a local file."""


class Store(Protocol):
    """The objects of one folder or URL. Safe to use from any thread."""

    def list(self, folder: str = "", *, recursive: bool = True) -> list[ObjectInfo]:
        """Return the objects below a folder, sorted by name.

        Args:
            folder: The folder's name; "" for the store's own.
            recursive: Whether objects in folders of the folder are listed too.

        Raises:
            StorageError: The store cannot be reached, refuses, or cannot list. A folder that does not exist is an empty list.
        """

    def info(self, name: str) -> ObjectInfo:
        """Return an object's size and version.

        Raises:
            StorageError: The object is missing (its cause is a FileNotFoundError), or the store refuses.
        """

    def read(self, name: str, start: int = 0, stop: int | None = None) -> memoryview:
        """Return the bytes [start, stop) of an object (None: to its end); fewer where the object ends before.

        Raises:
            StorageError: As for `info`.
        """

    def read_version(self, name: str, start: int, stop: int) -> tuple[memoryview, str]:
        """Return what `read` returns, and the version of the object that it is from; "" where servers do not say it reliably.

        Raises:
            StorageError: As for `info`.
        """

    def read_whole(self, name: str, check: Callable[[int], None]) -> memoryview:
        """Return an object whole, with one request. `check` gets its size before its bytes are fetched; what it raises goes on.

        Raises:
            StorageError: As for `info`.
        """

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """Return the bytes of several ranges [start, stop) of one object. Ranges that lie close together are one request.

        Raises:
            StorageError: As for `info`, or an object ends before a range does.
        """

    def write(self, name: str, content: Content) -> str:
        """Write an object whole, in place of one of that name, and return its version.

        Raises:
            StorageError: The store cannot be reached or refuses; nothing was written.
            BuildError: A local disk is full or read-only.
        """

    def replace(self, name: str, content: bytes, version: str | None) -> str:
        """Write an object only if it is still of this version (None: only if there is none), and return the new version.

        Raises:
            ObjectChangedError: There is another version, or there is one at all.
            StorageError, BuildError: As for `write`.
        """

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; names that do not exist are passed over.

        Raises:
            StorageError: The store cannot be reached or refuses.
        """


def open_store(place: str | Path | Url) -> Store:
    """Return the store of a local folder or of a URL. Nothing is requested yet.

    Raises:
        DatasetError: The URL is not one that can be read.
        MissingDependencyError: The package for object stores is not installed.
    """
    if isinstance(place, str) and "://" in place and not place.startswith("file://"):
        place = parse_url(place)
    if isinstance(place, Url):
        return ObjectStore(place)
    return FolderStore(Path(str(place).removeprefix("file://")))


def find_object(store: Store, name: str) -> ObjectInfo | None:
    """Return an object's size and version; None where there is none. Raises StorageError if the store refuses."""
    try:
        return store.info(name)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


# --- a local folder ----------------------------------------------------------------------------------------------------

_COPY_BYTES = 1 << 20


class FolderStore:
    """The files of a folder and of its folders. Links and special files are not listed, and files that lead out are not read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list(self, folder: str = "", *, recursive: bool = True) -> list[ObjectInfo]:
        top = self._folder / folder
        names = (path for path in (top.rglob("*") if recursive else top.glob("*")) if not path.name.startswith("."))
        files = [path for path in names if path.is_file() and not path.is_symlink()]
        return sorted((self._info(path) for path in files), key=lambda info: info.name)

    def info(self, name: str) -> ObjectInfo:
        with self._open(name):
            return self._info(self._folder / name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> memoryview:
        with self._open(name) as file:
            file.seek(start)
            return memoryview(file.read() if stop is None else file.read(stop - start))

    def read_version(self, name: str, start: int, stop: int) -> tuple[memoryview, str]:
        with self._open(name) as file:
            file.seek(start)
            return memoryview(file.read(stop - start)), self._info(self._folder / name).version

    def read_whole(self, name: str, check: Callable[[int], None]) -> memoryview:
        with self._open(name) as file:
            check(os.fstat(file.fileno()).st_size)
            return memoryview(file.read())

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        pieces = [self.read(name, start, stop) for start, stop in ranges]
        for piece, (start, stop) in zip(pieces, ranges, strict=True):
            if len(piece) < stop - start:
                raise StorageError(f"{self._folder / name} ends at byte {start + len(piece)}, before byte {stop}")
        return pieces

    def write(self, name: str, content: bytes | Path) -> str:
        path = self._folder / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with (
            io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source,
            whole_file(path) as file,
        ):
            shutil.copyfileobj(source, file, _COPY_BYTES)
        sync_folder(path.parent)
        return self._info(path).version

    def replace(self, name: str, content: bytes, version: str | None) -> str:
        path = self._folder / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):  # so that the comparison and the writing after it are one step
            current = self._info(path).version if path.is_file() else None
            if current != version:
                raise ObjectChangedError(f"{path} was written by another process in the meantime")
            return self.write(name, content)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with writing(self._folder / name):
                (self._folder / name).unlink(missing_ok=True)

    def _info(self, path: Path) -> ObjectInfo:
        status = path.stat()
        version = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
        return ObjectInfo(path.relative_to(self._folder).as_posix(), status.st_size, version)

    @contextmanager
    def _open(self, name: str) -> Iterator[BinaryIO]:
        try:
            with open_regular(self._folder / name) as file:
                yield file
        except StorageError:
            raise
        except DatasetError as error:
            raise StorageError(str(error)) from error.__cause__
