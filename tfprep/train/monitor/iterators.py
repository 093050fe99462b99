"""Iterators that note in a clock how long the trainer waits for each batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras

from tfprep.errors import TrainError
from tfprep.load.threads import CountingLoader, loader_of_this_thread
from tfprep.train.backend import compilations, is_tensor_iterator, tensorflow_in_use
from tfprep.train.monitor.waits import WaitClock


class TimedIterator(Iterator[Any]):
    """An iterator over batches whose waits a clock notes.

    Attributes:
        source: The iterator over the batches.
        loader: tfprep's loader that the batches come from, known from the first batch on; None for another input.
    """

    def __init__(self, batches: Iterator[Any], clock: WaitClock) -> None:
        self.source = batches
        self.loader: CountingLoader | None = None
        self._clock = clock

    def __next__(self) -> Any:
        self._clock.asking()
        try:
            batch = next(self.source)
        except StopIteration:
            self._clock.ended()
            raise
        self._clock.answered(image_count(batch))
        self.loader = loader_of_this_thread()
        return batch


class CustomLoop:
    """The input of a custom training loop, with the attributes that `TrainSteps` has for `fit`.

    Attributes:
        clock: The waits for input.
        source: The iterator that is watched; None before `watch`.
        loader: tfprep's loader that is watched; None for another input.
        measured: True once an input is watched.
        between_s: None, because the loop does not say when a step ends.
    """

    between_s: float | None = None

    def __init__(self) -> None:
        self.clock, self.measured = WaitClock(), False
        self.source: Any = None
        self.loader: Any = None
        self._step: Any = None

    @property
    def count(self) -> int:
        """Batches so far."""
        return self.clock.read().batches

    @property
    def traces(self) -> int:
        """Traces of the function that trains, or compilations of JAX."""
        return compilations()[0] + (self._step.experimental_get_tracing_count() if self._step is not None else 0)

    @property
    def compile_s(self) -> float:
        """Seconds of compiling, where the backend counts them (JAX)."""
        return compilations()[1]

    def watch(self, data: Any, step: Any = None) -> Any:
        """Return an iterator over `data`, whose waits count from now on; see `InputMonitor.watch`."""
        self.loader, tf = data if hasattr(data, "report") else None, tensorflow_in_use()
        if tf is not None and isinstance(data, tf.data.Dataset):
            data = iter(data)
        if is_tensor_iterator(data):
            from tfprep.train.monitor.tensors import timed_tensors

            batches, self.source = timed_tensors(data, self.clock), data
        elif not isinstance(data, Iterable) or hasattr(data, "shape") or isinstance(data, list | tuple | str | dict):
            raise TrainError(
                f"watch() takes a loader, a tf.data.Dataset or an iterator of batches, got {type(data).__name__} (a "
                "distributed dataset: watch what it is made from)"
            )
        else:
            batches = TimedIterator(iter(data), self.clock)
            self.source = batches.source
        self._step, self.measured = step, True
        self.clock.resume()
        return batches

    def pause(self) -> None:
        """Nothing: the loop does not say when an epoch ends."""

    def fetching(self) -> None:
        """Nothing: the iterator notes when a batch is requested."""

    def close(self) -> None:
        """Drop the input."""
        self.source = self.loader = None


def image_count(batch: Any) -> int:
    """Return the size of the first axis of the first component, which is the images in a batch; 1 for a scalar."""
    leaves = keras.tree.flatten(batch)
    shape = getattr(leaves[0], "shape", ()) if leaves else ()
    return int(shape[0]) if shape else 1
