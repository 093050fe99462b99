"""`bench()`, the function behind `tfprep bench`: the rate of the loader, the cost of each stage, and the bottleneck."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tfprep.bench.measure.bottleneck import Bottleneck, changes_of, explain
from tfprep.bench.measure.loaders import Map, check_map, loader_candidate, opened
from tfprep.bench.measure.machine import Machine, cached_share, drop_cache, this_machine
from tfprep.bench.measure.measure import Budget, Candidate, Measurement, Rounds, compare
from tfprep.bench.measure.stage_costs import StageCosts, stage_candidates, stage_costs
from tfprep.bench.measure.step import TOLERATED, StepComparison, compare_with_step
from tfprep.errors import DatasetError, LoaderError
from tfprep.load import Data
from tfprep.storage.urls import is_remote

LOADER = "loader"
UNMAPPED = "unmapped"
"""The loader without the user's `.map`, which is measured beside it where the loader's cache holds all records."""


@dataclass(frozen=True)
class BenchOptions:
    """What a benchmark measures, and for how long.

    Args:
        split: The split to load. None takes the first one.
        batch_size: Samples per batch.
        loader: Other options of the loader, as a trainer passes them.
        map_function: A function that is applied to the loader with `Dataset.map`.
        rounds: Number of rounds. Every candidate runs once per round.
        seconds: Measured seconds per candidate and round.
        cold: Drop the dataset's files from the page cache before every measurement.
        changes: Also measure other storage forms of the fields.
        tolerated: The share of waiting (0 to 1) up to which a training step, and not the loader, is what limits.

    Raises:
        LoaderError: If `rounds` or `seconds` is not positive.
    """

    split: str | None = None
    batch_size: int = 32
    loader: Mapping[str, Any] = field(default_factory=dict)
    map_function: Map | None = None
    rounds: int = 3
    seconds: float = 1.5
    cold: bool = False
    changes: bool = True
    tolerated: float = TOLERATED

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.seconds <= 0:
            raise LoaderError(
                f"at least one round of more than 0 seconds, not rounds={self.rounds}, seconds={self.seconds}"
            )

    @property
    def budget(self) -> Budget:
        return Budget(self.rounds, self.seconds, min(1.0, self.seconds / 2))


@dataclass(frozen=True)
class Bench:
    """The result of a benchmark.

    `cached` is the share of the split's files in the page cache at the start, or None where the system does not tell.
    `settings` is the loader's own report of what it chose. `baselines` are the names of the other candidates.
    """

    folder: Path
    split: str
    samples: int
    options: BenchOptions
    machine: Machine
    cached: float | None
    settings: Mapping[str, Any]
    rounds: Rounds
    stages: StageCosts
    limit: Bottleneck
    baselines: tuple[str, ...] = ()
    against: StepComparison | None = None

    @property
    def batch_s(self) -> float:
        """Seconds that the loader takes for a batch."""
        return self.options.batch_size / self.rounds.images_per_s(LOADER).median

    def as_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.folder),
            "split": self.split,
            "samples": self.samples,
            "batch_size": self.options.batch_size,
            "budget": asdict(self.options.budget),
            "machine": asdict(self.machine),
            "file_cache": "cold" if self.options.cold else "warm",
            "cached_share": self.cached,
            "other_programs": self.rounds.others,
            "warning": self.rounds.busy,
            "settings": dict(self.settings),
            "loader": self.rounds.as_json()[LOADER],
            "stages": self.stages.as_json(),
            "limit": {**asdict(self.limit), "lines": self.limit.lines()},
            "against": {
                name: {**self.rounds.as_json()[name], "ratio": asdict(self.rounds.ratio(LOADER, name))}
                for name in self.baselines
            },
            "step": None if self.against is None else self.against.as_json(),
        }


def bench(
    data: Data | str | os.PathLike[str],
    options: BenchOptions | None = None,
    *,
    baselines: Sequence[Candidate] = (),
    step_s: float | None = None,
    on_measurement: Callable[[str, Measurement], None] | None = None,
) -> Bench:
    """Measure the loader, its stages and the baselines in turns. Imports TensorFlow.

    Args:
        data: An opened dataset, or its folder.
        options: What to measure, and for how long.
        baselines: Other candidates to measure in the same rounds.
        step_s: Length of a training step to compare with, in seconds.
        on_measurement: Called with the name of a candidate and each of its measurements.

    Returns:
        All measurements, the cost of each stage and the bottleneck.

    Raises:
        DatasetError: If the dataset is missing, incomplete or has no sample in the split.
        LoaderError: If an option cannot be met, or the dataset is at a URL.
    """
    options = options or BenchOptions()
    data = opened(data)
    split = options.split or next(iter(data.splits))
    files = files_of(data, split)
    cached, machine = cached_share(files), this_machine(data.path)
    loader = _loader(data, split, options, LOADER, options.map_function)
    if options.map_function is not None:
        check_map(loader)
    settings = settings_of(loader)
    candidates = [*_candidates(data, split, options, loader, settings), *baselines]
    if options.cold:
        candidates = [_colder(candidate, files) for candidate in candidates]
    rounds = compare(candidates, options.budget, on_measurement)
    stages = stage_costs(rounds)
    limit = _limit(data, split, options, machine, settings, rounds, stages)
    names = tuple(candidate.name for candidate in baselines)
    result = Bench(
        data.path, split, data.split(split).samples, options, machine, cached, settings, rounds, stages, limit, names
    )
    if step_s is None:
        return result
    against = compare_with_step(loader, step_s, result.batch_s, seconds=_long(options), tolerated=options.tolerated)
    return replace(result, against=against)


def _loader(data: Data, split: str, options: BenchOptions, name: str, map_function: Map | None) -> Candidate:
    return loader_candidate(data, split, options.batch_size, name=name, map_function=map_function, **options.loader)


def _candidates(
    data: Data, split: str, options: BenchOptions, loader: Candidate, settings: Mapping[str, Any]
) -> list[Candidate]:
    """The stages, the loader, and the loader without the user's `.map` where its cache hides the stages before it."""
    stages = stage_candidates(data, split, options.batch_size, options.map_function, **options.loader)
    if options.map_function is None or not _keeps_all(settings):
        return [*stages, loader]
    return [*stages, loader, _loader(data, split, options, UNMAPPED, None)]


