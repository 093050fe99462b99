"""Worker processes that fill rows in shared memory, so that decoding does not share one interpreter with training.

Rows are tasks of a `tfprep.pool.Pool`: the numbers of the rows go to a process, and counts come back. The rows of a process that
dies are read again by another one, and a row that ends every process is a bad record.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tfprep.codecs.raw import require_bfloat16
from tfprep.errors import BuildError, LoaderError
from tfprep.load.budget import SPARE_TASKS
from tfprep.load.outputs import Output
from tfprep.load.reader.rows import Reading, RowReader, Rows, UnreadRow, stop_opencv_threads
from tfprep.load.slots import MappedMemory, SharedMemory
from tfprep.load.threads import ThreadState
from tfprep.pool import ENDED, Mark, Pool, Task, Work, sendable_error

# --- in the worker process ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What a worker process needs besides the jobs.

    `memory` is a file descriptor; `outputs` are the arrays that it fills, `sent` the outputs whose values it sends back: text,
    and fields of N rows; `threads` of its threads work at a time.
    """

    reading: Reading
    memory: int
    outputs: Sequence[Output]
    sent: Sequence[str]
    threads: int


class Job(NamedTuple):
    """Rows to be filled, as `Rows.table`, of a batch of `batch_rows` whose arrays are at these offsets in the shared memory."""

    batch_rows: int
    offsets: Sequence[int]
    table: Any


class Outcome(NamedTuple):
    """Rows that cannot be read, the values that are sent by output and row, an error, and counts.

    The counts are the bytes that were read, and the seconds of reading, decoding and waiting.
    """

    unread: Sequence[UnreadRow] = ()
    values: Mapping[str, Mapping[int, Any]] = {}  # can be sent, unlike a MappingProxyType
    error: BaseException | None = None
    counts: tuple[int, float, float, float] = (0, 0.0, 0.0, 0.0)


def open_worker(setup: Setup) -> Work:
    """Return the work of a process: a task is a `Job`, its items are the rows."""
    if hasattr(os, "SCHED_BATCH"):
        # A thread that has read or waited does not take the processor from the thread that trains (sched(7)).
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    dtypes = {field.spec.dtype for fields in setup.reading.fields for field in fields}
    if "bfloat16" in dtypes | {target.output.dtype for target in setup.reading.targets}:
        require_bfloat16()
    memory, reader = MappedMemory(setup.memory), RowReader(setup.reading)
    reader.maps = not setup.reading.announce  # what is not in the page cache is read in larger pieces
    stop_opencv_threads(setup.reading)
    if "tensorflow" in sys.modules:
        raise ImportError("a codec or an op of this dataset imports TensorFlow, which worker processes do without")
    began, own = time.monotonic(), threading.local()

    def fill(values: Mapping[str, Any], rows: Rows, state: ThreadState, mark: Mark) -> list[UnreadRow]:
        """Fill rows; one by one after one of them may have ended a process.

        Checksums are compared then, so that a damaged record is found before it is decoded, and no mapping is read any more.
        """
        if not mark.careful:
            return reader.fill(values, rows, state)
        reader.maps = False
        unread = [
            UnreadRow(number, f"each process that read it ended: {reason}") for number, reason in mark.lost.items()
        ]
        for number in sorted(set(range(len(rows))) - mark.lost.keys()):
            mark(number)
            row = rows.take([number])
            row["verify"][:] = 1
            unread += [UnreadRow(number, bad.reason) for bad in reader.fill(values, row, state)]
        return sorted(unread)

    def work(job: Job, mark: Mark) -> Outcome:
        state: ThreadState = own.__dict__.setdefault("state", ThreadState(since=began))
        state.enter("work")
        values: dict[str, Any] = {}
        rows = Rows(job.table)
        for output, offset in zip(setup.outputs, job.offsets, strict=True):
            shape = output.of_form(int(rows["form"][0])).fixed_shape
            values[output.name] = memory.array(offset, (job.batch_rows, *shape), output.dtype)
        sent: dict[str, dict[int, Any]] = {name: {} for name in setup.sent}
        try:
            unread = fill(values | sent, rows, state, mark)
        except BaseException as error:
            return Outcome(error=sendable_error(error, RuntimeError))
        state.enter("waiting for work")
        counts = state.bytes_read, state.read_s, state.decode_s, state.idle_s
        state.bytes_read, state.read_s, state.decode_s, state.idle_s = 0, 0.0, 0.0, 0.0
        return Outcome(unread, sent, counts=counts)

    return work


# --- in the process that trains -----------------------------------------------------------------------------------------

ENTRY = "tfprep.load.reader.workers:open_worker"
CLOSED = "the loader is closed; make a new one"
Then: TypeAlias = Callable[[Sequence[UnreadRow] | BaseException], None]
"""Gets the rows that cannot be read, or an error, in the thread of the pool."""


class _Note(NamedTuple):
    """What the parent keeps of a job."""

    values: Mapping[str, Any]
    where: str
    state: ThreadState
    then: Then


class WorkerPool(Pool):
    """The worker processes of a loader, which start with its first pass (`on_done(answer)`).

    Attributes:
        tasks: The number of tasks that the processes take at a time.
        state: Counts what the processes have read and decoded.
    """

    def __init__(self, setup: Setup, memory: SharedMemory, processes: int) -> None:
        super().__init__(ENTRY, setup, processes, threads=setup.threads, ahead=SPARE_TASKS, pass_fds=(setup.memory,))
        self._setup, self._memory = setup, memory
        self.tasks = processes * (setup.threads + SPARE_TASKS)
        self.state = ThreadState("tfprep-pool")

    @property
    def is_working(self) -> bool:
        """True if all processes have started, and the pool was not given up."""
        return self.ready and not self.failure

    def fill(self, values: Mapping[str, Any], rows: Rows, then: Then) -> None:
        """Let a process fill rows of the arrays in `values`, and call `then`."""
        file, offset, _ = rows.place
        where = f" {self._setup.reading.paths[int(file[0])]} at byte {offset[0]}"
        offsets = [self._memory.offset(values[output.name]) for output in self._setup.outputs]
        job = Job(len(next(iter(values.values()))), offsets, rows.table)
        try:
            self.submit(job, _Note(values, where, self.state, then))
        except BuildError as error:
            then(_ended(error))

    def describe(self) -> list[str]:
        """Return the first task of each process: the process, where it reads, and since when."""
        tasks = [state.task for state in self.workers() if state.task is not None]
        return [f"{task.worker}{task.note.where} for {time.monotonic() - task.since:.1f} s" for task in tasks]


def answer(task: Task, result: Any) -> None:
    values, _, state, then = task.note
    if isinstance(result, Outcome):
        for name, by_row in result.values.items():
            for row, value in by_row.items():
                values[name][row] = value
        state.add(*result.counts)
        then(result.unread if result.error is None else result.error)
    else:
        then(_ended(result))


def _ended(error: BuildError) -> LoaderError:
    """Return the error of rows that no process fills any more."""
    return LoaderError(CLOSED if str(error) == ENDED else f"{error}; workers='threads' reads without processes")
