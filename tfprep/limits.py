"""The CPUs and the memory that this process may use: those of the machine, or of its control groups if these allow less.

A container, a batch system or systemd sets the limits of a control group (cgroup). A limit applies to all groups below its own,
so the group of this process and all groups above it are read: https://docs.kernel.org/admin-guide/cgroup-v2.html. Groups of
version 1, which systemd and Kubernetes have given up, are not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def usable_cpus(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Return the number of CPUs that this process may use.

    This is the number of CPUs in its affinity mask, or the CPU time of its control groups if that is less, rounded up:
    `docker run --cpus 4` on a machine with 64 CPUs leaves all 64 in the mask.
    """
    cpus = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for group in groups(mount, own):
        quota, period = _number(group / "cpu.max"), _number(group / "cpu.max", 1)
        cpus += [max(1, -(-quota // period))] if quota and period else []
    return min(cpus)


def memory_limit(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Return the bytes of memory that this process and its control groups may use in total."""
    import psutil  # a tenth of the time in which a command starts; a build asks for CPUs only

    limits = [_number(group / "memory.max") for group in groups(mount, own)]
    return min([int(psutil.virtual_memory().total), *(limit for limit in limits if limit is not None)])


def available_memory(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Return the bytes of memory that are still free for this process."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for group in groups(mount, own):
        allowed, taken = _number(group / "memory.max"), _number(group / "memory.current")
        if allowed is not None and taken is not None:
            cached = 0  # page cache, which the kernel can free
            with contextlib.suppress(OSError, StopIteration):
                lines = (group / "memory.stat").read_text().splitlines()
                cached = int(next(line.split()[1] for line in lines if line.startswith("inactive_file ")))
            free = min(free, max(0, allowed - taken + cached))
    return free


def groups(mount: Path = MOUNT, own: Path = OWN) -> Iterator[Path]:
    """Yield the folders of this process's control groups, from its own group up to the root."""
    lines: list[str] = []
    with contextlib.suppress(OSError):  # other systems than Linux have no such file
        lines = own.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers:
            continue
        parts = [part for part in Path(path).parts if part not in ("/", "..")]
        for depth in range(len(parts), -1, -1):
            folder = mount.joinpath(*parts[:depth])
            if folder.is_dir():
                yield folder


def _number(path: Path, part: int = 0) -> int | None:
    """Return word `part` of a group's file as a number; None if the file does not exist or the word is "max"."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(path.read_text().split()[part])
    return None


_LACKED_NS: dict[tuple[str, ...], int] = {}
"""By thread, by the parts of its path, the wait for a processor at the last look."""


@dataclass(frozen=True)
class CpuTimes:
    """Processor time in seconds.

    Attributes:
        own: Of this process and its children, those that have ended included.
        lacking: For which threads of these were ready to run but had no processor; 0 where the system does not count it (Linux
            does). Of a thread that has ended, up to the last look.
        others: Of other programs on the processors that this process may use, since the machine started.
    """

    own: float
    lacking: float
    others: float

    @classmethod
    def now(cls) -> CpuTimes:
        import psutil

        process = psutil.Process()
        each = psutil.cpu_times(percpu=True)
        allowed = process.cpu_affinity() if hasattr(process, "cpu_affinity") else range(len(each))
        counted = [each[number] for number in allowed if number < len(each)] or each
        unused = ("idle", "iowait", "guest", "guest_nice")  # user and nice include guests
        busy = sum(sum(times) - sum(getattr(times, name, 0.0) for name in unused) for times in counted)
        ended = process.cpu_times()
        own = float(ended.children_user + ended.children_system)
        for one in own_processes():
            with contextlib.suppress(psutil.Error):  # a child has ended
                own += sum(one.cpu_times()[:2])
            # run-queue delays: https://docs.kernel.org/scheduler/sched-stats.html
            for path in Path(f"/proc/{one.pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError, ValueError, IndexError):  # a thread has ended
                    _LACKED_NS[path.parts] = max(int(path.read_text().split()[1]), _LACKED_NS.get(path.parts, 0))
        return cls(own, sum(_LACKED_NS.values()) / 1e9, busy - own)

    def since(self, before: CpuTimes) -> CpuTimes:
        """The times between `before` and this; none is negative."""
        pairs = ((self.own, before.own), (self.lacking, before.lacking), (self.others, before.others))
        return CpuTimes(*(max(0.0, now - then) for now, then in pairs))


def own_processes() -> list[psutil.Process]:
    """Return this process and all below it."""
    import psutil

    process = psutil.Process()
    return [process, *process.children(recursive=True)]


def rss() -> int:
    """Return the resident memory of this process and all below it, in bytes; on Linux without pages of files, which worker
    processes map and the system takes back where memory is short."""
    import psutil

    total = 0
    for process in own_processes():
        with contextlib.suppress(psutil.Error, OSError):  # a child has ended
            status = Path(f"/proc/{process.pid}/status")
            lines = [line.split() for line in status.read_text().splitlines()] if status.exists() else []
            own = [int(line[1]) << 10 for line in lines if line[0] in ("RssAnon:", "RssShmem:")]
            total += sum(own) if own else process.memory_info().rss
    return total
