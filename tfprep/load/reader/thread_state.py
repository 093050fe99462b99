"""The state of a reading thread: its scratch memory, what it is doing, and what it has done."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

from tfprep.fields import Array


@dataclass(eq=False)
class ThreadState:
    """The counters and the stage of one thread. Only that thread writes them; others may read them a moment late."""

    name: str = ""
    stage: str = "waiting for work"
    path: Path | None = None
    offset: int = 0
    since: float = field(default_factory=time.monotonic)
    is_linked: bool = False
    """A worker process does the work, and counts the time."""
    records: int = 0
    bytes: int = 0
    cached: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    idle_s: float = 0.0
    _rooms: dict[str, Array] = field(default_factory=dict)

    def enter(self, stage: str) -> None:
        """Note what comes next; the time since the last note goes to the stage that ends."""
        now = time.monotonic()
        spent = now - self.since
        if self.is_linked:
            pass
        elif self.stage == "read":
            self.read_s += spent
        elif self.stage == "decode":
            self.decode_s += spent
        else:
            self.idle_s += spent
        self.stage, self.since = stage, now

    def array(self, shape: tuple[int, ...], dtype: str, purpose: str) -> Array:
        """An array over memory of its own, the same for every call with this purpose; it grows as it is needed."""
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        if purpose not in self._rooms or len(self._rooms[purpose]) < nbytes:
            self._rooms[purpose] = np.empty(nbytes + nbytes // 4, np.uint8)
        typed: Array = self._rooms[purpose][:nbytes].view(dtype)
        return typed.reshape(shape)

    def add(self, nbytes: int, read_s: float, decode_s: float, idle_s: float) -> None:
        """Add what a worker process has read, in bytes, and how many seconds it has read, decoded and had no work."""
        self.bytes += nbytes
        self.read_s += read_s
        self.decode_s += decode_s
        self.idle_s += idle_s

    def describe(self) -> str:
        where = f" {self.path} at byte {self.offset}" if self.path is not None else ""
        return f"{self.name}: {self.stage}{where} for {time.monotonic() - self.since:.1f} s"
