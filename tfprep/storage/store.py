"""One interface for local folders and object stores: list, read ranges, write whole, replace only if unchanged, delete.

`open_store` returns the store of a folder or URL. Names are relative to it, with `/` between their parts. An object appears whole
under its name or not at all, so a reader never sees half of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from tfprep.storage.address import ObjectInfo, Url, parse_url
from tfprep.storage.folder import FolderStore
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
