"""A tf.data iterator that passes on the elements of another one, with a clock and, on request, a way to cancel a wait.

The relay has the element spec of its source, so a compiled step takes it without a new trace. It pulls from the source's own
iterator and never opens a second one, so the order of the data, seeds included, does not change.

A blocked `next` of tf.data cannot be cancelled: neither prefetch nor a parallel map looks at a cancellation while it waits. A
queue can be given something else to deliver. So a relay with `cancellable=True` pulls in a thread of its own, one element for
each request and none in advance, and waits on a queue between them. The pull is a loop of TensorFlow ops: no Python runs for a
step.

The cost is threads that wake each other, about 50 µs each, and about 0.4 µs for each op. So all ops are in one function, which
tf.data runs in the thread that asks (`use_inter_op_parallelism=False`), on a `range`: `Dataset.counter()` is a scan, which wakes
a thread for every number. `Dataset.map` offers neither that nor a function that ends the data, but the op behind it does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.train.monitor.clock import RING, ClockReading


class TensorClock:
    """The waits of one iterator. `asking`, `answered` and `ended` are called in tf.data functions; `read` anywhere."""

    def __init__(self) -> None:
        self._now = _graph_clock()
        with tf.device("CPU:0"):
            self._asked_at = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            self._moments = tf.Variable(tf.zeros([RING, 2], tf.float64), trainable=False)
            self._delivered = tf.Variable([0, 0], dtype=tf.int64, trainable=False)

    def asking(self) -> Any:
        """Note that the consumer waits from now on; returns that moment, a float64 scalar."""
        now = self._now()
        with tf.control_dependencies([self._asked_at.assign(now, read_value=False)]):
            return tf.identity(now)  # what depends on it runs after the note

    def answered(self, position: Any, asked_at: Any, images: Any) -> None:
        """Note that a batch has come. Call it under a control dependency on the batch.

        Args:
            position: The batch's number modulo `RING`.
            asked_at: What `asking` returned.
            images: Images in the batch.
        """
        noted = tf.raw_ops.ResourceScatterUpdate(
            resource=self._moments.handle, indices=position, updates=tf.stack([asked_at, self._now()])
        )
        with tf.control_dependencies([noted]):
            self._delivered.assign_add([1, images], read_value=False)

    def ended(self) -> Any:
        """Note that there are no more batches; returns the op."""
        return self._asked_at.assign(0.0, read_value=False)

    def read(self) -> ClockReading:
        """Return a snapshot; this copies 64 KiB."""
        answered, images = self._delivered.numpy().tolist()
        moments = self._moments.numpy()
        asked_at = float(self._asked_at.numpy())
        has_come = answered > 0 and asked_at == moments[(answered - 1) % RING, 0]
        return ClockReading(
            answered=answered,
            images=images,
            asked_at=0.0 if has_come else asked_at,
            ring=np.maximum(moments[:, 1] - moments[:, 0], 0.0),
        )


def _graph_clock() -> Any:
    """Return a function that makes the op of Unix time, a float64 scalar.

    `tf.timestamp` fails under `tf.config.experimental.enable_op_determinism()`; then Python's clock serves, at some 50 us a call.
    No public function says whether determinism is enabled, so one call finds out.
    """
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return lambda: tf.ensure_shape(tf.numpy_function(lambda: np.float64(time.time()), [], tf.float64), [])
    return tf.timestamp


class Relay:
    """Passes on the elements of `source` and measures how long the consumer waits for them.

    Nothing of a relay may wait for the garbage collector: the source would stay alive with all of its buffers, and the collector
    would then wait for tf.data's autotune, which sleeps up to a minute before it notices that its iterator is gone. Hence `close`
    and `handed_over`, which cut the cycle between a relay and its iterator; and the functions get the source as an argument,
    because a graph is a cycle that holds what it captured.

    Attributes:
        source: The `tf.data.Iterator` that elements come from; None after `close`.
        iterator: The `tf.data.Iterator` to read instead; None after `close` and `handed_over`.
        clock: The waits.
    """

    loader: Any = None

    def __init__(self, source: Any, *, cancellable: bool = False) -> None:
        self.source: Any = source
        self.clock = TensorClock()
        self._spec = source.element_spec
        self._feeder = _Feeder(source) if cancellable else None
        self.iterator: Any = self._opened()

    @property
    def error(self) -> Exception | None:
        """The error that the source raised in the feeder's thread."""
        return None if self._feeder is None else self._feeder.error

    def close(self) -> None:
        """Drop the source, and let the feeder's thread end where there is one."""
        if self._feeder is not None:
            self._feeder.close()
        self.source = self.iterator = None

    def handed_over(self) -> Any:
        """Return the iterator, for the caller to keep."""
        iterator, self.iterator = self.iterator, None
        return iterator

    def cancel_wait(self) -> None:
        """Make the consumer's wait fail, from another thread; the source and the feeder's thread stay as they are."""
        if self._feeder is not None:
            self._feeder.refuse()

    def _opened(self) -> Any:
        positions = tf.data.Dataset.range(RING).repeat()
        sources = tf.data.Dataset.from_tensors(0 if self._feeder else self.source).repeat()
        questions = tf.data.Dataset.zip(positions, sources)
        after_the_end = self._answers(questions.take(1).filter(_plain(self._end)))  # gives nothing, but notes it
        return iter(self._answers(questions).concatenate(after_the_end).with_options(_quick()))

    def _answers(self, questions: Any) -> Any:
        return _map_in_calling_thread(questions, self._answer, self._spec)

    def _answer(self, position: Any, source: Any) -> Any:
        asked_at = self.clock.asking()
        with tf.control_dependencies([asked_at]):
            element = self._feeder.take() if self._feeder else source.get_next()
        with tf.control_dependencies(_components(element)[:1]):
            self.clock.answered(position, asked_at, _image_count(element))
        return element

    def _end(self, _: Any, __: Any) -> Any:
        with tf.control_dependencies([self.clock.ended()]):
            return tf.constant(False)


