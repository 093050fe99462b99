"""Passes over a loader: each iterator delivers one epoch, and the next iterator the next epoch.

A pass begins with its first batch, so that an iterator that is never read changes nothing: Keras opens a dataset twice an epoch
and reads one iterator only. A pass that is left in the middle is over. What reads for Keras may begin with a look: up to `LOOK`
batches, which use no epoch, because Keras takes one to build a model, and TensorFlow some more in advance.

In training the reader of a pass goes on with the next epoch, so that no pass waits for threads and first batches.

A run that begins in the middle of an epoch (`start_step`) ends this epoch where it would have ended, with a shorter first pass.
Chains of tf.data promise TensorFlow a number of batches, so that their passes are `whole`: as long as an epoch from any step on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from tfprep.errors import LoaderError
from tfprep.load.order.schedule import BatchSchedule
from tfprep.load.reader.batch import Batch
from tfprep.load.reader.reader import Batches, Reader

T = TypeVar("T")

LOOK = 8
"""Batches of a look. Where Keras builds a model under a `tf.distribute` strategy it takes one, and TensorFlow some four more in
advance for the devices."""


class Steps(NamedTuple):
    """The steps [first, stop) of a pass; `stop` is None where it has no end. Its epochs begin `phase` steps after the run's."""

    first: int
    stop: int | None
    phase: int = 0


class Passes:
    """The epochs that the iterators of one pipeline deliver, one after another.

    Attributes:
        length: The steps of an epoch.
        latest: The steps of the pass that began last; None before the first one.
    """

    def __init__(self, schedule: BatchSchedule, start_step: int) -> None:
        self.length = schedule.steps_per_epoch
        self.latest: Steps | None = None
        self._start, self._end = start_step, schedule.steps
        self._next = start_step
        self._left: Steps | None = None  # a pass that no longer decides with which step the next one begins
        self._position = start_step
        self._looks = False  # whether the latest pass takes batches in advance
        self._idle: Batches | None = None  # of a reader that no pass reads at the moment
        self._lock = threading.Lock()

    @property
    def ends(self) -> bool:
        """Return whether every pass reads the same samples once (training=False)."""
        return self._end is not None

    @property
    def next_step(self) -> int:
        """The step with which the next pass begins."""
        return self._next

    @property
    def position(self) -> int:
        """The step of the next batch: of the pass that began last, or of the next pass where none has, or that one has ended.

        Raises:
            LoaderError: That pass is read for `fit` or by tf.data, which take batches in advance.
        """
        if self._looks:
            raise LoaderError(
                "fit and tf.data take batches in advance, so that the loader's state is ahead of the training: use "
                "tfprep.load.callbacks.SaveLoaderState in fit, or count the steps and save state_at(step)"
            )
        return self._position

    def resume(self, step: int) -> None:
        """Let the next pass begin with this step, also where every pass reads the same samples: that one continues there."""
        self.move_to(step)
        with self._lock:
            self._position, self._looks, self._left = step, False, self.latest
            if self._end is not None:
                self._next = step if step < self._end else self._start

    def steps(self, epochs: int | None) -> int | None:
        """The number of steps of a pass over so many epochs, None standing for a stream without an end."""
        if self._end is not None:
            return max(0, self._end - self._start)
        return None if epochs is None else epochs * self.length

    def begin(self, epochs: int | None, look: int, whole: bool = False) -> Steps:
        """The steps of a new pass, whose first epoch is used with that, or with more than `look` batches."""
        with self._lock:
            steps, first = self.steps(epochs), self._next
            if whole and self._end is not None and first != self._start:
                raise LoaderError(
                    "tf.data was promised all batches of an evaluation, and load_state_dict left some: iterate the loader "
                    "itself, or give a new loader start_step="
                )
            phase = first % self.length if whole else 0
            begin = self._start if self._end is not None else self._epoch(first, phase)
            self.latest = Steps(first, None if steps is None else begin + steps, phase)
            self._position, self._looks = first, look > 0
            if self._end is not None:
                self._next = self._start
            if not look:
                self._use(first, phase)
            return self.latest

    def begin_at(self, step: int, epochs: int | None) -> Steps:
        """The steps of a pass that continues at a step, in the epoch in which it lies."""
        with self._lock:
            self._position, self._looks = step, False
            if self._end is not None:
                self.latest = Steps(step, self._end)
                return self.latest
            first = self._next = self._epoch(step, 0)
            self.latest = Steps(step, None if epochs is None else first + epochs * self.length)
            self._use(first, 0)
            return self.latest

    def move_to(self, step: int) -> None:
        """Let the next pass begin with this step, whatever is read in advance for the pass that began last."""
        with self._lock:
            if self._end is not None:
                return
            self._position, self._looks = step, False
            if step != self._next:
                self._next, self._left = step, self.latest

    def take(self, step: int, steps: Steps, look: int) -> None:
        """Note that a pass took the batch of this step. Its epoch is used if that is more than a look, or the last batch.

        The only batch of the rest of an epoch may be a look: the pass is used when it ends (`finish`).
        """
        if steps is self.latest and steps is not self._left:
            self._position = step + 1
        begin = self._epoch(step, steps.phase)
        first = max(begin, steps.first)
        last = step == begin + self.length - 1 and (step > first or first == begin)
        if step >= self._next and (step - first >= look or last):
            self._note_use(step, steps)

    def finish(self, steps: Steps) -> None:
        """Note that a pass has delivered all its batches, and was asked for more."""
        if steps.stop is not None and steps.stop > steps.first:
            self._note_use(steps.stop - 1, steps)

    def _note_use(self, step: int, steps: Steps) -> None:
        with self._lock:
            if steps is not self._left:
                self._use(step, steps.phase)

    def _use(self, step: int, phase: int) -> None:
        if self._end is None:
            self._next = max(self._next, self._epoch(step, phase) + self.length)

    def _epoch(self, step: int, phase: int) -> int:
        """The first step of the epoch in which a step lies."""
        return step - (step - phase) % self.length

    # --- the reader between two passes ------------------------------------------------------------------------------

    def keep(self, batches: Batches) -> None:
        """Keep a reader for the pass that begins where it stands."""
        with self._lock:
            self._idle = batches

    def kept(self, step: int) -> Batches | None:
        """The reader that stands at this step; None without one. Another one is dropped, which stops its threads."""
        with self._lock:
            idle, self._idle = self._idle, None
        return idle if idle is not None and not idle.reader.stopped and idle.reader.step == step else None

    def close(self) -> None:
        """Drop the reader that is kept."""
        with self._lock:
            self._idle = None


