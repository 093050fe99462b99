"""Memory and processors as a trainer sees them: of this process, of the host, swap, and of the GPUs that Keras uses."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tfprep.limits import available_memory, usable_cpus
from tfprep.train.backend import accelerator_memory

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class MachineState:
    """Memory in bytes, times in seconds.

    Attributes:
        rss: Resident memory of this process.
        available: Memory that may still be taken.
        swap_used: Swap in use.
        swapped_in: Read from swap since the machine started.
        swapped_out: Written to swap since the machine started.
        gpus: Device to (bytes in use, peak), of what the backend allocated.
        cpus: Processors that this process may use.
        cpu_s: Processor time of this process and its children so far.
        cpu_wait_s: Time that the threads of this process were ready to run but had no processor; 0 where the system does not
            count it (Linux does).
        cpu_others_s: Time that other programs have taken from these processors since the machine started.
    """

    rss: int
    available: int
    swap_used: int
    swapped_in: int
    swapped_out: int
    gpus: dict[str, tuple[int, int]] = field(default_factory=dict)
    cpus: int = 1
    cpu_s: float = 0.0
    cpu_wait_s: float = 0.0
    cpu_others_s: float = 0.0


def look() -> MachineState:
    """Return the state of the machine now; takes some milliseconds."""
    swap = psutil.swap_memory()
    own_s = _cpu_s()
    return MachineState(
        rss=psutil.Process().memory_info().rss,
        available=available_memory(),
        swap_used=swap.used,
        swapped_in=swap.sin,
        swapped_out=swap.sout,
        gpus=accelerator_memory(),
        cpus=usable_cpus(),
        cpu_s=own_s,
        cpu_wait_s=_cpu_wait_s(),
        cpu_others_s=_cpu_busy_s() - own_s,
    )


def _cpu_s() -> float:
    process = psutil.Process()
    ended = process.cpu_times()
    total: float = ended.children_user + ended.children_system
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # a child has ended
            times = one.cpu_times()
            total += times.user + times.system
    return total


def _cpu_busy_s() -> float:
    """Busy time of the processors that this process may use: what runs on others takes nothing from it."""
    each = psutil.cpu_times(percpu=True)
    process = psutil.Process()
    allowed = process.cpu_affinity() if hasattr(process, "cpu_affinity") else range(len(each))
    counted = [each[number] for number in allowed if number < len(each)] or each
    unused = ("idle", "iowait", "guest", "guest_nice")  # user and nice include guests
    return float(sum(sum(times) - sum(getattr(times, name, 0.0) for name in unused) for times in counted))


def _cpu_wait_s() -> float:
    """Sum of the run-queue delays of all threads: https://docs.kernel.org/scheduler/sched-stats.html"""
    total_ns = 0
    for path in _TASKS.glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # a thread has ended
            total_ns += int(path.read_text().split()[1])
    return total_ns / 1e9
