"""Copies of raw files whose parts cannot be read by themselves, in a form whose parts can: made once, kept for later builds.

They are in the folder that TFPREP_STAGING names, by default `~/.cache/tfprep/staging`. A copy belongs to one state of its file;
its name holds its size: a copy that was cut short is made again, and so is that of a file that has changed. The folder may be
deleted at any time: the next build makes what it needs again.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tfprep.errors import SourceError
from tfprep.fields import Array
from tfprep.sources.raw import state_of
from tfprep.storage.local import free_bytes, whole_file, writing

VARIABLE = "TFPREP_STAGING"
_LEAST_FREE_BYTES = 1 << 30
"""Bytes of the disk that a copy leaves free: the dataset is written too."""
_CHECK_BYTES = 64 << 20


def staged(path: Path, kind: str, write: Callable[[CheckedFile], None]) -> Path:
    """Return the copy of a file, and make it if there is none of the file's present state.

    Args:
        path: The raw file, as a source gets it from its root.
        kind: What the copy holds, as the suffix of its name; a file may have several copies.
        write: Writes the copy.

    Raises:
        SourceError: The raw file cannot be read, or the copy does not fit on the disk.
        BuildError: The disk is full or read-only.
    """
    state = state_of(path)
    name, version = _digest(str(path.absolute()), kind), _digest(f"{state.text} {state.identity}")
    folder = _folder()
    for copy in folder.glob(f"{name}-{version}-*"):
        if copy.name == f"{name}-{version}-{copy.stat().st_size}{kind}":  # of the size that was written
            return copy
    unnamed = folder / f"{name}-{version}{kind}"
    with writing(unnamed):
        folder.mkdir(parents=True, exist_ok=True)
    with whole_file(unnamed) as file:
        checked = CheckedFile(file, path)
        try:
            write(checked)
        except OSError as error:
            raise SourceError(f"{path} is not whole, or cannot be read: {error.strerror or error}") from error
    copy = folder / f"{name}-{version}-{checked.size}{kind}"
    with writing(copy):
        os.replace(unnamed, copy)
    for older in folder.glob(f"{name}-*"):
        if not older.name.startswith(f"{name}-{version}"):
            with suppress(OSError):
                older.unlink()
    return copy


class CheckedFile:
    """A file that is written as long as the disk keeps some room."""

    def __init__(self, file: BinaryIO, source: Path) -> None:
        self._file, self._source, self._folder = file, source, _folder()
        self._room, self.size = 0, 0

    def write(self, data: bytes | memoryview) -> None:
        if self.size + len(data) > self._room:
            free = free_bytes(self._folder) - _LEAST_FREE_BYTES
            if free < len(data):
                raise SourceError(
                    f"{self._source}: its copy in {self._folder} does not fit: {self.size:,} bytes are written, and "
                    f"the disk would be full. Name a folder with more room in {VARIABLE}"
                )
            self._room = self.size + max(len(data), min(free, _CHECK_BYTES))
        with writing(self._folder / "copy"):
            self._file.write(data)
        self.size += len(data)


def staged_files(path: Path, kind: str, files: Callable[[Path], Iterable[bytes | None]]) -> tuple[Path, Array, Array]:
    """Return the copy of what `files` yields of a file, and the first byte and the length of each (-1: there is none).

    The copy holds them one after another, then their lengths as int64, then their number as int64.
    """

    def write(target: CheckedFile) -> None:
        lengths = array("q")
        for content in files(path):
            target.write(content or b"")
            lengths.append(-1 if content is None else len(content))
        target.write(lengths.tobytes() + np.int64(len(lengths)).tobytes())

    copy = staged(path, kind, write)
    with copy.open("rb") as file:
        file.seek(-8, 2)
        (count,) = np.frombuffer(file.read(8), np.int64)
        file.seek(-8 * (int(count) + 1), 2)
        lengths = np.frombuffer(file.read(8 * int(count)), np.int64)
    sizes = np.maximum(lengths, 0)
    return copy, np.cumsum(sizes) - sizes, lengths


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.path.expanduser(os.environ.get(VARIABLE) or f"{cache}/tfprep/staging")
    if folder.startswith("~"):  # as in a container, whose user has no home folder
        raise SourceError(f"there is no home folder for copies of raw files; name a folder for them in {VARIABLE}")
    return Path(folder).absolute()


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:20]
