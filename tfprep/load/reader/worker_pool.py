"""Worker processes that fill rows in shared memory, so that decoding does not share one interpreter with training.

Each reading thread has a connection to a thread of a process, and sends it rows instead of filling them itself: a `Link` is a
stage as reading is, in another process. The processes are those of `tfprep.child_process`, started and replaced by a thread of
this process; their work is in `tfprep.load.reader.worker_process`.

A process that dies is replaced, and only the rows that it worked on are read again.
"""

from __future__ import annotations

import atexit
import contextlib
import pickle
import selectors
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from multiprocessing import Pipe
from typing import Any

from tfprep.child_process import (
    ChildProcess,
    WorkerOutput,
    ending_of,
    framed,
    open_standard_descriptors,
    worker_environment,
)
from tfprep.errors import LoaderError
from tfprep.load.reader.buffers import SharedMemory
from tfprep.load.reader.rows import Rows, UnreadRow
from tfprep.load.reader.thread_state import ThreadState
from tfprep.load.reader.worker_process import Outcome, Setup, job_message
from tfprep.load.workers import SPARE_LINKS, check_sendable

ENTRY = "tfprep.load.reader.worker_process:open_worker"
START = -1
"""The number of the task that shows that a process has started."""
MOST_DEATHS = 5
"""Give up after this many deaths for each process without a finished job in between."""
LISTED_DEATHS = 100
LOOK_S = 0.25
"""Time between two looks whether the processes are still wanted: `stop` may not wake the thread that replaces them."""
CLOSED = "the loader is closed; make a new one"
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
"""Signals by which a process ends for what it did itself; others come from outside."""


class WorkerProcess(ChildProcess):
    """One process with its connections."""

    def __init__(self, setup: Setup, environment: Mapping[str, str], number: int, links: int) -> None:
        open_standard_descriptors()
        pairs = [Pipe() for _ in range(links)]
        descriptors = [theirs.fileno() for _, theirs in pairs]
        super().__init__(ENTRY, environment, pass_fds=(setup.memory, *descriptors), own_session=True)
        self.connections = [ours for ours, _ in pairs]  # closed when the last thread that uses one lets go of this
        for _, theirs in pairs:
            theirs.close()
        self.number, self.name = number, f"worker process {number} (pid {self.process.pid})"
        self.is_ready, self.cause, self.is_fault = False, "", False
        tasks = [framed((thread, descriptors)) for thread in range(setup.threads)]
        self.send(framed((setup, setup.threads)) + framed((START, ())) + b"".join(tasks))

    def take_messages(self) -> bool:
        """Take up what it has sent; return False at the end of that.

        Raises:
            LoaderError: It could not start.
        """
        messages = self.receive()
        for kind, content in messages or ():
            if kind == "failed":
                name, text = content
                *_, reason = text.strip().splitlines() or [""]  # of a traceback its last line, with the name
                raise LoaderError(reason if reason.startswith(name) else f"{name}: {reason}")
            if kind == "done":
                self.is_ready = True
            elif isinstance(content, WorkerOutput):
                _show(content.text)
        return messages is not None

    def fill(self, link: int, job: bytes) -> Outcome | None:
        """Let a thread of the process fill rows; None where the process is gone."""
        try:
            self.connections[link].send_bytes(job)
            outcome: Outcome = pickle.loads(self.connections[link].recv_bytes())
        except (EOFError, OSError):
            return None
        return outcome

    def end(self) -> int:
        """Wait until the process is gone, and note what it died of."""
        _show(self.output_tail())
        status = super().end()
        self.is_ready = False
        self.is_fault = status >= 0 or -status in FAULTS
        self.cause = f"was {ending_of(status)}" if status < 0 else ending_of(status)
        return status


