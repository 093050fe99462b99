"""Batches are filled ahead of their use: a window of the next steps, each split into chunks of rows.

A chunk is a task for a thread, which fills its rows or sends them to a worker process; small batches that follow each other are
one task together. The thread that learns of the last chunk of a batch completes it: it mixes samples, and then the batch's future
is done. The consumer takes batches in order. What a step reads is computed by a thread, for many steps at once.

No finalizer takes a lock: a pass that is dropped sets a flag, and threads skip its tasks.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial

from tfprep.errors import LoaderError, StalledPipelineError
from tfprep.fields import Array
from tfprep.load.budget import TASK_BYTES, TASK_ROWS
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.batch import Batch
from tfprep.load.reader.files import ByteSpans, Fetched, ReadAhead
from tfprep.load.reader.rows import Rows
from tfprep.load.reader.workers import CLOSED, Part, Unread, WorkerPool
from tfprep.load.slots import retire_shared
from tfprep.load.threads import ThreadState, WeakList

PLAN_ROWS, PLAN_STEPS = 4096, 16
"""Rows, or at least this number of steps, whose indices are computed at once: some thousand cost hardly more than one."""
LONGEST_WAIT_S = 1e6
"""Used for an infinite wait, which `Future` does not take: twelve days."""


class Filling:
    """A step's batch while it is filled, and its future."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.future: Future[Batch] = Future()
        self.fetched: Future[Fetched] | None = None
        self.batch: Batch | None = None
        self.pending = 0
        """Rows that are not filled yet."""

    def fail(self, error: BaseException) -> None:
        """End the wait for this batch with an error, unless it is full."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class StepPlans:
    """What steps read. The first step is planned by itself, so that it comes soon, those after it many at once."""

    def __init__(self, pipeline: Pipeline, first: int, stop: int | None) -> None:
        self._batch_size, self._assembler = pipeline.schedule.batch_size, pipeline.assembler
        self._first, self._stop = first, stop
        self._lock = threading.Lock()
        self._plans: dict[int, Rows] = {}

    def take(self, step: int) -> Rows:
        """What a step reads; it is not asked again."""
        with self._lock:
            self._plan(step)
            return self._plans.pop(step)

    def spans(self, step: int) -> ByteSpans:
        """The bytes that a later step needs from URLs."""
        with self._lock:
            self._plan(step)
            rows = self._plans[step]
        return self._assembler.byte_spans(rows)

    def _plan(self, step: int) -> None:
        if step in self._plans:
            return
        begin, many = self._first, 1
        if step > self._first:
            many = max(PLAN_STEPS, PLAN_ROWS // self._batch_size)
            begin = step - (step - self._first - 1) % many
        steps = range(begin, begin + many if self._stop is None else min(begin + many, self._stop))
        self._plans.update(zip(steps, self._assembler.rows_of(steps), strict=True))


class Prefetcher:
    """Fills the batches of the steps from `first` on, in order, up to `stop`. `next` is for one thread."""

    def __init__(self, pipeline: Pipeline, first: int, stop: int | None) -> None:
        self._pipeline, self._schedule, self._stop = pipeline, pipeline.schedule, sys.maxsize if stop is None else stop
        self.step = self._first = first
        """`step` is that of the batch that comes next."""
        self._lock = threading.Lock()
        self._window: deque[Filling] = deque()
        self._plans = StepPlans(pipeline, first, stop)
        self._started = False
        self.interrupted = False
        """True if Ctrl-C came while it was started, so that parts of it are missing."""
        self.cancelled = False
        self._ahead: ReadAhead | None = None
        if nbytes := pipeline.plan.memory.fetch_bytes:
            files, epoch = pipeline.assembler.reader.files, self._schedule.steps_per_epoch
            self._ahead = ReadAhead(files, self._plans.spans, first=first, stop=stop, most_steps=epoch, budget=nbytes)
        _open.add(self)

    def next(self) -> Batch:
        """The next batch, when it is full. The caller knows the last step.

        Raises:
            StalledPipelineError: No batch came within `timeout_s`.
            Exception: What filling the batch, or planning it, raised.
        """
        if os.getpid() != self._pipeline.made_in:
            raise LoaderError(
                "the passes of this loader belong to the process that forked this one: make a loader here, start this process "
                "with the method 'spawn', which sends a loader as its options, or take batches by their step, loader[step]"
            )
        if not self._started:
            self._start()
        window = self._window  # another thread may call `close`, which puts one with its error in its place
        if not window[0].future.done():
            self._wait(window[0])
        batch = window[0].future.result()
        counts = self._pipeline.counts
        counts["batches"] += 1
        counts["samples"] += len(next(iter(batch.values.values())))
        counts["bytes_delivered"] += sum([getattr(value, "nbytes", 0) for value in batch.values.values()])
        self.step += 1  # first: after Ctrl-C in one of the calls, the caller sees that this is not its step
        window.popleft()
        self._advance()
        return batch

    @property
    def ready(self) -> int:
        """Batches that wait for the consumer."""
        return 0 if self.cancelled else sum(filling.future.done() for filling in list(self._window))

    @property
    def in_flight(self) -> int:
        """Batches that are being filled."""
        return sum(filling.batch is not None and not filling.future.done() for filling in list(self._window))

    @property
    def arrays(self) -> list[Array]:
        """The arrays of batches that the consumer does not have."""
        batches = [filling.batch for filling in list(self._window)]
        return [array for batch in batches if batch is not None for array in list(batch.values.values())]

    def cancel(self) -> None:
        """Fill no more chunks. It takes no lock and waits for nothing."""
        self.cancelled = True
        if self._ahead is not None:
            self._ahead.stop()

    def __del__(self) -> None:
        """The threads that fetch from URLs do not hold this object."""
        if getattr(self, "_ahead", None) is not None:
            self.cancel()

    def close(self, error: BaseException | None = None) -> None:
        """Cancel, and end the consumer's wait with this error."""
        if os.getpid() != self._pipeline.made_in:
            return
        self.cancel()
        error, window, failed = error or LoaderError(CLOSED), self._window, Filling(self.step)
        failed.fail(error)
        self._window = deque([failed])  # a thread at work keeps its own batch only
        for filling in list(window):
            filling.fail(error)
        if self._ahead is not None:
            self._ahead.join()

    # --- the consumer's side --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._started = self.interrupted = True
        self._pipeline.start_threads()
        if self._ahead is not None:
            self._ahead.start()
        self._window.append(first := Filling(self.step))
        self._open([first])  # it is planned by itself, so that it comes soon
        self._advance()
        self.interrupted = False

    def _wait(self, filling: Filling) -> None:
        counts, timeout_s = self._pipeline.counts, self._pipeline.options.timeout_s
        began = time.monotonic()
        try:
            filling.future.exception(min(timeout_s, LONGEST_WAIT_S))
        except TimeoutError:
            error = StalledPipelineError(self._stall(filling.step, timeout_s))
            self.close(error)
            raise error from None
        finally:
            waited = time.monotonic() - began
            counts["waits"] += 1
            counts["wait_s"] += waited
            counts["longest_wait_s"] = max(counts["longest_wait_s"], waited)

    def _stall(self, step: int, timeout_s: float) -> str:
        """The stage that moved last, and the stage and stack of each thread."""
        threads, ahead = self._pipeline.threads, [] if self._ahead is None else self._ahead.threads.states
        last = max([*threads.states, *ahead], key=lambda state: state.since, default=None)
        lines = [
            f"no batch for step {step} in {timeout_s:g} s (timeout_s). {self.ready} batches are ready, {self.in_flight} in "
            f"flight. Last to move: {'no thread' if last is None else last.describe()}"
        ]
        frames = sys._current_frames()
        for thread, state in zip(threads.threads, threads.states, strict=False):
            lines.append(state.describe())
            if state.is_linked:  # the processes follow
                continue
            frame = frames.get(thread.ident or 0)
            lines += [line.rstrip() for line in traceback.format_stack(frame)] if frame else ["  (it has ended)"]
        lines += [state.describe() for state in ahead]
        pool = self._pipeline.pool
        return "\n".join([*lines, *(pool.describe() if pool is not None else ())])

    @property
    def _pool(self) -> WorkerPool | None:
        """The worker processes, if they fill rows: threads do until all have started, and where they cannot."""
        pool = self._pipeline.pool
        return pool if pool is not None and pool.ready and not pool.failure else None

    # --- the window -----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Let threads open batches as far as the window allows, when there is room for a task: first small ones, to come soon."""
        begin, end = self.step + len(self._window), min(self.step + self._pipeline.assembler.prefetch, self._stop)
        size = max(1, self._task_rows() // self._pipeline.plan.batch_rows)
        if end - begin < size and end < self._stop:
            return
        while begin < end:
            fillings = [Filling(step) for step in range(begin, min(begin + size, 2 * begin - self._first, end))]
            self._window.extend(fillings)
            self._pipeline.threads.submit(partial(self._open, fillings))
            begin += len(fillings)

    def _task_rows(self) -> int:
        """Rows of a task: the window, or the rest of the pass, has the number of tasks that are taken at a time, or more."""
        plan, rows = self._pipeline.plan, self._pipeline.plan.batch_rows
        steps = min(self._pipeline.assembler.prefetch, self._stop - self.step)
        each = steps * rows // plan.workers.tasks
        return max(1, min(each, TASK_ROWS, TASK_BYTES * rows // plan.memory.batch_bytes))

    def _open(self, fillings: list[Filling], state: ThreadState | None = None) -> None:
        """Begin to fill batches, each as soon as what it needs from URLs is there."""
        if self._ahead is None or self.cancelled:
            self._begin(fillings, state)
            return
        for filling in fillings:
            self._ahead.fetched(filling.step).add_done_callback(partial(_begin_fetched, weakref.ref(self), filling))

    def _begin(self, fillings: list[Filling], state: ThreadState | None = None) -> None:
        """Divide a batch into tasks, or make a task of several. Without `state` the caller does not read."""
        if state is not None:
            state.enter("planning")
        chunks: list[Part] = []
        for filling in fillings:
            if self.cancelled:
                filling.fail(LoaderError(CLOSED))  # it may have come into the window after `close` has emptied that
                continue
            try:
                fetched, filling.fetched = filling.fetched, None  # the bytes go when the batch is full
                rows = self._plans.take(filling.step)
                count = len(rows)
                form = int(rows["form"][0]) if count else self._schedule.form(filling.step)
                values = self._pipeline.slots.arrays(count, form)
                batch = filling.batch = Batch(filling.step, rows, values, fetched=fetched.result() if fetched else None)
            except Exception as error:  # such as no memory for a batch
                filling.fail(error)
                continue
            if not count:  # this host has no part in the last batch
                self._finish(filling)
                continue
            filling.pending, size = count, count if len(fillings) > 1 else self._task_rows()
            if filling.step == self._first:  # all threads share its work, and end at about the same time
                size = min(size, -(-count // (2 * self._pipeline.plan.threads)))
            size = -(-count // max(1, round(count / size)))  # chunks of about one size
            for start in range(0, count, size):
                some = rows.take(slice(start, start + size))
                chunks.append(Part(batch, some, partial(self._filled, filling, len(some))))
        for task in [chunks] if len(fillings) > 1 else [[chunk] for chunk in chunks]:
            if state is not None and self._pool is not None:  # which takes no time
                self._fill(task, state)
            else:
                self._pipeline.threads.submit(partial(self._fill, task))

    def _fill(self, chunks: list[Part], state: ThreadState) -> None:
        """Fill the chunks of a task, in a reading thread."""
        if not self.cancelled:
            self._pipeline.assembler.fill(chunks, state, self._pool)

    def _filled(self, filling: Filling, rows: int, result: Unread) -> None:
        """Note that a chunk is filled, or why it is not, in any thread."""
        if isinstance(result, BaseException):
            filling.fail(result)
        with self._lock:
            filling.pending -= rows
            is_last = not filling.pending
        if not is_last or self.cancelled or filling.future.done():
            return
        plan = self._pipeline.plan
        if plan.mixing is None and not plan.channels_first:
            self._finish(filling)
        else:  # it would hold up the thread of the pool
            self._pipeline.threads.submit(lambda state: self._finish(filling))

    def _finish(self, filling: Filling) -> None:
        assert filling.batch is not None
        try:
            if self._ahead is not None:
                filling.batch.fetched = None
                self._ahead.release(filling.step)
            self._pipeline.assembler.finish(filling.batch)
            self._pipeline.slots.finish(filling.batch.values)
            filling.future.set_result(filling.batch)
        except BaseException as error:
            filling.fail(error)


def _begin_fetched(reference: weakref.ref[Prefetcher], filling: Filling, fetched: Future[Fetched]) -> None:
    """Begin to fill a batch, unless its pass was dropped: requests on their way do not keep one alive."""
    filling.fetched, prefetcher = fetched, reference()
    if prefetcher is not None:
        prefetcher._pipeline.threads.submit(partial(prefetcher._begin, [filling]))


_open: WeakList[Prefetcher] = WeakList()
os.register_at_fork(before=lambda: retire_shared(array for prefetcher in _open for array in prefetcher.arrays))


def open_prefetchers(pipeline: Pipeline) -> list[Prefetcher]:
    """Return the prefetchers of a pipeline that passes hold."""
    return [prefetcher for prefetcher in _open if prefetcher._pipeline is pipeline]


def close_all() -> None:
    """End all waits, when the interpreter ends. A thread that wants the GIL after that never gets it. From here on Ctrl-C is
    ignored: threads that are left would abort the process, or let it hang."""
    if prefetchers := list(_open):
        with suppress(ValueError):  # another thread than the main one ends an embedded interpreter
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    for prefetcher in prefetchers:
        prefetcher.close()
    for prefetcher in prefetchers:
        prefetcher._pipeline.threads.stop()
        prefetcher._pipeline.threads.join()


atexit.register(close_all)
