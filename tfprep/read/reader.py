"""Batches ahead of their use: threads fill them, in order, and hold the GIL only between calls."""

from __future__ import annotations

import atexit
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from tfprep.cpus import usable_cpus
from tfprep.errors import LoaderError, StalledPipelineError
from tfprep.read.at_load_fill import AtLoadFiller
from tfprep.read.batch import Batch, BatchMemory
from tfprep.read.fill import Filler
from tfprep.read.schedule import Picks, Schedule
from tfprep.read.worker import Worker

PLAN_STEPS = 16
"""Steps whose picks are computed at once: sixteen cost hardly more than one."""
COPYING_THREADS = 2
"""That copy rows, each its half of the batch, where nothing is decoded: more are no faster, and fewer batches are in the
processor's cache at a time than if each filled one. The other threads end; rows that are all in memory stay there."""
AHEAD_OF_MEMORY = 2
"""Batches ahead where rows are copied from memory: no disk's delay is to be hidden, and memory that was used just now is still in
the processor's cache: with eight in turn, copying takes a third longer."""
LEAVE_S, QUIET_S = 5.0, 0.2
"""At exit: how long consumers may take to leave, and for how long none must have been seen."""
LONGEST_WAIT_S = 1e6
"""`threading` takes no infinity."""
MOST_ROWS, LEAST_ROWS = 32, 16
"""Rows that a thread takes at a time: each time costs some 20 µs of Python, and many threads share one GIL."""


@dataclass(frozen=True)
class Pace:
    """How far ahead, by how many threads (0: one a usable CPU), and how long the consumer waits before it is an error."""

    ahead: int = 8
    threads: int = 0
    timeout_s: float = 300.0

    @property
    def workers(self) -> int:
        return self.threads or usable_cpus()


@dataclass
class Counts:
    """What a reader has done so far; seconds are summed over threads, but for `wait_s`, the consumer's."""

    batches: int = 0
    samples: int = 0
    bytes_delivered: int = 0
    waits: int = 0
    wait_s: float = 0.0
    longest_wait_s: float = 0.0