class Link:
    """A connection to a thread of a worker process: a stage that fills rows there (see `Stage`)."""

    def __init__(self, pool: WorkerPool, process: int, number: int) -> None:
        self._pool: WorkerPool = weakref.proxy(
            pool
        )  # which has the links: without a circle, memory is given back at once
        self._process, self._number = process, number
        self._lock = threading.Lock()  # two iterators of a loader share the processes

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """See `Stage`."""
        with self._lock:
            while True:
                worker = self._pool.worker(self._process)
                cached = bool(rows["cached"].all())
                state.path = None if cached else self._pool.setup.reading.paths[int(rows["file"][0])]
                state.offset = int(rows["offset"][0])
                state.enter(worker.name)
                outcome = worker.fill(self._number, self._pool.job(values, rows))
                if outcome is not None:
                    self._pool.deaths_in_a_row = 0
                    return _taken_over(outcome, values, state)
                if self._pool.died_of_fault(worker):
                    return self._pool.fill_alone(values, rows, state)


def _taken_over(outcome: Outcome, values: Mapping[str, Any], state: ThreadState) -> list[UnreadRow]:
    """Put what a process has sent into the batch; return the rows that it could not read."""
    if outcome.error is not None:
        raise outcome.error
    for name, by_row in (outcome.values or {}).items():
        for row, value in by_row.items():
            values[name][row] = value
    state.add(outcome.nbytes, outcome.read_s, outcome.decode_s, outcome.idle_s)
    return list(outcome.unread)