class _Feeder:
    """A thread that pulls one element from the source for each request."""

    def __init__(self, source: Any) -> None:
        self.error: Exception | None = None
        self._spec = source.element_spec
        with tf.device("CPU:0"):
            self._questions = tf.queue.FIFOQueue(1, [tf.int64], [[]])
            self._answers = tf.queue.FIFOQueue(1, [tf.variant], [[]])
        self._loop = tf.function(_feeding(self._questions, self._answers), autograph=False)
        threading.Thread(target=self._run, args=(source,), name="tfprep-feeder", daemon=True).start()

    def take(self) -> Any:
        """Graph ops that ask and wait for the answer."""
        with tf.control_dependencies([self._questions.enqueue(0)]):
            return tf.nest.pack_sequence_as(
                tf.OptionalSpec(self._spec), [self._answers.dequeue()], expand_composites=True
            ).get_value()

    def close(self) -> None:
        self._questions.close(cancel_pending_enqueues=True)

    def refuse(self) -> None:
        """Answer with what no step can take. (A closed queue alone would look like the end of the data.)"""
        with contextlib.suppress(tf.errors.CancelledError), tf.device("CPU:0"):  # it has ended
            no_optional = tf.raw_ops.EmptyTensorList(element_shape=-1, max_num_elements=0, element_dtype=tf.int32)
            self._answers.enqueue(no_optional)

    def _run(self, source: Any) -> None:
        try:
            self._loop(source)
        except tf.errors.OutOfRangeError:  # the end of the data, or the queue of questions was closed
            pass
        except Exception as error:  # the consumer raises it, in its own thread
            self.error = error
            self.refuse()
        self._answers.close()


def _feeding(questions: Any, answers: Any) -> Any:
    def loop(source: Any) -> Any:
        def answer_one(more: Any) -> list[Any]:
            with tf.control_dependencies([questions.dequeue()]):
                optional = tf.experimental.Optional.from_value(source.get_next())
            with tf.control_dependencies([answers.enqueue(_components(optional))]):
                return [tf.identity(more)]

        return tf.while_loop(lambda more: more, answer_one, [tf.constant(True)])

    return loop


def _map_in_calling_thread(dataset: Any, function: Any, spec: Any) -> Any:
    """`dataset.map(function)` in the thread that asks, where an OutOfRange error of the function ends the data."""
    plain = all(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(spec))
    # How tf.data lays out a ragged or sparse tensor is private, but an optional of it is one variant.
    answer_spec = spec if plain else tf.OptionalSpec(spec)

    def answer(*components: Any) -> Any:
        arguments = tf.nest.pack_sequence_as(dataset.element_spec, components, expand_composites=True)
        element = function(*arguments)
        return _components(element if plain else tf.experimental.Optional.from_value(element))

    traced = tf.function(answer, input_signature=_components(dataset.element_spec), autograph=False)
    concrete = traced.get_concrete_function()
    outputs = _components(answer_spec)
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
    # The op only names the graph's function, and the graph only names the queues and variables of `function`.
    mapped._tfprep_functions = concrete, function
    return mapped if plain else mapped.map(_plain(lambda optional: optional.get_value()))


def _components(structure: Any) -> Any:
    return tf.nest.flatten(structure, expand_composites=True)


def _image_count(element: Any) -> Any:
    """The size of the first axis of the first component, which is the images in a batch; 1 for a scalar."""
    first = _components(element)[0]
    if first.dtype == tf.variant or first.shape.rank == 0:
        return tf.constant(1, tf.int64)
    if first.shape.rank is None:  # as tf.numpy_function leaves it: perhaps a scalar
        return tf.concat([tf.shape(first, out_type=tf.int64), [1]], 0)[0]
    return tf.shape(first, out_type=tf.int64)[0]


def _plain(function: Any) -> Any:
    return tf.autograph.experimental.do_not_convert(function)


def _quick() -> Any:
    """No autotune, no rewriting, and no prefetch inserted after the clock."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    return options
