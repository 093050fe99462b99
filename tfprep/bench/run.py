"""`tfprep bench` as a call of the library: the loader's rate, the ladder below it, what limits it and what to change."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tfprep.bench.ladder import Ladder, ladder, rungs_of
from tfprep.bench.limit import Limit, changes_of, explain
from tfprep.bench.loaders import Map, check_map, loader_candidate, opened
from tfprep.bench.machine import Machine, cached_share, drop_cache, this_machine
from tfprep.bench.measure import Budget, Candidate, Rounds, Stretch, compare
from tfprep.bench.step import Against, against_step
from tfprep.dataset.place import is_remote
from tfprep.errors import DatasetError, LoaderError
from tfprep.load import Data

LOADER = "loader"


@dataclass(frozen=True)
class BenchOptions:
    """What is measured, and for how long.

    - `split`: None takes the first. `batch_size`, and `loader`: the options of the loader, as a trainer would give them.
    - `map_function`: the user's own, put behind the loader with `Dataset.map`.
    - `rounds` of `seconds` for every rung and every candidate that it is compared with.
    - `cold`: ask the system to forget the dataset's files before every stretch.
    - `changes`: also measure other forms of the stored fields.
    """

    split: str | None = None
    batch_size: int = 32
    loader: Mapping[str, Any] = field(default_factory=dict)
    map_function: Map | None = None
    rounds: int = 3
    seconds: float = 1.5
    cold: bool = False
    changes: bool = True

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
    """What was measured. `cached` is the share of the split's files in the file cache at the start, None where the system
    does not say; `settings` what the loader says that it chose; `baselines` the names of what it was compared with."""

    folder: Path
    split: str
    samples: int
    options: BenchOptions
    machine: Machine
    cached: float | None
    settings: Mapping[str, Any]
    rounds: Rounds
    ladder: Ladder
    limit: Limit
    baselines: tuple[str, ...] = ()
    against: Against | None = None

    @property
    def batch_s(self) -> float:
        """How long the loader takes for a batch."""
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
            "ladder": self.ladder.as_json(),
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
    on_stretch: Callable[[str, Stretch], None] | None = None,
) -> Bench:
    """Measure the loader, its ladder and the baselines in turns; then, with `step_s`, against a step of that length.

    Imports TensorFlow. Raises DatasetError, LoaderError.
    """
    options = options or BenchOptions()
    data = opened(data)
    split = options.split or next(iter(data.splits))
    files = files_of(data, split)
    cached = cached_share(files)
    machine = this_machine(data.path)
    loader = loader_candidate(
        data, split, options.batch_size, name=LOADER, map_function=options.map_function, **options.loader
    )
    if options.map_function is not None:
        check_map(loader)
    rungs = rungs_of(data, split, options.batch_size, options.map_function, **options.loader)
    candidates = [*rungs, loader, *baselines]
    if options.cold:
        candidates = [_colder(candidate, files) for candidate in candidates]
    rounds = compare(candidates, options.budget, on_stretch)
    steps = ladder(rounds)
    free = machine.cores * (1 - (rounds.others or 0.0))
    changes = changes_of(data, split, steps, free) if options.changes else []
    result = Bench(
        data.path, split, data.split(split).samples, options, machine, cached, settings_of(loader), rounds, steps,
        explain(steps, machine.cores, changes, rounds.others or 0.0), tuple(candidate.name for candidate in baselines),
    )  # fmt: skip
    if step_s is None:
        return result
    return Bench(**{**vars(result), "against": against_step(loader, step_s, result.batch_s, seconds=_long(options))})


def files_of(data: Data, split: str) -> list[Path]:
    """The files of a split. DatasetError where one is missing or there is no sample, LoaderError where they lie at a URL."""
    if is_remote(data.path):
        raise LoaderError(f"{data.path}: bench measures a dataset on a disk of this machine; copy it here first")
    if not data.split(split).samples:
        there = ", ".join(name for name, info in data.splits.items() if info.samples) or "no split with samples"
        raise DatasetError(f"{data.path}: split {split!r} holds no sample; there is {there} (option --split)")
    files = [data.path / file.name for files in data.split(split).files for file in files]
    for path in files:
        if not path.is_file():
            raise DatasetError(f"{path} is missing; the build's command, run again, makes what is missing")
    return files


def settings_of(candidate: Candidate) -> dict[str, Any]:
    """What a loader says of itself, its counters left out: it has read nothing yet."""
    iteration = candidate.open()
    try:
        report = dict(iteration.loader.report())  # type: ignore[attr-defined]
    finally:
        iteration.close()  # type: ignore[attr-defined]
    report.pop("stats", None)
    report["cache"] = {name: value for name, value in report["cache"].items() if name not in ("records", "bytes")}
    return report


def _long(options: BenchOptions) -> float:
    return max(3.0, options.rounds * options.seconds)


def _colder(candidate: Candidate, files: Sequence[Path]) -> Candidate:
    def begin() -> Any:
        drop_cache(files)
        return candidate.open()

    return Candidate(candidate.name, begin)
