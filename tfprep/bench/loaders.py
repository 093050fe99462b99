"""Candidates for tfprep's own loaders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tfprep.bench.rounds import Candidate
from tfprep.load import Data


@dataclass(frozen=True)
class Iteration:
    """One pass over a loader, with the loader's counters. Closing it stops the loader's threads."""

    loader: Any
    batches: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.batches

    def __next__(self) -> Any:
        return next(self.batches)

    @property
    def stats(self) -> dict[str, Any]:
        """See the loader."""
        return dict(self.loader.stats)

    def report(self) -> dict[str, Any]:
        """See the loader."""
        return dict(self.loader.report())

    def cache_bytes(self) -> float:
        """The bytes in the loader's cache."""
        return float(self.stats["cache_bytes"])

    def close(self) -> None:
        self.loader.close()


def loader_candidate(data: Data, split: str, batch_size: int, *, name: str = "tfprep", **options: Any) -> Candidate:
    """The loader in an eager loop. Opening it imports TensorFlow."""

    def begin() -> Iteration:
        loader = data.loader(split, batch_size=batch_size, **{"training": True, **options})
        loader = loader.repeat() if loader.pipeline.training else loader
        return Iteration(loader, iter(loader.eager()))

    return Candidate(name, begin)
