"""TensorFlow's iterator in loops of one's own: batches come straight from the reader, as tensors over the memory they lie in.

tf.data between the two costs half a millisecond of processor a batch, which the threads that decode need themselves. Inside
`tf.function`, and so in `fit`, there is no other way than through tf.data; an iterator that is taken there goes on where it
stands.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from tfprep.errors import LoaderError, TfprepError
from tfprep.read.pipeline import Pipeline

WAIT = "IteratorGetNext"
"""What a profile calls the wait for a batch: TensorBoard's input pipeline analyzer counts events of this name as input."""


class Straight:
    """Elements of a pipeline in order. Safe to use from any thread."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._batches = pipeline.batches()
        self._pack = pipeline.outputs.pack
        self._device = tf.config.list_logical_devices("CPU")[0].name
        self._lock = threading.Lock()
        self.steps = 0
        """How many it has delivered."""

    def __next__(self) -> Any:
        with self._lock, tf.profiler.experimental.Trace(WAIT):
            batch = next(self._batches)
            self.steps += 1
        # `tf.constant` does just this with a copy of the array; TensorFlow has no public name for it without one.
        return self._pack({name: EagerTensor(value, self._device, None) for name, value in batch.values.items()})

    def close(self) -> None:
        """Stop the reader's threads, when no thread waits for a batch any more."""
        with self._lock:
            self._batches.close()


def is_possible(pipeline: Pipeline) -> bool:
    """Whether all outputs are arrays of one shape, and TensorFlow runs ops when they are called."""
    return not pipeline.outputs.ragged and bool(tf.config.experimental.get_synchronous_execution())


def loader_iterator(iterator: Any, pipeline: Pipeline, goes_on: Callable[[int], Any], *, straight: bool) -> Any:
    """TensorFlow's eager iterator over the pipeline, made straight where asked, and with tfprep's own errors:
    `tf.errors.UnknownError` would hold them as text only. `goes_on` makes a dataset that begins so many steps later."""
    kind: Any = type(iterator)
    iterator.__class__ = _loader_iterator(kind)
    iterator._tfprep_pipeline, iterator._tfprep_goes_on = pipeline, goes_on
    iterator._tfprep_straight = Straight(pipeline) if straight else None
    return iterator


@functools.cache
def _loader_iterator(kind: Any) -> type:
    class LoaderIterator(kind):  # type: ignore[misc] # TensorFlow is untyped
        _tfprep_pipeline: Pipeline
        _tfprep_straight: Straight | None
        _tfprep_goes_on: Callable[[int], Any]

        @property
        def _iterator_resource(self) -> Any:
            """What TensorFlow knows the iterator by. Once it is asked for, all batches come through tf.data."""
            straight = self._tfprep_straight
            self._tfprep_straight = None
            if straight is not None and straight.steps:
                straight.close()
                self._tfprep_behind = iter(self._tfprep_goes_on(straight.steps))
                self.__dict__["_iterator_resource"] = self._tfprep_behind._iterator_resource
            return self.__dict__["_iterator_resource"]

        def _next_internal(self) -> Any:
            straight = self._tfprep_straight
            if straight is None or not tf.executing_eagerly():
                return super()._next_internal()
            try:
                return next(straight)
            except StopIteration:
                raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None

        def __next__(self) -> Any:
            try:
                return super().__next__()
            except (tf.errors.OpError, RuntimeError, LoaderError) as error:  # RuntimeError: pybind11's, on Ctrl-C
                if self._tfprep_pipeline.interrupted:
                    raise KeyboardInterrupt from error
                raised = self._tfprep_pipeline.error
                if isinstance(raised, TfprepError | OSError) and raised is not error:
                    raise raised from error
                raise

    return LoaderIterator
