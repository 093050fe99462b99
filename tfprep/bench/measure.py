"""Rates that can be compared: candidates take turns, round by round, and what counts is the median of their ratios.

A machine is never as fast twice. So no candidate is measured once and for all: in each round every one of them runs for a
short time, in another order each round, and a ratio is taken inside a round. Figures of one run may be compared; figures
of two runs may not.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias

from tfprep.bench.machine import BUSY
from tfprep.bench.usage import Meter, Used, rss
from tfprep.errors import LoaderError

Open: TypeAlias = Callable[[], Iterator[Any]]

MOST_SETTLE_S = 30.0
"""A cache that has not filled by then goes on filling while it is measured, and that is said."""
_UNCHANGED_S, _UNCHANGED_BATCHES = 0.25, 3
"""For how long a cache must not have grown to count as full: it may hold less than it could, where only some records are read."""


@dataclass(frozen=True)
class Candidate:
    """Something that gives batches. `open` begins anew; the time it takes counts into the wait for the first batch.

    A batch is an array or tensor [B, ...], or a dict or tuple of such.
    """

    name: str
    open: Open


@dataclass(frozen=True)
class Budget:
    """How long is measured: `rounds` rounds of `seconds` each, after `warm_up_s` that do not count.

    No stretch ends before `least_batches` were counted.
    """

    rounds: int = 5
    seconds: float = 3.0
    warm_up_s: float = 1.0
    least_batches: int = 3


@dataclass(frozen=True)
class Count:
    """Stands for a batch where only its size is of interest."""

    images: int
    bytes: int


@dataclass(frozen=True)
class Stretch:
    """One candidate in one round: images and bytes in `used.seconds`, and the wait for the first batch before that.

    `rss_before`: bytes of memory that the process held before the candidate was opened. `settled`: its cache did not grow
    any more.
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
        """CPU milliseconds an image."""
        return 1000 * self.used.cpu_s / self.images


@dataclass(frozen=True)
class Spread:
    """A median, with the least and the greatest of the values."""

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
    """All stretches by candidate, in the order of the rounds."""

    stretches: Mapping[str, Sequence[Stretch]]

    def images_per_s(self, name: str) -> Spread:
        return self._spread(name, lambda stretch: stretch.images_per_s)

    def bytes_per_s(self, name: str) -> Spread:
        return self._spread(name, lambda stretch: stretch.bytes_per_s)

    def first_batch_s(self, name: str) -> Spread:
        return self._spread(name, lambda stretch: stretch.first_batch_s)

    def cpu_ms(self, name: str) -> Spread:
        return self._spread(name, lambda stretch: stretch.cpu_ms)

    def cores(self, name: str) -> Spread:
        return self._spread(name, lambda stretch: stretch.used.cores)

    def settled(self, name: str) -> bool:
        return all(stretch.settled for stretch in self.stretches[name])

    def rss_peak(self, name: str) -> int:
        return max(stretch.used.rss_peak for stretch in self.stretches[name])

    def ratio(self, name: str, other: str) -> Spread:
        """Images a second of `name` over those of `other`, round by round."""
        pairs = zip(self.stretches[name], self.stretches[other], strict=True)
        return Spread.of([one.images_per_s / two.images_per_s for one, two in pairs])

    def rss_added(self, name: str) -> int:
        """By how much the process grew with this candidate, at most: its buffers, caches, tables and threads."""
        return max(max(0, stretch.used.rss_peak - stretch.rss_before) for stretch in self.stretches[name])

    def image_bytes(self, name: str) -> float:
        """Bytes of memory that an image takes as it is delivered, all its fields together."""
        counted = self.stretches[name]
        return sum(stretch.bytes for stretch in counted) / sum(stretch.images for stretch in counted)

    @property
    def others(self) -> float | None:
        """The share of all cores that other programs used, in the median stretch; None where that could not be told."""
        known = [s.used.others for of_one in self.stretches.values() for s in of_one if s.used.others is not None]
        return median(known) if known else None

    @property
    def busy(self) -> str:
        """A warning where other programs were at work; empty where not."""
        share = self.others
        if share is None or share < BUSY:
            return ""
        return f"other programs used {share:.0%} of this machine's cores meanwhile: compare ratios, not rates"

    def as_json(self) -> dict[str, Any]:
        return {name: self._one_as_json(name) for name in self.stretches}

    def _one_as_json(self, name: str) -> dict[str, Any]:
        measures = ("images_per_s", "bytes_per_s", "first_batch_s", "cpu_ms", "cores")
        spreads = {measure: vars(getattr(self, measure)(name)) for measure in measures}
        memory = {"image": self.image_bytes(name), "added": self.rss_added(name), "peak": self.rss_peak(name)}
        return {"rounds": len(self.stretches[name]), **spreads, "memory_bytes": memory}

    def _spread(self, name: str, of: Callable[[Stretch], float]) -> Spread:
        return Spread.of([of(stretch) for stretch in self.stretches[name]])


def compare(
    candidates: Sequence[Candidate],
    budget: Budget | None = None,
    on_stretch: Callable[[str, Stretch], None] | None = None,
) -> Rounds:
    """Measure the candidates in turns. LoaderError where one of them gives no batch."""
    budget = budget or Budget()
    done: dict[str, list[Stretch]] = {candidate.name: [] for candidate in candidates}
    for number in range(budget.rounds):
        turn = number % len(candidates)
        for candidate in [*candidates[turn:], *candidates[:turn]]:
            stretch = measure(candidate, budget)
            done[candidate.name].append(stretch)
            if on_stretch:
                on_stretch(candidate.name, stretch)
    return Rounds(done)


def measure(candidate: Candidate, budget: Budget) -> Stretch:
    """One stretch: open, wait for the first batch, warm up until caches are full, then count. A source that ends is opened
    again."""
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
    """Take batches until the iterator's cache, where it has one (`cache_bytes()`), grows no more: training goes on at the rate
    of later epochs. False where it still grows after `MOST_SETTLE_S`."""
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
    held: Callable[[], float] = getattr(batches, "cache_bytes", lambda: 0.0)
    return held()


def _count(batches: _Endless, budget: Budget, first_batch_s: float, rss_before: int) -> Stretch:
    images = size = count = 0
    with Meter() as meter:
        end = time.perf_counter() + budget.seconds
        while count < budget.least_batches or time.perf_counter() < end:
            rows, nbytes = measured_size(next(batches))
            images, size, count = images + rows, size + nbytes, count + 1
    return Stretch(images, size, count, first_batch_s, meter.used, rss_before)


class _Endless(Iterator[Any]):
    """The batches of a candidate, over and over."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._iterator = candidate.open()

    def __next__(self) -> Any:
        for batch in self._iterator:
            return batch
        self._iterator = self._candidate.open()
        for batch in self._iterator:
            return batch
        raise LoaderError(f"{self._candidate.name} gives no batch")

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
    """Bytes of an array or tensor of numbers; 0 for text."""
    if isinstance(leaf, list):
        return sum(_nbytes(one) for one in leaf)
    try:
        count = int(getattr(leaf, "nbytes", 0))
        return count or int(leaf.dtype.size) * int(leaf.shape.num_elements())
    except (AttributeError, TypeError):
        return 0
