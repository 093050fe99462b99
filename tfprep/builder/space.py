"""An early warning if the disk has less room than a build needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tfprep import units
from tfprep.builder.layout import Layout
from tfprep.builder.progress import Tell
from tfprep.builder.state import ShardState
from tfprep.builder.task import ShardTask
from tfprep.storage.local import free_bytes


class SpaceCheck:
    """Estimates the size on disk from the first shard of each split that is finished, and warns if the disk has less room.

    A shard is a random part of the data. It is no more than a warning all the same: the estimate may be wrong. A disk that is
    really full ends the build with an error, and the same command continues it.
    """

    def __init__(self, layout: Layout, waiting: Sequence[ShardState], tell: Tell) -> None:
        self._layout, self._tell = layout, tell
        self._samples: Counter[str] = Counter()
        for state in waiting:
            self._samples[state.split] += state.samples
        self._estimate = self._written = self._measured = 0
        self._warned = False

    def finished(self, task: ShardTask, size: int) -> None:
        """Note that a shard was built, which takes `size` bytes."""
        if not (samples := self._samples.pop(task.split, 0)) or not task.samples:
            return
        self._estimate += size * samples // len(task.samples)
        self._written += size
        self._measured += len(task.samples)
        free = free_bytes(self._layout.out)
        needed = self._estimate - self._written
        self._tell(
            "space",
            f"about {units.size(needed)} more to write, {units.size(free)} free",
            estimate=self._estimate,
            free=free,
        )
        if needed > free and not self._warned:
            self._warned = True
            self._tell(
                "warning",
                f"{self._layout.out}: about {units.size(needed)} more would be written, estimated from {self._measured} "
                f"samples, and {units.size(free)} are free. If the disk becomes full, the build ends and the same command "
                "continues it",
            )
