"""The waits of a training for its input: when each batch was requested and when it came."""

from __future__ import annotations

import gc
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from tfprep.errors import TrainError
from tfprep.load.waits import TimedLoader, loader_of_this_thread
from tfprep.train.backend import is_tensor_iterator, tensorflow_in_use


@dataclass(frozen=True)
class Waits:
    """The waits of one window of training time.

    Attributes:
        window_s: Length of the window in seconds; validation does not count.
        batches: Batches that came in it.
        waited_s: Seconds of waiting in it; of a wait that crosses its border the part inside.
        images: Images that came in it.
        pending_s: Seconds that the consumer has been waiting at its end.
        each_s: The waits that ended in it, in seconds.
    """

    window_s: float
    batches: int
    waited_s: float
    images: int
    pending_s: float
    each_s: npt.NDArray[np.float64]

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


@dataclass(frozen=True)
class Reading:
    """The totals of a clock at one moment: those of `Waits` since the beginning."""

    active_s: float = 0.0
    batches: int = 0
    waited_s: float = 0.0
    images: int = 0
    pending_s: float = 0.0


class WaitClock:
    """The waits of one training, whose inputs may change. Training time counts from `resume` to `pause`.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._each_s = array("d")  # 8 bytes for each batch of the training
        self._images = 0
        self._waited_s = self._active_s = 0.0
        self._asked_at: float | None = None
        self._running_since: float | None = None

    def asking(self) -> None:
        """Note that the trainer requests a batch."""
        with self._lock:
            self._asked_at = time.perf_counter()

    def answered(self, images: int, wait_s: float | None = None) -> None:
        """Note that a batch of this many images is there; `wait_s` where the loader has measured the wait itself."""
        with self._lock:
            if wait_s is None:
                wait_s = time.perf_counter() - self._asked_at if self._asked_at is not None else 0.0
            self._each_s.append(wait_s)
            self._waited_s += wait_s
            self._images += images
            self._asked_at = None

    def ended(self) -> None:
        """Note that there are no more batches."""
        with self._lock:
            self._asked_at = None

    def pause(self) -> None:
        """Stop counting time."""
        with self._lock:
            self._stop(time.perf_counter())
            self._running_since = self._asked_at = None

    def resume(self) -> None:
        """Count time from now on."""
        with self._lock:
            now = time.perf_counter()
            self._stop(now)
            self._running_since = now

    def read(self) -> Reading:
        """Return the totals so far."""
        with self._lock:
            now = time.perf_counter()
            pending_s = now - self._asked_at if self._asked_at is not None else 0.0
            running_s = now - self._running_since if self._running_since is not None else 0.0
            return Reading(
                active_s=self._active_s + running_s,
                batches=len(self._each_s),
                waited_s=self._waited_s + pending_s,
                images=self._images,
                pending_s=pending_s,
            )

    def between(self, before: Reading, now: Reading) -> Waits:
        """Return the waits between two readings."""
        with self._lock:
            each_s = np.array(self._each_s[before.batches : now.batches])
        return Waits(
            window_s=now.active_s - before.active_s,
            batches=now.batches - before.batches,
            waited_s=now.waited_s - before.waited_s,
            images=now.images - before.images,
            pending_s=now.pending_s,
            each_s=each_s,
        )

    def _stop(self, now: float) -> None:
        if self._running_since is not None:
            self._active_s += now - self._running_since


class TimedIterator(Iterator[Any]):
    """An iterator over batches whose waits a clock notes.

    Attributes:
        source: From the first batch on the `tf.data.Iterator` that Keras's generators read; else the iterator itself.
        loader: tfprep's loader that the batches come from, known from the first batch on; None for another input.
    """

    def __init__(self, batches: Iterator[Any], clock: WaitClock) -> None:
        self.source: Any = batches
        self.loader: TimedLoader | None = None
        self._batches = batches
        self._clock = clock

    def __next__(self) -> Any:
        self._clock.asking()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._clock.ended()
            raise
        self._clock.answered(image_count(batch))
        self.loader = loader_of_this_thread()
        if self.source is self._batches:
            self.source = _tensors_of(self._batches) or self._batches
        return batch


def timed(data: Any, clock: WaitClock) -> tuple[Any, Any]:
    """Return an iterator over what a custom training loop reads, and its source.

    Args:
        data: A `tf.data.Dataset` or `tf.data.Iterator`, or an iterable of batches such as tfprep's other loaders.
        clock: Notes the waits.

    Raises:
        TrainError: `data` is something else.
    """
    tf = tensorflow_in_use()
    if tf is not None and isinstance(data, tf.data.Dataset):
        data = iter(data)
    if is_tensor_iterator(data):
        from tfprep.train.monitor.tensors import timed_tensors

        return timed_tensors(data, clock), data
    if not isinstance(data, Iterable) or hasattr(data, "shape") or isinstance(data, list | tuple | str | dict):
        raise TrainError(
            f"watch() takes a loader, a tf.data.Dataset or an iterator of batches, got {type(data).__name__} (a distributed "
            "dataset: watch what it is made from)"
        )
    batches = TimedIterator(iter(data), clock)
    return batches, batches.source


def image_count(batch: Any) -> int:
    """Return the size of the first axis of the first component, which is the images in a batch; 1 for a scalar."""
    leaves = keras.tree.flatten(batch)
    shape = getattr(leaves[0], "shape", ()) if leaves else ()
    return int(shape[0]) if shape else 1


def _tensors_of(source: Any) -> Any:
    """Return the `tf.data.Iterator` that generators read from; None if there is none.

    Keras on JAX reads tf.data through generators of its own. Only the garbage collector knows what a generator loops over, and
    only while the generator does not run.
    """
    if not isinstance(source, GeneratorType):
        return source if is_tensor_iterator(source) else None
    iterators = (_tensors_of(one) for one in gc.get_referents(source))
    return next((one for one in iterators if one is not None), None)
