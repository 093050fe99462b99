"""A tf.data iterator that hands on the elements of another one, with a clock and, if asked, with a way out.

The relay has the element spec of its source, so a compiled step takes it without a new trace. It pulls from the
source's own iterator and never opens a second one, so the order of the data, seeds included, is what it would have
been.

A blocked `next` of tf.data cannot be cancelled: neither prefetch nor a parallel map looks at the cancellation while it
waits. A queue can. So a relay with `cancellable=True` pulls in a thread of its own, one element for each that is asked
for and none ahead, and waits on a queue between them. The pull is a loop of TensorFlow ops: no Python runs for a step.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from tfprep.train.clock import InputClock


class Relay:
    """`iterator` hands on what `source` (a `tf.data.Iterator`) gives; `clock` says how long it was waited for."""

    def __init__(self, source: Any, *, cancellable: bool = False) -> None:
        self.source = source
        self.clock = InputClock()
        self._feeder = _Feeder(source) if cancellable else None
        self.iterator = iter(self._dataset())

    @property
    def error(self) -> Exception | None:
        """What the source raised in the feeder's thread."""
        return None if self._feeder is None else self._feeder.error

    def close(self) -> None:
        """Let the feeder's thread end, where there is one."""
        if self._feeder is not None:
            self._feeder.close()

    def _dataset(self) -> Any:
        questions = tf.data.Dataset.counter()
        answers = questions.map(_plain(self._pull))
        there = answers.take_while(_plain(self._came))
        return there.map(_plain(self._value)).with_options(_quick())

    def _pull(self, number: Any) -> Any:
        asked_at = self.clock.asking()
        with tf.control_dependencies([asked_at]):
            optional = self._feeder.take() if self._feeder else self.source.get_next_as_optional()
        return number, asked_at, optional

    def _came(self, number: Any, asked_at: Any, optional: Any) -> Any:
        self.clock.answering(number, asked_at)
        return optional.has_value()

    def _value(self, _: Any, __: Any, optional: Any) -> Any:
        element = optional.get_value()
        self.clock.counting(_images(element))
        return element


class _Feeder:
    """A thread that pulls one element from the source for each one that is asked for."""

    def __init__(self, source: Any) -> None:
        self.error: Exception | None = None
        self._spec = source.element_spec
        with tf.device("CPU:0"):
            self._questions = tf.queue.FIFOQueue(1, [tf.int64], [[]])
            self._answers = tf.queue.FIFOQueue(1, [tf.variant], [[]])
        self._loop = tf.function(_feeding(source, self._questions, self._answers), autograph=False)
        threading.Thread(target=self._run, name="tfprep-feeder", daemon=True).start()

    def take(self) -> Any:
        """Graph ops: ask, wait for the answer."""
        with tf.control_dependencies([self._questions.enqueue(0)]):
            return _optional(self._spec, self._answers.dequeue())

    def close(self) -> None:
        self._questions.close(cancel_pending_enqueues=True)

    def _run(self) -> None:
        try:
            self._loop()
        except tf.errors.OutOfRangeError:  # the queue of questions was closed
            pass
        except Exception as error:  # the consumer raises it, in its own thread
            self.error = error
        self._answers.close()


def _feeding(source: Any, questions: Any, answers: Any) -> Any:
    def answer_one(_: Any) -> list[Any]:
        with tf.control_dependencies([questions.dequeue()]):
            optional = source.get_next_as_optional()
        with tf.control_dependencies([answers.enqueue(tf.nest.flatten(optional, expand_composites=True))]):
            return [optional.has_value()]

    def loop() -> Any:
        return tf.while_loop(lambda more: more, answer_one, [tf.constant(True)])

    return loop


def _optional(element_spec: Any, variant: Any) -> Any:
    return tf.nest.pack_sequence_as(tf.OptionalSpec(element_spec), [variant], expand_composites=True)


def _images(element: Any) -> Any:
    """The size of the first axis of the first component: the images in a batch; 1 for a scalar."""
    first = tf.nest.flatten(element, expand_composites=True)[0]
    if first.dtype == tf.variant or first.shape.rank == 0:
        return tf.constant(1, tf.int64)
    return tf.shape(first, out_type=tf.int64)[0]


def _plain(function: Any) -> Any:
    return tf.autograph.experimental.do_not_convert(function)


def _quick() -> Any:
    """No autotune, no rewriting, no prefetch put after the clock; a thread of its own saves the hand-over between
    pools."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    options.threading.private_threadpool_size = 1
    return options
