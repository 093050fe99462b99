"""The private names of TensorFlow that tfprep uses. All of them are in this module; every other module uses public names
only.

Tried with TensorFlow 2.21. Each name is tried once in a process. Where it is missing or behaves otherwise, the loader delivers
the same elements:

- `EagerTensor(array, device, dtype)` makes a tensor over the memory of a NumPy array. Without it: a copy.
- `Dataset._inputs` gives a loader the options of the dataset that it delivers. Without it: `Dataset.options` alone does.
- `iterator._dataset` and `Dataset._inputs` lead from an iterator, or a dataset, to the loader behind it. Without them:
  `InputMonitor` must be passed the loader (`reader=`), and Keras's advice to `.shuffle` is shown for `train.map(...)`.
- `iterator.__class__` and `_iterator_resource` let eager code take batches without tf.data, which saves 6 % of the processor
  time of JPEG images of 224 pixels, and 10 % of that of raw ones. Without them: batches come through tf.data, and errors as
  `tf.errors.OpError` with tfprep's error as text.
- `_serialize_to_tensors` and `_restore_from_tensors` let `tf.train.Checkpoint` save an iterator. Without them: TensorFlow refuses
  ('PyFunc is stateful').
- Keras's frame that warns tells which dataset its advice to `.shuffle` is about. Without it: the advice is shown.
"""

from __future__ import annotations

import functools
import mmap
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

MakeTensor: TypeAlias = Callable[[Any], Any]


# --- a tensor over the memory of an array -------------------------------------------------------------------------------


def tensor_maker() -> MakeTensor:
    """A function that makes a CPU tensor of a NumPy array, without a copy where that is possible.

    `EagerTensor` hands the array back to a thread that runs Python when the tensor is deleted, whereas NumPy's DLPack deleter
    would take the GIL in whichever thread of TensorFlow lets go last.
    """
    return _eager_tensor() or tf.constant


@functools.cache
def _eager_tensor() -> MakeTensor | None:
    try:
        from tensorflow.python.framework.ops import EagerTensor

        device = tf.config.list_logical_devices("CPU")[0].name

        def make(array: Any) -> Any:
            return EagerTensor(array, device, None)

        page = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
        shared = np.asarray(memoryview(make(page))).ctypes.data == page.ctypes.data
    except Exception:  # a missing name, other arguments, a tensor without a buffer: all mean a copy
        return None
    return make if shared else None


# --- datasets and iterators ---------------------------------------------------------------------------------------------


class DatasetOver(tf.data.Dataset):  # type: ignore[misc] # TensorFlow is untyped
    """A dataset with the elements and the options of another one; subclasses add methods of their own."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        super().__init__(tf.data.experimental.to_variant(dataset))

    def _inputs(self) -> list[tf.data.Dataset]:
        """TensorFlow takes a dataset's options from these."""
        return [self._dataset]

    def options(self) -> tf.data.Options:
        return self._dataset.options()

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec


def datasets_behind(iterator: Any) -> list[tf.data.Dataset]:
    """The datasets that an eager iterator reads from, the consumer's side first; empty where they are not known."""
    return datasets_of(getattr(iterator, "_dataset", None))


def datasets_of(dataset: Any) -> list[tf.data.Dataset]:
    """A dataset and those that it is made of; it alone where these are not known, and empty for anything else."""
    waiting, datasets = [dataset], []
    while waiting:
        first = waiting.pop(0)
        if isinstance(first, tf.data.Dataset):
            datasets.append(first)
            waiting += getattr(first, "_inputs", list)()
    return datasets


