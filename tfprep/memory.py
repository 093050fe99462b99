"""How much memory this process may use: of the machine, or of its control groups where those have less."""

from __future__ import annotations

from pathlib import Path

import psutil

from tfprep.control_groups import MOUNT, OWN, groups, number

_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""A group's limit, what it has taken, and what of that is page cache that the kernel would give back."""


def memory_limit(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Bytes of memory in all."""
    limits = [number(group / limit) for group in groups("memory", mount, own) for limit, _, _ in _VERSIONS]
    return min([int(psutil.virtual_memory().total), *(limit for limit in limits if limit is not None)])


def available_memory(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Bytes that may still be taken."""
    free = int(psutil.virtual_memory().available)
    for group in groups("memory", mount, own):
        for limit, used, cached in _VERSIONS:
            allowed, taken = number(group / limit), number(group / used)
            if allowed is not None and taken is not None:
                free = min(free, max(0, allowed - taken + _stat(group, cached)))
    return free


def _stat(group: Path, name: str) -> int:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
