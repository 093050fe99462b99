"""The waits for batches of a `tf.data.Iterator`, which a compiled step requests from inside its graph."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from tfprep.train.monitor.waits import WaitClock


def timed_tensors(source: Any, clock: WaitClock) -> Any:
    """Return a `tf.data.Iterator` over the elements of another one, whose waits `clock` notes.

    It has the element spec of its source, so a compiled step takes it without a new trace. It pulls from the source's own
    iterator and never opens a second one, so the order of the data, seeds included, does not change. It fetches nothing in
    advance.

    The source is an element of a dataset, and no function captures it: a function's graph is a cycle of references, which would
    keep the source and its buffers until the next garbage collection. TensorFlow keeps Python functions of a graph until
    `clear_session`, hence the weak reference to the clock.
    """
    known_clock = weakref.ref(clock)

    def asking() -> bool:
        if (clock := known_clock()) is not None:
            clock.asking()
        return True

    def answered(images: int) -> bool:
        if (clock := known_clock()) is not None:
            clock.answered(int(images))
        return True

    def ended() -> bool:
        if (clock := known_clock()) is not None:
            clock.ended()
        return False

    def timed_next(source: Any) -> Any:
        with tf.control_dependencies([tf.numpy_function(asking, [], tf.bool)]):
            element = source.get_next()
        tf.numpy_function(
            answered, [_image_count(element)], tf.bool
        )  # has side effects: runs before the function returns
        return element

    note_the_end = tf.autograph.experimental.do_not_convert(lambda _: tf.numpy_function(ended, [], tf.bool))
    nothing = tf.data.Dataset.from_tensors(source).filter(note_the_end)
    sources = tf.data.Dataset.from_tensors(source).repeat()
    batches = _map_in_calling_thread(sources, timed_next, source.element_spec)
    batches = batches.concatenate(_map_in_calling_thread(nothing, timed_next, source.element_spec))
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False  # a batch is requested when the step needs it
    return iter(batches.with_options(options))


def _map_in_calling_thread(dataset: Any, function: Any, spec: Any) -> Any:
    """Return `dataset.map(function)` in the thread that asks, where an OutOfRange error of the function ends the data.

    `Dataset.map` hands each op to another thread, which takes 0.3 ms per batch in place of 0.05 ms.
    """
    plain = all(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(spec))
    # How tf.data lays out a ragged or sparse tensor is private, but an optional of it is one variant.
    answer_spec = spec if plain else tf.OptionalSpec(spec)

    def answer(*components: Any) -> Any:
        arguments = tf.nest.pack_sequence_as(dataset.element_spec, components, expand_composites=True)
        element = function(arguments)
        answered = element if plain else tf.experimental.Optional.from_value(element)
        return tf.nest.flatten(answered, expand_composites=True)

    signature = tf.nest.flatten(dataset.element_spec, expand_composites=True)
    concrete = tf.function(answer, input_signature=signature, autograph=False).get_concrete_function()
    outputs = tf.nest.flatten(answer_spec, expand_composites=True)
    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        other_arguments=concrete.captured_inputs,
        f=concrete,
        output_types=[output.dtype for output in outputs],
        output_shapes=[output.shape for output in outputs],
        use_inter_op_parallelism=False,
        preserve_cardinality=False,
    )
    mapped = tf.data.experimental.from_variant(variant, answer_spec)
    mapped._tfprep_function = concrete  # the op only names it
    get_value = tf.autograph.experimental.do_not_convert(lambda optional: optional.get_value())
    return mapped if plain else mapped.map(get_value)


def _image_count(element: Any) -> Any:
    """Return the size of the first axis of the first component, which is the images in a batch; 1 for a scalar."""
    first = tf.nest.flatten(element, expand_composites=True)[0]
    if first.dtype == tf.variant or first.shape.rank == 0:
        return tf.constant(1, tf.int64)
    if first.shape.rank is None:  # as tf.numpy_function leaves it: perhaps a scalar
        return tf.concat([tf.shape(first, out_type=tf.int64), [1]], 0)[0]
    return tf.shape(first, out_type=tf.int64)[0]
