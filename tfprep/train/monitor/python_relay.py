"""The inputs of Keras's backends other than TensorFlow's, with a clock.

On JAX the train step pulls its batch from a Python iterator, and a `PythonRelay` stands between them. On PyTorch Keras fetches
the batch before it calls the train step: `FetchedInput` gets the waits from tfprep's loader, or from the time between callbacks.
"""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Iterable
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias

import keras

from tfprep.errors import TrainError
from tfprep.load.waits import TimedLoader, loader_of_this_thread
from tfprep.train.backend import is_tensor_iterator, tensorflow_in_use
from tfprep.train.monitor.clock import PythonClock

if TYPE_CHECKING:
    from tfprep.train.monitor.relay import Relay

TimedInput: TypeAlias = "Relay | PythonRelay | FetchedInput"
"""An input whose waits are measured, in the place of the iterator that it reads."""


class PythonRelay:
    """A `Relay` of a Python iterator; it is its own `iterator`.

    Attributes:
        source: The iterator that elements come from, from the first element on the `tf.data.Iterator` behind Keras's generators
            where there is one; None after `close`.
        clock: The waits.
        loader: tfprep's loader behind the iterator, known from the first element on.
    """

    error: BaseException | None = None
    loader: TimedLoader | None = None

    def __init__(self, source: Any, *, cancellable: bool = False) -> None:
        self.source = self._elements = source
        self.clock = PythonClock()
        self._questions: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._cancellable = cancellable
        if cancellable:
            arguments = (source, self._questions, self._answers)
            threading.Thread(target=_feed, args=arguments, name="tfprep-feeder", daemon=True).start()

    @property
    def iterator(self) -> Any:
        """The iterator to read."""
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self.clock.asking()
        try:
            element, self.loader = self._fed() if self._cancellable else _pulled(self._elements)
        except StopIteration:
            self.clock.ended()
            raise
        if self.source is self._elements:
            self.source = _tensors_behind(self._elements) or self._elements
        self.clock.answered(image_count(element))
        return element

    def handed_over(self) -> Any:
        """Return the iterator, for the caller to keep."""
        return self

    def close(self) -> None:
        """Drop the source, and let the thread end where there is one."""
        self._questions.put(False)
        self.source = self._elements = self.loader = None

    def cancel_wait(self) -> None:
        """Make the consumer's wait fail, from another thread."""
        self._answers.put((None, TimeoutError("the wait for a batch was cancelled")))

    def _fed(self) -> tuple[Any, TimedLoader | None]:
        self._questions.put(True)
        answer, error = self._answers.get()
        if error is not None:
            raise error
        element, loader = answer
        return element, loader


def _feed(source: Any, questions: Any, answers: Any) -> None:
    while questions.get():
        try:
            answers.put((_pulled(source), None))
        except BaseException as error:  # the consumer raises it, the end of the data included
            answers.put((None, error))
            return


def _pulled(source: Any) -> tuple[Any, TimedLoader | None]:
    return next(source), loader_of_this_thread()


def _tensors_behind(source: Any) -> Any:
    """Return the `tf.data.Iterator` that generators read from; None where there is none.

    Keras on JAX reads tf.data through generators of its own. What a generator loops over, only the garbage collector knows, and
    only while the generator does not run.
    """
    if not isinstance(source, GeneratorType):
        return source if is_tensor_iterator(source) else None
    iterators = (_tensors_behind(one) for one in gc.get_referents(source))
    return next((one for one in iterators if one is not None), None)


def image_count(element: Any) -> int:
    """The size of the first axis of the first component, which is the images in a batch; 1 for a scalar."""
    leaves = keras.tree.flatten(element)
    shape = getattr(leaves[0], "shape", ()) if leaves else ()
    return int(shape[0]) if shape else 1


class FetchedInput:
    """The input of a `fit` that fetches each batch before it calls the train step.

    The waits are exact for tfprep's loaders, which note them. Of another input, what passes between `fetching` and the next
    train step counts, the callbacks included that are called in that time.

    Attributes:
        clock: The waits.
        loader: tfprep's loader that the input comes from; None for another input.
    """

    error: BaseException | None = None
    iterator: Any = None
    source: Any = None

    def __init__(self) -> None:
        self.clock = PythonClock()
        self.loader: TimedLoader | None = None

    def fetching(self) -> None:
        """Note that Keras fetches the next batch."""
        if self.loader is None:
            self.clock.asking()

    def fetched(self, batch: Any) -> bool:
        """Note the batch that the train step gets; returns whether it comes from another input than the one before."""
        loader = loader_of_this_thread()
        is_new = loader is not self.loader
        if is_new:
            self._switch(loader)
        if is_new or loader is None:
            self.clock.answered(image_count(batch))
        return is_new

    def ended(self) -> None:
        """Note that the next batch is not fetched now."""
        self.clock.ended()

    def close(self) -> None:
        """Leave the loader."""
        self._switch(None)

    def _switch(self, loader: TimedLoader | None) -> None:
        if self.loader is not None:
            self.loader.clock = None
        self.loader = loader
        if loader is not None:
            loader.clock = self.clock


def relay_of(data: Any, *, cancellable: bool = False) -> PythonRelay | Relay:
    """The relay of what a custom training loop goes through.

    Args:
        data: A `tf.data.Dataset` or `tf.data.Iterator`, or an iterable of batches such as tfprep's other loaders.
        cancellable: See `Relay`.

    Raises:
        TrainError: `data` is something else.
    """
    tf = tensorflow_in_use()
    if tf is not None and isinstance(data, tf.data.Dataset):
        data = iter(data)
    if is_tensor_iterator(data):
        from tfprep.train.monitor.relay import Relay

        return Relay(data, cancellable=cancellable)
    if not isinstance(data, Iterable) or hasattr(data, "shape") or isinstance(data, list | tuple | str | dict):
        raise TrainError(
            f"watch() takes a loader, a tf.data.Dataset or an iterator of batches, got {type(data).__name__} (a distributed "
            "dataset: watch what it is made from)"
        )
    return PythonRelay(iter(data), cancellable=cancellable)
