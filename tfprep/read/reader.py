"""Batches ahead of their use: threads fill them, in order, and hold the GIL only between calls."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from tfprep.errors import LoaderError, StalledPipelineError
from tfprep.read.batch import Batch, BatchMemory
from tfprep.read.fill import Filler
from tfprep.read.record import Scratch
from tfprep.read.schedule import Picks, Schedule

PLAN_STEPS = 16
"""Steps whose picks are computed at once: sixteen cost hardly more than one."""


@dataclass(frozen=True)
class Pace:
    """How far ahead, by how many threads, and how long the consumer waits for a batch before it is an error."""

    ahead: int = 8
    threads: int = 0
    timeout_s: float = 300.0

    @property
    def workers(self) -> int:
        return self.threads or usable_cpus()


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Reader:
    """The batches of the steps `start`, `start + stride`, ... in order.

    At most `pace.ahead` batches are filled or being filled beyond the one delivered last. Threads start with the first batch
    asked for. Iterate over it in one thread; `close` from any.
    """

    def __init__(
        self,
        schedule: Schedule,
        filler: Filler,
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
        self._closed = False
        self._wanted = start  # the next step to deliver
        self._planned = start  # the next step to plan
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
            batch = self._wait()
            del self._batches[batch.step]
            self._wanted += self._stride
            self._work.notify_all()
        if batch.error is not None:
            self.close()
            raise batch.error
        return batch

    def close(self) -> None:
        """Stop the threads and give the memory back; what the consumer still holds stays as it is."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._ready.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)
        self._batches.clear()
        self._memory.close()

    # --- the consumer's side ----------------------------------------------------------------------------------------

    def _at_end(self, step: int) -> bool:
        return self._schedule.steps is not None and step >= self._schedule.steps

    def _start(self) -> None:
        if self._threads or self._closed:
            return
        for number in range(self._pace.workers):
            thread = threading.Thread(target=self._fill_batches, name=f"tfprep-read-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        _close_at_exit(self)

    def _wait(self) -> Batch:
        end = time.monotonic() + self._pace.timeout_s
        while True:
            if self._closed:
                raise LoaderError("the loader is closed; make a new one")
            batch = self._batches.get(self._wanted)
            if batch is not None and (batch.pending == 0 or batch.error is not None):
                return batch
            if not self._ready.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                raise StalledPipelineError(f"no batch for step {self._wanted} in {self._pace.timeout_s:g} s")

    # --- the threads' side ------------------------------------------------------------------------------------------

    def _fill_batches(self) -> None:
        scratch = Scratch()
        while (work := self._take()) is not None:
            batch, start, stop = work
            error: BaseException | None = None
            try:
                self._filler.fill(batch, start, stop, scratch)
            except BaseException as caught:
                error = caught
            with self._lock:
                batch.pending -= stop - start
                batch.error = batch.error or error
                if batch.pending == 0 or error is not None:
                    self._ready.notify_all()
            del batch, work

    def _take(self) -> tuple[Batch, int, int] | None:
        """The next rows to fill; None when there will be none any more."""
        with self._lock:
            while not self._closed:
                if self._filling is None and not self._at_end(self._opened) and self._may_open():
                    self._open()
                if self._filling is not None:
                    return self._chunk(self._filling)
                if self._at_end(self._opened):
                    return None
                self._work.wait()
        return None

    def _may_open(self) -> bool:
        return (self._opened - self._wanted) // self._stride < self._pace.ahead

    def _open(self) -> None:
        """Begin the next batch. Runs under the lock: the plan of many steps at once makes it short."""
        step = self._opened
        if step not in self._plans:
            self._plan(step)
        picks = self._plans.pop(step)
        batch = Batch(step, picks, self._memory.arrays(len(picks.row)), pending=len(picks.row))
        self._filler.begin(batch)
        self._batches[step] = batch
        self._opened += self._stride
        if batch.rows:
            self._filling, self._next_row = batch, 0
        else:
            self._ready.notify_all()

    def _plan(self, step: int) -> None:
        steps = [step + i * self._stride for i in range(1 if step == self._wanted else PLAN_STEPS)]
        steps = [number for number in steps if not self._at_end(number)]
        self._plans = dict(zip(steps, self._schedule.picks(steps), strict=True))

    def _chunk(self, batch: Batch) -> tuple[Batch, int, int]:
        """A part of the batch, small enough that all threads share the work of the first one."""
        size = max(1, min(32, -(-batch.rows // (2 * self._pace.workers))))
        start, self._next_row = self._next_row, min(self._next_row + size, batch.rows)
        if self._next_row == batch.rows:
            self._filling = None
        self._work.notify()
        return batch, start, self._next_row


_open_readers: weakref.WeakSet[Reader] = weakref.WeakSet()


def _close_at_exit(reader: Reader) -> None:
    if not _open_readers:
        atexit.register(_close_all)
    _open_readers.add(reader)


def _close_all() -> None:
    for reader in list(_open_readers):
        reader.close()
