"""The machine that a figure was measured on, and the state of its page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfprep.limits import memory_limit, usable_cpus
from tfprep.storage.urls import is_remote, scheme_of


@dataclass(frozen=True)
class Machine:
    """The parts of a machine that a figure depends on: processor, usable cores and memory, the dataset's file system."""

    processor: str
    cores: int
    memory_bytes: int
    file_system: str
    python: str

    @property
    def words(self) -> str:
        return f"{self.processor}, {self.cores} cores, {round(self.memory_bytes / 2**30)} GiB, {self.file_system}"


def this_machine(folder: Path) -> Machine:
    """This machine, with the file system of `folder`."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else platform.machine()
    except OSError:
        processor = platform.processor() or platform.machine()
    return Machine(processor, usable_cpus(), memory_limit(), file_system(folder), platform.python_version())


def file_system(folder: Path) -> str:
    """The type of the file system that `folder` lies on, as `ext4` or `nfs4`; "unknown" where the system does not say."""
    if is_remote(folder):
        return scheme_of(folder)
    path = folder.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    return str(max(mounts, key=lambda part: len(part.mountpoint)).fstype) if mounts else "unknown"


# --- the page cache -------------------------------------------------------------------------------------------------


def cached_share(paths: Iterable[Path]) -> float | None:
    """The share (0 to 1) of these files that is in the page cache; None where the system does not tell."""
    inside = total = 0
    for path in paths:
        pages = _resident(path)
        if pages is None:
            return None
        inside += pages[0]
        total += pages[1]
    return inside / total if total else None


def drop_cache(paths: Iterable[Path]) -> None:
    """Ask the system to drop these files from the page cache, so that the next read comes from the disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _resident(path: Path) -> tuple[int, int] | None:
    """(pages in memory, pages) of a file from mincore(2), which Python does not offer."""
    size = path.stat().st_size
    if not size:
        return 0, 0
    pages = -(-size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mincore"):
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=_READ_WRITE) as mapped:
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(mapped))
        failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), flags)
    return None if failed else (sum(flag & 1 for flag in flags), pages)


_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE  # ctypes takes the address of writable memory only; nothing is written
