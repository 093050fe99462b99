"""A worker process as the process that trains sees it: its pipes, the jobs that are with it, and what it died of."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tfprep.child_process import worker_environment
from tfprep.load.reader.batch import Batch
from tfprep.load.reader.rows import Rows
from tfprep.load.reader.thread_state import ThreadState
from tfprep.load.reader.worker_process import REPLY, Outcome

PROGRAM = "from tfprep.load.reader.worker_process import main; main()"
PIPE_BYTES = 32_000
"""No further job for a process that has this many bytes of jobs: a pipe takes 64 KiB, and writing must not block."""
GRACE_S = 1.0
"""Time in which a process whose pipe was closed may end before it is killed."""
ANSWER_S = 1.0
"""Time in which a process may write its stacks down."""
TUNABLES, LARGE_COPY, NEVER = "GLIBC_TUNABLES", 1 << 16, 1 << 32
"""The variable that sets up glibc, the bytes from which on a copy is large, and a size that no copy has."""
CPU_MAKER = "AuthenticAMD"
CACHE_BYTES = 32 << 20
"""The third-level cache that a few cores of these processors share."""


SUCCESS = Outcome()
Reply = tuple[int, int, float, float, float, Outcome]
"""Number of the job, bytes read, seconds of reading, seconds of decoding and without work, and what else is to be said."""


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


class WorkerProcess:
    """One process, its pipes, and the jobs that are with it."""

    def __init__(self, number: int, setup: int, memory: int, environment: Mapping[str, str]) -> None:
        """`setup` and `memory` are file descriptors; `environment` is added to that of all child processes."""
        self.number = number
        self.jobs: dict[int, ReadJob] = {}
        self._in_pipe = 0  # bytes of those jobs
        self._runs_alone = False  # whether one of them is
        self.ready = False
        self._received = bytearray()
        self._log_in_use = threading.Lock()  # `stacks` runs in another thread than what closes the descriptor
        self._ended = False
        self.log = os.memfd_create("tfprep-log", os.MFD_CLOEXEC)
        jobs, self._send = os.pipe()
        self.receive, replies = os.pipe()
        command = [sys.executable, "-c", PROGRAM, *map(str, (setup, jobs, replies, self.log, os.getpid()))]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={**worker_environment(), **environment},
                pass_fds=(setup, jobs, replies, self.log, memory),
                start_new_session=True,  # a terminal's Ctrl-C goes to this process alone
            )
        except BaseException:
            for descriptor in (self._send, self.receive, self.log):
                os.close(descriptor)
            raise
        finally:
            os.close(jobs)
            os.close(replies)

    @property
    def has_room(self) -> bool:
        """Return whether it takes another job. A job that is retried alone runs alone, so that a crash is attributable to it."""
        return self.ready and self._in_pipe < PIPE_BYTES and not self._runs_alone

    def add(self, job: ReadJob) -> None:
        """Note a job that is sent to it next."""
        self.jobs[job.number] = job
        self._in_pipe += job.nbytes
        self._runs_alone = job.deaths > 0

    def done(self, number: int) -> ReadJob:
        """Take out a job that it has finished."""
        job = self.jobs.pop(number)
        self._in_pipe -= job.nbytes
        self._runs_alone = False  # it runs alone
        return job

    def send(self, messages: bytes) -> None:
        data = memoryview(messages)
        with contextlib.suppress(BrokenPipeError):  # its death is found where its replies are read
            while data:
                data = data[os.write(self._send, data) :]

    def replies(self) -> list[Reply] | None:
        """The replies that have come; None when the process has ended."""
        data = os.read(self.receive, 1 << 16)
        if not data:
            return None
        self._received += data
        replies, start, end = [], 0, len(self._received)
        while end - start >= REPLY.size:
            job, nbytes, read_s, decode_s, idle_s, size = REPLY.unpack_from(self._received, start)
            if end - start < REPLY.size + size:
                break
            start += REPLY.size + size
            outcome = pickle.loads(self._received[start - size : start]) if size else SUCCESS
            replies.append((job, nbytes, read_s, decode_s, idle_s, outcome))
        del self._received[:start]
        return replies

    def stacks(self) -> str:
        """The Python stacks of its threads at this moment."""
        with self._log_in_use:
            if self._ended:
                return "  (it has ended)"
            before = os.fstat(self.log).st_size
            self.process.send_signal(signal.SIGUSR1)
            end = time.monotonic() + ANSWER_S
            while time.monotonic() < end:
                time.sleep(0.05)
                size = os.fstat(self.log).st_size
                if size > before and size == os.fstat(self.log).st_size:
                    return os.pread(self.log, size - before, before).decode(errors="replace")
            return "  (it does not answer)"

    def close_jobs(self) -> None:
        os.close(self._send)

    def end(self) -> None:
        """Kill it where it still runs, and close what belongs to it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_S)
        self.process.kill()
        self.process.wait()
        os.close(self.receive)
        with self._log_in_use:
            self._ended = True
            os.close(self.log)


def large_copies(batches_bytes: int) -> dict[str, str]:
    """Return the environment variable that lets glibc write rows of `LARGE_COPY` bytes past the processor's cache.

    An ordinary store reads the memory that it overwrites, and a non-temporal one does not: with 11 batches of 9.6 MB in turn,
    copying a row of 150 kB took 15 instead of 18 us of processor time (AMD EPYC of family 25, glibc 2.36, which by default takes
    `rep movsb` there). With two batches, which the cache holds, it took 15 instead of 12, so batches that take less than
    `CACHE_BYTES` together are written as usual. So they are on other makers' processors, where nothing was measured.
    """
    if batches_bytes < CACHE_BYTES or CPU_MAKER not in _cpu_description():
        return {}
    settings = f"glibc.cpu.x86_non_temporal_threshold={LARGE_COPY:#x}:glibc.cpu.x86_rep_movsb_threshold={NEVER:#x}"
    own = os.environ.get(TUNABLES)
    return {TUNABLES: f"{settings}:{own}" if own else settings}  # of two settings of one name, glibc takes the last


@functools.cache
def _cpu_description() -> str:
    """The first lines of what Linux says of the first processor."""
    try:
        with open("/proc/cpuinfo") as file:
            return file.read(200)
    except OSError:
        return ""


def is_fault(returncode: int) -> bool:
    """Return whether a process ended by what it did itself; other signals than these come from outside."""
    return returncode >= 0 or -returncode in (
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGABRT,
        signal.SIGFPE,
        signal.SIGILL,
    )


def cause_of_death(returncode: int) -> str:
    """Return what a process died of, in words."""
    if returncode >= 0:
        return f"ended with status {returncode}"
    name = signal.Signals(-returncode).name
    hints = {
        "SIGKILL": "killed from outside, or for want of memory",
        "SIGBUS": "a file was cut short, or a disk failed, while it was read",
    }
    return f"died of {name}{f' ({hints[name]})' if name in hints else ''}"
