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
        self._told: set[int] = set()

    def begin(self) -> Any:
        number = next(self._numbers)
        self._open[number] = self._begin()
        return np.int64(number)

    def tell(self, number: Any) -> Any:
        """The number itself, once; StopIteration is the end to TensorFlow as well."""
        if int(number) in self._told:
            raise StopIteration
        self._told.add(int(number))
        return np.int64(number)

    def next(self, number: Any) -> Arrays:
        """Arrays of the right dtypes."""
        return next(self._open[int(number)])

    def end(self, number: Any) -> Any:
        self._told.discard(int(number))
        iterator = self._open.pop(int(number), None)
        if iterator is not None and hasattr(iterator, "close"):
            iterator.close()
        return np.int64(0)


def dataset_of(begin: Callable[[], Iterator[Arrays]], spec: Any) -> tf.data.Dataset:
    """A dataset whose iterators take their arrays from `begin()`: one array for each leaf of `spec`, in the order of
    `tf.nest.flatten`. TensorFlow takes over the memory of aligned arrays."""
    iterators, leaves = _Iterators(begin), tf.nest.flatten(spec)

    def step(count: Any, number: Any) -> Any:
        arrays = tf.numpy_function(iterators.next, [number], [leaf.dtype for leaf in leaves])
        return tuple(tf.ensure_shape(array, leaf.shape) for array, leaf in zip(arrays, leaves, strict=True))

    next_arrays = tf.function(step, input_signature=_NUMBER * 2, autograph=False).get_concrete_function()

    def batches(number: Any) -> tf.data.Dataset:
        return tf.data.experimental.from_variant(
            tf.raw_ops.MapDataset(
                input_dataset=tf.data.Dataset.range(np.iinfo(np.int64).max)._variant_tensor,
                other_arguments=[number],
                f=next_arrays,
                output_types=[leaf.dtype for leaf in leaves],
                output_shapes=[leaf.shape for leaf in leaves],
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
    functions = [
        tf.function(
            lambda argument, python=python, given=given: tf.ensure_shape(
                tf.numpy_function(python, [argument] if given else [], tf.int64), ()
            ),
            input_signature=_NUMBER,
            autograph=False,
        ).get_concrete_function()
        for python, given in ((iterators.begin, False), (iterators.tell, True), (iterators.end, True))
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
    dataset = tf.data.experimental.from_variant(variant, _NUMBER[0])
    dataset._tfprep_functions = functions
    return dataset
