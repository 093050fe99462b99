"""Builds a strategy on a sample of the raw data and splits its time into a fixed part and a part per sample."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tfprep.bench.samples import RawSamples
from tfprep.bench.strategies import Strategy
from tfprep.builder import BuildEvent, BuildOptions, build, plan_build
from tfprep.errors import BuildError, DatasetError, RecipeError
from tfprep.limits import usable_cpus
from tfprep.load import Data
from tfprep.load import open as open_data
from tfprep.recipe import Recipe

MOST_SHARDS, LEAST_SAMPLES = 8, 16
SHORT_S = 20.0
"""A sample build that takes longer than about this is not repeated."""


Work: TypeAlias = Sequence[tuple[str, int]]
"""The split and number of samples of each shard, in the order in which a build starts them."""


@dataclass(frozen=True)
class Built:
    """A strategy built on a sample.

    A build takes `fixed_s` seconds, and one of its `workers` takes `sample_s[split]` seconds per sample of a split. `derive_s` is
    the CPU time per image of the derived inputs that are left to the training loop.
    """

    strategy: Strategy
    data: Data
    samples: int
    bytes: int
    workers: int
    fixed_s: float
    sample_s: Mapping[str, float]
    derive_s: float = 0.0

    def build_s(self, work: Work) -> float:
        """Seconds to build these shards. A split without a drawn sample costs as much as the most expensive other one."""
        other = max(self.sample_s.values(), default=0.0)
        seconds = [count * self.sample_s.get(split, other) for split, count in work]
        return self.fixed_s + makespan(seconds, self.workers)


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Seconds until the last task is done, if the next free worker starts each task in turn."""
    free = [0.0] * max(1, workers)
    for task in seconds:
        heapq.heapreplace(free, free[0] + task)
    return max(free)


def sample_seconds(shards: Sequence[tuple[str, int, float]]) -> dict[str, float]:
    """Seconds of one worker per sample by split, of shards given as (split, samples, seconds)."""
    return {
        split: sum(took for of, _, took in shards if of == split) / sum(count for of, count, _ in shards if of == split)
        for split in dict.fromkeys(of for of, _, _ in shards)
    }


@dataclass(frozen=True)
class Sampling:
    """The way in which samples are built: from `root` into folders of `scratch`, with `workers` processes (None: one per core).

    `counts` is the number of samples of each split in the raw data.
    """

    root: Path
    scratch: Path
    samples: int
    counts: Mapping[str, int]
    workers: int | None = None

    def build(self, strategy: Strategy, folder: str) -> Built:
        """Build a sample. A short build runs twice, as a pause of the machine may be as long; the smaller times count."""
        built = self._build(strategy, folder)
        if built.fixed_s + sum(built.sample_s.values()) * self.samples > SHORT_S:
            return built
        again = self._build(strategy, f"{folder}-again")
        sample_s = {split: min(took, again.sample_s.get(split, took)) for split, took in built.sample_s.items()}
        return dataclasses.replace(built, fixed_s=min(built.fixed_s, again.fixed_s), sample_s=sample_s)

    def _build(self, strategy: Strategy, folder: str) -> Built:
        """Use as few shards as keep all workers busy, since every shard has a cost of its own."""
        shards: list[tuple[str, int, float]] = []

        def on_event(event: BuildEvent) -> None:
            if event.name == "shard" and event.facts["samples"]:
                of = event.facts
                shards.append((str(of["split"]), int(of["samples"]), float(of["shard_seconds"])))

        recipe = dataclasses.replace(strategy.recipe, shards={split: self._shards(split) for split in self.counts})
        options = BuildOptions(self.workers, limit=self.samples)
        made = build(recipe, self.scratch / folder, self.root, options=options, on_event=on_event)
        workers = usable_cpus() if self.workers is None else self.workers
        fixed_s = max(0.0, made.seconds - makespan([took for _, _, took in shards], workers))
        derive_s = _derive_s(strategy.whole, self.root) if strategy.computed else 0.0
        data = open_data(made.out)
        return Built(strategy, data, made.samples, made.bytes, workers, fixed_s, sample_seconds(shards), derive_s)

    def _shards(self, split: str) -> int:
        """The number of shards of a split, with at least 16 samples each."""
        expected = self.samples * self.counts[split] // sum(self.counts.values())
        return max(1, min(MOST_SHARDS, expected // LEAST_SAMPLES))


def work_of(recipe: Recipe, root: Path, out: Path) -> list[tuple[str, int]]:
    """The shards of a build of the whole dataset, the largest first, as a build starts them."""
    states = sorted(plan_build(recipe, out, root), key=lambda state: -state.samples)
    return [(state.split, state.samples) for state in states]


def build_all(
    wanted: Sequence[Strategy], sampling: Sampling, tell: Callable[[str], None]
) -> tuple[list[Built], dict[str, str]]:
    """The strategies that can be built, and the errors of the others."""
    built: list[Built] = []
    left_out: dict[str, str] = {}
    for number, strategy in enumerate(wanted):
        tell(f"building a sample: {strategy.name}")
        try:
            built.append(sampling.build(strategy, f"strategy{number}"))
        except (BuildError, RecipeError, DatasetError) as error:
            left_out[strategy.name] = str(error).splitlines()[0]
    return built, left_out


def _derive_s(recipe: Recipe, root: Path, samples: int = 16) -> float:
    """CPU seconds of the derived inputs of an image."""
    raw = RawSamples.of(recipe, root)
    count = min(samples, len(raw))
    for number in range(count):
        raw.made(number, 0)
    return raw.maker.seconds["derive"] / count
