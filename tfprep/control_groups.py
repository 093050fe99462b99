"""The control groups (cgroups) of this process: what a container, a batch system or systemd allows it.

A group's limit holds for all groups below it, so its own group and all above it count. Both versions:
https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/memory.html.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def groups(controller: str, mount: Path = MOUNT, own: Path = OWN) -> Iterator[Path]:
    """The folders of this process's groups under a controller ("memory", "cpu"), its own first; of both versions."""
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            tops = [mount, mount / "unified"]  # the second where both versions are mounted
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


def number(path: Path, part: int = 0) -> int | None:
    """A number that stands in a file of a group; None where there is no such file or it says "max"."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(path.read_text().split()[part])
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not Linux
        return []
