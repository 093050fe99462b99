"""What each stage of loading takes: the same records read, decoded, batched, handed to TensorFlow, mapped.

Every rung does all that the one below it does, and one thing more; all of them are measured in turns. A rung's cost is how
much longer an image takes than on the rung below. Stages that run beside each other hide each other's cost, so the costs
are not seconds of work: they say which stage an image waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfprep.bench.loaders import Map, loader_candidate, numpy_candidate
from tfprep.bench.measure import Candidate, Rounds, Spread
from tfprep.bench.stages import decoding, reading
from tfprep.load import Data

WORDS = {
    "reading": "read only",
    "decoding": "read and decode",
    "batching": "in order, into batches",
    "tensorflow": "as tensors",
    "map": "with your .map",
}


@dataclass(frozen=True)
class Rung:
    """`share` (0 to 1) of the time an image takes that this stage adds."""

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
class Ladder:
    """The rungs from the bottom, and the stage that limits: the one that adds most."""

    rungs: tuple[Rung, ...]

    @property
    def limit(self) -> Rung:
        return max(self.rungs, key=lambda rung: rung.share)

    @property
    def top(self) -> Rung:
        return self.rungs[-1]

    def rung(self, name: str) -> Rung:
        return next(rung for rung in self.rungs if rung.name == name)

    def as_json(self) -> list[dict[str, Any]]:
        return [{**asdict(rung), "words": rung.words} for rung in self.rungs]


def rungs_of(data: Data, split: str, batch_size: int, map_function: Map | None, **options: Any) -> list[Candidate]:
    """Every rung as a candidate, from the bottom. `options` go to the loader; its threads also read and decode below it.

    All of them without a cache: a cache hides what a stage costs, from the second epoch on.
    """
    threads = int(options.get("threads", 0))
    options = {**options, "cache": False}
    rungs = [
        reading(data, split, threads=threads),
        decoding(data, split, threads=threads),
        numpy_candidate(data, split, batch_size, name="batching", **options),
        loader_candidate(data, split, batch_size, name="tensorflow", **options),
    ]
    if map_function is not None:
        rungs.append(
            loader_candidate(data, split, batch_size, name="map", map_function=map_function, **options),
        )
    return rungs


def ladder(rounds: Rounds, names: Sequence[str] = tuple(WORDS)) -> Ladder:
    """What the rounds say of the stages that were measured."""
    measured = [name for name in names if name in rounds.stretches]
    seconds = [1 / rounds.images_per_s(name).median for name in measured]
    added = [max(0.0, now - before) for before, now in zip([0.0, *seconds], seconds, strict=False)]
    total = sum(added)
    return Ladder(
        tuple(
            Rung(
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
