"""TensorFlow's loader: a `tf.data.Dataset` of batches.

    one element, the number of a new pass -> flat_map: the steps of the pass -> map: the next batch -> prefetch

`tf.numpy_function` takes over the memory of a batch without a copy for graphs, and so in `fit`; eager code pays a copy of each
batch. `eager()` yields tensors over the batches' own memory, by DLPack.

Public names of TensorFlow only. `Dataset._inputs`, which a subclass of `tf.data.Dataset` has to define, is TensorFlow's way to
take over the options of the dataset within.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.errors import LoaderError
from tfprep.load.jax_loader import check_distribution
from tfprep.load.loader import LOOK, BatchPass, Loader, Progress
from tfprep.load.outputs import Output, Outputs
from tfprep.load.pipeline import Pipeline
from tfprep.load.prefetch import close_all
from tfprep.load.reader.batch import Batch

PREFETCH = 2
"""Batches that TensorFlow prefetches; all others wait in the loader's window. One is in use while the next is handed over."""
WAIT = "IteratorGetNext"
"""Name of the wait for a batch in a profile: TensorBoard's input pipeline analyzer counts events of this name as input."""
ALIGNED = 64
"""Bytes: TensorFlow aborts the process where an array from DLPack is not aligned to these."""


class TensorFlowLoader(Loader, tf.data.Dataset):  # type: ignore[misc] # TensorFlow is untyped
    """A `tf.data.Dataset` of batches, with counters, a report and a state that a run resumes from. Made by `Data.loader`.

    Each iterator is a pass: in training over the next epoch, `len(loader)` steps from the one that comes next on, otherwise
    over all samples. TensorFlow wraps errors in `tf.errors.OpError`, with their text; `eager()` raises them as they are. A
    pickle contains the datasets and the options, so that another process makes a loader of its own.
    """

    def __init__(self, pipeline: Pipeline, progress: Progress | None = None, epochs: int | None = 1) -> None:
        """`progress`: that of a loader whose passes this one continues; `epochs`: those of one iterator in training."""
        if pipeline.options.hosts is not None:
            check_distribution("loader()")
        Loader.__init__(self, pipeline)
        self._epochs, self.progress = epochs, progress or self.progress
        self._passes: dict[int, BatchPass] = {}
        self._lock = threading.Lock()
        self._idle: set[BatchPass] = set()
        """Passes that fill batches in advance, and do not wait for one."""
        self._number = next(_numbers)
        _loaders[self._number] = self
        self._dataset = _dataset(pipeline, self._number, None if epochs is None else epochs * self.progress.length)
        tf.data.Dataset.__init__(self, tf.data.experimental.to_variant(self._dataset))

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorFlowLoader, (self.pipeline, None, self._epochs)

    def __iter__(self) -> Any:
        return tf.data.Dataset.__iter__(self)

    __str__ = Loader.__repr__

    def _element(self: Loader, batch: Batch) -> Any:
        outputs = self.pipeline.outputs
        return outputs.pack(_values(outputs.outputs, [_tensor(array) for array in _arrays(outputs, batch)]))

    def begin_pass(self) -> int:
        """Begin a pass of tf.data, and return its number."""
        if self._epochs is not None:
            self.progress.warn_of_looks(LOOK)
        number, arrays = next(_numbers), partial(_arrays, self.pipeline.outputs)
        with self._lock:
            # Their iterators were probably dropped, which TensorFlow does not tell. One that is asked again goes on.
            # (It tells `from_generator`, whose end waits for other threads within a garbage collection: that stalls.)
            while self._idle:
                self._idle.pop().close()
        self._passes[number] = BatchPass(self, arrays, for_framework=True)
        return number

    def next_arrays(self, number: int) -> Sequence[Any]:
        """The arrays of the next batch of a pass of tf.data."""
        batches = self._passes[number]
        with self._lock:
            self._idle.discard(batches)
        arrays: Sequence[Any] = next(batches)
        if batches.is_over:
            del self._passes[number]
        else:
            with self._lock:
                self._idle.add(batches)
        return arrays

    def eager(self) -> EagerLoader:
        """The same passes for loops in eager code.

            for images, labels in train.eager():
                train_step(images, labels)

        Tensors are over the batches' own memory, and errors come as they were raised.
        """
        loader = EagerLoader(self.pipeline)
        loader.progress, loader._epochs = self.progress, self._epochs
        return loader

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
        if not self.pipeline.plan.training:
            return tf.data.Dataset.repeat(self, count, name)
        return TensorFlowLoader(self.pipeline, self.progress, self._epochs_of(count))

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state before a step (see `Loader.state_dict`).

        Raises:
            LoaderError: `step` is missing, and `fit` or tf.data reads the loader: they take batches in advance.
        """
        if step is None and self.progress.requested_ahead:
            raise LoaderError(
                "fit and tf.data take batches in advance, so that the loader does not know the step of the training: pass it, "
                "state_dict(step=int(model.optimizer.iterations)), or take batches from eager()"
            )
        return Loader.state_dict(self, step)


class EagerLoader(Loader):
    """The passes of a `TensorFlowLoader` as tensors, for loops in eager code. Made by `TensorFlowLoader.eager`."""

    _element = TensorFlowLoader._element

    def __iter__(self) -> Iterator[Any]:
        return _EagerPass(self)


class _EagerPass(BatchPass):
    def __next__(self) -> Any:
        with tf.profiler.experimental.Trace(WAIT):
            return super().__next__()


def _arrays(outputs: Outputs, batch: Batch) -> tuple[Any, ...]:
    """The arrays of a batch as tf.data takes them."""
    return tuple(array for output in outputs.outputs for array in _flat_arrays(output, batch.values[output.name]))


def _tensor(array: Any) -> Any:
    """A tensor over an array's memory; a copy of one that is small, not aligned, or of a type that DLPack does not have."""
    if array.dtype.kind in "uif" and array.nbytes and array.ctypes.data % ALIGNED == 0:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.constant(array)


