"""Iterators that note in a clock how long the trainer waits for each batch."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import keras

from tfprep.errors import TrainError
from tfprep.load.threads import CountingLoader, loader_of_this_thread
from tfprep.train.backend import tensorflow_in_use
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
        if (tf := tensorflow_in_use()) is not None and not tf.executing_eagerly():
            text = "a tf.function that takes a batch itself gets the same one in each step; pass it the batch"
            raise TrainError(f"watch() measures a loop of Python: {text}")
        self._clock.asking()
        try:
            batch = next(self.source)
        except BaseException:  # also the end of the data
            self._clock.ended()
            raise
        self._clock.answered(image_count(batch))
        self.loader = loader_of_this_thread()
        return batch


def image_count(batch: Any) -> int:
    """Return the size of the first axis of the first component, which is the images in a batch; 1 for a scalar."""
    leaves = keras.tree.flatten(batch)
    shape = tuple(getattr(leaves[0], "shape", ())) if leaves else ()
    return int(shape[0]) if shape else 1


# --- inside a compiled step


def timed_tensors(source: Any, clock: WaitClock) -> Any:
    """Return a `tf.data.Iterator` over the elements of another one, whose waits `clock` notes, for a step that is compiled.

    It has the element spec of its source, so the step takes it without a new trace. It pulls from the source's own iterator and
    never opens a second one, so the order of the data, seeds included, does not change. It fetches nothing in advance, and ends
    where the function gets an OutOfRange error. `Dataset.map` would hand each op to another thread, which takes 0.3 ms per batch
    in place of 0.05 ms.

    The source is an element of a dataset, and no function captures it: a function's graph is a cycle of references, which would
    keep the source and its buffers until the next garbage collection. TensorFlow keeps Python functions of a graph until
    `clear_session`, hence the weak reference to the clock.
    """
    tf = tensorflow_in_use()
    known_clock = weakref.ref(clock)
    sources, spec = tf.data.Dataset.from_tensors(source).repeat(), source.element_spec
    # How tf.data lays out a ragged or sparse tensor is private, but an optional of it is one variant.
    plain = all(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(spec))
    answer_spec = spec if plain else tf.OptionalSpec(spec)

    def asking() -> bool:
        if (clock := known_clock()) is not None:
            clock.asking()
        return True

    def answered(images: int) -> bool:
        if (clock := known_clock()) is not None:
            clock.answered(int(images))
        return True

    def timed_next(*components: Any) -> Any:
        iterator = tf.nest.pack_sequence_as(sources.element_spec, components, expand_composites=True)
        with tf.control_dependencies([tf.numpy_function(asking, [], tf.bool)]):
            element = iterator.get_next()
        tf.numpy_function(
            answered, [_tensor_count(element)], tf.bool
        )  # a side effect: runs before the function returns
        answer = element if plain else tf.experimental.Optional.from_value(element)
        return tf.nest.flatten(answer, expand_composites=True)

    signature = tf.nest.flatten(sources.element_spec, expand_composites=True)
    concrete = tf.function(timed_next, input_signature=signature, autograph=False).get_concrete_function()
    outputs = tf.nest.flatten(answer_spec, expand_composites=True)
    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(sources),
        other_arguments=concrete.captured_inputs,
        f=concrete,
        output_types=[output.dtype for output in outputs],
        output_shapes=[output.shape for output in outputs],
        use_inter_op_parallelism=False,
        preserve_cardinality=False,
    )
    batches = tf.data.experimental.from_variant(variant, answer_spec)
    batches._tfprep_function = concrete  # the op only names it
    if not plain:
        batches = batches.map(tf.autograph.experimental.do_not_convert(lambda optional: optional.get_value()))
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False  # a batch is requested when the step needs it
    return iter(batches.with_options(options))


def _tensor_count(element: Any) -> Any:
    """Return `image_count` of tensors of a graph."""
    tf = tensorflow_in_use()
    first = tf.nest.flatten(element, expand_composites=True)[0]
    if first.dtype == tf.variant or first.shape.rank == 0:
        return tf.constant(1, tf.int64)
    if first.shape.rank is None:  # as tf.numpy_function leaves it: perhaps a scalar
        return tf.concat([tf.shape(first, out_type=tf.int64), [1]], 0)[0]
    return tf.shape(first, out_type=tf.int64)[0]