class Reader:
    """The batches of the steps `start`, `start + stride`, ... in order.

    At most `pace.ahead` batches are filled or being filled beyond the one delivered last. Threads start with the first batch
    asked for. Iterate over it in one thread; `close` from any.
    """

    def __init__(
        self,
        schedule: Schedule,
        filler: Filler | AtLoadFiller,
        memory: BatchMemory,
        pace: Pace,
        *,
        start: int = 0,
        stride: int = 1,
    ) -> None:
        self._schedule, self._filler, self._memory, self._pace = schedule, filler, memory, pace
        self._stride = stride
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._ready = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self.workers = [Worker(f"tfprep-read-{number}") for number in range(pace.workers)]
        self._copiers = pace.threads or min(COPYING_THREADS, pace.workers)
        self.counts = Counts()
        self.consumed_at = 0.0
        """When the consumer last left with a batch, by `time.monotonic`; infinity while it waits for one."""
        self._stopped: LoaderError | None = None
        self._first = start
        self._wanted = start  # the next step to deliver
        self._opened = start  # the next step to fill
        self._plans: dict[int, Picks] = {}
        self._filling: Batch | None = None
        self._next_row = 0
        self._batches: dict[int, Batch] = {}

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch, when it is full. Raises what filling it raised; StalledPipelineError after `timeout_s`."""
        with self._lock:
            if self._at_end(self._wanted):
                raise StopIteration
            self._start()
            self.consumed_at = float("inf")
            try:
                batch = self._wait()
            finally:
                self.consumed_at = time.monotonic()
            del self._batches[batch.step]
            self._wanted += self._stride
            self._work.notify_all()
        if batch.error is not None:
            self.close()
            raise batch.error
        self.counts.batches += 1
        self.counts.samples += batch.rows
        self.counts.bytes_delivered += batch.nbytes
        return batch

    @property
    def ready(self) -> int:
        """Batches that wait for the consumer."""
        return sum(batch.done for batch in list(self._batches.values()))

    @property
    def in_flight(self) -> int:
        """Batches that are being filled."""
        return len(self._batches) - self.ready

    @property
    def ahead(self) -> int:
        """How many batches may be filled beyond the one delivered last."""
        return min(self._pace.ahead, AHEAD_OF_MEMORY) if self._filler.held else self._pace.ahead

    @property
    def step(self) -> int:
        """The next step to be delivered."""
        return self._wanted

    def stop(self, reason: LoaderError) -> None:
        """Let the consumer's wait, and every later one, end with this error; threads stop after the record in hand."""
        with self._lock:
            self._stopped = self._stopped or reason
            self._work.notify_all()
            self._ready.notify_all()

    def close(self) -> None:
        """Stop the threads and give the memory back; what the consumer still holds stays as it is."""
        self.stop(LoaderError("the loader is closed; make a new one"))
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=1.0)
        self._batches.clear()
        self._plans.clear()
        self._memory.close()

    # --- the consumer's side ----------------------------------------------------------------------------------------

    def _at_end(self, step: int) -> bool:
        return self._schedule.steps is not None and step >= self._schedule.steps

    def _start(self) -> None:
        if self._threads or self._stopped:
            return
        for worker in self.workers:
            thread = threading.Thread(target=self._fill_batches, args=(worker,), name=worker.name, daemon=True)
            self._threads.append(thread)
            thread.start()
        _close_at_exit(self)

    def _wait(self) -> Batch:
        batch = self._batches.get(self._wanted)
        if batch is not None and batch.done and self._stopped is None:
            return batch
        began = time.monotonic()
        try:
            return self._wait_until(began + self._pace.timeout_s)
        finally:
            waited = time.monotonic() - began
            self.counts.waits += 1
            self.counts.wait_s += waited
            self.counts.longest_wait_s = max(self.counts.longest_wait_s, waited)

    def _wait_until(self, end: float) -> Batch:
        while True:
            if self._stopped is not None:
                raise self._stopped
            batch = self._batches.get(self._wanted)
            if batch is not None and batch.done:
                return batch
            left = end - time.monotonic()
            if left <= 0:
                self._stopped = StalledPipelineError(self._stall())
                continue
            self._ready.wait(min(left, LONGEST_WAIT_S))

    def _stall(self) -> str:
        """Which stage moved last, what each thread is at, and where in the code."""
        last = max(self.workers, key=lambda worker: worker.since)
        lines = [
            f"no batch for step {self._wanted} in {self._pace.timeout_s:g} s (timeout_s). {self.ready} batches are ready, "
            f"{self.in_flight} in flight. Last to move: {last.describe()}"
        ]
        frames = sys._current_frames()
        for thread, worker in zip(self._threads, self.workers, strict=False):
            lines.append(worker.describe())
            frame = frames.get(thread.ident or 0)
            lines += [line.rstrip() for line in traceback.format_stack(frame)] if frame else ["  (it has ended)"]
        return "\n".join(lines)

    # --- the threads' side ------------------------------------------------------------------------------------------

    def _fill_batches(self, worker: Worker) -> None:
        while (work := self._take(worker)) is not None:
            batch, start, stop = work
            error: BaseException | None = None
            try:
                self._filler.fill(batch, start, stop, worker)
            except BaseException as caught:
                error = caught
            worker.enter("waiting for work")
            self._filled(batch, stop - start, error)
            del batch, work

    def _filled(self, batch: Batch, rows: int, error: BaseException | None) -> None:
        with self._lock:
            batch.pending -= rows
            batch.error = batch.error or error
            last = batch.pending == 0
        if last and batch.error is None:
            try:
                self._filler.finish(batch)
            except BaseException as caught:
                batch.error = caught
        if last or batch.error is not None:
            with self._lock:
                batch.done = True
                self._ready.notify_all()

    def _take(self, worker: Worker) -> tuple[Batch, int, int] | None:
        """The next rows to fill; None when there will be none any more for this thread."""
        with self._lock:
            while self._stopped is None and self._is_useful(worker):
                if self._filling is None and not self._at_end(self._opened) and self._may_open():
                    self._open()
                if self._filling is not None:
                    return self._chunk(self._filling)
                if self._at_end(self._opened):
                    return None
                worker.enter("waiting for room" if not self._may_open() else "waiting for work")
                self._work.wait()
        return None

    def _is_useful(self, worker: Worker) -> bool:
        """Whether this thread is of use: memory is copied no faster by more threads than `COPYING_THREADS`."""
        return not self._filler.cheap or worker in self.workers[: self._copiers]

    def _may_open(self) -> bool:
        return (self._opened - self._wanted) // self._stride < self.ahead

    def _open(self) -> None:
        """Begin the next batch. Runs under the lock: the plan of many steps at once makes it short."""
        step = self._opened
        if step not in self._plans:
            self._plan(step)
        picks = self._plans.pop(step)
        batch = Batch(step, picks, self._memory.arrays(len(picks.row)), pending=len(picks.row), done=not len(picks.row))
        self._batches[step] = batch
        self._opened += self._stride
        if batch.done:  # an empty one: this host has no part in the last batch
            self._filler.finish(batch)
            self._ready.notify_all()
        else:
            self._filling, self._next_row = batch, 0

    def _plan(self, step: int) -> None:
        """The first batch alone, so that it comes soon; then many at once."""
        steps = [step + i * self._stride for i in range(1 if step == self._wanted else PLAN_STEPS)]
        steps = [number for number in steps if not self._at_end(number)]
        self._plans = dict(zip(steps, self._schedule.picks(steps), strict=True))

    def _chunk(self, batch: Batch) -> tuple[Batch, int, int]:
        """A part of the batch: of the first one small, so that all threads share its work and end at about the same time."""
        if self._filler.cheap:
            size = -(-batch.rows // self._copiers)
        elif batch.step == self._first:
            size = min(-(-batch.rows // (2 * len(self.workers))), MOST_ROWS)
        else:
            size = min(max(-(-batch.rows // len(self.workers)), LEAST_ROWS), MOST_ROWS)
        start, self._next_row = self._next_row, min(self._next_row + size, batch.rows)
        if self._next_row == batch.rows:
            self._filling = None
        self._work.notify_all()
        return batch, start, self._next_row


_open_readers: weakref.WeakSet[Reader] = weakref.WeakSet()


def _close_at_exit(reader: Reader) -> None:
    if not _open_readers:
        atexit.register(_close_all)
    _open_readers.add(reader)


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
