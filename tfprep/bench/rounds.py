"""Rates that can be compared: candidates take turns in rounds, and ratios are medians over the rounds.

The speed of a machine changes from moment to moment. In each round every candidate therefore runs for a short time, in another
order in each round, and a ratio is taken within a round. Figures of one run can be compared; figures of two runs cannot.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tfprep.errors import LoaderError
from tfprep.fields import batch_size_of, components
from tfprep.limits import CpuTimes, rss, usable_cpus

BUSY = 0.10
"""Other programs that use more than this share of all cores make a figure doubtful."""
SAMPLE_S = 0.1
"""Time between two looks at the memory."""

MOST_SETTLE_S = 30.0
"""Longest wait for a cache to fill. A cache that is still filling afterwards is reported."""
_UNCHANGED_S, _UNCHANGED_BATCHES = 0.25, 3
"""A cache counts as full once it has not grown for this time and number of batches. A loader of some of
the records never reaches its capacity."""


@dataclass(frozen=True)
class Candidate:
    """A source of batches without end, to measure. The time of `open` counts towards the wait for the first batch.

    A batch is an array or tensor [B, ...], or a dict or tuple of them, or a list as PyTorch's `DataLoader` gives it.
    """

    name: str
    open: Callable[[], Iterator[Any]]


@dataclass(frozen=True)
class Budget:
    """The length of a comparison: `rounds` rounds of `seconds` each, after `warm_up_s` seconds that do not count.

    Every measurement counts at least `least_batches` batches.
    """

    rounds: int = 5
    seconds: float = 3.0
    warm_up_s: float = 1.0
    least_batches: int = 3


@dataclass(frozen=True)
class Used:
    """Resources used during a measurement.

    `cpu_s` (seconds) and `rss_peak` (bytes) are of this process and its children. `others` is the share (0 to 1) of the machine's
    cores that other programs used, or None if the measurement was too short.
    """

    seconds: float
    cpu_s: float
    rss_peak: int
    others: float | None


@dataclass(frozen=True)
class Measurement:
    """One candidate in one round: images and bytes in `used.seconds`, and the wait for the first batch before them.

    `rss_before` is the resident memory of the process in bytes before the candidate was opened. `settled` is True if the
    candidate's cache had stopped growing.
    """

    images: int
    bytes: int
    batches: int
    first_batch_s: float
    used: Used
    rss_before: int = 0
    settled: bool = True

    @property
    def images_per_s(self) -> float:
        return self.images / self.used.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.used.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per image."""
        return 1000 * self.used.cpu_s / self.images

    @property
    def cores(self) -> float:
        """The average number of busy cores."""
        return self.used.cpu_s / self.used.seconds


@dataclass(frozen=True)
class Spread:
    """A median with the minimum and maximum of the values."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g} to {self.greatest:.3g})"


@dataclass(frozen=True)
class Rounds:
    """The measurements of each candidate, in the order of the rounds."""

    measurements: Mapping[str, Sequence[Measurement]]

    def of(self, name: str, measure: str) -> Spread:
        """The spread of an attribute of a candidate's measurements, such as "first_batch_s"."""
        return Spread.of([getattr(measurement, measure) for measurement in self.measurements[name]])

    def images_per_s(self, name: str) -> Spread:
        return self.of(name, "images_per_s")

    def ratio(self, name: str, other: str) -> Spread:
        """The rate of `name` divided by the rate of `other`, taken within each round."""
        pairs = zip(self.measurements[name], self.measurements[other], strict=True)
        return Spread.of([first.images_per_s / two.images_per_s for first, two in pairs])

    def memory_bytes(self, name: str) -> dict[str, float]:
        """Bytes of all fields of a delivered image, the largest growth of the process with this candidate (its buffers, caches,
        tables and threads), and the peak of the process."""
        counted = self.measurements[name]
        return {
            "image": sum(measurement.bytes for measurement in counted)
            / sum(measurement.images for measurement in counted),
            "added": max(max(0, measurement.used.rss_peak - measurement.rss_before) for measurement in counted),
            "peak": max(measurement.used.rss_peak for measurement in counted),
        }

    @property
    def others(self) -> float | None:
        """The median share of all cores that other programs used; None if unknown."""
        known = [s.used.others for of_one in self.measurements.values() for s in of_one if s.used.others is not None]
        return median(known) if known else None

    @property
    def busy(self) -> str:
        """A warning if other programs were busy, otherwise an empty string."""
        share = self.others
        if share is None or share < BUSY:
            return ""
        return f"other programs used {share:.0%} of the cores of this machine: compare ratios, not rates"

    def as_json(self) -> dict[str, Any]:
        measures = ("images_per_s", "bytes_per_s", "first_batch_s", "cpu_ms", "cores")
        return {
            name: {
                "rounds": len(counted),
                **{measure: vars(self.of(name, measure)) for measure in measures},
                "memory_bytes": self.memory_bytes(name),
            }
            for name, counted in self.measurements.items()
        }


