"""The CPUs and the memory that this process may use: those of the machine, or of its control groups if these allow less.

A container, a batch system or systemd sets the limits of a control group (cgroup). A limit applies to all groups below its own,
so the group of this process and all groups above it are read, of both versions:
https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/memory.html.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""By version: a group's limit, its use, and the entry of memory.stat for page cache, which the kernel can free."""


def usable_cpus(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Return the number of CPUs that this process may use.

    This is the number of CPUs in its affinity mask, or the CPU time of its control groups if that is less, rounded up:
    `docker run --cpus 4` on a machine with 64 CPUs leaves all 64 in the mask.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([affinity, *_quotas(mount, own)])


def _quotas(mount: Path, own: Path) -> list[int]:
    cpus = []
    for group in groups("cpu", mount, own):
        for quota, period in (
            (_number(group / "cpu.max"), _number(group / "cpu.max", 1)),
            (_number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")),
        ):
            if quota and period and quota > 0:  # version 1 writes -1 for no limit
                cpus.append(max(1, -(-quota // period)))
    return cpus


def memory_limit(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Return the bytes of memory that this process and its control groups may use in total."""
    import psutil  # a tenth of the time in which a command starts; a build asks for CPUs alone

    limits = [_number(group / limit) for group in groups("memory", mount, own) for limit, _, _ in _VERSIONS]
    return min([int(psutil.virtual_memory().total), *(limit for limit in limits if limit is not None)])


def available_memory(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Return the bytes of memory that are still free for this process."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for group in groups("memory", mount, own):
        for limit, used, cached in _VERSIONS:
            allowed, taken = _number(group / limit), _number(group / used)
            if allowed is not None and taken is not None:
                free = min(free, max(0, allowed - taken + _stat(group, cached)))
    return free


def _stat(group: Path, name: str) -> int:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


def groups(controller: str, mount: Path = MOUNT, own: Path = OWN) -> Iterator[Path]:
    """Yield the folders of this process's control groups, from its own group up to the root, of both versions.

    Args:
        controller: "memory" or "cpu".
        mount: Where the control groups are mounted.
        own: The file that names the groups of this process.
    """
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops = [mount, mount / "unified"]  # `unified` is used if both versions are mounted
        elif controller in controllers.split(","):
            tops = [mount / controllers, mount / controller]
        else:
            continue
        parts = [part for part in Path(path).parts if part not in ("/", "..")]
        for top in dict.fromkeys(tops):
            for depth in range(len(parts), -1, -1):
                folder = top.joinpath(*parts[:depth])
                if folder.is_dir():
                    yield folder


def _number(path: Path, part: int = 0) -> int | None:
    """Return word `part` of a group's file as a number; None if the file does not exist or the word is "max"."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(path.read_text().split()[part])
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # other systems than Linux have no such files
        return []


OTHERS_COUNT, OTHERS_FIRST = 0.25, 0.65
"""Share of a program's time that other programs cost from which on they are named, and from which on they come before what they
slow down: without them it would be almost 3 times as fast. Two programs that compute, beside one of two threads, cost half."""


def lost_to_others(own: float, lacking: float, others: float, cpus: float) -> float:
    """Return the share of a program's time, from 0 to 1, that processors which others took could have saved: an upper bound.

    Without the others, it would take what its threads ask for, as far as there are processors.

    Args:
        own: Processors that the program took.
        lacking: Its threads that were ready to run but had no processor, on average.
        others: Processors that other programs took.
        cpus: Processors of the machine.
    """
    if own + lacking < 1:  # threads that mostly sleep wait for a processor too, but ask for little
        return 0.0
    return 1 - own / max(min(own + lacking, own + others, cpus), own, 1e-9)


def cpu_wait_s() -> float:
    """Seconds that the threads of this process were ready to run but had no processor; 0 where the system does not count it.

    The sum of their run-queue delays: https://docs.kernel.org/scheduler/sched-stats.html
    """
    total_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # a thread has ended
            total_ns += int(path.read_text().split()[1])
    return total_ns / 1e9
