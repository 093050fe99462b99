"""tfprep's own loader as something to be measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfprep.bench.measure import Candidate
from tfprep.load import Data
from tfprep.load import open as open_data

Map = Callable[..., Any]


@dataclass(frozen=True)
class Iteration:
    """One pass over a loader; closing it stops the loader's threads."""

    loader: Any
    batches: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.batches

    def __next__(self) -> Any:
        return next(self.batches)

    def ready(self) -> Mapping[str, float]:
        """How many batches wait in the reader, how many are being filled, and how many there may be of both."""
        stats = self.loader.stats
        names = {"ready": "batches_ready", "in_flight": "batches_in_flight", "ahead": "batches_ahead"}
        return {name: float(stats[counter]) for name, counter in names.items()}

    def close(self) -> None:
        self.loader.close()


def loader_candidate(
    data: Data, split: str, batch_size: int, *, name: str = "tfprep", map_function: Map | None = None, **options: Any
) -> Candidate:
    """The loader in an eager loop, as training would use it, with the user's own `.map` behind it. Imports TensorFlow
    when it is opened."""

    def begin() -> Iteration:
        import tensorflow as tf

        loader = data.loader(split, batch_size=batch_size, **options)
        dataset = loader
        if map_function is not None:
            dataset = dataset.map(map_function, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
        return Iteration(loader, iter(dataset))

    return Candidate(name, begin)


def numpy_candidate(data: Data, split: str, batch_size: int, *, name: str, **options: Any) -> Candidate:
    """The same batches as NumPy arrays."""

    def begin() -> Iteration:
        loader = data.numpy_loader(split, batch_size=batch_size, **options)
        return Iteration(loader, iter(loader))

    return Candidate(name, begin)


def opened(data: Data | str | os.PathLike[str]) -> Data:
    return data if isinstance(data, Data) else open_data(data)
