"""Arrays from a Python iterator to a `tf.data.Dataset`, without a copy and with as little Python as can be.

`tf.data.Dataset.from_generator` does the same; what it checks of every element takes a third of the time that a batch of raw
images takes altogether, and its function runs on another thread than the one that waits for it. Here a dataset of one element,
the number of a new Python iterator, lives as long as TensorFlow's iterator does; behind it a map asks that Python iterator for
its next arrays, in the thread that wants them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Arrays: TypeAlias = Sequence[Any]

_NUMBER = [tf.TensorSpec((), tf.int64, "number")]


class _Iterators:
    """The Python iterators of one dataset, by number: one for each of TensorFlow's."""

    def __init__(self, begin: Callable[[], Iterator[Arrays]]) -> None:
        self._begin = begin
        self._numbers = itertools.count()
        self._open: dict[int, Iterator[Arrays]] = {}

    def begin(self) -> Any:
        number = next(self._numbers)
        self._open[number] = self._begin()
        return np.int64(number)

    def next(self, number: Any) -> Arrays:
        """Arrays of the right dtypes; StopIteration is the end to TensorFlow as well."""
        return next(self._open[int(number)])

    def end(self, number: Any) -> Any:
        iterator = self._open.pop(int(number), None)
        if iterator is not None and hasattr(iterator, "close"):
            iterator.close()
        return np.int64(0)


def dataset_of(begin: Callable[[], Iterator[Arrays]], spec: Any) -> tf.data.Dataset:
    """A dataset whose iterators take their arrays from `begin()`: one array for each leaf of `spec`, in the order of
    `tf.nest.flatten`. TensorFlow takes over the memory of aligned arrays."""
    iterators, leaves = _Iterators(begin), tf.nest.flatten(spec)
    types, shapes = [leaf.dtype for leaf in leaves], [leaf.shape for leaf in leaves]

    def step(count: Any, number: Any) -> Any:
        arrays = tf.numpy_function(iterators.next, [number], types)
        return tuple(tf.ensure_shape(array, shape) for array, shape in zip(arrays, shapes, strict=True))

    next_arrays = tf.function(step, input_signature=_NUMBER * 2, autograph=False).get_concrete_function()

    def batches(number: Any) -> tf.data.Dataset:
        return tf.data.experimental.from_variant(
            tf.raw_ops.MapDataset(
                input_dataset=tf.data.Dataset.range(np.iinfo(np.int64).max)._variant_tensor,
                other_arguments=[number],
                f=next_arrays,
                output_types=types,
                output_shapes=shapes,
                use_inter_op_parallelism=False,  # in the thread that asks: another one would have to be woken
                preserve_cardinality=False,
            ),
            spec,
        )

    numbers = _numbers(iterators)
    dataset = numbers.flat_map(batches)
    dataset._tfprep_functions = next_arrays, numbers  # the ops name them; they must live as long as the dataset
    return dataset


def _numbers(iterators: _Iterators) -> tf.data.Dataset:
    """A dataset of one number, that of a new iterator, which ends when TensorFlow drops its own, wherever that is."""

    def start(unused: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(iterators.begin, [], tf.int64), ())

    def stop(number: Any) -> Any:
        return tf.numpy_function(iterators.end, [number], tf.int64)

    functions = [
        tf.function(made, input_signature=_NUMBER, autograph=False).get_concrete_function()
        for made in (start, tf.identity, stop)
    ]
    for made in functions:
        made.add_to_graph()
    variant = tf.raw_ops.GeneratorDataset(
        init_func_other_args=[tf.constant(0, tf.int64)],
        next_func_other_args=[],
        finalize_func_other_args=[],
        init_func=functions[0],
        next_func=functions[1],
        finalize_func=functions[2],
        output_types=[tf.int64],
        output_shapes=[()],
    )
    dataset = tf.data.experimental.from_variant(variant, _NUMBER[0]).take(1)  # it would give the number again and again
    dataset._tfprep_functions = functions
    return dataset
