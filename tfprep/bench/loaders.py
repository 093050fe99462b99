"""Candidates for tfprep's own loaders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tfprep.bench.rounds import Candidate
from tfprep.errors import LoaderError, TfprepError
from tfprep.load import Data
from tfprep.load import open as open_data

Map = Callable[..., Any]


@dataclass(frozen=True)
class Iteration:
    """One pass over a loader. Closing it stops the loader's threads."""

    loader: Any
    batches: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.batches

    def __next__(self) -> Any:
        return next(self.batches)

    def cache_bytes(self) -> float:
        """The bytes in the loader's cache."""
        return float(self.loader.stats["cache_bytes"])

    def close(self) -> None:
        self.loader.close()


def loader_candidate(
    data: Data, split: str, batch_size: int, *, name: str = "tfprep", map_function: Map | None = None, **options: Any
) -> Candidate:
    """The loader in an eager loop, followed by the user's `Dataset.map`. Opening it imports TensorFlow."""

    def begin() -> Iteration:
        import tensorflow as tf

        loader = data.loader(split, batch_size=batch_size, **{"training": True, **options})
        loader = loader.repeat() if loader.pipeline.training else loader
        if map_function is None:
            return Iteration(loader, iter(loader))
        try:
            mapped = loader.map(map_function, num_parallel_calls=tf.data.AUTOTUNE)
        except Exception as error:  # whatever a user's function raises while it is traced
            raise LoaderError(
                f"--map: the function raised {last_line(error)}; its argument is {element_text(loader.element_spec)}"
            ) from error
        return Iteration(loader, iter(mapped.prefetch(2)))

    return Candidate(name, begin)


def check_map(candidate: Candidate) -> None:
    """Take one batch. Raises LoaderError if the user's function fails, which may happen only when it runs."""
    iteration = candidate.open()
    try:
        next(iteration)
    except TfprepError:
        raise
    except Exception as error:
        raise LoaderError(f"--map: the function failed on the first batch: {last_line(error)}") from error
    finally:
        iteration.close()  # type: ignore[attr-defined]


def element_text(spec: Any) -> str:
    """The structure of an element, such as `{image: uint8 [8, 16, 16, 3], label: int64 [8]}`."""
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{name}: {element_text(value)}" for name, value in spec.items()) + "}"
    if isinstance(spec, tuple):
        return "(" + ", ".join(element_text(value) for value in spec) + ")"
    return f"{spec.dtype.name} {[*spec.shape]}"


def last_line(error: BaseException) -> str:
    """The type and text of an error. For a traceback inside a message of TensorFlow, its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line or "Exception: " in line]
    return named[-1] if named else ": ".join([type(error).__name__, *lines[:1]])


def numpy_candidate(data: Data, split: str, batch_size: int, *, name: str, **options: Any) -> Candidate:
    """The NumPy loader in a loop."""

    def begin() -> Iteration:
        loader = data.numpy_loader(split, batch_size=batch_size, **{"training": True, **options})
        loader = loader.repeat() if loader.pipeline.training else loader
        return Iteration(loader, iter(loader))

    return Candidate(name, begin)


def opened(data: Data | str | os.PathLike[str]) -> Data:
    return data if isinstance(data, Data) else open_data(data)
