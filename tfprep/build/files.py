"""Writing so that a file is there whole or not at all, and still there after a power failure.

Where the system refuses (disk full, read-only, folder gone), a BuildError says so and how to go on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tfprep.errors import BuildError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when the block ends well, synced; not at all when it raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path), temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with writing(path):
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An OSError inside becomes a BuildError: what cannot be written, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot write {path}: {error.strerror or error}{_way_out(path, error)}") from error


def free_bytes(folder: Path) -> int:
    """What this user may still write there."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _way_out(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "; nothing was published. Make room, then run the same command again: it continues"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "; choose a folder that this user may write to"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EIO):
        return "; the output folder was taken away or its disk fails. Run the same command again: it continues from what is left"
    return ""


def write_whole(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a rename is only after this."""
    with writing(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Temporary files of processes that were killed while they wrote."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
