"""Batches are filled ahead of their use, by threads or worker processes, and delivered in order."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import traceback
import weakref
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from tfprep.errors import LoaderError, StalledPipelineError
from tfprep.limits import usable_cpus
from tfprep.load.order.schedule import BatchIndices
from tfprep.load.plan import LoaderPlan
from tfprep.load.reader.ahead import ReadAhead
from tfprep.load.reader.assembler import BatchAssembler
from tfprep.load.reader.batch import Batch, BatchMemory
from tfprep.load.reader.buffers import note_delivery
from tfprep.load.reader.rows import Rows
from tfprep.load.reader.thread_state import ThreadState
from tfprep.load.reader.worker_pool import WorkerPool
from tfprep.load.workers import JOB_ROWS

PLAN_ROWS, PLAN_STEPS = 4096, 16
"""Rows, or at least this many steps, whose indices are computed at once: some thousand cost hardly more than one."""
PREFETCH_FROM_MEMORY = 2
"""Batches ahead where rows are copied from memory. There is no delay of a disk to hide, and memory that was used a moment ago is
still in the processor's cache: with eight batches in turn, copying takes a third longer."""
JOIN_S = 1.0
"""Time that `close` waits for the threads: one that hangs in a read ends by itself when the read does."""
LEAVE_S, QUIET_S = 5.0, 0.2
"""At exit: how long to wait for consumers to leave, and how long none may have been seen before it counts as left."""
LOOK_S = 0.05
"""Time between two looks whether worker processes have started."""
LONGEST_WAIT_S = 1e6
"""Waits take no infinity; twelve days stand for it."""
MOST_ROWS, LEAST_ROWS = 32, 16
"""Rows that a thread takes at a time. Each time costs some 20 µs of Python, and many threads share one GIL."""


Counts: TypeAlias = dict[str, Any]
"""Counters of readers by name."""
_OF_CONSUMER: Counts = {
    "batches": 0, "samples": 0, "bytes_delivered": 0, "waits": 0, "wait_s": 0.0, "longest_wait_s": 0.0,
}  # fmt: skip
"""The batches that the consumer of a reader has received, and the time that it waited."""
_OF_THREADS = {
    "records": "records", "records_cached": "cached", "bytes_read": "bytes", "read_s": "read_s", "decode_s": "decode_s",
    "idle_s": "idle_s",
}  # fmt: skip
NOTHING: Counts = {**_OF_CONSUMER, **dict.fromkeys(_OF_THREADS, 0), "records_read": 0}


def added(counts: Counts, others: Counts) -> Counts:
    """The counters of both together."""
    total = {name: value + others[name] for name, value in counts.items()}
    return total | {"longest_wait_s": max(counts["longest_wait_s"], others["longest_wait_s"])}


class Batches:
    """The owner of a reader. Use it in one thread.

    `close` stops the reader and waits for its threads. An owner that is dropped only asks them to stop: the garbage
    collector may drop it in any thread at any allocation, also in a reading thread that has a lock.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def next(self) -> Batch:
        """The next batch; with an error the reader is closed."""
        try:
            return self.reader.next()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the reading threads and give the memory back; batches that were delivered stay as they are."""
        self.reader.close()

    def __del__(self, error: type[LoaderError] = LoaderError) -> None:
        # The default keeps the class: the interpreter clears the names of modules before it drops the last objects.
        self.reader.stop(error("the iterator was dropped"))


