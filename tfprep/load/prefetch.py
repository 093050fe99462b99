"""Batches are filled ahead of their use: a window of the next steps, each split into chunks of rows.

A chunk is a task for a thread, which fills its rows or sends them to a worker process; small batches that follow each other are
one task together. The thread that learns of the last chunk of a batch completes it: it mixes samples, and then the batch's future
is done. The consumer takes batches in order. What a step reads is computed by a thread, for many steps at once.

What batches need from URLs is requested further ahead, in the same order: the window is longer then, and its last batches are not
filled yet.

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
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from tfprep.errors import LoaderError, StalledPipelineError
from tfprep.fields import Array
from tfprep.load.budget import TASK_BYTES, TASK_ROWS
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.batch import Batch, Chunk
from tfprep.load.reader.files import ByteRange, Fetched
from tfprep.load.reader.rows import Rows
from tfprep.load.reader.workers import CLOSED, WorkerPool
from tfprep.load.slots import retire_shared
from tfprep.load.threads import ThreadState, WeakList

PLAN_ROWS, PLAN_STEPS = 4096, 16
"""Rows, or at least this number of steps, whose indices are computed at once: some thousand cost hardly more than one."""
LONGEST_WAIT_S = 1e6
"""Used for an infinite wait, which `Future` does not take: twelve days."""


class Prefetcher:
    """Fills the batches of the steps from `first` on, in order, up to `stop`. `next` is for one thread."""

    def __init__(self, pipeline: Pipeline, first: int, stop: int | None) -> None:
        self._pipeline, self._stop = pipeline, sys.maxsize if stop is None else stop
        self.step = self._next = self._first = first
        """`step` is that of the batch that comes next to the consumer, `_next` that of the one that comes next to the window."""
        self._window: deque[Batch] = deque()
        self._unopened: deque[Batch] = deque()
        """Batches of the window that threads do not fill yet; at most what they need from URLs is on its way."""
        self._planned: dict[int, Rows] = {}
        self._planning = threading.Lock()
        self._due: dict[int, tuple[Batch, Fetched]] = {}
        """What batches need from URLs that found no room yet, by step."""
        self._room = threading.Lock()
        self._started = False
        self.interrupted = False
        """True if Ctrl-C came while it was started, so that parts of it are missing."""
        self.cancelled = False
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
            self._started = self.interrupted = True
            self._pipeline.start_threads()
            self._advance()
            self.interrupted = False
        window = self._window  # another thread may call `close`, which puts one with its error in its place
        batch = window[0]
        if not batch.future.done():
            self._wait(batch)
        batch.future.result()
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
        return 0 if self.cancelled else sum(batch.future.done() for batch in list(self._window))

    @property
    def in_flight(self) -> int:
        """Batches that are being filled."""
        return sum(bool(batch.values) and not batch.future.done() for batch in list(self._window))

    @property
    def arrays(self) -> list[Array]:
        """The arrays of batches that the consumer does not have."""
        return [array for batch in list(self._window) for array in list(batch.values.values())]

    def cancel(self) -> None:
        """Fill no more chunks, and make no more requests. It takes no lock and waits for nothing."""
        self.cancelled = True

    def close(self, error: BaseException | None = None) -> None:
        """Cancel, and end the consumer's wait with this error."""
        if os.getpid() != self._pipeline.made_in:
            return
        self.cancel()
        error, window, failed = error or LoaderError(CLOSED), self._window, Batch(self.step)
        failed.fail(error)
        self._window = deque([failed])  # a thread at work keeps its own batch only
        for batch in list(window):
            batch.fail(error)

    # --- the consumer's side --------------------------------------------------------------------------------------------

    def _wait(self, batch: Batch) -> None:
        counts, timeout_s = self._pipeline.counts, self._pipeline.options.timeout_s
        began = time.monotonic()
        try:
            batch.future.exception(min(timeout_s, LONGEST_WAIT_S))
        except TimeoutError:
            error = StalledPipelineError(self._stall(batch.step, timeout_s))
            self.close(error)
            raise error from None
        finally:
            waited = time.monotonic() - began
            counts["waits"] += 1
            counts["wait_s"] += waited
            counts["longest_wait_s"] = max(counts["longest_wait_s"], waited)

    def _stall(self, step: int, timeout_s: float) -> str:
        """The stage that moved last, and the stage and stack of each thread."""
        threads, requests = self._pipeline.threads, self._pipeline.requests.states
        last = max([*threads.states, *requests], key=lambda state: state.since, default=None)
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
        lines += [state.describe() for state in requests]
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
        pipeline, first, unopened = self._pipeline, self._first, self._unopened
        end = min(self.step + pipeline.prefetch, self._stop)
        for step in range(self._next, max(end, min(self.step + pipeline.plan.fetch_steps, self._stop))):
            batch = Batch(step)
            if pipeline.plan.is_remote:
                pipeline.requests.submit(partial(_request, weakref.ref(self), batch))
            self._window.append(batch)
            unopened.append(batch)
            self._next = step + 1
        if self._due:
            self.request()
        size = max(1, self._task_rows() // pipeline.plan.schedule.batch_rows)
        if end < self._stop and unopened and end - unopened[0].step < size:
            return
        while unopened and (step := unopened[0].step) < end:
            count = max(1, min(size, step - first, end - step))
            pipeline.threads.submit(partial(self._open, [unopened.popleft() for _ in range(count)]))

    def _task_rows(self) -> int:
        """Rows of a task: the window, or the rest of the pass, has the number of tasks that are taken at a time, or more."""
        plan, rows = self._pipeline.plan, self._pipeline.plan.schedule.batch_rows
        steps = min(self._pipeline.prefetch, self._stop - self.step)
        each = steps * rows // plan.workers.tasks
        return max(1, min(each, TASK_ROWS, TASK_BYTES * rows // plan.memory.batch_bytes))

    def _rows(self, step: int) -> Rows:
        """What a step reads, planned once. The first one is planned by itself, so that it comes soon, the others many at once."""
        with self._planning:
            if step not in self._planned:
                begin, many = self._first, 1
                if step > self._first:
                    many = max(PLAN_STEPS, PLAN_ROWS // self._pipeline.schedule.batch_size)
                    begin = step - (step - self._first - 1) % many
                steps = range(begin, min(begin + many, self._stop))
                self._planned.update(zip(steps, self._pipeline.rows_of(steps), strict=True))
            return self._planned.pop(step)

    def request(self, more: Mapping[int, tuple[Batch, Fetched]] | None = None) -> None:
        """Request what batches need from URLs, these and those that waited, in order, as far as the memory has room for it. The
        batch that comes next to the consumer has it in any case."""
        pipeline = self._pipeline
        with self._room:
            self._due |= more or {}
            held = sum([other.nbytes for one in list(self._window) if (other := one.fetched) is not None])
            for step in sorted(self._due):
                batch, fetched = self._due[step]
                if step > self.step and fetched.nbytes and held + fetched.nbytes > pipeline.plan.memory.fetch_bytes:
                    break
                batch.fetched = fetched
                held += fetched.nbytes
                del self._due[step]
                for part in fetched.ranges:
                    pipeline.requests.submit(partial(_fetch, weakref.ref(self), batch, fetched, part))
                if not fetched.ranges and batch.may_begin():
                    pipeline.threads.submit(partial(self._begin, [batch]))

    def _open(self, batches: list[Batch], state: ThreadState) -> None:
        """Begin to fill batches, each as soon as what it needs from URLs is there."""
        if not self._pipeline.plan.is_remote:
            self._begin(batches, state)
            return
        for batch in batches:
            if batch.may_begin():
                self._begin([batch], state)

    def _begin(self, batches: list[Batch], state: ThreadState) -> None:
        """Divide a batch into tasks, or make a task of several."""
        pipeline = self._pipeline
        state.enter("planning")
        chunks: list[Chunk] = []
        for batch in batches:
            if self.cancelled:
                batch.fail(LoaderError(CLOSED))  # it may have come into the window after `close` has emptied that
                continue
            try:
                rows = batch.rows if pipeline.plan.is_remote else self._rows(batch.step)
                count = len(rows)
                form = int(rows["form"][0]) if count else pipeline.schedule.form(batch.step)
                batch.begin(rows, pipeline.slots.arrays(count, form))
            except Exception as error:  # such as no memory for a batch
                batch.fail(error)
                continue
            if not count:  # this host has no part in the last batch
                pipeline.complete(batch)
                continue
            size = count if len(batches) > 1 else self._task_rows()
            if batch.step == self._first:  # all threads share its work, and end at about the same time
                size = min(size, -(-count // (2 * pipeline.plan.threads)))
            size = -(-count // max(1, round(count / size)))  # chunks of about one size
            chunks += [Chunk(batch, rows.take(slice(start, start + size))) for start in range(0, count, size)]
        for task in [chunks] if len(batches) > 1 else [[chunk] for chunk in chunks]:
            if self._pool is not None:  # which takes no time
                self._fill(task, state)
            else:
                pipeline.threads.submit(partial(self._fill, task))

    def _fill(self, chunks: list[Chunk], state: ThreadState) -> None:
        """Fill the chunks of a task, in a reading thread."""
        if not self.cancelled:
            self._pipeline.fill(chunks, state, self._pool)


# --- requests to URLs: those that are waiting or on their way do not keep a pass alive ----------------------------------


def _request(reference: weakref.ref[Prefetcher], batch: Batch, state: ThreadState) -> None:
    """Plan what a batch needs from URLs, and request it."""
    prefetcher = reference()
    if prefetcher is None or prefetcher.cancelled:
        return
    pipeline = prefetcher._pipeline
    try:
        batch.rows = prefetcher._rows(batch.step)
        needed = pipeline.reader.files.needed(pipeline.byte_spans(batch.rows))
    except BaseException as error:
        batch.fail(error)
        return
    prefetcher.request({batch.step: (batch, needed)})


def _fetch(
    reference: weakref.ref[Prefetcher], batch: Batch, fetched: Fetched, part: ByteRange, state: ThreadState
) -> None:
    prefetcher = reference()
    if prefetcher is None or prefetcher.cancelled or batch.future.done():  # it failed
        return
    state.path, state.offset = prefetcher._pipeline.reader.files.paths[part.file], part.start
    del prefetcher
    state.enter("read")
    try:
        is_last = fetched.fetch(part)
    except BaseException as error:
        batch.fail(error)
        return
    if is_last and batch.may_begin() and (prefetcher := reference()) is not None:
        prefetcher._pipeline.threads.submit(partial(prefetcher._begin, [batch]))


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
        prefetcher._pipeline.stop()


atexit.register(close_all)