# --- what the ops of tf.data call ---------------------------------------------------------------------------------------

_loaders: weakref.WeakValueDictionary[int, TensorFlowLoader] = weakref.WeakValueDictionary()
"""TensorFlow keeps the functions of `tf.numpy_function` for as long as the global graph. They know a loader by its number
only."""
_numbers = itertools.count()
_asked_at = [0.0]
"""When TensorFlow last got a batch, by `time.monotonic`; infinity while it waits for one."""


def _loader_of(number: Any) -> TensorFlowLoader:
    loader = _loaders.get(int(number))
    if loader is None:
        raise LoaderError("the loader of this dataset is gone: keep it as long as an iterator of it is read")
    return loader


def _begin(loader: Any) -> Any:
    return np.int64(_loader_of(loader).begin_pass())


def _arrays_of(loader: Any, number: Any) -> Any:
    passes = _loader_of(loader)
    _asked_at[0] = float("inf")
    try:
        return passes.next_arrays(int(number))
    finally:
        _asked_at[0] = time.monotonic()


def _dataset(pipeline: Pipeline, loader: int, steps: int | None) -> tf.data.Dataset:
    """The batches of a pass of `steps` steps, or without an end, of the loader of this number."""
    outputs, pack = pipeline.outputs.outputs, pipeline.outputs.pack
    start, stop = pipeline.schedule.span(0)
    loses_rows = not pipeline.plan.training and pipeline.options.on_bad == "skip"
    rows = None if pipeline.schedule.smaller or loses_rows else stop - start
    specs = [spec for output in outputs for spec in _signature(output, rows)]

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator] # there is nothing to convert in it
    def begin(loader: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(_begin, [loader], tf.int64), ())

    def batch_of(number: Any) -> Any:
        arrays = tf.numpy_function(_arrays_of, [np.int64(loader), number], [spec.dtype for spec in specs])
        tensors = [tf.ensure_shape(array, spec.shape) for array, spec in zip(arrays, specs, strict=True)]
        return pack(_values(outputs, tensors))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def batches_of(number: Any) -> tf.data.Dataset:
        count = np.iinfo(np.int64).max if steps is None else steps
        return tf.data.Dataset.range(count).map(lambda _: batch_of(number))

    dataset = tf.data.Dataset.from_tensors(np.int64(loader)).map(begin).flat_map(batches_of)
    cardinality = tf.data.INFINITE_CARDINALITY if steps is None else steps
    options = tf.data.Options()
    # There is nothing to tune, and dropping an iterator that is being tuned can block for seconds.
    options.autotune.enabled = False
    # `hosts=` divides batches; TensorFlow would divide them again.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    return dataset.prefetch(PREFETCH).with_options(options)


