"""ThreadState processes that fill batches in shared memory, so that decoding does not share one interpreter with training.

A thread of this process, the dispatcher, takes rows from the readers as reading threads do, sends them to the processes as
packed numbers, and hands full batches over. Each process is a fresh Python that runs `tfprep.load.reader.worker_process`: never
a fork of this one, which may have TensorFlow's threads, and a script needs no `if __name__ == "__main__"`.

A process that dies is replaced, and only the rows that it worked on are read again.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import pickle
import selectors
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.reader.batch import Batch, unpack
from tfprep.load.reader.buffers import SharedMemory
from tfprep.load.reader.rows import COLUMNS, Rows, UnreadRow
from tfprep.load.reader.worker_handle import ReadJob, RowsSource, WorkerProcess, cause_of_death, is_fault, large_copies
from tfprep.load.reader.worker_process import READY, Outcome, Setup

MOST_DEATHS = 5
"""Give up after this many deaths for each process without a finished job in between."""
JOB_ROWS, JOB_BYTES = 64, 16_000
"""The most rows of a job, and bytes of its message. Each job costs this process some 100 us of Python."""
SPARE_JOBS = 2
"""Jobs that a process has beyond one a thread, so that its threads do not wait for the dispatcher's next turn."""
LISTED_DEATHS = 100
MOST_INTERRUPTIONS = 2
"""A batch during whose mixing so many processes died is mixed by this process."""
CLOSE_S = 10.0
"""Time that `close` waits for the processes to end by themselves."""
NO_ROWS = Rows(np.empty((len(COLUMNS), 0), np.int64))
"""The rows of a job that mixes a batch."""


