"""Worker processes that fill batches in shared memory, so that decoding does not share one interpreter with training.

A thread of this process, the dispatcher, takes rows from the readers as reading threads do, sends them to the processes, and
hands full batches over. The processes are those of `tfprep.child_process`, each with several threads and several jobs at a time;
their work is in `tfprep.load.reader.worker_process`.

A process that dies is replaced, and only the rows that it worked on are read again.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import pickle
import selectors
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

import numpy as np

from tfprep.child_process import ChildProcess, WorkerOutput, ending_of, framed, worker_environment
from tfprep.errors import LoaderError
from tfprep.load.reader.batch import Batch, unpack
from tfprep.load.reader.buffers import SharedMemory
from tfprep.load.reader.rows import COLUMNS, Rows, UnreadRow
from tfprep.load.reader.thread_state import ThreadState
from tfprep.load.reader.worker_process import Job, Outcome, Setup

ENTRY = "tfprep.load.reader.worker_process:open_worker"
START = -1
"""The number of the task that shows that a process has started."""
MOST_DEATHS = 5
"""Give up after this many deaths for each process without a finished job in between."""
JOB_ROWS, JOB_BYTES = 64, 16_000
"""The most rows of a job, and bytes of its table. Each job costs this process some 100 us of Python."""
PIPE_BYTES = 32_000
"""No further job for a process that has this many bytes of jobs: a pipe takes 64 KiB, and writing must not block."""
SPARE_JOBS = 2
"""Jobs that a process has beyond one a thread, so that its threads do not wait for the dispatcher's next turn."""
LISTED_DEATHS = 100
MOST_INTERRUPTIONS = 2
"""A batch during whose mixing so many processes died is mixed by this process."""
ANSWER_S = 1.0
"""Time in which a process may write its stacks down."""
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
"""Signals by which a process ends for what it did itself; others come from outside."""
NO_ROWS = Rows(np.empty((len(COLUMNS), 0), np.int64))
"""The rows of a job that mixes a batch."""


class RowsSource(Protocol):
    """A reader, as the dispatcher sees it (see `tfprep.load.reader.reader.Reader`)."""

    assembler: Any
    remote: ThreadState

    def job_rows(self, batch: Batch) -> int: ...

    @property
    def stopped(self) -> bool: ...

    def take_now(self) -> tuple[Batch, int, int] | None: ...

    def filled(self, batch: Batch, rows: int, error: BaseException | None = None) -> bool: ...

    def complete(self, batch: Batch, error: BaseException | None = None) -> None: ...

    def stop(self, reason: BaseException) -> None: ...

    def wake(self) -> None: ...


@dataclass(eq=False, slots=True)
class ReadJob:
    """Some rows of a reader's batch; without rows, the mixing of the batch.

    One whose process died of a fault is tried again row by row, with `deaths` 1.
    """

    number: int
    reader: RowsSource
    batch: Batch
    rows: Rows
    deaths: int = 0
    nbytes: int = 0


class WorkerProcess(ChildProcess):
    """One process, and the jobs that are with it."""

    def __init__(self, number: int, memory: int) -> None:
        """`memory` is a file descriptor."""
        super().__init__(ENTRY, worker_environment(), pass_fds=(memory,), own_session=True)
        self.number = number
        self.jobs: dict[int, ReadJob] = {}
        self.ready = False

    def has_room(self, most: int) -> bool:
        """Return whether it takes another job. A job that is retried alone runs alone, so that a crash is attributable to it."""
        jobs = self.jobs.values()
        return (
            self.ready
            and len(jobs) < most
            and sum(job.nbytes for job in jobs) < PIPE_BYTES
            and not any(job.deaths for job in jobs)
        )

    def stacks(self) -> str:
        """The Python stacks of its threads at this moment."""
        if not self.ready:  # the signal would end it
            return "  (it is starting)"
        self.process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + ANSWER_S
        while time.monotonic() < end:
            time.sleep(0.05)
            with contextlib.suppress(ValueError):  # it has ended meanwhile
                if text := self.output_tail():
                    return text
        return "  (it does not answer)"