class Reader:
    """Reads the batches of the steps from `start` on, in order.

    At most `prefetch` batches of the plan are filled or being filled beyond the one delivered last. Threads start with the first
    batch that is asked for; with a pool of worker processes, each thread gives its rows to one of them from when all have
    started. `next` is for one thread; all else may be called from any thread.

    `stop` takes no lock, so a finaliser and a signal handler may call it. It sets a flag and wakes all threads through
    `queue.SimpleQueue`, whose `put` is reentrant.
    """

    def __init__(
        self,
        plan: LoaderPlan,
        assembler: BatchAssembler,
        memory: BatchMemory,
        *,
        start: int = 0,
        pool: WorkerPool | None = None,
        ahead: ReadAhead | None = None,
    ) -> None:
        """`ahead`: what fetches records at URLs before they are read."""
        self._schedule, self.assembler, self._memory = plan.schedule, assembler, memory
        self._prefetch, self._timeout_s = plan.memory.prefetch, plan.options.timeout_s
        self._pool, self._ahead = pool, ahead
        self._lock = threading.Lock()
        self._work: SimpleQueue[None] = SimpleQueue()  # one item wakes one waiting thread
        self._ready: SimpleQueue[None] = SimpleQueue()  # one item wakes the consumer
        self._idle = 0  # workers that wait for an item of `_work`
        self._consumer_waits = False
        self._started = False
        self._threads: list[threading.Thread] = []
        self._local_threads = plan.options.threads or usable_cpus()
        count = max(self._local_threads, len(pool.links) if pool is not None else 0)
        self.states = [ThreadState(f"tfprep-read-{number}") for number in range(count)]
        self.counts = dict(_OF_CONSUMER)
        self.consumed_at = 0.0
        """When the consumer last left with a batch, by `time.monotonic`; infinity while it waits for one."""
        self._stopped: BaseException | None = None
        self._first = start
        self._wanted = start  # the next step to deliver
        self._opened = start  # the next step to fill
        self._plans: dict[int, tuple[BatchIndices, Rows]] = {}
        self._filling: Batch | None = None
        self._next_row = 0
        self._batches: dict[int, Batch] = {}

    @property
    def step(self) -> int:
        """The step of the batch that comes next."""
        return self._wanted

    def next(self) -> Batch:
        """The next batch, when it is full. There must be one: the caller knows the last step.

        Raises:
            StalledPipelineError: No batch came within `timeout_s`.
            Exception: What filling the batch, or planning it, raised.
        """
        self._start()
        self.consumed_at = float("inf")
        try:
            batch = self._wait()
        finally:
            self.consumed_at = time.monotonic()
        if self._ahead is not None:
            self._ahead.delivered(batch.step)
        with self._lock:
            self._batches.pop(batch.step, None)
            self._wanted += 1
            self._wake_thread()
        if batch.error is not None:
            raise batch.error
        if self._pool is not None:
            note_delivery(batch.values)
        self.counts["batches"] += 1
        self.counts["samples"] += batch.rows
        self.counts["bytes_delivered"] += batch.nbytes
        return batch

    @property
    def counters(self) -> Counts:
        """The counters of the consumer, and of all threads and worker processes together."""
        counts = {name: sum(getattr(state, own) for state in self.states) for name, own in _OF_THREADS.items()}
        return {**self.counts, **counts, "records_read": counts["records"] - counts["records_cached"]}

    @property
    def ready(self) -> int:
        """Batches that wait for the consumer."""
        return sum(batch.done for batch in list(self._batches.values()))

    @property
    def in_flight(self) -> int:
        """Batches that are being filled."""
        return len(self._batches) - self.ready

    @property
    def prefetch(self) -> int:
        """Return how many batches may be filled beyond the one delivered last."""
        from_memory = self.assembler.all_cached and not (self._pool is not None and self._pool.ready)
        return min(self._prefetch, PREFETCH_FROM_MEMORY) if from_memory else self._prefetch

    @property
    def ended(self) -> bool:
        """Return whether it was stopped and none of its threads runs any more."""
        return self.stopped and not any(thread.is_alive() for thread in self._threads)

    @property
    def stopped(self) -> bool:
        """Return whether no batch will be filled any more."""
        return self._stopped is not None

    def stop(self, reason: BaseException) -> None:
        """End the consumer's wait, and every later one, with this error; threads stop after the rows that they work on."""
        self._stopped = self._stopped or reason
        self._batches, self._plans = {}, {}  # new ones: another thread may be at work on the old
        self._ready.put(None)
        for _ in self.states:
            self._work.put(None)
        if self._ahead is not None:
            self._ahead.stop()

    def leave(self) -> None:
        """End in a process that was forked from the reader's own: its threads are not here, and their locks may be held."""
        self._lock, self._threads, self._pool, self._ahead = threading.Lock(), [], None, None
        self.stop(LoaderError("this iterator belongs to the process that forked this one; make a new one here"))

    def close(self) -> None:
        """Stop the threads, wait for them and give the memory back; what the consumer keeps stays as it is."""
        self.stop(LoaderError("the loader is closed; make a new one"))
        end = time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, end - time.monotonic()))
        if self._ahead is not None:
            self._ahead.join()
        self._memory.close()

    # --- the consumer's side ----------------------------------------------------------------------------------------

    def _at_end(self, step: int) -> bool:
        return self._schedule.steps is not None and step >= self._schedule.steps

    def _start(self) -> None:
        if self._started or self._stopped is not None:
            return
        self._started = True
        if not _open_readers:
            atexit.register(_close_all)
        _open_readers.add(self)
        if self._ahead is not None:
            self._ahead.start()
        if self._pool is not None:
            self._pool.start()
        for number, state in enumerate(self.states):
            thread = threading.Thread(target=self._fill_batches, args=(number,), name=state.name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                reason = f"reading thread {len(self._threads) + 1} of {len(self.states)} cannot be started ({error})"
                way_out = "use fewer `threads`, or raise the limit of processes (ulimit -u) or of addresses (ulimit -v)"
                self.stop(LoaderError(f"{reason}; {way_out}"))
                return
            self._threads.append(thread)

    def _wait(self) -> Batch:
        batch = self._batches.get(self._wanted)
        if batch is not None and batch.done and self._stopped is None:
            return batch
        began = time.monotonic()
        try:
            while True:
                with self._lock:
                    if self._stopped is not None:
                        raise self._stopped
                    batch = self._batches.get(self._wanted)
                    if batch is not None and batch.done:
                        return batch
                    self._consumer_waits = True
                left = began + self._timeout_s - time.monotonic()
                if left <= 0:
                    self.stop(StalledPipelineError(self._stall()))
                with contextlib.suppress(Empty):
                    self._ready.get(timeout=max(0.0, min(left, LONGEST_WAIT_S)))
        finally:
            waited = time.monotonic() - began
            self.counts["waits"] += 1
            self.counts["wait_s"] += waited
            self.counts["longest_wait_s"] = max(self.counts["longest_wait_s"], waited)

    def _wake_consumer(self, batch: Batch) -> None:
        """Wake the consumer if it waits for this batch. Runs under the lock."""
        if self._consumer_waits and batch.step == self._wanted:
            self._consumer_waits = False
            self._ready.put(None)

    def _wake_thread(self) -> None:
        """Wake a thread that waits, which wakes the next one if there is more to do. Runs under the lock."""
        if self._idle:
            self._idle -= 1
            self._work.put(None)

    def _stall(self) -> str:
        """Return which stage moved last, and the stage and stack of each thread."""
        last = max(self.states, key=lambda state: state.since)
        lines = [
            f"no batch for step {self._wanted} in {self._timeout_s:g} s (timeout_s). {self.ready} batches are ready, "
            f"{self.in_flight} in flight. Last to move: {last.describe()}"
        ]
        frames = sys._current_frames()
        for thread, state in zip(self._threads, self.states, strict=False):
            lines.append(state.describe())
            if state.is_linked:  # it waits for the process that its stage names
                continue
            frame = frames.get(thread.ident or 0)
            lines += [line.rstrip() for line in traceback.format_stack(frame)] if frame else ["  (it has ended)"]
        return "\n".join(lines)

    # --- the threads' side ------------------------------------------------------------------------------------------

    def _fill_batches(self, number: int) -> None:
        """Fill batches, in a reading thread. An error in planning, which belongs to no batch, ends the whole reader."""
        state, pool = self.states[number], self._pool
        # Threads beyond those that read have work only when there are processes.
        while number >= self._local_threads and pool is not None and not pool.ready:
            if self.stopped or pool.stopped:
                return
            time.sleep(LOOK_S)
        try:
            while (work := self._take(state)) is not None:
                batch, start, stop = work
                link = pool.links[number] if pool is not None and pool.ready else None
                state.is_linked = link is not None
                error: BaseException | None = None
                try:
                    self.assembler.fill(batch, start, stop, state, link)
                except BaseException as caught:
                    error = caught
                state.enter("waiting for work")
                with self._lock:
                    batch.pending -= stop - start
                    batch.error = batch.error or error
                    ends = batch.pending == 0 or batch.error is not None
                if ends and batch.error is None:
                    try:
                        self._finish(batch)
                    except BaseException as caught:
                        batch.error = caught
                if ends:
                    with self._lock:
                        batch.done = True
                        self._wake_consumer(batch)
                del work, batch, error
        except BaseException as error:
            self.stop(error)

    def _finish(self, batch: Batch) -> None:
        self.assembler.finish(batch)
        self._memory.finish(batch)

    def _take(self, state: ThreadState) -> tuple[Batch, int, int] | None:
        """The next rows to fill; None when there will be none any more for this thread."""
        while True:
            with self._lock:
                if self._stopped is not None:
                    return None
                while self._filling is None and not self._at_end(self._opened) and self._may_open():
                    self._open()
                if self._filling is not None:
                    return self._chunk(self._filling)
                if self._at_end(self._opened):
                    return None
                state.enter("waiting for room" if not self._may_open() else "waiting for work")
                self._idle += 1
            self._work.get()

    def _may_open(self) -> bool:
        return self._opened - self._wanted < self.prefetch

    def _open(self) -> None:
        """Begin the next batch. Runs under the lock: the plan of many steps at once makes it short."""
        step = self._opened
        if step not in self._plans:  # the first batch is planned alone, so that it comes soon
            many = 1 if step == self._wanted else max(PLAN_STEPS, PLAN_ROWS // self._schedule.batch_size)
            steps = [number for number in range(step, step + many) if not self._at_end(number)]
            planned = self._schedule.batch_indices(steps)
            self._plans = dict(zip(steps, zip(planned, self.assembler.locate(planned), strict=True), strict=True))
        indices, located = self._plans.pop(step)
        rows = len(indices.row)
        form = int(located["form"][0]) if rows else self._schedule.form(step)
        values = self._memory.arrays(rows, form)
        batch = Batch(step, indices, located, values, pending=rows, done=not rows)
        self._batches[step] = batch
        self._opened += 1
        if batch.done:  # an empty one: this host has no part in the last batch
            self._finish(batch)
            self._wake_consumer(batch)
        else:
            self._filling, self._next_row = batch, 0

    def _chunk(self, batch: Batch) -> tuple[Batch, int, int]:
        """Take a part of the batch: of the first one small, so that all threads share its work and end at about the same time."""
        threads = len(self.states)
        if self._pool is not None and self._pool.ready:
            size = min(max(self.prefetch * self._schedule.batch_size // threads, 1), JOB_ROWS)
        else:
            threads = self._local_threads
            size = min(max(-(-batch.rows // threads), LEAST_ROWS), MOST_ROWS)
        if batch.step == self._first:
            size = min(-(-batch.rows // (2 * threads)), MOST_ROWS)
        start, self._next_row = self._next_row, min(self._next_row + size, batch.rows)
        if self._next_row == batch.rows:
            self._filling = None
        if self._filling is not None or (self._may_open() and not self._at_end(self._opened)):
            self._wake_thread()
        return batch, start, self._next_row


_open_readers: weakref.WeakSet[Reader] = weakref.WeakSet()


def _leave_all() -> None:
    """End the readers of the process that forked this one, whose threads are not here."""
    for reader in list(_open_readers):
        reader.leave()
    _open_readers.clear()


os.register_at_fork(after_in_child=_leave_all)


def _close_all() -> None:
    """Close all readers, and let TensorFlow's threads leave Python before the interpreter ends.

    A thread that wants the GIL after that never gets it, and TensorFlow, which ends its iterators then, waits for the thread
    for ever.
    """
    readers = list(_open_readers)
    for reader in readers:
        reader.close()
    end = time.monotonic() + LEAVE_S
    while readers and time.monotonic() < end:
        if time.monotonic() - max(reader.consumed_at for reader in readers) > QUIET_S:
            return
        time.sleep(0.01)