class WorkerPool:
    """So many worker processes. Readers attach themselves; `stop` takes no lock."""

    def __init__(self, setup: Setup, memory: SharedMemory, processes: int, batches_bytes: int) -> None:
        """`batches_bytes`: what all batches in turn take. Raises an error where the setup cannot be sent to another process."""
        self._environment = large_copies(batches_bytes)
        self.memory, self.processes, self.threads = memory, processes, setup.threads
        self._setup = _file_of(sendable(setup))
        self._paths = setup.paths
        self._outputs = [array.output for array in setup.outputs]
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
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():  # it waits for a process that does not read its pipe
            for worker in list(self._workers):
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
            self._end_all()

    def _start_one(self, number: int) -> None:
        worker = WorkerProcess(number, self._setup, self.memory.fd, self._environment)
        self._workers.append(worker)
        self._selector.register(worker.receive, selectors.EVENT_READ, worker)

    def _wait(self) -> None:
        for key, _ in self._selector.select():
            if key.data is None:
                self._wakeup.clear()
                continue
            replies = key.data.replies()
            if replies is None:
                self._replace_dead(key.data)
                continue
            for number, nbytes, read_s, decode_s, idle_s, outcome in replies:
                if number == READY:
                    self._note_ready(key.data, outcome)
                    continue
                job = key.data.done(number)
                job.reader.remote.add(nbytes, read_s, decode_s, idle_s)
                self._complete(job, outcome)

    def _note_ready(self, worker: WorkerProcess, outcome: Outcome) -> None:
        if outcome.refusal:
            raise LoaderError(outcome.refusal)
        worker.ready = True
        if not self.ready and all(worker.ready for worker in self._workers):
            self.ready = True
            for reader in list(self._readers):
                reader.wake()  # its threads leave

    def _hand_out(self) -> None:
        """Give every process the jobs that it takes, in one write: each write may wake a process."""
        self.wants_work = True  # before the readers are asked: what they get from now on rings the bell
        takers = deque(sorted(filter(self._has_room, self._workers), key=lambda worker: len(worker.jobs)))
        messages: dict[WorkerProcess, list[bytes]] = {}
        while takers:
            worker = takers.popleft()
            job = (None if worker.jobs else self._next_to_retry_alone()) or self._next_job()
            if job is None:
                break
            messages.setdefault(worker, []).append(self._added(worker, job))
            if self._has_room(worker):
                takers.append(worker)  # behind the others, each of which gets one first
        else:
            self.wants_work = False  # they have all that they take; a reply is the next occasion
        for worker, jobs in messages.items():
            worker.send(b"".join(jobs))

    def _has_room(self, worker: WorkerProcess) -> bool:
        return worker.has_room and len(worker.jobs) < self.threads + SPARE_JOBS

    def _added(self, worker: WorkerProcess, job: ReadJob) -> bytes:
        """Note that the worker has this job; return the message that tells it so."""
        message = self._message(job)
        job.nbytes = len(message)
        worker.add(job)
        return message

    def _next_to_retry_alone(self) -> ReadJob | None:
        return next(self._of_readers(self._retry_alone), None)

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
            part = rows.take(slice(first, first + size))
            self._jobs.append(self._job(reader, batch, part))
        return True

    def _message(self, job: ReadJob) -> bytes:
        batch = job.batch
        if not batch.offsets:
            offsets = [self.memory.offset(batch.values[name]) for name in self._outputs]
            batch.offsets = struct.pack(f"<{len(offsets)}q", *offsets)
        place, begin, nbytes = 0, 0, 0
        if batch.space is not None and has_own_room(job):
            begin, nbytes = batch.space.part(job.rows["row"])
            place = self.memory.offset(batch.space.memory) + begin
        table = job.rows.table if len(job.rows) else np.array(job.reader.assembler.mixing.span(batch), np.int64)
        content = batch.offsets + struct.pack("<3q", place, begin, nbytes) + table.tobytes()
        return struct.pack("<4q", 24 + len(content), job.number, batch.rows, len(job.rows)) + content

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
                unpack(outcome.values, job.batch.values, job.batch.space)
                replacements = job.reader.assembler.complete(job.batch, job.rows, outcome.unread, job.reader.remote)
            except BaseException as caught:
                error = caught
        self._retry.extend(self._job(job.reader, job.batch, rows) for rows in replacements)
        if job.reader.filled(job.batch, len(job.rows) - len(replacements), error):
            self._mix_or_deliver(job.reader, job.batch)

    def _mix_or_deliver(self, reader: RowsSource, batch: Batch) -> None:
        mixing = reader.assembler.mixing
        mixes = mixing is not None and mixing.mixes_rasters and batch.interrupted < MOST_INTERRUPTIONS
        if batch.error is None and mixes:
            self._retry.append(self._job(reader, batch, NO_ROWS))
        else:
            reader.complete(batch)

    def _job(self, reader: RowsSource, batch: Batch, rows: Rows, deaths: int = 0) -> ReadJob:
        self._numbers += 1
        return ReadJob(self._numbers, reader, batch, rows, deaths)

    # --- processes that die -------------------------------------------------------------------------------------------

    def _replace_dead(self, worker: WorkerProcess) -> None:
        """Note what a process died of, give its jobs to others, and start another one."""
        self._forget(worker)
        cause = cause_of_death(worker.process.returncode)
        self.deaths.append(f"worker process {worker.number} (pid {worker.process.pid}) {cause}")
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > MOST_DEATHS * self.processes:
            self._give_up(f"{self._deaths_in_a_row} worker processes died one after another, the last one: it {cause}")
            return
        for job in worker.jobs.values():
            if not len(job.rows):
                self._refill(job.reader, job.batch)
            elif is_fault(worker.process.returncode):
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

    def _forget(self, worker: WorkerProcess) -> None:
        self._selector.unregister(worker.receive)
        self._workers.remove(worker)
        worker.close_jobs()
        worker.end()

    def _give_up(self, reason: str) -> None:
        self.failure = reason
        self._stopping = True
        if self.ready:
            hint = "workers='threads' reads without processes"
            for reader in list(self._readers):
                reader.stop(LoaderError(f"{reason}; {hint}"))

    def _end_all(self) -> None:
        for worker in self._workers:
            worker.close_jobs()
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._jobs.clear()
        self._retry.clear()
        self._readers.clear()
        self._selector.close()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "_setup"):
            close(self._setup)


def has_own_room(job: ReadJob) -> bool:
    """Return whether the part of a batch's `Space` that belongs to the job's rows is its own.

    It is not that of a row that another sample takes: the job that failed to read the row has packed its other rows without gaps.
    """
    return len(job.rows) > 0 and int(job.rows["row"][0]) not in job.batch.attempts


class _Wakeup:
    """Wakes a thread that waits in `select`. `ring` is one system call at most, and takes no lock."""

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


def sendable(value: Any) -> bytes:
    """The value as bytes; an error where it holds what another process cannot load."""
    target = io.BytesIO()
    _Sender(target).dump(value)
    return target.getvalue()


def _file_of(content: bytes) -> int:
    """The descriptor of a file without a name that holds this."""
    file = os.memfd_create("tfprep-setup", os.MFD_CLOEXEC)
    with open(file, "wb", closefd=False) as target:
        target.write(content)
    return file


_open_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _close_at_exit(pool: WorkerPool) -> None:
    if not _open_pools:
        atexit.register(_close_all)
    _open_pools.add(pool)


def _close_all() -> None:
    for pool in list(_open_pools):
        pool.close()
