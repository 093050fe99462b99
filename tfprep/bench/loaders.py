"""tfprep's own loader as something to be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tfprep.bench.measure import Candidate
from tfprep.load import Data

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