class WorkerPool:
    """So many worker processes. Readers attach themselves; `stop` takes no lock."""

    def __init__(self, setup: Setup, memory: SharedMemory, processes: int) -> None:
        """Raises an error where the setup cannot be sent to another process."""
        self.memory, self.processes, self.threads = memory, processes, setup.threads
        check_sendable(setup)
        self._start = framed((setup, setup.threads)) + framed((START, None))
        self._paths = setup.paths
        self._outputs = [output.name for output in setup.outputs]
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._readers: list[RowsSource] = []
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._jobs: deque[ReadJob] = deque()
        self._retry: deque[ReadJob] = deque()
        self._retry_alone: deque[ReadJob] = deque()
        self._wakeup = _Wakeup()
        self._numbers = 0
        self._deaths_in_a_row = 0
        self._stopping = False
        self.wants_work = False
        """True while a process could take work that no reader has."""
        self.ready = False
        """True when all processes have started: from then on, reading threads leave the work to them."""
        self.failure = ""
        """Why the processes were given up."""
        self.deaths: deque[str] = deque(maxlen=LISTED_DEATHS)
        """Causes of death of processes."""

    def attach(self, reader: RowsSource) -> None:
        """Fill the batches of this reader until it is stopped. A pool that was stopped leaves them to the reader's threads."""
        with self._lock:
            if self._stopping:
                return
            self._readers.append(reader)
            if self._thread is None:
                _close_at_exit(self)
                thread = threading.Thread(target=self._run, name="tfprep-workers", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    self._give_up(f"the thread that hands out work cannot be started ({error})")
                    return
                self._thread = thread
        self.wake()

    def wake(self) -> None:
        """Let the dispatcher look for work. Takes no lock."""
        self._wakeup.set()

    def stop(self) -> None:
        """Ask the dispatcher to end the processes. Takes no lock and waits for nothing."""
        self._stopping = True
        self._wakeup.set()

    @property
    def stopped(self) -> bool:
        """Return whether its processes were ended, or will be at once."""
        return self._stopping

    def close(self) -> None:
        """End the processes and wait for that."""
        self.stop()
        if self._thread is None or self._thread is threading.current_thread():
            return
        for worker in list(self._workers):  # here: the dispatcher may wait for one that does not read its pipe
            worker.process.kill()
        self._thread.join()

    def describe(self) -> list[str]:
        """Return what each process works on, and the stacks of its threads."""
        lines = []
        for worker in list(self._workers):
            jobs = ", ".join(self._place(job.rows) for job in list(worker.jobs.values()))
            lines.append(f"worker process {worker.number} (pid {worker.process.pid}): {jobs or 'no work'}")
            lines += worker.stacks().splitlines()
        return lines

    def _place(self, rows: Rows) -> str:
        """Return where the first of these rows lies, in words."""
        if not len(rows):
            return "mixing"
        if rows["cached"].all():
            return "from the cache"
        return f"{self._paths[int(rows['file'][0])].name} at byte {rows['offset'][0]}"

    # --- the dispatcher -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._selector.register(self._wakeup.fd, selectors.EVENT_READ)
            for number in range(self.processes):
                self._start_one(number)
            while not self._stopping:
                if self.ready:
                    self._hand_out()
                self._wait()
        except BaseException as error:
            self._give_up(f"the worker processes cannot go on ({type(error).__name__}: {error})")
        finally:
            self.ready = False
            for worker in self._workers:
                worker.process.kill()
            for worker in self._workers:
                worker.end()
            for held in (self._workers, self._jobs, self._retry, self._readers):
                held.clear()
            self._selector.close()

    def _start_one(self, number: int) -> None:
        worker = WorkerProcess(number, self.memory.fd)
        self._workers.append(worker)
        self._selector.register(worker.output, selectors.EVENT_READ, worker)
        worker.send(self._start)

    def _wait(self) -> None:
        for key, _ in self._selector.select():
            if key.data is None:
                self._wakeup.clear()
                continue
            messages = key.data.receive()
            if messages is None:
                self._replace_dead(key.data)
                continue
            for kind, content in messages:
                self._take_up(key.data, kind, content)

    def _take_up(self, worker: WorkerProcess, kind: str, content: Any) -> None:
        """Take up a message of a process."""
        if kind == "failed":
            name, text = content
            *_, reason = text.strip().splitlines() or [""]  # of a traceback its last line, with the name
            raise LoaderError(reason if reason.startswith(name) else f"{name}: {reason}")
        if kind == "event":
            if isinstance(content, WorkerOutput):
                _show(content.text)
            return
        number, outcome = content
        if number == START:
            worker.ready = True
            if not self.ready and all(worker.ready for worker in self._workers):
                self.ready = True
                for reader in list(self._readers):
                    reader.wake()  # its threads leave
            return
        job = worker.jobs.pop(number)
        job.reader.remote.add(outcome.nbytes, outcome.read_s, outcome.decode_s, outcome.idle_s)
        self._complete(job, outcome)

    def _hand_out(self) -> None:
        """Give every process the jobs that it takes, in one write: each write may wake a process."""
        self.wants_work = True  # before the readers are asked: what they get from now on rings the bell
        most = self.threads + SPARE_JOBS
        takers = deque(
            sorted((each for each in self._workers if each.has_room(most)), key=lambda worker: len(worker.jobs))
        )
        messages: dict[WorkerProcess, list[bytes]] = {}
        while takers:
            worker = takers.popleft()
            job = (None if worker.jobs else next(self._of_readers(self._retry_alone), None)) or self._next_job()
            if job is None:
                break
            message = self._message(job)
            job.nbytes = len(message)
            worker.jobs[job.number] = job
            messages.setdefault(worker, []).append(message)
            if worker.has_room(most):
                takers.append(worker)  # behind the others, each of which gets one first
        else:
            self.wants_work = False  # they have all that they take; a reply is the next occasion
        for worker, jobs in messages.items():
            worker.send(b"".join(jobs))

    def _of_readers(self, jobs: deque[ReadJob]) -> Iterator[ReadJob]:
        """Take out jobs one by one, but for those of readers that were stopped."""
        while jobs:
            job = jobs.popleft()
            if not job.reader.stopped:
                yield job
            else:
                job.reader.assembler.release(job.rows)

    def _next_job(self) -> ReadJob | None:
        if self._retry_alone:  # processes that become free are for these
            return None
        for jobs in (self._retry, self._jobs):
            if (job := next(self._of_readers(jobs), None)) is not None:
                return job
        for reader in list(self._readers):
            if reader.stopped:
                with self._lock:
                    self._readers.remove(reader)
                continue
            while (taken := reader.take_now()) is not None:
                if self._split(reader, *taken):
                    return self._jobs.popleft()
        return None

    def _split(self, reader: RowsSource, batch: Batch, start: int, stop: int) -> bool:
        """Make jobs of these rows; False where they cannot be found."""
        try:
            rows = reader.assembler.prepare(batch, start, stop)
        except BaseException as error:
            reader.filled(batch, stop - start, error)
            reader.complete(batch)
            return False
        size = min(reader.job_rows(batch), max(1, JOB_BYTES // (rows.table.itemsize * rows.table.shape[0])))
        for first in range(0, len(rows), size):
            self._jobs.append(self._job(reader, batch, rows.take(slice(first, first + size))))
        return True

    def _message(self, job: ReadJob) -> bytes:
        batch = job.batch
        if not batch.offsets:
            batch.offsets = [self.memory.offset(batch.values[name]) for name in self._outputs]
        if not len(job.rows):
            span = job.reader.assembler.mixing.span(batch)
            return framed((job.number, Job(batch.rows, batch.offsets, span=span)))
        room = 0, 0, 0
        # The part of the space that belongs to these rows is not that of a row that another sample takes: the job that failed to
        # read the row has packed its other rows without gaps.
        if batch.space is not None and int(job.rows["row"][0]) not in batch.attempts:
            begin, nbytes = batch.space.part(job.rows["row"])
            room = self.memory.offset(batch.space.memory) + begin, begin, nbytes
        return framed((job.number, Job(batch.rows, batch.offsets, job.rows.table, room)))

    def _complete(self, job: ReadJob, outcome: Outcome) -> None:
        self._deaths_in_a_row = 0
        if not len(job.rows):
            job.batch.mixed = True
            job.reader.complete(job.batch, outcome.error)
            return
        error = outcome.error
        replacements: list[Rows] = []
        if error is None:
            try:
                unpack(outcome.values or {}, job.batch.values, job.batch.space)
                replacements = job.reader.assembler.complete(job.batch, job.rows, outcome.unread, job.reader.remote)
            except BaseException as caught:
                error = caught
        self._retry.extend(self._job(job.reader, job.batch, rows) for rows in replacements)
        if job.reader.filled(job.batch, len(job.rows) - len(replacements), error):
            mixing = job.reader.assembler.mixing
            mixes = mixing is not None and mixing.mixes_rasters and job.batch.interrupted < MOST_INTERRUPTIONS
            if job.batch.error is None and mixes:
                self._retry.append(self._job(job.reader, job.batch, NO_ROWS))
            else:
                job.reader.complete(job.batch)

    def _job(self, reader: RowsSource, batch: Batch, rows: Rows, deaths: int = 0) -> ReadJob:
        self._numbers += 1
        return ReadJob(self._numbers, reader, batch, rows, deaths)

    # --- processes that die -------------------------------------------------------------------------------------------

    def _replace_dead(self, worker: WorkerProcess) -> None:
        """Note what a process died of, give its jobs to others, and start another one."""
        self._selector.unregister(worker.output)
        self._workers.remove(worker)
        _show(worker.output_tail())
        status = worker.end()
        if self._stopping:
            return
        cause = f"was {ending_of(status)}" if status < 0 else ending_of(status)
        self.deaths.append(f"worker process {worker.number} (pid {worker.process.pid}) {cause}")
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > MOST_DEATHS * self.processes:
            self._give_up(f"{self._deaths_in_a_row} worker processes died one after another, the last one: it {cause}")
            return
        for job in worker.jobs.values():
            if not len(job.rows):
                self._refill(job.reader, job.batch)
            elif status >= 0 or -status in FAULTS:
                self._retry_row_by_row(job, cause)
            else:
                self._retry.append(job)
        self._start_one(worker.number)

    def _refill(self, reader: RowsSource, batch: Batch) -> None:
        """Fill a batch again whose mixing was interrupted: some of its rows are mixed already."""
        batch.interrupted += 1
        batch.pending = batch.rows
        batch.located = None  # other samples may have taken the place of bad records
        self._split(reader, batch, 0, batch.rows)

    def _retry_row_by_row(self, job: ReadJob, cause: str) -> None:
        """One of the rows may have ended the process: they are tried one by one, and one that ends a process again is bad.

        They are read with their checksums compared, so not through a memory map: a file that was cut short is an error then.
        """
        if job.deaths:
            self._complete(job, Outcome([UnreadRow(0, f"a worker process that read it {cause}")]))
            return
        for number in range(len(job.rows)):
            part = job.rows.take([number])
            part["verify"][:] = 1
            self._retry_alone.append(self._job(job.reader, job.batch, part, deaths=1))

    def _give_up(self, reason: str) -> None:
        self.failure = reason
        self._stopping = True
        if self.ready:
            hint = "workers='threads' reads without processes"
            for reader in list(self._readers):
                reader.stop(LoaderError(f"{reason}; {hint}"))


def _show(text: str) -> None:
    """Write what a process wrote to its standard output and error to that of this one, if it has any."""
    if text and sys.stderr is not None:
        sys.stderr.write(text)


class _Wakeup:
    """Wakes a thread that waits in `select`. `set` is one system call at most, and takes no lock."""

    def __init__(self) -> None:
        self.fd, self._ring = os.pipe()
        os.set_blocking(self._ring, False)
        self._rung = False
        self._closed = False  # the garbage collector may finalise this before what rings it

    def set(self) -> None:
        if not self._rung and not self._closed:
            self._rung = True
            with contextlib.suppress(BlockingIOError):
                os.write(self._ring, b"!")

    def clear(self) -> None:
        """Re-arm."""
        os.read(self.fd, 64)
        self._rung = False

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        self._closed = True
        close(self.fd)
        close(self._ring)


class _Sender(pickle.Pickler):
    """Refuses what another process cannot import."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in the script that runs; move it into a module"
            )
        return NotImplemented


def check_sendable(value: Any) -> None:
    """Raise an error where a value holds what another process cannot load."""
    _Sender(io.BytesIO()).dump(value)


_open_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _close_at_exit(pool: WorkerPool) -> None:
    if not _open_pools:
        atexit.register(_close_all)
    _open_pools.add(pool)


def _close_all() -> None:
    for pool in list(_open_pools):
        pool.close()
