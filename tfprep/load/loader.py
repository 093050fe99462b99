"""What the loaders of all frameworks share: a batch is a function of its step, and iterating counts steps.

An adapter for a framework is a subclass of `Loader` that says how an element is made of a batch's arrays (`_element`). It has
three things to build on: `pipeline.batch(step)`, the arrays of one step, made in the calling thread; `BatchPass`, the batches of
an iteration, filled ahead; and `progress`, which says where the next iteration begins.

Each iteration is a pass over the next epoch. A pass fixes its epoch at its first batch. The epoch is used at the pass's 9th
batch, or at its last one if that comes earlier: Keras takes a batch to build a model, and TensorFlow some in advance, which use
no epoch.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from tfprep.checks import whole_number
from tfprep.errors import LoaderError
from tfprep.load.order.schedule import MOST_EPOCHS
from tfprep.load.pipeline import Pipeline
from tfprep.load.plan import LoaderPlan
from tfprep.load.prefetch import Prefetcher, open_prefetchers
from tfprep.load.reader.batch import Batch
from tfprep.units import number as counted

_LOG = logging.getLogger("tfprep.load")

LOOK = 8
"""Batches of a pass that use no epoch. Where Keras builds a model under a `tf.distribute` strategy it takes one, and TensorFlow
some four more in advance for the devices."""


class Progress:
    """The step with which the next pass begins. A pass that uses an epoch only moves it forward.

    Attributes:
        plan: What is delivered, in which order.
        length: The steps of an epoch.
        next_step: The first step of the next pass.
        position: The step of the batch that comes next in the pass that began last.
        requested_ahead: True if tf.data reads that pass, which takes batches in advance.
        spare: What fills the batches of the next pass already.
    """

    def __init__(self, plan: LoaderPlan, start: int) -> None:
        self.plan, self.length = plan, plan.schedule.steps_per_epoch
        self._warned = False
        self._first = self._repeated = 0  # where the last pass began, and how many passes before it began there too
        self.spare: Prefetcher | None = None
        self._lock = threading.Lock()
        self._begun = 0
        """The number of the pass that began last, and `_moved` that of the last `move_to`, which are counted together."""
        self.move_to(start)

    def move_to(self, step: int) -> None:
        """Let the next pass begin with this step; passes that have begun no longer change that."""
        with self._lock:
            self.next_step = self.position = step if self.plan.training else step % self.length
            self.requested_ahead, self._first = False, -1
            self._begun = self._moved = self._begun + 1

    def begin(self, steps: Pass) -> int:
        """The first step of a pass that begins now."""
        with self._lock:
            first = self.position = self.next_step
            self._first, self._repeated = first, self._repeated + 1 if first == self._first else 0
            self.requested_ahead = steps.for_framework
            self._begun = steps.number = self._begun + 1
            if not self.plan.training:  # all passes but the first one are whole
                self.next_step = 0
        if self._repeated == 3 and self.plan.training:  # frameworks look less often
            _LOG.warning(
                f"4 passes in a row began with step {first} and have the same batches, because none before them came to batch "
                f"{LOOK + 1}. Call set_epoch(n) before each, or take all batches from one iterator of repeat()"
            )
        return first

    def delivered(self, steps: Pass, step: int) -> None:
        """Note that a pass delivered the batch of this step."""
        with self._lock:
            end = steps.end_of_epoch(step)
            uses_epoch = step - steps.first >= steps.look or step + 1 == end
            if steps.number <= self._moved or not self.plan.training or not uses_epoch:
                end = self.next_step
            next_step = max(self.next_step, end)
            if steps.number == self._begun:  # after all calls: Ctrl-C in one of them changes nothing
                self.position = step + 1
            self.next_step = next_step

    def warn_of_looks(self, most: int) -> None:
        """Say once where the `most` batches that a framework takes to build a model, or in advance, can be an epoch."""
        if self.length <= most and self.plan.training and not self._warned:
            self._warned = True
            _LOG.warning(
                "an epoch has only %s. Keras and tf.data may take all of its batches in advance, and the training then "
                "misses that epoch. It sees every epoch with model.fit(train.repeat(), steps_per_epoch=%d)",
                counted(self.length, "step"), self.length,
            )  # fmt: skip


class Pass(Iterator[Any]):
    """The elements of one pass, which begins with its first one. Threads may share it.

    After an error every further call raises the same error: an end of the data would hide that batches are missing. After Ctrl-C
    the next call returns the batch that was waited for. It is not a generator, which would end with Ctrl-C.
    """

    def __init__(self, progress: Progress, epochs: int | None = 1, *, for_framework: bool = False) -> None:
        """A pass over `epochs` epochs, None for no end.

        `for_framework`: a framework reads it, which takes batches in advance and was promised a number of batches, so that the
        first epoch is as long as any other, wherever it begins.
        """
        self._progress, self._epochs, self.for_framework = progress, epochs, for_framework
        self._error: Exception | None = None
        self._lock = threading.RLock()
        self.look: float = LOOK
        self.restart()

    def _element(self, step: int) -> Any:
        """The element of a step; steps come in their order."""
        raise NotImplementedError

    def restart(self) -> None:
        """Begin again with the step that comes next in the run."""
        self.first = self.number = -1
        self._step = self._first_end = 0
        self._stop: int | None = None

    @property
    def step(self) -> int:
        """The step that comes next."""
        return self._progress.next_step if self.first < 0 else self._step

    @property
    def is_over(self) -> bool:
        """True if all elements were taken."""
        return self._step == self._stop

    def __next__(self) -> Any:
        return self.take(lambda step, element: self._progress.delivered(self, step))

    def take(self, note: Callable[[int, Any], object]) -> Any:
        """The next element, when `note` was told it and its step. After Ctrl-C in one of the calls, it comes again."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self.first < 0:
                self._begin()
            step = self._step
            if step == self._stop:
                raise StopIteration
            try:
                element = self._element(step)
            except Exception as error:
                self._error = error
                self.close()
                raise
            note(step, element)
            if step + 1 == self._stop:  # tf.data and Keras do not ask for more
                self._end()
            self._step = step + 1
            return element

    def _begin(self) -> None:
        progress = self._progress
        if self.for_framework and progress.next_step and not progress.plan.training:
            raise LoaderError(
                "fit and tf.data are promised all batches of an evaluation, so that they cannot continue one at step "
                f"{progress.next_step}; use numpy_loader() or loader(...).eager()"
            )
        first, length = progress.begin(self), progress.length
        self._first_end = first + length if self.for_framework else first - first % length + length
        self._stop = None if self._epochs is None else self._first_end + (self._epochs - 1) * length
        self._step, self.first = first, first

    def end_of_epoch(self, step: int) -> int:
        """The first step after the epoch of this pass in which a step is."""
        length = self._progress.length
        return self._first_end + max(0, (step - self._first_end) // length + 1) * length

    def close(self) -> None:
        """Prepare no more elements; those that were delivered stay as they are."""

    def _end(self) -> None:
        """All elements were taken."""


class BatchPass(Pass):
    """The batches of one pass, filled ahead."""

    def __init__(
        self, loader: Loader, convert: Callable[[Batch], Any] | None = None, *, for_framework: bool = False
    ) -> None:
        """See `Pass`; `convert` makes an element of a batch, in place of the loader."""
        super().__init__(loader.progress, loader._epochs, for_framework=for_framework)
        self._pipeline, self._convert = loader.pipeline, convert or loader._element
        self._prefetcher: Prefetcher | None = None

    def _element(self, step: int) -> Any:
        prefetcher = self._prefetcher
        if prefetcher is None or prefetcher.step != step or prefetcher.interrupted:
            self.close()  # Ctrl-C came while it was started, or after it delivered the batch
            prefetcher = self._prefetcher = self._opened(step)
        return self._convert(prefetcher.next())

    def close(self) -> None:
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None:
            prefetcher.close()

    def __del__(self) -> None:
        if getattr(self, "_prefetcher", None) is not None:
            self._prefetcher.cancel()  # type: ignore[union-attr] # the line above

    def _opened(self, step: int) -> Prefetcher:
        spare, self._progress.spare = self._progress.spare, None
        if spare is not None and spare.step == step and not spare.cancelled:
            return spare
        if spare is not None:
            spare.cancel()
        return Prefetcher(self._pipeline, step, None if self._pipeline.plan.training else self._stop)

    def _end(self) -> None:
        """In training the next pass usually begins where this one ends, and its first batches are being filled."""
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None and self._pipeline.plan.training and prefetcher.step == self._stop:
            self._progress.spare = prefetcher


class Run:
    """A run over the steps of a plan: where its next pass begins, and its state.

    Attributes:
        progress: Where the next pass begins; `repeat()` shares it.
    """

    progress: Progress

    @property
    def plan(self) -> LoaderPlan:
        """What is delivered, in which order."""
        return self.progress.plan

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that hold one epoch."""
        return self.progress.length

    @property
    def next_step(self) -> int:
        """The step with which the next pass begins."""
        return self.progress.next_step

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch of the run, from 0, and later passes the epochs that follow.

        Raises:
            LoaderError: It is not a whole number from 0, or this is for evaluation, which has no epochs.
        """
        if not self.plan.training:
            raise LoaderError("set_epoch() is for training; with training=False every pass reads the same samples once")
        self.progress.move_to(whole_number("epoch", epoch, 0, MOST_EPOCHS - 1) * self.steps_per_epoch)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state of the run before a step, to be saved with the weights of that moment.

        Args:
            step: The number of steps since the beginning of the run; None for the batches that were delivered.

        Returns:
            {"step": ..., "identity": ...}, a JSON object of some kilobytes. The identity says what decides the batches.

        Raises:
            LoaderError: `step` is not a whole number from 0.
        """
        return self.plan.state(self.progress.position if step is None else step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue where this state was taken. Its first epoch ends where the interrupted one would have ended.

        Args:
            state: What `state_dict` returned under the same options.

        Raises:
            LoaderError: The state belongs to another run: other files, options or rules.
        """
        self.progress.move_to(self.plan.step_of(state))


class Loader(Run):
    """An iterable of elements as `fields`, `inputs` and `targets` describe them. `Data.numpy_loader` makes it, of NumPy arrays;
    its subclasses have those of a framework.

    Arrays are [B, ...], text comes as arrays of str, images of different sizes as lists of arrays. In training each iteration
    delivers one epoch, and the next iteration the next epoch. The memory of a batch is not used again while any array or view
    of it exists.

    Attributes:
        pipeline: The samples, the options and their reader.
    """

    pipeline: Pipeline
    _epochs: int | None = 1
    """The epochs of one pass in training; None for a pass without an end."""
    _ended = False
    """True if the last step of an epoch was asked for last, by its number."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.progress = Progress(pipeline.plan, pipeline.start_step)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the options: another process begins with `start_step`."""
        return type(self), (self.pipeline,), {"_epochs": self._epochs}

    def _element(self, batch: Batch) -> Any:
        """The element that iteration delivers for a batch."""
        return self.pipeline.outputs.pack(batch.values)

    # --- batches --------------------------------------------------------------------------------------------------------

    def __getitem__(self, step: int) -> Any:
        """The element of a step of the run, as iteration delivers it. Steps are counted over all epochs, from 0.

        It depends on the dataset, the options and the step only, and is read in the calling thread: any process may call it.

        Raises:
            IndexError: The step is negative, or after the last one of an evaluation.
        """
        if step == 0 and self._ended:
            _LOG.warning(
                "step 0 comes again after the last step of an epoch, with the same batch; epochs(n) has other ones"
            )
        self._ended = self.plan.training and step == self.steps_per_epoch - 1 > 0
        return self._element(self.pipeline.batch(step))

    def __iter__(self) -> Iterator[Any]:
        """A pass: in training over the next epoch, otherwise over all samples."""
        return BatchPass(self)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        """The steps of an epoch, or of `repeat(count)`; TypeError for `repeat()`, which has no end."""
        if self._epochs is None:
            raise TypeError("repeat() has no end; steps_per_epoch is the number of steps of an epoch")
        return self.progress.length * self._epochs

    def __repr__(self) -> str:
        """One line: what is read, for what, and the number of steps of a pass."""
        schedule, kind = self.pipeline.schedule, type(self).__name__
        names = ", ".join(dict.fromkeys(source.name for source in self.pipeline.sources))
        samples = f"{schedule.size:,} samples in {schedule.order} order"
        steps = f"{counted(self.steps_per_epoch, 'step')} of {schedule.batch_size}"
        if not self.pipeline.plan.training:
            return f"<{kind} of {names} for evaluation (training=False): {samples}, as they are, {steps}>"
        passes = {None: "a pass has no end", 1: "a pass is an epoch"}.get(
            self._epochs, f"a pass is {self._epochs} epochs"
        )
        which = "the same ones" if schedule.order == "sequential" else "other ones"
        left_out = f"; {counted(schedule.left_out, 'sample')} left out, {which} each time" if schedule.left_out else ""
        return f"<{kind} of {names} for training (training=True): {passes}; an epoch is {samples}, {steps}{left_out}>"

    # --- epochs ---------------------------------------------------------------------------------------------------------

    def repeat(self, count: int | None = None) -> Self:
        """The epochs one after another in one pass: `count` of them, or without an end.

        Raises:
            LoaderError: `count` is not a number from 1 or None, or this loader is for evaluation, which has no epochs.
        """
        loader = copy.copy(self)
        loader.progress, loader._epochs = self.progress, self._epochs_of(count)
        return loader

    def _epochs_of(self, count: Any) -> int | None:
        """The epochs of `repeat(count)`, None for a stream without an end."""
        if not self.pipeline.plan.training:
            raise LoaderError("repeat() is for training; with training=False every pass reads the same samples once")
        if isinstance(count, int | None) and count in (None, -1):  # as in `Dataset.repeat` of TensorFlow
            return None
        return whole_number("the number of epochs, if it is not None,", count, 1, MOST_EPOCHS)

    def epochs(self, count: int) -> Epochs:
        """The elements of the first `count` epochs as a sequence, for libraries that take batches by number, such as Grain.

        Such a library takes numbers modulo the length of its source. A source of one epoch would repeat its order in every epoch.

        Raises:
            LoaderError: `count` is not a number from 1, or this loader is for evaluation.
        """
        self._epochs_of(count := whole_number("the number of epochs", count, 1, MOST_EPOCHS))
        return Epochs(self, count)

    # --- counters -------------------------------------------------------------------------------------------------------

    @property
    def stats(self) -> dict[str, Any]:
        """Counters over all passes as plain numbers, since the loader was made. Any thread may read them.

        `batches_ready` and `batches_in_flight` are current values. `wait_s` is the time that the consumer waited for batches, in
        `waits` waits; `read_s`, `decode_s` and `idle_s` are summed over the reading threads.
        """
        prefetchers = open_prefetchers(self.pipeline)
        return {
            **self.pipeline.stats,
            "batches_ready": sum(prefetcher.ready for prefetcher in prefetchers),
            "batches_in_flight": sum(prefetcher.in_flight for prefetcher in prefetchers),
        }

    def report(self) -> dict[str, Any]:
        """Return what the loader chose and found: memory, cache, workers, bad records, and its `stats`."""
        return {**self.pipeline.report(), "stats": self.stats}

    def close(self) -> None:
        """Stop the reading threads and free the memory. Passes that are still open end with an error."""
        self.progress.spare = None
        for prefetcher in open_prefetchers(self.pipeline):
            prefetcher.close()
        self.pipeline.close()


class Epochs:
    """The elements of some epochs of a loader, by step: a sequence. Made by `Loader.epochs`."""

    def __init__(self, loader: Loader, count: int) -> None:
        self._loader, self._steps = loader, count * loader.steps_per_epoch

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> Any:
        """The element of a step. IndexError for one that is negative, or not of these epochs."""
        if step >= self._steps:
            raise IndexError(f"there are {self._steps:,} steps, numbered from 0; there is no {step}")
        return self._loader._element(self._loader.pipeline.batch(step))

    def __repr__(self) -> str:
        return f"<{self._steps} steps of {self._loader!r}>"
