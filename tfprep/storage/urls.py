"""Files of datasets, in folders of this machine and at URLs such as `gs://bucket/photos` or `s3://...`."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from tfprep.errors import DatasetError, StorageError
from tfprep.storage.address import Url, parse_url
from tfprep.storage.local import regular_descriptor, sync_folder, whole_file
from tfprep.storage.store import Store, open_store

PathOrUrl: TypeAlias = "str | os.PathLike[str]"
BUFFER_BYTES = 4 << 20
"""Bytes that a file at a URL is read by: a request of 4 MB takes no longer than two of 1 MB."""


def folder_at(path: PathOrUrl) -> Path:
    """Return a path as a `Path`, and a URL as a `Url`, which has those methods of a `Path` that datasets use.

    Raises:
        MissingDependencyError: The package for object stores is not installed.
        DatasetError: The URL's scheme is unknown, or it carries credentials; or the path is empty.
    """
    if is_remote(path):
        return path  # type: ignore[return-value] # a `Url` already
    text = os.fspath(path)
    if not text:  # a variable of the shell that is not set
        raise DatasetError("a path is empty; the current folder is '.'")
    if "://" not in text:
        return Path(os.path.expanduser(text))  # `Path.expanduser` raises for a user that is unknown, or has no home
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    url: Any = parse_url(text)
    open_store(url)  # the package for it is looked for here
    return url  # type: ignore[no-any-return]


def open_file(path: Path) -> io.BufferedReader:
    """Open a file of a dataset for reading, local or at a URL.

    Raises:
        DatasetError: It is missing, cannot be opened, or is not a regular file of its own folder.
    """
    if not is_remote(path):
        return os.fdopen(regular_descriptor(path), "rb")
    raw: Any = _ObjectFile(path)
    file = io.BufferedReader(raw, BUFFER_BYTES)
    file.peek(1)  # a missing object is an error now, as for a local file
    return file


def read_file(path: Path, most: int) -> bytes:
    """Return the first bytes of a file of a dataset, at most this number.

    Raises:
        DatasetError: It cannot be read; the rest is as for `open_file`.
    """
    try:
        with open_file(path) as file:
            return file.read(most)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror or error})") from error


def read_content(path: Path, stop: int | None = None) -> bytes:
    """Return the content of a file, local or at a URL; with `stop` at most its first bytes, up to this number.

    Raises:
        FileNotFoundError: There is none.
        OSError, StorageError: It cannot be read.
    """
    if not is_remote(path):
        # A FIFO, which would wait for a writer, is empty.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return file.read(stop) or b""
    try:
        return bytes(open_store(path.parent).read(path.name, 0, stop))
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise FileNotFoundError(str(path)) from error
        raise


def size_of(path: Path) -> int | None:
    """Return the size of a file, local or at a URL; None where there is none."""
    try:
        return file_size(path)
    except DatasetError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def names_in(folder: Path) -> set[str]:
    """Return the names of the files in a folder, local or at a URL."""
    if is_remote(folder):
        return {info.name for info in open_store(folder).list(recursive=False)}
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove files of a folder, local or at a URL, if they exist."""
    check_no_link(folder)
    if not is_remote(folder):
        for name in names:
            (folder / name).unlink(missing_ok=True)
    elif keys := list(names):
        open_store(folder).delete(keys)


def remove_file(path: Path) -> None:
    """Remove a file, local or at a URL, if it exists."""
    remove_files(path.parent, [path.name])


def durable_write(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """Write a file so that it is there whole or not at all, also after a power failure. Every command writes with it.

    Args:
        path: A local path, or a URL.
        content: Text, in which lone surrogates become the bytes that they stand for, or bytes.
        sync: False leaves it to the caller to sync the folder, without which the name is not durable.

    Raises:
        BuildError: The disk refuses.
        StorageError: The store refuses.
    """
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    if is_remote(path):
        open_store(path.parent).write(path.name, data)
        return
    with whole_file(path) as file:
        file.write(data)
    if sync:
        sync_folder(path.parent)


class _ObjectFile(io.RawIOBase):
    """An object as a file: each reading is a request, and the first short one shows where it ends."""

    def __init__(self, url: Any) -> None:
        self._store: Store = open_store(url.parent)
        self._name, self._position, self._size = url.name, 0, -1

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        stop = self._position + len(target)
        if 0 <= self._size <= self._position:
            return 0
        content = self._store.read(self._name, self._position, stop if self._size < 0 else min(stop, self._size))
        target[: len(content)] = content
        self._position += len(content)
        if self._position < stop:
            self._size = self._position
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END and self._size < 0:
            self._size = self._store.info(self._name).bytes
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position


def file_size(path: Path) -> int:
    """Return the size of a file, local or at a URL; DatasetError where it is missing."""
    if is_remote(path):
        return open_store(path.parent).info(path.name).bytes
    try:
        return path.stat().st_size
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error


def listed_sizes(folder: Any) -> dict[str, int]:
    """Return the sizes of the files in a folder at a URL, by name, as far as its store lists them.

    A web server is not asked: a listing is a request of WebDAV, which few of them answer.
    """
    if folder.scheme in ("http", "https"):
        return {}
    try:
        return {info.name: info.bytes for info in open_store(folder).list(recursive=False)}
    except StorageError:  # a URL may be readable without being listable
        return {}


def check_no_link(folder: Path) -> None:
    """Raise DatasetError where a folder of a dataset is a link: it may lead to any folder of the user's."""
    if not is_remote(folder) and folder.is_symlink():
        raise DatasetError(f"{folder} is a link; a dataset has folders of its own: copy the folder itself")


def is_remote(path: object) -> bool:
    """Return True if this is a folder or file at a URL, as `folder_at` returns it."""
    return isinstance(path, Url)


def scheme_of(folder: object) -> str:
    """Return `gs` for `gs://bucket/photos`, and "" for a local folder."""
    return folder.scheme if isinstance(folder, Url) else ""
