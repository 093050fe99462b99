"""TensorFlow's loader: a `tf.data.Dataset` of batches.

Threads or worker processes fill batches, and TensorFlow takes over their memory without a copy.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.errors import LoaderError, TfprepError
from tfprep.load.accessors import PipelineAccessors
from tfprep.load.jax_loader import check_distribution
from tfprep.load.outputs import Output
from tfprep.load.passes import LOOK, Steps
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.batch import Batch
from tfprep.load.state import start_step, state_at
from tfprep.load.tensorflow.handover import dataset_of, restore_allocator
from tfprep.load.tensorflow.private import DatasetOver, silence_advice_to_shuffle, tensor_maker, with_source

_LOG = logging.getLogger("tfprep.load")

PREFETCH = 2
"""Batches that TensorFlow prefetches; all others wait in the reader. One is in use while the next is handed over."""


class Loader(PipelineAccessors, DatasetOver):
    """A `tf.data.Dataset` of batches, with counters, a report and a state that a run resumes from. Made by `Data.loader`.

    In a loop in eager code, errors are those that tfprep raised. Inside `tf.function`, and behind another dataset such as
    `.map`, TensorFlow wraps them in `tf.errors.OpError` with their text. A pickle contains the datasets and the options, so that
    another process makes a loader of its own.
    """

    def __init__(self, pipeline: Pipeline, dataset: tf.data.Dataset, epochs: int | None, *, eager: bool) -> None:
        """`eager`: whether custom training loops take batches from the reader itself (see `EagerBatches`)."""
        self.pipeline, self._epochs, self._eager = pipeline, epochs, eager
        self._begins_inside = pipeline.training and pipeline.options.start_step % pipeline.steps_per_epoch > 0
        silence_advice_to_shuffle()
        super().__init__(dataset)

    def __reduce__(self) -> tuple[Any, ...]:
        return make_loader, (self.pipeline, self._epochs)

    def __iter__(self) -> Any:
        """An iterator over a pass: in training the next epoch, otherwise all samples."""
        if not tf.executing_eagerly():
            return super().__iter__()
        if self._begins_inside:
            dataset = _on_device(self.pipeline, _dataset(self.pipeline, self._epochs, whole=False))
            iterator = DatasetOver.__iter__(Loader(self.pipeline, dataset, self._epochs, eager=self._eager))
        else:
            iterator = super().__iter__()
        active = self._eager and is_possible(self.pipeline)
        return with_source(iterator, EagerBatches(self.pipeline, self._epochs, active=active))

    __str__ = PipelineAccessors.__repr__

    def repeat(self, count: Any = None, name: str | None = None) -> Any:
        """The epochs one after another in one iterator: `count` of them, or without an end.

            model.fit(train.repeat(), steps_per_epoch=500, epochs=20)

        Args:
            count: The number of epochs; None for a stream without an end.
            name: TensorFlow's name of the operation, for a loader with training=False.

        Returns:
            A loader that shares threads, cache and counters with this one. It begins with the epoch that the next pass of this
            loader would be. With training=False it is TensorFlow's `Dataset.repeat`.

        Raises:
            LoaderError: `count` is not a number from 1 or None.
        """
        if not self.pipeline.training:
            return DatasetOver.repeat(self, count, name)
        return make_loader(self.pipeline, self._epochs_of(count))


def make_loader(pipeline: Pipeline, epochs: int | None = 1) -> Loader:
    """The pipeline as a dataset, on the path that its options ask for.

    Args:
        pipeline: The samples and the options.
        epochs: The epochs of one iterator in training; None for a stream without an end.

    Returns:
        The loader. Nothing is read before its first iterator is used, except the index.

    Raises:
        LoaderError: TensorFlow has no device `prefetch_to_device`.
    """
    if pipeline.options.hosts is not None:
        check_distribution("loader()", pipeline.options)
    device = pipeline.options.prefetch_to_device
    if device is not None:
        _check_device(device)
    return Loader(pipeline, _on_device(pipeline, _dataset(pipeline, epochs)), epochs, eager=device is None)


def _on_device(pipeline: Pipeline, dataset: tf.data.Dataset) -> tf.data.Dataset:
    device = pipeline.options.prefetch_to_device
    return dataset if device is None else dataset.apply(tf.data.experimental.prefetch_to_device(device))


def _check_device(name: str) -> None:
    """Raise LoaderError if TensorFlow has no such device. Its own error comes with the first batch, and names an op."""
    try:
        device = tf.DeviceSpec.from_string(str(name))
    except (TypeError, ValueError):
        device = tf.DeviceSpec()
    specs = [tf.DeviceSpec.from_string(logical.name) for logical in tf.config.list_logical_devices()]
    known = {(spec.device_type, spec.device_index) for spec in specs}
    if (device.device_type, device.device_index or 0) not in known:
        listed = ", ".join(f"/{kind}:{index}" for kind, index in sorted(known))
        raise LoaderError(
            f"prefetch_to_device={name!r}: there is no such device; there are {listed}. None keeps batches here"
        )
    if device.device_type == "CPU":
        _LOG.warning(
            "prefetch_to_device=%r: batches lie in the processor's memory already, so there is no transfer that could overlap "
            "with a step; leave it out, or name a GPU",
            name,
        )


def _dataset(pipeline: Pipeline, epochs: int | None, steps: Steps | None = None, whole: bool = True) -> tf.data.Dataset:
    """The batches of the next `epochs` epochs, or of these steps. What is not `whole` has no length that TensorFlow knows."""
    dataset = _elements(
        pipeline, functools.partial(pipeline.batches, epochs=epochs, steps=steps, look=LOOK, whole=whole)
    )
    if whole:
        count = pipeline.passes.steps(epochs) if steps is None or steps.stop is None else steps.stop - steps.first
        cardinality = tf.data.INFINITE_CARDINALITY if count is None else count
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    options = tf.data.Options()
    # There is nothing to tune, and dropping an iterator that is being tuned can block for seconds.
    options.autotune.enabled = False
    # `hosts=` divides batches; TensorFlow would divide them again.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def _elements(pipeline: Pipeline, batches: Callable[..., Iterator[Any]]) -> tf.data.Dataset:
    """The elements of the passes of `batches`. Arrays that differ in size are handed over as one long array and row lengths."""
    outputs, pack = pipeline.outputs.outputs, pipeline.outputs.pack
    start, stop = pipeline.schedule.span(0)
    loses_rows = not pipeline.training and pipeline.options.on_bad == "skip"
    rows = None if pipeline.schedule.smaller or loses_rows else stop - start
    specs = {output.name: _signature(output, rows) for output in outputs}
    if not pipeline.outputs.ragged:
        names = tf.nest.flatten(pack({name: name for name in specs}))
        spec = pack({name: one for name, (one,) in specs.items()})
        return dataset_of(lambda: batches(lambda batch: tuple(batch.values[name] for name in names)), spec).prefetch(
            PREFETCH
        )

    def arrays(batch: Batch) -> tuple[Any, ...]:
        return tuple(array for output in outputs for array in _arrays(output, batch.values[output.name]))

    spec = tuple(spec for of_output in specs.values() for spec in of_output)
    dataset = dataset_of(lambda: batches(arrays), spec)
    return dataset.map(lambda *tensors: pack(_tensors(outputs, list(tensors)))).prefetch(PREFETCH)


# --- the eager iterator ----------------------------------------------------------------------------------------------------

WAIT = "IteratorGetNext"
"""Name of the wait for a batch in a profile: TensorBoard's input pipeline analyzer counts events of this name as input."""


