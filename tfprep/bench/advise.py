"""What to store, before anything is built: every strategy built and loaded on a sample, the whole dataset predicted from it.

A sample is built by as many workers as a real build would have. What the workers spent on their shards is the time that
samples take, the rest what every build takes: starting, listing, publishing. Then all are loaded in turns. What is predicted is

- images/s: as measured; where the dataset will not fit into memory, no more than the disk gives;
- disk: bytes a sample times the samples;
- build: the time every build takes, and the whole's shards handed to the workers in turn, each as long as its samples.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfprep.bench.loaders import loader_candidate
from tfprep.bench.machine import cached_share, drop_cache
from tfprep.bench.measure import Budget, Candidate, Rounds, compare, measure
from tfprep.bench.stages import reading
from tfprep.bench.strategies import VARIANTS, Strategy, stored_as, strategies
from tfprep.bench.trial import Built, Sampling, Work, build_all, more_variants, work_of
from tfprep.cpus import usable_cpus
from tfprep.errors import DatasetError, LoaderError, RecipeError, SourceError
from tfprep.load import Data
from tfprep.memory import memory_limit
from tfprep.recipe import Recipe

IN_MEMORY = 0.6
"""A dataset below this share of the memory is taken to stay in the file cache."""


@dataclass(frozen=True)
class Goals:
    """What is asked for; None where it does not matter."""

    images_per_s: float | None = None
    disk_bytes: float | None = None
    hours: float | None = None

    def missed(self, found: Prediction) -> list[str]:
        """In words, which of them a prediction misses."""
        missed = []
        if self.images_per_s is not None and found.images_per_s < self.images_per_s:
            missed.append(f"{found.images_per_s:,.0f} of {self.images_per_s:,.0f} images/s")
        if self.disk_bytes is not None and found.disk_bytes > self.disk_bytes:
            missed.append(f"{found.disk_bytes / 1e9:.3g} of {self.disk_bytes / 1e9:.3g} GB")
        if self.hours is not None and found.build_s / 3600 > self.hours:
            missed.append(f"{found.build_s / 3600:.2g} of {self.hours:.2g} hours")
        return missed


@dataclass(frozen=True)
class Prediction:
    """The whole dataset under one strategy. `estimated`: its rate is put together from CPU times, not measured."""

    strategy: str
    stored: str
    images_per_s: float
    disk_bytes: float
    build_s: float
    estimated: bool = False


@dataclass(frozen=True)
class Advice:
    """All predictions, the one to take and why, and what was left out and why."""

    samples: int
    measured_on: int
    predictions: tuple[Prediction, ...]
    variants: tuple[Prediction, ...]
    chosen: str
    reason: str
    left_out: Mapping[str, str]
    busy: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def advise(
    recipe: Recipe,
    root: Path,
    scratch: Path,
    goals: Goals | None = None,
    *,
    samples: int = 200,
    split: str = "train",
    budget: Budget | None = None,
    workers: int | None = None,
    only: Sequence[str] = (),
    on_progress: Callable[[str], None] | None = None,
) -> Advice:
    """Measure the strategies in the folder `scratch`, which then holds the sample's datasets. `workers` as for a build.
    `only`: the strategies of these names.

    Imports TensorFlow. RecipeError where there is no strategy of such a name, or none can be built.
    """
    tell = on_progress or (lambda line: None)
    listing = recipe.source.scan(root)
    recipe.check_fields(listing)
    counts = Counter(entry.split for entry in listing.entries)
    _check_split(root, split, counts)
    sampling = Sampling(root, scratch, min(samples, counts.total()), counts, workers)
    wanted = _named(strategies(recipe, {**listing.kinds, **recipe.derived_kinds()}), only)
    built, left_out = build_all(wanted, sampling, tell)
    if not built:
        raise RecipeError(f"no strategy can be built: {'; '.join(f'{name}: {why}' for name, why in left_out.items())}")
    candidates = {item.strategy.name: _candidate(item, split) for item in built}
    measurable, unreadable = _readable(candidates)
    if not measurable:
        raise LoaderError(
            f"no strategy can be loaded: {'; '.join(f'{name}: {why}' for name, why in unreadable.items())}"
        )
    tell(f"loading {len(measurable)} of them in turns")
    rounds = compare(measurable, budget or Budget(3, 1.0, 0.5, 2))
    work = work_of(recipe, root, scratch / "whole")
    found = [_predict(item, rounds, counts, work) for item in built if item.strategy.name not in unreadable]
    chosen, reason = choose(found, goals or Goals())
    winner = next(item for item in built if item.strategy.name == chosen.strategy)
    variants = _variants(winner, chosen, split, sampling)
    return Advice(
        counts.total(), sampling.samples, tuple(found), tuple(variants), chosen.strategy, reason,
        {**left_out, **unreadable}, rounds.busy,
    )  # fmt: skip


def _check_split(root: Path, split: str, there: Collection[str]) -> None:
    if split not in there:
        told = f"there is {', '.join(sorted(there))}" if there else "the source finds no sample at all"
        raise SourceError(f"{root}: split {split!r} has no sample; {told} (option --split)")


def _named(found: Sequence[Strategy], only: Sequence[str]) -> list[Strategy]:
    names = [strategy.name for strategy in found]
    if unknown := [name for name in only if name not in names]:
        raise RecipeError(f"there is no strategy {unknown[0]!r} for this recipe; there are {', '.join(names)}")
    return [strategy for strategy in found if not only or strategy.name in only]


def choose(found: Sequence[Prediction], goals: Goals) -> tuple[Prediction, str]:
    """The smallest that meets all goals; without a goal for the rate the fastest that meets the others.

    Where none meets all, the one that misses fewest, the fastest of them.
    """
    meeting = [one for one in found if not goals.missed(one)]
    if not meeting:
        least = min(found, key=lambda one: (len(goals.missed(one)), -one.images_per_s))
        return least, f"nothing meets all that is asked for; this comes nearest ({', '.join(goals.missed(least))})"
    if goals.images_per_s is not None:
        return min(meeting, key=lambda one: one.disk_bytes), "the smallest that is fast enough"
    return max(meeting, key=lambda one: one.images_per_s), "the fastest" + (
        " within the limits" if goals != Goals() else ""
    )


# --- loading the sample ---------------------------------------------------------------------------------------------


def _candidate(item: Built, split: str) -> Candidate:
    options: dict[str, Any] = {"cache": False, "tuning": False, "geometry": item.strategy.load_geometry}
    return loader_candidate(item.data, split, 32, name=item.strategy.name, **options)


def _readable(candidates: Mapping[str, Candidate]) -> tuple[list[Candidate], dict[str, str]]:
    """Those that give a batch, and why the others do not."""
    good: list[Candidate] = []
    bad: dict[str, str] = {}
    for name, candidate in candidates.items():
        try:
            measure(candidate, Budget(1, 0.0, 0.0, 1))
            good.append(candidate)
        except (LoaderError, DatasetError) as error:
            bad[name] = str(error).splitlines()[0]
    return good, bad


def _predict(item: Built, rounds: Rounds, counts: Counter[str], work: Work) -> Prediction:
    name = item.strategy.name
    disk = sum(_sample_bytes(item, split) * count for split, count in counts.items())
    record = item.bytes / _records(item.data)
    seconds = max(1 / rounds.images_per_s(name).median + item.derive_s / usable_cpus(), _read_s(item, record, disk))
    return Prediction(name, stored_as(item.strategy), 1 / seconds, disk, item.build_s(work), item.derive_s > 0)


def _read_s(item: Built, record_bytes: float, disk_bytes: float) -> float:
    """Seconds an image takes to come from the disk; 0 where all of it will stay in memory."""
    if disk_bytes < IN_MEMORY * memory_limit():
        return 0.0
    files = [item.data.path / file.name for info in item.data.splits.values() for of in info.files for file in of]
    drop_cache(files)
    if cached_share(files) not in (None, 0.0):
        return 0.0  # the system keeps them: its disk cannot be measured
    cold = measure(reading(item.data, next(iter(item.data.splits))), Budget(1, 0.2, 0.0, 2))
    return record_bytes / cold.bytes_per_s


def _sample_bytes(item: Built, split: str) -> float:
    """Bytes of a sample of this split with all its variants; of any sample where the sample drawn has none of it."""
    info = item.data.splits.get(split)
    return info.bytes / info.samples if info is not None and info.samples else item.bytes / item.samples


def _records(data: Data) -> int:
    return sum(info.samples * info.variants for info in data.splits.values())


# --- variants -------------------------------------------------------------------------------------------------------


def _variants(winner: Built, chosen: Prediction, split: str, sampling: Sampling) -> list[Prediction]:
    """Disk and build time of 1 to 16 variants of the chosen strategy: one more sample is built, with another number of
    them, and both costs are straight lines."""
    have = winner.strategy.recipe.variants_of(split)
    if winner.strategy.load_geometry:
        return []  # files that stay as they are have no variants
    other = have + 4
    recipe = dataclasses.replace(winner.strategy.recipe, variants={**winner.strategy.recipe.variants, split: other})
    more = more_variants(winner, recipe, sampling)
    bytes_each = (_sample_bytes(more, split) - _sample_bytes(winner, split)) / (other - have)
    seconds_each = (
        max(0.0, more.sample_s.get(split, 0.0) - winner.sample_s.get(split, 0.0))
        / (other - have)
        / max(1, winner.workers)
    )
    return [
        Prediction(
            f"{count} variant{'s' if count > 1 else ''}",
            chosen.stored,
            chosen.images_per_s,
            chosen.disk_bytes + (count - have) * bytes_each * sampling.counts[split],
            max(0.0, chosen.build_s + (count - have) * seconds_each * sampling.counts[split]),
        )
        for count in VARIANTS
    ]