def compare(candidates: Sequence[Candidate], budget: Budget) -> Rounds:
    """Measure candidates in turns, and return the measurements of all rounds.

    Raises:
        LoaderError: If the batches of a candidate end.
    """
    done: dict[str, list[Measurement]] = {candidate.name: [] for candidate in candidates}
    for number in range(budget.rounds):
        turn = number % len(candidates)
        for candidate in [*candidates[turn:], *candidates[:turn]]:
            done[candidate.name].append(measure(candidate, budget))
    return Rounds(done)


def measure(candidate: Candidate, budget: Budget) -> Measurement:
    """Open a candidate, wait for its first batch, warm up until its cache is full, then count.

    Raises:
        LoaderError: If the batches end.
    """
    gc.collect()
    rss_before, started = rss(), time.perf_counter()
    batches = candidate.open()
    try:
        next(batches)
        first_batch_s = time.perf_counter() - started
        warm = time.perf_counter() + budget.warm_up_s
        while time.perf_counter() < warm:
            next(batches)
        settled = settle(batches)
        images = size = count = 0
        with Meter() as meter:
            end = time.perf_counter() + budget.seconds
            while count < budget.least_batches or time.perf_counter() < end:
                rows, nbytes = measured_size(next(batches))
                images, size, count = images + rows, size + nbytes, count + 1
        return Measurement(images, size, count, first_batch_s, meter.used, rss_before, settled)
    except StopIteration:
        raise LoaderError(
            f"{candidate.name} has ended; batches without end are measured, as repeat() gives them"
        ) from None
    finally:
        getattr(batches, "close", lambda: None)()


def settle(batches: Iterator[Any]) -> bool:
    """Take batches until the iterator's cache has stopped growing, so that the rate of later epochs is measured.

    An iterator with a cache has a method `cache_bytes()`. Returns False if the cache still grows after `MOST_SETTLE_S`.
    """
    cache_bytes: Callable[[], float] = getattr(batches, "cache_bytes", lambda: 0.0)
    end = time.perf_counter() + MOST_SETTLE_S
    before = -1.0
    while 0 < cache_bytes() != before:
        if time.perf_counter() > end:
            return False
        before, until, count = cache_bytes(), time.perf_counter() + _UNCHANGED_S, 0
        while count < _UNCHANGED_BATCHES or time.perf_counter() < until:
            next(batches)
            count += 1
    return True


def measured_size(batch: Any) -> tuple[int, int]:
    """(images, bytes) of a batch: the length of its first array, and the bytes of all its arrays."""
    return batch_size_of(batch), sum(map(_nbytes, components(batch)))


def _nbytes(leaf: Any) -> int:
    """Bytes of an array or tensor of numbers, or 0 for text."""
    if isinstance(leaf, list):
        return sum(_nbytes(item) for item in leaf)
    leaf = getattr(leaf, "flat_values", leaf)  # a ragged tensor
    try:
        count = int(getattr(leaf, "nbytes", 0))
        return count or int(leaf.dtype.size) * int(leaf.shape.num_elements())
    except (AttributeError, TypeError):
        return 0


# --- resources


class Meter:
    """Measures a block: `with Meter() as meter: ...`; `meter.used` is the result."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._rss_peak = 0
        self.used = Used(0.0, 0.0, 0, None)

    def __enter__(self) -> Meter:
        self._started, self._before = time.perf_counter(), CpuTimes.now()
        self._thread = threading.Thread(target=self._sample, name="tfprep-meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        cpu, seconds = CpuTimes.now().since(self._before), time.perf_counter() - self._started
        self._stop.set()
        self._thread.join()
        share_of_others = cpu.others / (seconds * usable_cpus()) if seconds >= 0.5 else None
        self.used = Used(seconds, cpu.own, self._rss_peak, share_of_others)

    def _sample(self) -> None:
        while True:
            self._rss_peak = max(self._rss_peak, rss())
            if self._stop.wait(SAMPLE_S):
                return
