"""The hand-over of arrays from a Python iterator to a `tf.data.Dataset`, without a copy.

`tf.data.Dataset.from_generator` does the same, but checking each element takes it a third of the time of a batch of raw images,
and its function runs in another thread than the one that waits for the element. Here the dataset is

    a dataset of one element, the number of a new Python iterator
      -> flat_map: `_next(number)`, called in the thread that asks for the element

TensorFlow keeps a function of `tf.numpy_function` for as long as the graph in which it was traced, which by default is the
global one and lives as long as the process. A function that refers to a loader would therefore keep it for ever. So only
functions of this module are traced. They find their dataset by its number, and this number is a tensor over memory whose
deallocation shows that TensorFlow has dropped the dataset.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfprep.load.tensorflow.private import tensor_maker

Arrays: TypeAlias = Sequence[Any]

_NUMBER = tf.TensorSpec((), tf.int64, "number")
_PAGE = tf.TensorSpec((mmap.PAGESIZE // 8,), tf.int64, "page")
"""The tensor whose first element is a dataset's number. Captured tensors of up to 128 elements would be copied by TensorFlow."""

_numbers = itertools.count(1)
_datasets: dict[int, Callable[[], Iterator[Arrays]]] = {}
"""The function that begins an iterator, by the number of its dataset, for as long as TensorFlow has the dataset."""
_iterators: dict[int, Iterator[Arrays]] = {}
"""The Python iterators of TensorFlow's iterators, by number."""


def dataset_of(begin: Callable[[], Iterator[Arrays]], spec: Any) -> tf.data.Dataset:
    """A dataset of the arrays of a Python iterator.

    Args:
        begin: Makes an iterator, once for each of TensorFlow's. Its elements have one array for each leaf of `spec`, in the order
            of `tf.nest.flatten`, of exactly these dtypes. TensorFlow takes over the memory of aligned arrays. An iterator that is
            no longer used is dropped, in any thread, so its finaliser must not wait.
        spec: The structure of elements, with a `tf.TensorSpec` for each array.

    Returns:
        The dataset. `begin` is kept as long as TensorFlow has the dataset, or one that is made of it.
    """
    leaves = tuple(tf.nest.flatten(spec))

    def arrays_of(number: Any) -> tf.data.Dataset:
        return tf.data.experimental.from_variant(
            tf.raw_ops.MapDataset(
                input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(np.iinfo(np.int64).max)),
                other_arguments=[number],
                f=_next_function(leaves),
                output_types=[leaf.dtype for leaf in leaves],
                output_shapes=[leaf.shape for leaf in leaves],
                use_inter_op_parallelism=False,  # in the thread that asks: another one would have to be woken
                preserve_cardinality=False,  # the end of the arrays is the end of the dataset
            ),
            spec,
        )

    return _iterator_numbers(begin).flat_map(arrays_of)


def _iterator_numbers(begin: Callable[[], Iterator[Arrays]]) -> tf.data.Dataset:
    """A dataset of one element, the number of a new Python iterator, which lives as long as TensorFlow's iterator."""
    start, same, end = functions = _number_functions()
    for function in functions:
        function.add_to_graph()  # the one that is being built, if any
    variant = tf.raw_ops.GeneratorDataset(
        init_func_other_args=[_registered(begin)],
        next_func_other_args=[],
        finalize_func_other_args=[],
        init_func=start,
        next_func=same,
        finalize_func=end,
        output_types=[tf.int64],
        output_shapes=[()],
    )
    return tf.data.experimental.from_variant(variant, _NUMBER).take(1)  # GeneratorDataset repeats it for ever


def _registered(begin: Callable[[], Iterator[Arrays]]) -> Any:
    """The number of a new dataset, as a tensor over memory whose deallocation unregisters the dataset."""
    number, memory = next(_numbers), mmap.mmap(-1, mmap.PAGESIZE)
    page = np.frombuffer(memory, np.int64)
    page[0] = number
    _datasets[number] = begin
    unregister = weakref.finalize(memory, _datasets.pop, number, None)
    unregister.atexit = False
    tensor = tensor_maker()(page)
    del page, memory
    if not unregister.alive:  # the tensor is a copy: the dataset stays registered until the process ends
        _datasets[number] = begin
    return tensor


# --- what TensorFlow calls ----------------------------------------------------------------------------------------------


def _begin(page: Any) -> Any:
    restore_allocator()
    number = next(_numbers)
    _iterators[number] = _datasets[int(page[0])]()
    return np.int64(number)


def _next(number: Any) -> Arrays:
    """The next arrays. TensorFlow takes StopIteration as the end of the data."""
    return next(_iterators[int(number)])


def _end(number: Any) -> Any:
    """Drop an iterator. This must not wait: the garbage collector may have dropped TensorFlow's iterator, in any thread."""
    _iterators.pop(int(number), None)
    return np.int64(0)


_graph = tf.Graph()
"""The functions are traced in a graph of their own: the global one would stay alive with them after `clear_session`."""


def _traced(function: Callable[..., Any], *signature: tf.TensorSpec) -> Any:
    with _graph.as_default():
        return tf.function(function, input_signature=signature, autograph=False).get_concrete_function()


@functools.cache
def _number_functions() -> list[Any]:
    """The functions that begin an iterator, return its number and end it."""

    def start(page: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(_begin, [page], tf.int64), ())

    def end(number: Any) -> Any:
        return tf.numpy_function(_end, [number], tf.int64)

    return [_traced(start, _PAGE), _traced(tf.identity, _NUMBER), _traced(end, _NUMBER)]


@functools.cache
def _next_function(leaves: tuple[tf.TensorSpec, ...]) -> Any:
    """The function that returns the next arrays, of these shapes and dtypes."""

    def step(count: Any, number: Any) -> Any:
        arrays = tf.numpy_function(_next, [number], [leaf.dtype for leaf in leaves])
        return tuple(tf.ensure_shape(array, leaf.shape) for array, leaf in zip(arrays, leaves, strict=True))

    return _traced(step, _NUMBER, _NUMBER)


# --- glibc's allocator, whose thresholds TensorFlow changes for the whole process ---------------------------------------

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_USUAL_BYTES = 32 << 20
"""The largest threshold that glibc reaches by itself on 64 bits (mallopt(3)); that of trimming is twice as large."""
_MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def restore_allocator() -> None:
    """Let glibc keep freed blocks as it does by itself, unless the environment sets its thresholds.

    TensorFlow 2.21 sets one of them when it makes a dataset of a Python iterator, also in `from_generator`. glibc adjusts none of
    them from then on and gives most freed blocks back to the system: `tf.data` on raw images in the same process had a fifth of
    its rate.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc" not in tunables and not any(name in os.environ for name in _MALLOC_VARIABLES):
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_THRESHOLD, _USUAL_BYTES)
            libc.mallopt(_M_TRIM_THRESHOLD, 2 * _USUAL_BYTES)