def _limit(
    data: Data,
    split: str,
    options: BenchOptions,
    machine: Machine,
    settings: Mapping[str, Any],
    rounds: Rounds,
    stages: StageCosts,
) -> Bottleneck:
    """What limits the loader, and the storage forms that would help."""
    others = rounds.others or 0.0
    behind_cache = _behind_cache(rounds) if _keeps_all(settings) and rounds.settled(LOADER) else None
    # No recipe stores what an index refers to in another form.
    rebuilt = options.changes and data.external is None and behind_cache is None
    changes = changes_of(data, split, stages, machine.cores * (1 - others)) if rebuilt else []
    prefetch = settings.get("memory", {}).get("prefetch") if options.loader.get("prefetch") is None else None
    return explain(stages, machine.cores, changes, others, prefetch, behind_cache)


def files_of(data: Data, split: str) -> list[Path]:
    """The files of a split. Raises DatasetError if one is missing or the split is empty, and LoaderError if they are at a URL."""
    if is_remote(data.shards_folder):
        raise LoaderError(
            f"{data.shards_folder}: bench measures datasets on a local disk; copy the dataset to this machine first, or "
            "measure the link with tfprep bench URL"
        )
    if not data.split(split).samples:
        there = ", ".join(name for name, info in data.splits.items() if info.samples) or "no split with samples"
        raise DatasetError(f"{data.path}: split {split!r} has no sample; available: {there} (option --split)")
    files = [data.shard_path(file) for files in data.split(split).files for file in files]
    for path in files:
        if not path.is_file():
            raise DatasetError(f"{path} is missing; run the command of the build again, it rebuilds what is missing")
    return files


def settings_of(candidate: Candidate) -> dict[str, Any]:
    """The report of a loader that has read nothing, without its counters."""
    iteration = candidate.open()
    try:
        report = dict(iteration.loader.report())  # type: ignore[attr-defined]
    finally:
        iteration.close()  # type: ignore[attr-defined]
    report.pop("stats", None)
    report["cache"] = {name: value for name, value in report["cache"].items() if name not in ("records", "bytes")}
    return report


def _keeps_all(settings: Mapping[str, Any]) -> bool:
    """Whether the loader's cache has room for all records, decoded."""
    cache = settings.get("cache", {})
    return bool(cache.get("kind") == "decoded" and cache.get("capacity", 0) >= cache.get("of", 1))


def _behind_cache(rounds: Rounds) -> float:
    """The share of the time per image that the user's `.map` adds to a loader that copies rows from its cache."""
    return max(0.0, 1 - rounds.ratio(LOADER, UNMAPPED).median) if UNMAPPED in rounds.measurements else 0.0


def _long(options: BenchOptions) -> float:
    return max(3.0, options.rounds * options.seconds)


def _colder(candidate: Candidate, files: Sequence[Path]) -> Candidate:
    def begin() -> Any:
        drop_cache(files)
        return candidate.open()

    return Candidate(candidate.name, begin)