class EagerBatches:
    """The elements of a pipeline in order, as tensors over the batches' memory. Threads may share it; no finaliser takes a lock.

    Custom training loops take batches from it: this saves half a millisecond of processor time a batch, which tf.data takes, for
    the threads that decode. Inside `tf.function`, and so in `fit`, batches come through tf.data. An iterator that is passed to a
    function continues there with the next batch.

    After an error every further call raises the same error: an end of the data would hide that batches are missing. After
    Ctrl-C the next call returns the batch that was waited for.

    Args:
        pipeline: What is read.
        epochs: The epochs of the pass; None for one without an end.
        active: Whether eager code takes batches from here. Otherwise TensorFlow's iterator is used as it is.
    """

    def __init__(self, pipeline: Pipeline, epochs: int | None, *, active: bool) -> None:
        restore_allocator()  # making the dataset has set it
        self.active = active
        self._pipeline, self._epochs = pipeline, epochs
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
            return iter(_dataset(self._pipeline, self._epochs, steps._replace(first=step)))

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
        return json.dumps(state_at(self._pipeline.plan, self._pipeline.passes.next_step if step is None else step))

    def restore(self, state: str) -> None:
        """Continue at the step of a state that `save` returned; LoaderError if it belongs to another run."""
        if not self.active:
            raise LoaderError(
                "tf.train.Checkpoint cannot restore an iterator that a tf.function or fit reads from; restore it before its "
                "first use there, or make a loader with start_step"
            )
        with self._lock:
            steps = self._pipeline.passes.begin_at(start_step(self._pipeline.plan, json.loads(state)), self._epochs)
            self._batches = self._pipeline.batches(self._element, steps=steps)
            self._delivered = True


def is_possible(pipeline: Pipeline) -> bool:
    """Return whether all outputs are arrays of one shape, and TensorFlow runs ops when they are called."""
    return not pipeline.outputs.ragged and bool(tf.config.experimental.get_synchronous_execution())


# --- ragged tensors of arrays of different sizes ------------------------------------------------------------------------


def _signature(output: Output, rows: int | None) -> list[tf.TensorSpec]:
    dtype = tf.dtypes.as_dtype(output.dtype)
    if None not in output.shape:
        return [tf.TensorSpec((rows, *output.batch_shape), dtype)]
    depth = _ragged_rank(output)
    return [tf.TensorSpec((None, *output.shape[depth:]), dtype), *[tf.TensorSpec((None,), tf.int64)] * depth]


def _ragged_rank(output: Output) -> int:
    """The number of leading axes of a sample of which the last may differ in size between samples."""
    return max(axis + 1 for axis, size in enumerate(output.shape) if size is None)


def _arrays(output: Output, value: Any) -> list[Any]:
    """The array, or arrays of different sizes as one long array and the row lengths of each of the ragged axes, int64."""
    if None not in output.shape:
        return [value]
    depth, dtype = _ragged_rank(output), np.dtype(object if output.dtype == "string" else output.dtype)
    inner = tuple(size or 0 for size in output.shape[depth:])
    flat = [np.asarray(array, dtype).reshape(-1, *inner) for array in value]
    lengths = [
        np.concatenate([[], *(np.full(int(np.prod(array.shape[:axis])), array.shape[axis]) for array in value)])
        for axis in range(depth)
    ]
    return [np.concatenate([np.empty((0, *inner), dtype), *flat]), *(length.astype(np.int64) for length in lengths)]


def _tensors(outputs: Sequence[Output], tensors: list[Any]) -> dict[str, Any]:
    values = {}
    for output in outputs:
        flat = tensors.pop(0)
        if None in output.shape:
            lengths = [tensors.pop(0) for _ in range(_ragged_rank(output))]
            flat = tf.RaggedTensor.from_nested_row_lengths(flat, lengths, validate=False)
        values[output.name] = flat
    return values
