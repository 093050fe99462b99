"""Iterators that note in a clock how long the trainer waits for each batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras

from tfprep.errors import TrainError
from tfprep.load.threads import CountingLoader, loader_of_this_thread
from tfprep.train.backend import is_tensor_iterator, tensorflow_in_use
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


def timed(data: Any, clock: WaitClock) -> tuple[Any, Any]:
    """Return an iterator over what a custom training loop reads, and its source.

    Args:
        data: A `tf.data.Dataset` or `tf.data.Iterator`, or an iterable of batches such as tfprep's other loaders.
        clock: Notes the waits.

    Raises:
        TrainError: `data` is something else.
    """
    tf = tensorflow_in_use()
    if tf is not None and isinstance(data, tf.data.Dataset):
        data = iter(data)
    if is_tensor_iterator(data):
        from tfprep.train.monitor.tensors import timed_tensors

        return timed_tensors(data, clock), data
    if not isinstance(data, Iterable) or hasattr(data, "shape") or isinstance(data, list | tuple | str | dict):
        raise TrainError(
            f"watch() takes a loader, a tf.data.Dataset or an iterator of batches, got {type(data).__name__} (a distributed "
            "dataset: watch what it is made from)"
        )
    batches = TimedIterator(iter(data), clock)
    return batches, batches.source


def image_count(batch: Any) -> int:
    """Return the size of the first axis of the first component, which is the images in a batch; 1 for a scalar."""
    leaves = keras.tree.flatten(batch)
    shape = getattr(leaves[0], "shape", ()) if leaves else ()
    return int(shape[0]) if shape else 1
