"""Rates that can be compared: candidates take turns in rounds, and ratios are medians over the rounds.

The speed of a machine changes from moment to moment. In each round every candidate therefore runs for a short time, in another
order in each round, and a ratio is taken within a round. Figures of one run can be compared; figures of two runs cannot.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias

from tfprep.bench.measure.machine import BUSY
from tfprep.bench.measure.usage import Meter, Used, rss
from tfprep.errors import LoaderError

Open: TypeAlias = Callable[[], Iterator[Any]]

MOST_SETTLE_S = 30.0
"""Longest wait for a cache to fill. A cache that is still filling afterwards is reported."""
_UNCHANGED_S, _UNCHANGED_BATCHES = 0.25, 3
"""A cache counts as full once it has not grown for this time and number of batches. Its capacity does not tell: a loader of
some of the records never reaches it."""


@dataclass(frozen=True)
class Candidate:
    """A source of batches to measure. `open` starts a new iteration; its time counts towards the wait for the first batch.

    A batch is an array or tensor [B, ...], or a dict or tuple of them.
    """

    name: str
    open: Open


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
class Count:
    """The size of a batch, in place of the batch."""

    images: int
    bytes: int


@dataclass(frozen=True)
class Measurement:
    """One candidate in one round: images and bytes in `used.seconds`, and the wait for the first batch before them.

    `rss_before` is the resident memory of the process in bytes before the candidate was opened. `settled` tells whether the
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

    def images_per_s(self, name: str) -> Spread:
        return self._spread(name, lambda measurement: measurement.images_per_s)

    def bytes_per_s(self, name: str) -> Spread:
        return self._spread(name, lambda measurement: measurement.bytes_per_s)

    def first_batch_s(self, name: str) -> Spread:
        return self._spread(name, lambda measurement: measurement.first_batch_s)

    def cpu_ms(self, name: str) -> Spread:
        return self._spread(name, lambda measurement: measurement.cpu_ms)

    def cores(self, name: str) -> Spread:
        return self._spread(name, lambda measurement: measurement.used.cores)

    def settled(self, name: str) -> bool:
        return all(measurement.settled for measurement in self.measurements[name])

    def rss_peak(self, name: str) -> int:
        return max(measurement.used.rss_peak for measurement in self.measurements[name])

    def ratio(self, name: str, other: str) -> Spread:
        """The rate of `name` divided by the rate of `other`, taken within each round."""
        pairs = zip(self.measurements[name], self.measurements[other], strict=True)
        return Spread.of([one.images_per_s / two.images_per_s for one, two in pairs])

    def rss_added(self, name: str) -> int:
        """The largest growth of the process with this candidate, in bytes: its buffers, caches, tables and threads."""
        return max(
            max(0, measurement.used.rss_peak - measurement.rss_before) for measurement in self.measurements[name]
        )

    def image_bytes(self, name: str) -> float:
        """Bytes of all fields of a delivered image."""
        counted = self.measurements[name]
        return sum(measurement.bytes for measurement in counted) / sum(measurement.images for measurement in counted)

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
        return {name: self._one_as_json(name) for name in self.measurements}

    def _one_as_json(self, name: str) -> dict[str, Any]:
        measures = ("images_per_s", "bytes_per_s", "first_batch_s", "cpu_ms", "cores")
        spreads = {measure: vars(getattr(self, measure)(name)) for measure in measures}
        memory = {"image": self.image_bytes(name), "added": self.rss_added(name), "peak": self.rss_peak(name)}
        return {"rounds": len(self.measurements[name]), **spreads, "memory_bytes": memory}

    def _spread(self, name: str, of: Callable[[Measurement], float]) -> Spread:
        return Spread.of([of(measurement) for measurement in self.measurements[name]])