class Passing(Protocol):
    """The part of a pipeline that a pass needs: a reader, and a place for the error that ends the pass."""

    passes: Passes
    error: BaseException | None

    def open_reader(self, start: int) -> Reader:
        """A new reader of the batches from a step on."""


class PassBatches(Iterator[T]):
    """The batches of one pass, each converted by `convert`. It begins with its first batch. Use it in one thread.

    After an error every further call raises the same error: an end of the data would hide that batches are missing. After Ctrl-C
    the next call returns the batch that was waited for. `close` stops the reader and waits for its threads. A pass that is
    dropped in the middle only asks them to stop.
    """

    def __init__(
        self,
        pipeline: Passing,
        convert: Callable[[Batch], T],
        epochs: int | None,
        steps: Steps | None,
        look: int,
        whole: bool,
    ) -> None:
        """See `Pipeline.batches`."""
        self._look, self._whole = look, whole
        self._pipeline, self._passes, self._convert = pipeline, pipeline.passes, convert
        self._epochs, self._steps, self._step = epochs, steps, 0 if steps is None else steps.first
        self._stream: Batches | None = None
        self._over = False
        self._error: Exception | None = None
        self._lock = threading.Lock()  # threads may share an iterator

    def __next__(self) -> T:
        with self._lock:
            return self._next()

    def _next(self) -> T:
        if self._error is not None:
            raise self._error
        if self._over:
            raise StopIteration
        if self._steps is None:
            self._steps = self._passes.begin(self._epochs, self._look, self._whole)
            self._step = self._steps.first
        steps, step, stop = self._steps, self._step, self._steps.stop
        if stop is not None and step >= stop:
            self._passes.finish(steps)
            self.close()
            raise StopIteration
        try:
            if self._stream is None:
                self._stream = self._passes.kept(step) or Batches(self._pipeline.open_reader(step))
            element = self._convert(self._stream.next())
            self._passes.take(step, steps, self._look)
            self._step += 1
            if stop is not None and self._step >= stop and not self._passes.ends:
                self._passes.keep(self._stream)  # the next pass begins where the reader stands
                self._stream = None
        except BaseException as error:
            self._pipeline.error = error  # also Ctrl-C: TensorFlow, if it called this, passes on its text alone
            self._error = error if isinstance(error, Exception) else None
            self._step, self._stream = step, None
            raise
        return element

    @property
    def steps(self) -> Steps | None:
        """The steps of the pass; None before it has begun."""
        return self._steps

    @property
    def step(self) -> int | None:
        """The next step; None before the pass has begun."""
        return None if self._steps is None else self._step

    def close(self) -> None:
        """Stop the reading threads and give the memory back; batches that were delivered stay as they are."""
        self._over = True
        if self._stream is not None:
            self._stream.close()
