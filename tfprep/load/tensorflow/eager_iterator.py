"""The eager iterator: custom training loops take batches from the reader itself, as tensors over the memory of the
batches.

This saves half a millisecond of processor time a batch, which tf.data takes, for the threads that decode. Inside `tf.function`,
and so in `fit`, batches come through tf.data. An iterator that is passed to a function continues there with the next batch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfprep.errors import LoaderError, TfprepError
from tfprep.load.passes import Steps
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.batch import Batch
from tfprep.load.state import start_step, state_at
from tfprep.load.tensorflow.handover import restore_allocator
from tfprep.load.tensorflow.private import tensor_maker

WAIT = "IteratorGetNext"
"""Name of the wait for a batch in a profile: TensorBoard's input pipeline analyzer counts events of this name as input."""


class EagerBatches:
    """The elements of a pipeline in order, as tensors. Threads may share it, and its finaliser takes no lock.

    After an error every further call raises the same error: an end of the data would hide that batches are missing. After
    Ctrl-C the next call returns the batch that was waited for.

    Args:
        pipeline: What is read.
        epochs: The epochs of the pass; None for one without an end.
        dataset_from: Returns the dataset of these steps, for a graph that takes the iterator over.
        active: Whether eager code takes batches from here. Otherwise TensorFlow's iterator is used as it is.
    """

    def __init__(
        self, pipeline: Pipeline, epochs: int | None, dataset_from: Callable[[Steps], tf.data.Dataset], *, active: bool
    ) -> None:
        restore_allocator()  # making the dataset has set it
        self.active = active
        self._pipeline, self._epochs, self._dataset_from = pipeline, epochs, dataset_from
        self._batches = pipeline.batches(self._element, epochs=epochs)
        self._delivered = False
        self._tensor = tensor_maker()
        self._lock = threading.Lock()

    def __next__(self) -> Any:
        with self._lock, tf.profiler.experimental.Trace(WAIT):
            try:
                element = next(self._batches)
            except KeyboardInterrupt:
                self._pipeline.take_error()
                raise
            self._delivered = True
            return element

    def _element(self, batch: Batch) -> Any:
        return self._pipeline.outputs.pack({name: self._tensor(array) for name, array in batch.values.items()})

    def graph_iterator(self) -> Any | None:
        """End the eager use.

        Returns:
            TensorFlow's iterator of the batches that follow; None if no batch was delivered yet, so that the first one does.
        """
        with self._lock:
            self.active = False
            steps, step = self._batches.steps, self._batches.step
            self._batches.close()
            if not self._delivered or steps is None or step is None:
                return None
            return iter(self._dataset_from(steps._replace(first=step)))

    def own_error(self, error: Exception) -> BaseException:
        """The error to raise instead of `error`, in which TensorFlow passes on the text of the reader's error.

        Returns:
            KeyboardInterrupt, tfprep's error or OSError; `error` if the reader raised none of these.
        """
        raised = self._pipeline.take_error()
        return raised if isinstance(raised, TfprepError | OSError | KeyboardInterrupt) else error

    def save(self) -> str:
        """The loader's state as JSON, for `tf.train.Checkpoint`."""
        if not self.active:
            raise LoaderError(
                "tf.train.Checkpoint cannot save an iterator that a tf.function or fit reads from: TensorFlow takes batches "
                "from it in advance. Save train.state_at(step) with your own count of steps, or use "
                "tfprep.load.callbacks.SaveLoaderState"
            )
        step = self._batches.step
        return json.dumps(state_at(self._pipeline, self._pipeline.passes.next_step if step is None else step))

    def restore(self, state: str) -> None:
        """Continue at the step of a state that `save` returned; LoaderError if it belongs to another run."""
        if not self.active:
            raise LoaderError(
                "tf.train.Checkpoint cannot restore an iterator that a tf.function or fit reads from; restore it before its "
                "first use there, or make a loader with start_step"
            )
        with self._lock:
            steps = self._pipeline.passes.begin_at(start_step(self._pipeline, json.loads(state)), self._epochs)
            self._batches = self._pipeline.batches(self._element, steps=steps)
            self._delivered = True


def is_possible(pipeline: Pipeline) -> bool:
    """Return whether all outputs are arrays of one shape, and TensorFlow runs ops when they are called."""
    return not pipeline.outputs.ragged and bool(tf.config.experimental.get_synchronous_execution())