def compare(
    candidates: Sequence[Candidate],
    budget: Budget | None = None,
    on_measurement: Callable[[str, Measurement], None] | None = None,
) -> Rounds:
    """Measure candidates in turns.

    Args:
        candidates: What to measure.
        budget: Rounds and seconds.
        on_measurement: Called with the name of a candidate and each of its measurements.

    Returns:
        The measurements of all rounds.

    Raises:
        LoaderError: If a candidate yields no batch.
    """
    budget = budget or Budget()
    done: dict[str, list[Measurement]] = {candidate.name: [] for candidate in candidates}
    for number in range(budget.rounds):
        turn = number % len(candidates)
        for candidate in [*candidates[turn:], *candidates[:turn]]:
            measurement = measure(candidate, budget)
            done[candidate.name].append(measurement)
            if on_measurement:
                on_measurement(candidate.name, measurement)
    return Rounds(done)


def measure(candidate: Candidate, budget: Budget) -> Measurement:
    """Open a candidate, wait for its first batch, warm up until its cache is full, then count.

    A candidate that ends is opened again.
    """
    gc.collect()
    before = rss()
    started = time.perf_counter()
    batches = _Endless(candidate)
    next(batches)
    first_batch_s = time.perf_counter() - started
    warm = time.perf_counter() + budget.warm_up_s
    while time.perf_counter() < warm:
        next(batches)
    try:
        settled = settle(batches)
        return replace(_count(batches, budget, first_batch_s, before), settled=settled)
    finally:
        batches.close()


def settle(batches: Iterator[Any]) -> bool:
    """Take batches until the iterator's cache has stopped growing, so that the rate of later epochs is measured.

    An iterator with a cache has a method `cache_bytes()`. Returns False if the cache still grows after `MOST_SETTLE_S`.
    """
    end = time.perf_counter() + MOST_SETTLE_S
    before = -1.0
    while 0 < _cache_bytes(batches) != before:
        if time.perf_counter() > end:
            return False
        before, until, taken = _cache_bytes(batches), time.perf_counter() + _UNCHANGED_S, 0
        while taken < _UNCHANGED_BATCHES or time.perf_counter() < until:
            next(batches)
            taken += 1
    return True


def _cache_bytes(batches: Iterator[Any]) -> float:
    cache_bytes: Callable[[], float] = getattr(batches, "cache_bytes", lambda: 0.0)
    return cache_bytes()


def _count(batches: _Endless, budget: Budget, first_batch_s: float, rss_before: int) -> Measurement:
    images = size = count = 0
    with Meter() as meter:
        end = time.perf_counter() + budget.seconds
        while count < budget.least_batches or time.perf_counter() < end:
            rows, nbytes = measured_size(next(batches))
            images, size, count = images + rows, size + nbytes, count + 1
    return Measurement(images, size, count, first_batch_s, meter.used, rss_before)


class _Endless(Iterator[Any]):
    """Repeats the batches of a candidate without end."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._iterator = candidate.open()

    def __next__(self) -> Any:
        for batch in self._iterator:
            return batch
        self._iterator = self._candidate.open()
        for batch in self._iterator:
            return batch
        raise LoaderError(f"{self._candidate.name} yields no batch")

    def cache_bytes(self) -> float:
        return _cache_bytes(self._iterator)

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
        del self._iterator


def measured_size(batch: Any) -> tuple[int, int]:
    """(images, bytes) of a batch: the length of its first array, and the bytes of all its arrays."""
    if isinstance(batch, Count):
        return batch.images, batch.bytes
    leaves = list(_leaves(batch))
    first = leaves[0]
    shape = getattr(first, "shape", None)
    rows = int(shape[0]) if shape is not None and len(shape) else len(first) if shape is None else 1
    return rows, sum(_nbytes(leaf) for leaf in leaves)


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, tuple):
        for part in batch:
            yield from _leaves(part)
    else:
        yield batch


def _nbytes(leaf: Any) -> int:
    """Bytes of an array or tensor of numbers, or 0 for text."""
    if isinstance(leaf, list):
        return sum(_nbytes(one) for one in leaf)
    try:
        count = int(getattr(leaf, "nbytes", 0))
        return count or int(leaf.dtype.size) * int(leaf.shape.num_elements())
    except (AttributeError, TypeError):
        return 0
