"""Copies of raw files whose parts cannot be read by themselves, in a form whose parts can: made once, kept for later builds.

They are in the folder that TFPREP_STAGING names, by default `~/.cache/tfprep/staging`. A copy belongs to one state of its file,
and to one version of the library that decodes it; its name holds its size: a copy that was cut short is made again. The folder
may be deleted at any time: the next build makes what it needs again.
"""

from __future__ import annotations

import errno
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
from tfprep.storage.local import whole_file, writing

VARIABLE = "TFPREP_STAGING"


def staged(path: Path, kind: str, write: Callable[[BinaryIO], None], maker: str = "") -> Path:
    """Return the copy of a file, and make it if there is none of the file's present state.

    Args:
        path: The raw file, as a source gets it from its root.
        kind: What the copy holds, as the suffix of its name; a file may have several copies.
        write: Writes the copy.
        maker: The version of a library that decides what is written.

    Raises:
        SourceError: The raw file cannot be read, or the copy does not fit on the disk.
        BuildError: The disk is read-only.
    """
    state = state_of(path)
    name, version = _digest(str(path.absolute()), kind), _digest(f"{state.text} {state.identity}{maker}")
    folder = _folder()
    for copy in folder.glob(f"{name}-{version}-*"):
        if copy.name == f"{name}-{version}-{copy.stat().st_size}{kind}":  # of the size that was written
            return copy
    # Of this process: two builds may make the same copy at the same time. It is none of the copies that are looked for.
    unnamed = folder / f"{name}-{version}.{os.getpid()}{kind}"
    with writing(unnamed):
        folder.mkdir(parents=True, exist_ok=True)
    with whole_file(unnamed) as file:
        try:
            write(file)
            size = file.tell()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                rule = f"its copy in {folder} does not fit, the disk is full"
                raise SourceError(f"{path}: {rule}. Name a folder with more room in {VARIABLE}") from error
            raise SourceError(f"{path} is not whole, or cannot be read: {error.strerror or error}") from error
    copy = folder / f"{name}-{version}-{size}{kind}"
    with writing(copy):
        os.replace(unnamed, copy)
    for older in folder.glob(f"{name}-*"):
        if not older.name.startswith(f"{name}-{version}"):
            with suppress(OSError):
                older.unlink()
    return copy


def staged_files(
    path: Path, kind: str, files: Callable[[Path], Iterable[bytes | None]], maker: str = ""
) -> tuple[Path, Array, Array]:
    """Return the copy of what `files` yields of a file, and the first byte and the length of each (-1: there is none).

    The copy holds them one after another, then their lengths as int64, then their number as int64.
    """

    def write(target: BinaryIO) -> None:
        lengths = array("q")
        for content in files(path):
            target.write(content or b"")
            lengths.append(-1 if content is None else len(content))
        target.write(lengths.tobytes() + np.int64(len(lengths)).tobytes())

    copy = staged(path, kind, write, maker)
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
