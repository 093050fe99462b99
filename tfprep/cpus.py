"""How many threads or processes this process may run at a time."""

from __future__ import annotations

import os
from pathlib import Path

from tfprep.control_groups import MOUNT, OWN, groups, number


def usable_cpus(mount: Path = MOUNT, own: Path = OWN) -> int:
    """The CPUs that this process may use: those of its affinity mask, and no more than the time that its control groups have
    (`docker run --cpus 4` on a machine of 64 leaves all 64 visible), rounded up."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([here, *_quotas(mount, own)])


def _quotas(mount: Path, own: Path) -> list[int]:
    found = []
    for group in groups("cpu", mount, own):
        for quota, period in (
            (number(group / "cpu.max"), number(group / "cpu.max", 1)),
            (number(group / "cpu.cfs_quota_us"), number(group / "cpu.cfs_period_us")),
        ):
            if quota and period and quota > 0:  # the first version says -1 where there is no limit
                found.append(max(1, -(-quota // period)))
    return found
