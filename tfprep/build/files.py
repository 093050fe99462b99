"""Writing so that a file is there whole or not at all, and still there after a power failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when the block ends well, synced; not at all when it raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a rename is only after this."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Temporary files of processes that were killed while they wrote."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
