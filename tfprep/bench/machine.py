"""The machine that a figure was measured on, and its page cache."""

from __future__ import annotations

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
    """The type of the file system that `folder` is on, such as `ext4` or `nfs4`; "unknown" where the system does not say."""
    if is_remote(folder):
        return scheme_of(folder)
    path = folder.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    return str(max(mounts, key=lambda part: len(part.mountpoint)).fstype) if mounts else "unknown"


# --- the page cache -------------------------------------------------------------------------------------------------


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