def python_functions(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset's own functions call Python for each element (`numpy_function`, `py_function`)."""
    python = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
    wrapped: list[Any] = getattr(dataset, "_functions", list)()
    graphs = [one.function.graph.as_graph_def() for one in wrapped]
    nodes = [[*graph.node, *(node for one in graph.library.function for node in one.node_def)] for graph in graphs]
    return any(node.op in python for of_graph in nodes for node in of_graph)


def with_source(iterator: Any, source: Any) -> Any:
    """TensorFlow's iterator with `source` (`EagerBatches`) for eager code; as it is where TensorFlow does not allow that."""
    if not _iterators_can_change():
        return iterator
    kind: Any = type(iterator)
    iterator.__class__ = _iterator_class(kind)
    iterator._tfprep_source = source
    return iterator


@functools.cache
def _iterators_can_change() -> bool:
    """Return whether an iterator's class can be set, and a property of the new class is what TensorFlow hands to graphs."""
    asked = []
    try:
        iterator = iter(tf.data.Dataset.range(1))

        class Probe(type(iterator)):  # type: ignore[misc] # TensorFlow is untyped
            @property
            def _iterator_resource(self) -> Any:
                asked.append(self)
                return self.__dict__["_iterator_resource"]

        iterator.__class__ = Probe
        tf.nest.flatten(iterator, expand_composites=True)
    except Exception:  # whatever differs means the public way
        return False
    return bool(asked)


@functools.cache
def _iterator_class(kind: Any) -> type:
    class LoaderIterator(kind):  # type: ignore[misc] # TensorFlow is untyped
        _tfprep_source: Any

        @property
        def _iterator_resource(self) -> Any:
            """The handle by which graphs know the iterator. Asking for it ends the source."""
            if self._tfprep_source.active:
                self._tfprep_next_iterator = self._tfprep_source.graph_iterator()
                if self._tfprep_next_iterator is not None:
                    self.__dict__["_iterator_resource"] = self._tfprep_next_iterator._iterator_resource
            return self.__dict__["_iterator_resource"]

        def __next__(self) -> Any:
            source = self._tfprep_source
            if source.active and tf.executing_eagerly():
                return next(source)
            try:
                return super().__next__()
            except (tf.errors.OpError, RuntimeError) as error:  # RuntimeError: pybind11's, on Ctrl-C
                raised = source.own_error(error)
                if raised is error:
                    raise
                raise raised from error

        def get_next(self) -> Any:
            if not tf.executing_eagerly():
                return super().get_next()
            try:
                return next(self)
            except StopIteration:
                raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None

        def _serialize_to_tensors(self) -> dict[str, Any]:
            return {"tfprep_loader": tf.constant(self._tfprep_source.save())}

        def _restore_from_tensors(self, restored_tensors: Any) -> None:
            self._tfprep_source.restore(restored_tensors["tfprep_loader"].numpy().decode())

    return LoaderIterator


# --- Keras's advice to shuffle ------------------------------------------------------------------------------------------

SHUFFLE_ADVICE = "`shuffle=True` was passed, but will be ignored since the data `x` was provided as a tf.data.Dataset"
_FRAMES = 4
"""Frames above `match` to look at: those of `warnings` where it runs in Python, and that of Keras."""


class _OfALoader:
    """Matches the advice where it is about a loader, or a dataset made of one such as `train.map(...)`."""

    def match(self, text: str) -> bool:
        return text.startswith(SHUFFLE_ADVICE) and any(
            isinstance(dataset, DatasetOver) for dataset in datasets_of(_dataset_of_the_warning())
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A plain pattern: scikit-learn sends all filters to its workers, which should not import TensorFlow for this."""
        return re.compile, (re.escape(SHUFFLE_ADVICE),)


_FILTER = ("ignore", _OfALoader(), UserWarning, None, 0)


def silence_advice_to_shuffle() -> None:
    """Hide Keras's advice to `.shuffle` for loaders, and for datasets made of them, alone.

    Without shuffle=False, `fit` warns of every dataset that it "is expected to already be shuffled". It looks at nothing of the
    dataset, so there is no hook to say that a loader is in random order already. The filter of Python's warnings therefore holds
    an object with the `match` of a compiled pattern, which finds the dataset in the frame of Keras that warns (`x`; tried with
    Keras 3.15, while 3.5 has no such advice).
    """
    filters: list[Any] = warnings.filters  # type: ignore[assignment] # typed as a Sequence
    if _FILTER in filters:
        filters.remove(_FILTER)
    filters.insert(0, _FILTER)


def _dataset_of_the_warning() -> Any:
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("keras.") and "x" in frame.f_locals:
            return frame.f_locals["x"]
    return None
