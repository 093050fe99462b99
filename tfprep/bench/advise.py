"""Advice on how to store a dataset before it is built: every strategy is built and loaded on a sample.

A sample is built by as many workers as the whole would be. The time of the workers on their shards is the time of the samples;
the rest (starting, listing, publishing) is fixed. The samples are then loaded in turns. The predictions for the whole dataset are

- images/s: the measured rate; if the dataset does not fit into memory, at most the rate of the disk;
- disk: the bytes per sample times the number of samples;
- build: the fixed time, plus the time to process all shards with the workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tfprep.bench.bottleneck import codec_name
from tfprep.bench.loaders import loader_candidate
from tfprep.bench.machine import cached_share, drop_cache
from tfprep.bench.rounds import Budget, Candidate, Rounds, compare, measure
from tfprep.bench.stages import records
from tfprep.bench.trial import Built, RawSamples, Sampling, Strategy, Work, strategies, work_of, written
from tfprep.codecs import Jpeg
from tfprep.errors import BuildError, DatasetError, LoaderError, RecipeError, SampleError, SourceError
from tfprep.limits import memory_limit, usable_cpus
from tfprep.recipe import Recipe

VARIANTS = (1, 2, 4, 8, 16)
"""Numbers of variants whose disk and build time are predicted."""
LOSS_SAMPLES = 24
IN_MEMORY = 0.6
"""A dataset below this share of the memory is assumed to stay in the page cache."""


@dataclass(frozen=True)
class Goals:
    """Requirements of a dataset; None where there is none."""

    images_per_s: float | None = None
    disk_bytes: float | None = None
    hours: float | None = None

    def missed(self, prediction: Prediction) -> dict[str, float]:
        """The requirements that a prediction misses, in words, and by what factor."""
        missed = {}
        if self.images_per_s is not None and prediction.images_per_s < self.images_per_s:
            words = f"{prediction.images_per_s:,.0f} of {self.images_per_s:,.0f} images/s"
            missed[words] = self.images_per_s / prediction.images_per_s
        if self.disk_bytes is not None and prediction.disk_bytes > self.disk_bytes:
            words = f"{prediction.disk_bytes / 1e9:.3g} of {self.disk_bytes / 1e9:.3g} GB"
            missed[words] = prediction.disk_bytes / self.disk_bytes
        if self.hours is not None and prediction.build_s / 3600 > self.hours:
            missed[f"{prediction.build_s / 3600:.2g} of {self.hours:.2g} hours"] = (
                prediction.build_s / 3600 / self.hours
            )
        return missed


@dataclass(frozen=True)
class Prediction:
    """The whole dataset under one strategy. An `estimated` rate is computed from CPU times, not measured."""

    strategy: str
    stored: str
    images_per_s: float
    disk_bytes: float
    build_s: float
    estimated: bool = False


@dataclass(frozen=True)
class Loss:
    """The loss of one field: PSNR in dB between an image before encoding and the decoded one, over `samples` images."""

    field: str
    codec: str
    median_db: float
    least_db: float
    samples: int

    @property
    def words(self) -> str:
        return (
            f"'{self.field}' as {self.codec} loses detail: PSNR {self.median_db:.1f} dB in the median of {self.samples} "
            f"images, {self.least_db:.1f} dB at worst"
        )


@dataclass(frozen=True)
class Advice:
    """All predictions, the recommended strategy with the reason, and the strategies that were left out with the reasons.

    `lines` are the lines to write for the recommended strategy; `lost` is what it loses in JPEG.
    """

    samples: int
    measured_on: int
    predictions: tuple[Prediction, ...]
    variants: tuple[Prediction, ...]
    chosen: str
    reason: str
    left_out: Mapping[str, str]
    busy: str
    lines: tuple[str, ...] = ()
    lost: tuple[Loss, ...] = ()

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
    """Measure strategies on a sample and recommend one. Imports TensorFlow.

    Args:
        recipe: The recipe whose fields are stored.
        root: The folder of its raw files.
        scratch: A folder for the datasets of the sample.
        goals: Requirements of the dataset.
        samples: Number of samples to build.
        split: The split to load.
        budget: Rounds and seconds of loading.
        workers: Worker processes, as for a build.
        only: Names of the strategies to measure; all if empty.
        on_progress: Called with a line of text for each step.

    Returns:
        Predictions for the whole dataset, and the recommended strategy.

    Raises:
        RecipeError: If there is no strategy of such a name, or none can be built.
        LoaderError: If no strategy can be loaded.
        SourceError: If the split has no sample.
    """
    tell = on_progress or (lambda line: None)
    listing = recipe.source.scan(root)
    recipe.check_fields(listing)
    counts = Counter(entry.split for entry in listing.entries)
    if split not in counts:
        there = f"available: {', '.join(sorted(counts))}" if counts else "the source finds no sample at all"
        raise SourceError(f"{root}: split {split!r} has no sample; {there} (option --split)")
    sampling = Sampling(root, scratch, min(samples, counts.total()), counts, workers)
    available = strategies(recipe, {**listing.kinds, **recipe.derived_kinds()})
    names = [strategy.name for strategy in available]
    if unknown := [name for name in only if name not in names]:
        raise RecipeError(f"there is no strategy {unknown[0]!r} for this recipe; available: {', '.join(names)}")
    selected = [strategy for strategy in available if not only or strategy.name in only]
    built, candidates, left_out = _tried(selected, sampling, split, tell)
    tell(f"loading {len(candidates)} samples in turns")
    rounds = compare(candidates, budget or Budget(3, 1.0, 0.5, 2))
    work = work_of(recipe, root, scratch / "whole")
    predictions = [_predict(item, rounds, counts, work) for item in built]
    chosen, reason = choose(predictions, goals or Goals())
    winner = next(item for item in built if item.strategy.name == chosen.strategy)
    variants = _variants(winner, chosen, split, sampling)
    return Advice(
        counts.total(), sampling.samples, tuple(predictions), tuple(variants), chosen.strategy, reason,
        left_out, rounds.busy, written(winner.strategy), losses(winner.strategy.recipe, root, split),
    )  # fmt: skip


def choose(predictions: Sequence[Prediction], goals: Goals) -> tuple[Prediction, str]:
    """The smallest strategy that meets all goals or, without a goal for the rate, the fastest that meets the others.

    If none meets all goals, the one that misses the fewest; of these one that is fast enough, and the one that comes closest.
    """
    meeting = [one for one in predictions if not goals.missed(one)]
    if not meeting:

        def distance(one: Prediction) -> tuple[int, bool, float]:
            factors = goals.missed(one).values()
            return len(factors), one.images_per_s < (goals.images_per_s or 0), max(factors)

        least = min(predictions, key=distance)
        return least, f"no strategy meets all requirements; this one comes closest ({', '.join(goals.missed(least))})"
    if goals.images_per_s is not None:
        return min(meeting, key=lambda one: one.disk_bytes), "the smallest strategy that is fast enough"
    return max(meeting, key=lambda one: one.images_per_s), "the fastest strategy" + (
        " within the limits" if goals != Goals() else ""
    )


# --- loading the sample ---------------------------------------------------------------------------------------------


def _tried(
    selected: Sequence[Strategy], sampling: Sampling, split: str, tell: Callable[[str], None]
) -> tuple[list[Built], list[Candidate], dict[str, str]]:
    """Build a sample by each strategy and load a batch; return those that work, their loaders, and the errors of the others.

    All are built before one is loaded: TensorFlow and its threads would count as time of the later builds.
    """
    built: list[Built] = []
    readable: list[Built] = []
    candidates: list[Candidate] = []
    left_out: dict[str, str] = {}
    for number, strategy in enumerate(selected):
        tell(f"building a sample: {strategy.name}")
        try:
            built.append(sampling.build(strategy, f"strategy{number}"))
        except (BuildError, RecipeError, DatasetError) as error:
            left_out[strategy.name] = str(error).splitlines()[0]
    if not built:
        raise RecipeError(f"no strategy can be built: {'; '.join(f'{name}: {why}' for name, why in left_out.items())}")
    for item in built:
        name = item.strategy.name
        options: dict[str, Any] = {"cache": False, "geometry": item.strategy.load_geometry}
        try:
            candidate = loader_candidate(item.data, split, 32, name=name, **options)
            measure(candidate, Budget(1, 0.0, 0.0, 1))
        except (LoaderError, DatasetError) as error:
            left_out[name] = str(error).splitlines()[0]
        else:
            readable.append(item)
            candidates.append(candidate)
    if not readable:
        why = "; ".join(f"{item.strategy.name}: {left_out[item.strategy.name]}" for item in built)
        raise LoaderError(f"no strategy can be loaded: {why}")
    return readable, candidates, left_out


def _predict(item: Built, rounds: Rounds, counts: Counter[str], work: Work) -> Prediction:
    name = item.strategy.name
    stored = ", ".join(f"{field} {codec_name(codec)}" for field, codec in item.strategy.recipe.store.items())
    disk = sum(_sample_bytes(item, split) * count for split, count in counts.items())
    record = item.bytes / sum(info.samples * info.variants for info in item.data.splits.values())
    seconds = max(1 / rounds.images_per_s(name).median + item.derive_s / usable_cpus(), _read_s(item, record, disk))
    return Prediction(name, stored, 1 / seconds, disk, item.build_s(work), item.derive_s > 0)


def _read_s(item: Built, record_bytes: float, disk_bytes: float) -> float:
    """Seconds to read an image from the disk; 0 if the dataset will stay in memory."""
    if disk_bytes < IN_MEMORY * memory_limit():
        return 0.0
    files = [item.data.shard_path(file) for info in item.data.splits.values() for of in info.files for file in of]
    drop_cache(files)
    if cached_share(files) not in (None, 0.0):
        return 0.0  # the system keeps the files in memory, so the disk cannot be measured
    cold = measure(records("reading", item.data, next(iter(item.data.splits)), decode=False), Budget(1, 0.2, 0.0, 2))
    return record_bytes / cold.bytes_per_s


def _sample_bytes(item: Built, split: str) -> float:
    """Bytes of a sample of this split with all its variants, or of any split if the drawn samples have none of this one."""
    info = item.data.splits.get(split)
    return info.bytes / info.samples if info is not None and info.samples else item.bytes / item.samples


# --- variants -------------------------------------------------------------------------------------------------------


def _variants(winner: Built, chosen: Prediction, split: str, sampling: Sampling) -> list[Prediction]:
    """The disk and build time of 1 to 16 variants of the chosen strategy.

    Both grow linearly with the number of variants; one more sample, built with another number, gives the slope.
    """
    have = winner.strategy.recipe.variants_of(split)
    if winner.strategy.load_geometry:
        return []  # unchanged files have no variants
    other = have + 4
    recipe = replace(winner.strategy.recipe, variants={**winner.strategy.recipe.variants, split: other})
    more = sampling.build(replace(winner.strategy, recipe=recipe, computed=()), "variants")
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


# --- what JPEG loses


def losses(recipe: Recipe, root: Path, split: str) -> tuple[Loss, ...]:
    """Measure each field that the recipe stores as JPEG, on variant 0 of the first samples; empty where there is none."""
    lossy = [name for name, codec in recipe.store.items() if isinstance(codec, Jpeg)]
    if not lossy:
        return ()
    raw = RawSamples.of(recipe, root, split)
    psnr_db: dict[str, list[float]] = {name: [] for name in lossy}
    for number in range(min(LOSS_SAMPLES, len(raw))):
        try:
            sample = raw.made(number, 0)
        except SampleError:  # a build rejects it, and says so
            continue
        for name in lossy:
            codec = recipe.store[name]
            decoded = codec.decode(codec.encode(sample[name])[""], raw.spec(name, sample[name]))
            error = float(np.mean((np.asarray(sample[name], np.float64) - np.asarray(decoded, np.float64)) ** 2))
            psnr_db[name].append(10 * float(np.log10(255**2 / error)) if error else float("inf"))
    return tuple(
        Loss(name, codec_name(recipe.store[name]), median(values), min(values), len(values))
        for name, values in psnr_db.items()
        if values
    )
