"""What to store, before anything is built: every strategy built and loaded on a sample, the whole dataset predicted from it.

A sample is built twice, a quarter of it and all of it, by as many workers as a real build would have: the difference is the
time a sample takes, the rest is what every build takes. Then all of them are loaded in turns. What is predicted is

- images/s: as measured; where the dataset will not fit into memory, no more than the disk gives;
- disk: bytes a sample times the samples;
- build: the time every build takes, and that of a sample times the samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfprep.bench.loaders import loader_candidate
from tfprep.bench.machine import cached_share, cores, drop_cache
from tfprep.bench.measure import Budget, Candidate, Rounds, compare, measure
from tfprep.bench.samples import RawSamples
from tfprep.bench.stages import reading
from tfprep.bench.strategies import VARIANTS, Strategy, stored_as, strategies
from tfprep.build import BuildOptions, BuildSummary, build
from tfprep.errors import BuildError, DatasetError, LoaderError, RecipeError
from tfprep.load import Data
from tfprep.load import open as open_data
from tfprep.read.tuning import memory_limit
from tfprep.recipe import Recipe

SHARDS = 8
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


@dataclass(frozen=True)
class Built:
    """A strategy's sample: where it is, its bytes and records, and the seconds a build takes: `fixed_s + samples * sample_s`."""

    strategy: Strategy
    data: Data
    samples: int
    bytes: int
    fixed_s: float
    sample_s: float
    derive_s: float


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
    on_progress: Callable[[str], None] | None = None,
) -> Advice:
    """Measure the strategies in the folder `scratch`, which then holds the sample's datasets. `workers` as for a build.

    Imports TensorFlow.
    """
    tell = on_progress or (lambda line: None)
    listing = recipe.source.scan(root)
    recipe.check_fields(listing)
    total = sum(1 for _ in listing.entries)
    sampling = Sampling(root, scratch, min(samples, total), workers)
    built, left_out = _build_all(strategies(recipe, {**listing.kinds, **recipe.derived_kinds()}), sampling, tell)
    candidates = {item.strategy.name: _candidate(item, split) for item in built}
    measurable, unreadable = _readable(candidates)
    tell(f"loading {len(measurable)} of them in turns")
    rounds = compare(measurable, budget or Budget(3, 1.0, 0.5, 2))
    found = [_predict(item, rounds, total) for item in built if item.strategy.name not in unreadable]
    chosen, reason = choose(found, goals or Goals())
    winner = next(item for item in built if item.strategy.name == chosen.strategy)
    variants = _variants(winner, chosen, split, sampling, total)
    return Advice(
        total, sampling.samples, tuple(found), tuple(variants), chosen.strategy, reason,
        {**left_out, **unreadable}, rounds.busy,
    )  # fmt: skip


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


# --- building the sample --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampling:
    """How samples are built: from `root`, into folders of `scratch`, so many, by so many workers."""

    root: Path
    scratch: Path
    samples: int
    workers: int | None = None

    def build(self, recipe: Recipe, folder: str, samples: int | None = None) -> BuildSummary:
        """A real build of a sample, in enough shards for all workers."""
        splits = {entry.split for entry in recipe.source.scan(self.root).entries}
        sharded = dataclasses.replace(recipe, shards=dict.fromkeys(splits, SHARDS))
        options = BuildOptions(self.workers, limit=samples or self.samples)
        return build(sharded, self.scratch / folder, self.root, options=options)


def _build_all(
    wanted: Sequence[Strategy], sampling: Sampling, tell: Callable[[str], None]
) -> tuple[list[Built], dict[str, str]]:
    built: list[Built] = []
    left_out: dict[str, str] = {}
    for number, strategy in enumerate(wanted):
        tell(f"building a sample: {strategy.name}")
        try:
            built.append(_build(strategy, sampling, f"strategy{number}"))
        except (BuildError, RecipeError, DatasetError) as error:
            left_out[strategy.name] = str(error).splitlines()[0]
    return built, left_out


def _build(strategy: Strategy, sampling: Sampling, folder: str) -> Built:
    few = sampling.build(strategy.recipe, f"{folder}-few", max(8, sampling.samples // 4))
    whole = sampling.build(strategy.recipe, folder)
    sample_s = max(1e-6, (whole.seconds - few.seconds) / max(1, whole.samples - few.samples))
    fixed_s = max(0.0, whole.seconds - whole.samples * sample_s)
    derive_s = _derive_s(strategy.whole, sampling.root) if strategy.computed else 0.0
    return Built(strategy, open_data(whole.out), whole.samples, whole.bytes, fixed_s, sample_s, derive_s)


def _derive_s(recipe: Recipe, root: Path, samples: int = 16) -> float:
    """Seconds of one core that the derived inputs of an image take."""
    raw = RawSamples.of(recipe, root)
    count = min(samples, len(raw))
    for number in range(count):
        raw.made(number, 0)
    return raw.maker.seconds["derive"] / count


# --- loading the sample ---------------------------------------------------------------------------------------------


def _candidate(item: Built, split: str) -> Candidate:
    options: dict[str, Any] = {"cache": False, "geometry": item.strategy.load_geometry}
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


def _predict(item: Built, rounds: Rounds, total: int) -> Prediction:
    name = item.strategy.name
    disk = item.bytes / item.samples * total
    record = item.bytes / _records(item.data)
    seconds = max(1 / rounds.images_per_s(name).median + item.derive_s / cores(), _read_s(item, record, disk))
    return Prediction(
        name, stored_as(item.strategy), 1 / seconds, disk, item.fixed_s + total * item.sample_s, item.derive_s > 0
    )


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


def _records(data: Data) -> int:
    return sum(info.samples * info.variants for info in data.splits.values())


# --- variants -------------------------------------------------------------------------------------------------------


def _variants(winner: Built, chosen: Prediction, split: str, sampling: Sampling, total: int) -> list[Prediction]:
    """Disk and build time of 1 to 16 variants of the chosen strategy: one more sample is built, with another number of
    them, and both costs are straight lines."""
    have = winner.strategy.recipe.variants_of(split)
    if winner.strategy.load_geometry:
        return []  # files that stay as they are have no variants
    other = have + 4
    recipe = dataclasses.replace(winner.strategy.recipe, variants={**winner.strategy.recipe.variants, split: other})
    more = sampling.build(recipe, "variants")
    bytes_each = (more.bytes - winner.bytes) / (other - have) / winner.samples
    seconds_each = (
        max(0.0, more.seconds - winner.fixed_s - winner.samples * winner.sample_s) / (other - have) / winner.samples
    )
    return [
        Prediction(
            f"{count} variant{'s' if count > 1 else ''}",
            chosen.stored,
            chosen.images_per_s,
            chosen.disk_bytes + (count - have) * bytes_each * total,
            max(0.0, chosen.build_s + (count - have) * seconds_each * total),
        )
        for count in VARIANTS
    ]
