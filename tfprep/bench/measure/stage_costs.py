"""The cost of each stage of loading: reading, decoding, batching, the hand-over to TensorFlow, the user's map function.

Every stage includes the work of the stages before it, and all are measured in turns. The cost of a stage is the additional time
per image. Stages that run in parallel hide each other's cost, so a cost is not the seconds of work of a stage: it tells which
stage an image waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfprep.bench.measure.loaders import Map, loader_candidate, numpy_candidate
from tfprep.bench.measure.measure import Candidate, Rounds, Spread
from tfprep.bench.measure.read_decode import decoding, reading
from tfprep.load import Data

WORDS = {
    "reading": "read only",
    "decoding": "read and decode",
    "batching": "in order, into batches",
    "tensorflow": "as tensors",
    "map": "with your .map",
}


@dataclass(frozen=True)
class StageCost:
    """The rate up to a stage, and the `share` (0 to 1) of the time per image that the stage adds."""

    name: str
    images_per_s: Spread
    bytes_per_s: Spread
    cpu_ms: Spread
    cores: Spread
    share: float

    @property
    def words(self) -> str:
        return WORDS[self.name]


@dataclass(frozen=True)
class StageCosts:
    """The stages in the order of the data. The limiting stage is the one with the largest share."""

    costs: tuple[StageCost, ...]

    @property
    def limit(self) -> StageCost:
        return max(self.costs, key=lambda stage: stage.share)

    @property
    def top(self) -> StageCost:
        return self.costs[-1]

    def stage(self, name: str) -> StageCost:
        return next(stage for stage in self.costs if stage.name == name)

    def as_json(self) -> list[dict[str, Any]]:
        return [{**asdict(stage), "words": stage.words} for stage in self.costs]


def stage_candidates(
    data: Data, split: str, batch_size: int, map_function: Map | None, **options: Any
) -> list[Candidate]:
    """A candidate for each stage. `options` are those of the loader; its `threads` hold for the first stages too.

    All candidates run without a cache, which would hide the cost of reading and decoding from the second epoch on.
    """
    threads = int(options.get("threads", 0))
    options = {**options, "cache": False}
    stages = [
        reading(data, split, threads=threads),
        decoding(data, split, threads=threads),
        numpy_candidate(data, split, batch_size, name="batching", **options),
        loader_candidate(data, split, batch_size, name="tensorflow", **options),
    ]
    if map_function is not None:
        stages.append(
            loader_candidate(data, split, batch_size, name="map", map_function=map_function, **options),
        )
    return stages


def stage_costs(rounds: Rounds, names: Sequence[str] = tuple(WORDS)) -> StageCosts:
    """The costs of the stages that were measured."""
    measured = [name for name in names if name in rounds.measurements]
    seconds = [1 / rounds.images_per_s(name).median for name in measured]
    added = [max(0.0, now - before) for before, now in zip([0.0, *seconds], seconds, strict=False)]
    total = sum(added)
    return StageCosts(
        tuple(
            StageCost(
                name,
                rounds.images_per_s(name),
                rounds.bytes_per_s(name),
                rounds.cpu_ms(name),
                rounds.cores(name),
                share / total,
            )
            for name, share in zip(measured, added, strict=True)
        )
    )
