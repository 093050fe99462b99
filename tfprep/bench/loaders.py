"""tfprep's own loader as something to be measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfprep.bench.measure import Candidate
from tfprep.errors import LoaderError, TfprepError
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

    def cache_bytes(self) -> float:
        """What the loader's cache holds by now."""
        return float(self.loader.stats["cache_bytes"])

    def close(self) -> None:
        self.loader.close()


def loader_candidate(
    data: Data, split: str, batch_size: int, *, name: str = "tfprep", map_function: Map | None = None, **options: Any
) -> Candidate:
    """The loader in an eager loop, as training would use it, with the user's own `.map` behind it. Imports TensorFlow
    when it is opened."""

    def begin() -> Iteration:
        loader = data.loader(split, batch_size=batch_size, **options)
        dataset = loader
        if map_function is not None:
            dataset = _mapped(dataset, map_function).prefetch(2)
        return Iteration(loader, iter(dataset))

    return Candidate(name, begin)


def _mapped(dataset: Any, function: Map) -> Any:
    import tensorflow as tf

    try:
        return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)
    except Exception as error:  # whatever a user's function raises while it is traced
        raise LoaderError(
            f"--map: the function raised {last_line(error)}; it is given {given(dataset.element_spec)}"
        ) from error


def check_map(candidate: Candidate) -> None:
    """Take one batch. LoaderError where the user's function fails on it: it may do so only when it runs."""
    iteration = candidate.open()
    try:
        next(iteration)
    except TfprepError:
        raise
    except Exception as error:
        raise LoaderError(f"--map: the function failed on the first batch: {last_line(error)}") from error
    finally:
        iteration.close()  # type: ignore[attr-defined]


def given(spec: Any) -> str:
    """The structure of an element, as `(image: uint8 [8, 16, 16, 3], label: int64 [8])`."""
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{name}: {given(value)}" for name, value in spec.items()) + "}"
    if isinstance(spec, tuple):
        return "(" + ", ".join(given(value) for value in spec) + ")"
    return f"{spec.dtype.name} {[*spec.shape]}"


def last_line(error: BaseException) -> str:
    """The error's type and text; of a traceback that TensorFlow has put into a message, its last line."""
    told = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in told if "Error: " in line or "Exception: " in line]
    return named[-1] if named else ": ".join([type(error).__name__, *told[:1]])


def numpy_candidate(data: Data, split: str, batch_size: int, *, name: str, **options: Any) -> Candidate:
    """The same batches as NumPy arrays."""

    def begin() -> Iteration:
        loader = data.numpy_loader(split, batch_size=batch_size, **options)
        return Iteration(loader, iter(loader))

    return Candidate(name, begin)


def opened(data: Data | str | os.PathLike[str]) -> Data:
    return data if isinstance(data, Data) else open_data(data)