# --- the end of the interpreter ------------------------------------------------------------------------------------------

LEAVE_S, QUIET_S = 10.0, 0.2
"""At exit: how long to wait for TensorFlow's threads to leave Python, and how long none may have been seen before it counts as
left."""


def _leave() -> None:
    """End all waits of TensorFlow's threads. One that wants the GIL after the interpreter's end never gets it, and TensorFlow,
    which ends its iterators then, waits for the thread for ever."""
    if not _asked_at[0]:
        return
    close_all()
    end, seen = time.monotonic() + LEAVE_S, 0.0
    while (now := time.monotonic()) < end:
        seen = now if _others_run() else seen
        if now - max(seen, _asked_at[0]) >= QUIET_S:
            break
        time.sleep(0.01)


def _others_run() -> bool:
    """Return True if another thread of this process runs, or waits for a processor: on a busy machine it may be on its way to
    Python for longer than `QUIET_S`. False where the system does not say (Linux does)."""
    for stat in Path("/proc/self/task").glob("[0-9]*/stat"):
        with suppress(OSError):  # the thread has ended
            if stat.parent.name != str(threading.get_native_id()) and stat.read_text().rpartition(") ")[2][0] in "RD":
                return True
    return False


atexit.register(_leave)


# --- arrays that differ in size become ragged tensors ------------------------------------------------------------------


def _signature(output: Output, rows: int | None) -> list[tf.TensorSpec]:
    dtype = tf.dtypes.as_dtype(output.dtype)
    if None not in output.shape:
        return [tf.TensorSpec((rows, *output.batch_shape), dtype)]
    depth = _ragged_rank(output)
    return [tf.TensorSpec((None, *output.shape[depth:]), dtype), *[tf.TensorSpec((None,), tf.int64)] * depth]


def _ragged_rank(output: Output) -> int:
    """The number of leading axes of a sample up to the last one whose size differs between samples."""
    return max(axis + 1 for axis, size in enumerate(output.shape) if size is None)


def _flat_arrays(output: Output, value: Any) -> list[Any]:
    """The array; of arrays that differ in size, all of them as one long array, and the row lengths of each ragged axis, int64."""
    if None not in output.shape:
        return [_bytes_of(value) if output.dtype == "string" else value]
    depth, dtype = _ragged_rank(output), np.dtype(object if output.dtype == "string" else output.dtype)
    inner = tuple(size or 0 for size in output.shape[depth:])
    flat = [np.asarray(array, dtype).reshape(-1, *inner) for array in value]
    lengths = [
        np.concatenate([[], *(np.full(int(np.prod(array.shape[:axis])), array.shape[axis]) for array in value)])
        for axis in range(depth)
    ]
    joined = np.concatenate([np.empty((0, *inner), dtype), *flat])
    joined = _bytes_of(joined) if output.dtype == "string" else joined
    return [joined, *(length.astype(np.int64) for length in lengths)]


def _bytes_of(text: Any) -> Any:
    """Text as bytes, which need not be UTF-8: object, in the shape of the array."""
    content = np.empty(text.size, object)
    content[:] = [item.encode("utf-8", "surrogateescape") for item in text.ravel()]
    return content.reshape(text.shape)


def _values(outputs: Sequence[Output], tensors: Sequence[Any]) -> dict[str, Any]:
    """The tensors by output, of those that `_arrays` gives."""
    values, flat = {}, iter(tensors)
    for output in outputs:
        values[output.name] = next(flat)
        if None in output.shape:
            lengths = [next(flat) for _ in range(_ragged_rank(output))]
            values[output.name] = tf.RaggedTensor.from_nested_row_lengths(values[output.name], lengths, validate=False)
    return values