class WorkerPool:
    """So many worker processes, which start with the first reader. `stop` takes no lock."""

    def __init__(self, setup: Setup, memory: SharedMemory, processes: int) -> None:
        """Raises an error where the setup cannot be sent to another process."""
        check_sendable(setup)
        self.setup, self.memory, self.processes = setup, memory, processes
        self._environment = worker_environment()  # now: while another thread imports OpenCV, `sys.path` has its folder
        self._links_each = setup.threads + SPARE_LINKS
        self.links = [Link(self, *divmod(number, processes)[::-1]) for number in range(processes * self._links_each)]
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._alone = threading.Lock()
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self.deaths_in_a_row = 0
        self.ready = False
        """True when all processes have started: from then on, reading threads leave the work to them."""
        self.failure = ""
        """Why the processes were given up."""
        self.deaths: deque[str] = deque(maxlen=LISTED_DEATHS)
        """Causes of death of processes."""

    def start(self) -> None:
        """Start the processes, unless they were started or stopped before."""
        with self._changed:
            if self._stopping or self._thread is not None:
                return
            if not _open_pools:
                atexit.register(_close_all)
            _open_pools.add(self)
            thread = threading.Thread(target=self._run, name="tfprep-workers", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self.failure, self._stopping = f"the thread that starts them cannot be started ({error})", True
                return
            self._thread = thread

    def stop(self) -> None:
        """Ask for the end of the processes. Takes no lock and waits for nothing."""
        self._stopping = True

    @property
    def stopped(self) -> bool:
        """Return whether its processes were ended, or will be at once."""
        return self._stopping

    def close(self) -> None:
        """End the processes and wait for that."""
        self.stop()
        if self._thread is None or self._thread is threading.current_thread():
            return
        for worker in list(self._workers):  # here: the thread may wait for one that does not read its pipe
            worker.process.kill()
        self._thread.join()

    # --- what links ask for -------------------------------------------------------------------------------------------

    def worker(self, number: int) -> WorkerProcess:
        """The process of this number, or the one that replaces it, when it has started.

        Raises:
            LoaderError: The processes were given up, or the loader was closed.
        """
        with self._changed:
            while not self._stopping:
                if self._workers[number].is_ready:
                    return self._workers[number]
                self._changed.wait()
        raise LoaderError(f"{self.failure}; workers='threads' reads without processes" if self.failure else CLOSED)

    def died_of_fault(self, worker: WorkerProcess) -> bool:
        """Return whether a process that is gone has died of what it did itself, and not by a signal from outside."""
        with self._changed:
            while not (worker.cause or self._stopping):
                self._changed.wait()
        return worker.is_fault

    def job(self, values: Mapping[str, Any], rows: Rows) -> bytes:
        """The message by which a process is given rows."""
        offsets = [self.memory.offset(values[output.name]) for output in self.setup.outputs]
        return job_message(len(next(iter(values.values()))), offsets, rows)

    def fill_alone(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """Fill rows one of which may have ended a process: one by one in a process of their own, so that a crash is attributable.

        A row that ends it again is bad. Checksums are compared, so that a damaged record is found before it is decoded, and files
        are not mapped: one that was cut short is an error then.
        """
        unread: list[UnreadRow] = []
        worker: WorkerProcess | None = None
        with self._alone:
            try:
                for number in range(len(rows)):
                    row = rows.take([number])
                    row["verify"][:] = 1
                    outcome, deaths = None, 0
                    while outcome is None:
                        if worker is None:
                            worker = WorkerProcess(self.setup, self._environment, self.processes, 1)
                            while not worker.is_ready and worker.take_messages():
                                pass
                        has_started = worker.is_ready
                        outcome = worker.fill(0, self.job(values, row))
                        if outcome is not None:
                            break
                        worker.end()
                        self.deaths.append(f"{worker.name} {worker.cause}")
                        cause, is_fault, worker = worker.cause, worker.is_fault and has_started, None
                        if is_fault:
                            outcome = Outcome([UnreadRow(0, f"a worker process that read it {cause}")])
                        elif (deaths := deaths + 1) > MOST_DEATHS:
                            raise LoaderError(
                                f"{deaths} worker processes that read one row died one after another, the last one: it {cause}; "
                                "workers='threads' reads without processes"
                            )
                    unread += [UnreadRow(number, bad.reason) for bad in _taken_over(outcome, values, state)]
            finally:
                if worker is not None:
                    worker.process.kill()
                    worker.end()
        return unread

    # --- the thread that starts and replaces processes ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            for number in range(self.processes):
                self._workers.append(self._started(number))
            while not self._stopping:
                for key, _ in self._selector.select(LOOK_S):
                    if not key.data.take_messages():
                        self._replace(key.data)
                    with self._changed:
                        self.ready = self.ready or all(worker.is_ready for worker in self._workers)
                        self._changed.notify_all()
        except BaseException as error:
            self._give_up(f"the worker processes cannot go on ({type(error).__name__}: {error})")
        finally:
            self.ready = False
            left = [worker for worker in self._workers if not worker.cause]
            for worker in left:
                worker.process.kill()
            try:
                for worker in left:
                    worker.end()
            finally:
                self._stopping = True
                with self._changed:
                    self._changed.notify_all()
                self._selector.close()

    def _started(self, number: int) -> WorkerProcess:
        worker = WorkerProcess(self.setup, self._environment, number, self._links_each)
        self._selector.register(worker.output, selectors.EVENT_READ, worker)
        return worker

    def _replace(self, worker: WorkerProcess) -> None:
        """Note what a process died of, and start another one in its place."""
        self._selector.unregister(worker.output)
        worker.end()
        if self._stopping:
            return
        self.deaths.append(f"{worker.name} {worker.cause}")
        self.deaths_in_a_row += 1
        if self.deaths_in_a_row > MOST_DEATHS * self.processes:
            died = f"{self.deaths_in_a_row} worker processes died one after another, the last one: it {worker.cause}"
            self._give_up(died)
        else:
            self._workers[worker.number] = self._started(worker.number)

    def _give_up(self, reason: str) -> None:
        self.failure = reason
        self._stopping = True


def _show(text: str) -> None:
    """Write what a process wrote to its standard output and error to that of this one, if it has any."""
    with contextlib.suppress(OSError, ValueError):  # it is closed, its reader is gone, or its disk is full
        if text and sys.stderr is not None:
            sys.stderr.write(text)


_open_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _close_all() -> None:
    for pool in list(_open_pools):
        pool.close()
