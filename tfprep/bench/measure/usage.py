"""Resources that a measurement used: CPU time and memory of this process and its children, and what other programs used."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from types import TracebackType

import psutil

SAMPLE_S = 0.1


@dataclass(frozen=True)
class Used:
    """Resources used during a measurement.

    `cpu_s` (seconds) and `rss_peak` (bytes) are of this process and its children. `others` is the share (0 to 1) of the machine's
    cores that other programs used, or None if the measurement was too short. `memory` holds (seconds, bytes) over time.
    """

    seconds: float
    cpu_s: float
    rss_peak: int
    others: float | None
    memory: tuple[tuple[float, int], ...]

    @property
    def cores(self) -> float:
        """The average number of busy cores."""
        return self.cpu_s / self.seconds if self.seconds else 0.0


class Meter:
    """Measures a block: `with Meter() as meter: ...`; `meter.used` is the result."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._memory: list[tuple[float, int]] = []
        self.used = Used(0.0, 0.0, 0, None, ())

    def __enter__(self) -> Meter:
        self._started = time.perf_counter()
        self._cpu = self._cpu_s()
        self._system = _busy_s()
        self._thread = threading.Thread(target=self._sample, name="tfprep-meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cpu = self._cpu_s() - self._cpu
        seconds = time.perf_counter() - self._started
        system = _busy_s() - self._system
        self._stop.set()
        self._thread.join()
        others = max(0.0, system - cpu) / (seconds * (os.cpu_count() or 1)) if seconds >= 0.5 else None
        peak = max((rss for _, rss in self._memory), default=0)
        self.used = Used(seconds, cpu, peak, others, tuple(self._memory))

    def _sample(self) -> None:
        while True:
            self._memory.append((time.perf_counter() - self._started, rss(self._process)))
            if self._stop.wait(SAMPLE_S):
                return

    def _cpu_s(self) -> float:
        """CPU seconds so far, including those of children that have ended."""
        times = self._process.cpu_times()
        total = float(times.user + times.system + times.children_user + times.children_system)
        for process in self._process.children(recursive=True):
            try:
                total += float(sum(process.cpu_times()[:2]))
            except psutil.Error:
                continue
        return total


def rss(process: psutil.Process | None = None) -> int:
    """Resident memory of this process and its children, in bytes."""
    process = process or psutil.Process()
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            total += one.memory_info().rss
        except psutil.Error:
            continue
    return total


def _busy_s() -> float:
    """Busy seconds of all cores of the machine together."""
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))
