"""The waits of a training for its input: a clock that notes them, and iterators over batches that tell it."""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tfprep.errors import TrainError
from tfprep.fields import batch_size_of
from tfprep.train.backend import ends_data, tensorflow_in_use


@dataclass(frozen=True)
class Waits:
    """The waits since the beginning of a training, or between two moments of it.

    Attributes:
        window_s: Seconds of training; validation does not count.
        batches: Batches that came.
        waited_s: Seconds of waiting; of a wait that has not ended the part so far.
        images: Images that came.
        pending_s: Seconds that the consumer has been waiting at the end.
        each_s: The waits that ended, in seconds.
    """

    window_s: float = 0.0
    batches: int = 0
    waited_s: float = 0.0
    images: int = 0
    pending_s: float = 0.0
    each_s: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), compare=False)

    def since(self, before: Waits) -> Waits:
        """Return the waits since an earlier moment."""
        return Waits(
            self.window_s - before.window_s,
            self.batches - before.batches,
            self.waited_s - before.waited_s,
            self.images - before.images,
            self.pending_s,
            # A copy: a part of an array keeps all of it, and a monitor keeps a thousand of these.
            self.each_s[before.batches :].copy(),
        )

    @property
    def share(self) -> float | None:
        """The share of the window spent waiting, from 0 to 1; None for an empty window."""
        return min(1.0, max(0.0, self.waited_s / self.window_s)) if self.window_s else None

    @property
    def images_per_s(self) -> float | None:
        """Images per second; None for an empty window."""
        return self.images / self.window_s if self.window_s else None

    def quantile_ms(self, percent: float) -> float:
        """Return a percentile of the waits that ended, in milliseconds; the pending wait if none has ended."""
        return 1e3 * float(np.percentile(self.each_s, percent) if self.each_s.size else self.pending_s)

    def in_words(self) -> str:
        """Return the waits as a clause."""
        return (
            f"{self.batches:,} batches in {self.window_s:,.1f} s, {self.images_per_s or 0:,.0f} images/s; "
            f"{self.share or 0:.0%} of the time waiting for input (p50 {self.quantile_ms(50):.1f} ms, "
            f"p99 {self.quantile_ms(99):.1f} ms a batch)"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the numbers that are written to `input.jsonl`; none for an empty window."""
        if not self.window_s:
            return {}
        names = ("window_s", "batches", "images_per_s", "share", "pending_s")
        numbers = {name: getattr(self, name) for name in names}
        return {**numbers, "p50_ms": self.quantile_ms(50), "p99_ms": self.quantile_ms(99)}


class WaitClock:
    """The waits of one training, whose inputs may change. Training time counts from `resume` to `pause`.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an iterator may be dropped while this thread has it
        self._each_s = array("d")  # 8 bytes for each batch of the training
        self._waited_s = 0.0
        self._images = 0
        self._active_s = 0.0
        self._asked_at: float | None = None
        self._running_since: float | None = None
        self._answered_at = self._last_wait_s = 0.0
        self._step_s = self._hidden_s = 0.0  # of a step that runs beside a fetch, and of that which does now

    @property
    def batches(self) -> int:
        """Batches that came."""
        return len(self._each_s)

    def asking(self) -> None:
        """Note that the trainer requests a batch."""
        with self._lock:
            self._asked_at = time.perf_counter()

    def answered(self, images: int, wait_s: float | None = None) -> float:
        """Note that a batch of this many images is there; return the seconds of the wait, which the loader may have measured."""
        with self._lock:
            self._answered_at = time.perf_counter()
            if wait_s is None:
                wait_s = self._answered_at - self._asked_at if self._asked_at is not None else 0.0
            self._last_wait_s = wait_s
            wait_s, self._hidden_s = max(0.0, wait_s - self._hidden_s), self._step_s
            self._each_s.append(wait_s)
            self._waited_s += wait_s
            self._images += images
            self._asked_at = None
            return wait_s

    def ended(self, *, several_steps: bool = False) -> None:
        """Note that a call has ended, or that there are no more batches.

        In a call of several steps, TensorFlow fetches a batch beside the step before it, whose time is not a wait. It is found
        here: after the last request came the longer of its wait and a step, and then a step.
        """
        with self._lock:
            if several_steps:
                since_s = time.perf_counter() - self._answered_at
                self._step_s = min(since_s, (since_s + self._last_wait_s) / 2)
            self._asked_at, self._hidden_s = None, 0.0

    def pause(self) -> None:
        """Stop counting time."""
        self.resume()
        with self._lock:
            self._running_since = self._asked_at = None

    def resume(self) -> None:
        """Count time from now on."""
        with self._lock:
            now = time.perf_counter()
            self._active_s += now - self._running_since if self._running_since is not None else 0.0
            self._running_since = now

    def read(self) -> Waits:
        """Return the waits since the beginning."""
        with self._lock:
            now = time.perf_counter()
            pending_s = now - self._asked_at if self._asked_at is not None else 0.0
            running_s = now - self._running_since if self._running_since is not None else 0.0
            return Waits(
                window_s=self._active_s + running_s,
                batches=self.batches,
                waited_s=self._waited_s + pending_s,
                images=self._images,
                pending_s=pending_s,
                each_s=np.array(self._each_s),
            )


# --- iterators that tell the clock


class TimedIterator(Iterator[Any]):
    """An iterator over batches whose waits a clock notes. It stops the clock where it ends or is dropped, as `break` does."""

    def __init__(self, batches: Iterator[Any], clock: WaitClock) -> None:
        self._batches, self._clock = batches, clock

    def __next__(self) -> Any:
        if (tf := tensorflow_in_use()) is not None and not tf.executing_eagerly():
            text = "a tf.function that takes a batch itself gets the same one in each step; pass it the batch"
            raise TrainError(f"watch() measures a loop of Python: {text}")
        self._clock.resume()
        self._clock.asking()
        try:
            batch = next(self._batches)
        except BaseException as error:
            # What comes between two epochs of a loop, such as a validation, is not training.
            (self._clock.pause if ends_data(error) else self._clock.ended)()
            raise
        self._clock.answered(batch_size_of(batch))
        return batch

    def __del__(self) -> None:
        self._clock.pause()


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

    def answered(shape: Any) -> bool:
        if (clock := known_clock()) is not None:
            clock.answered(int(shape[0]) if len(shape) else 1)
        return True

    def timed_next(*components: Any) -> Any:
        iterator = tf.nest.pack_sequence_as(sources.element_spec, components, expand_composites=True)
        with tf.control_dependencies([tf.numpy_function(asking, [], tf.bool)]):
            element = iterator.get_next()
        first = next(part for part in tf.nest.flatten(element) if part is not None)
        first = first.row_lengths() if isinstance(first, tf.RaggedTensor) else first
        shape = tf.shape(first) if getattr(first, "dtype", tf.variant) != tf.variant else tf.zeros([0], tf.int32)
        tf.numpy_function(answered, [shape], tf.bool)  # a side effect: runs before the function returns
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
