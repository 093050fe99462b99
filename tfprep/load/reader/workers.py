"""Worker processes that fill rows in shared memory, so that decoding does not share one interpreter with training.

Rows are tasks of a `tfprep.pool.Pool`: the numbers of the rows go to a process, and counts come back. The rows of a process that
dies are read again by another one, and a row that ends every process is a bad record.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tfprep.codecs.raw import require_bfloat16
from tfprep.errors import BuildError, LoaderError
from tfprep.load.budget import SPARE_TASKS
from tfprep.load.outputs import Output
from tfprep.load.reader.rows import Reading, RowReader, Rows, UnreadRow, stop_opencv_threads
from tfprep.load.slots import SharedMemory
from tfprep.load.threads import ThreadState
from tfprep.pool import ENDED, Mark, Pool, Task, Work, sendable_error

if TYPE_CHECKING:  # it imports pyarrow, which worker processes do without
    from tfprep.load.reader.batch import Batch, Chunk

# --- in the worker process ---------------------------------------------------------------------------------------------


Job: TypeAlias = tuple[Sequence[int], Any]
"""The offsets of a batch's arrays in the shared memory, and rows to be filled, as `Rows.table`. A task is a list of jobs, and its
items are all their rows."""
Unread: TypeAlias = Sequence[UnreadRow] | BaseException
"""Rows that cannot be read, or an error."""
Filled: TypeAlias = "Callable[[Batch, Rows, Unread], None]"
"""Is told which rows of a batch were filled, but for those that cannot be read."""
Outcome: TypeAlias = tuple[Sequence[tuple[Unread, Mapping[str, Mapping[int, Any]]]], tuple[int, float, float, float]]
"""What is unread of each job of a task, and the values that are sent by output and row; the bytes that were read, and the seconds
of reading, decoding and waiting."""


def open_worker(setup: tuple[Reading, int]) -> Work:
    """Return the work of a process, from what it reads and the descriptor of the shared memory."""
    if hasattr(os, "SCHED_BATCH"):
        # A thread that has read or waited does not take the processor from the thread that trains (sched(7)).
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    reading, descriptor = setup
    dtypes = {field.spec.dtype for fields in reading.fields for field in fields}
    if "bfloat16" in dtypes | {output.dtype for output in reading.outputs}:
        require_bfloat16()
    memory, reader = mmap.mmap(descriptor, 0), RowReader(reading)
    reader.maps = not reading.announce  # what is not in the page cache is read in larger pieces
    stop_opencv_threads(reading)
    shared = _shared(reading)
    sent_names = [output.name for output in reading.outputs if not output.has_array]
    if "tensorflow" in sys.modules:
        raise ImportError("a codec or an op of this dataset imports TensorFlow, which worker processes do without")
    began, own = time.monotonic(), threading.local()

    def fill(values: Mapping[str, Any], rows: Rows, state: ThreadState, mark: Mark, first_item: int) -> list[UnreadRow]:
        """Fill rows; one by one after one of them may have ended a process.

        Checksums are compared then, so that a damaged record is found before it is decoded, and no mapping is read any more.
        """
        if not mark.careful:
            return reader.fill(values, rows, state)
        reader.maps = False
        unread = []
        for number in range(len(rows)):
            if (reason := mark.lost.get(first_item + number)) is not None:
                unread.append(UnreadRow(number, f"each process that read it ended: {reason}"))
                continue
            mark(first_item + number)
            row = rows.take([number])
            row["verify"][:] = 1
            unread += [UnreadRow(number, bad.reason) for bad in reader.fill(values, row, state)]
        return unread

    def work(jobs: Sequence[Job], mark: Mark) -> Outcome:
        state: ThreadState = own.__dict__.setdefault("state", ThreadState(since=began))
        state.enter("work")
        outcomes: list[tuple[Unread, Mapping[str, Mapping[int, Any]]]] = []
        first_item = 0
        for offsets, table in jobs:
            rows = Rows(table)
            count, form = int(rows["row"].max()) + 1, int(rows["form"][0])
            values = {
                output.name: np.ndarray(
                    (count, *output.of_form(form).fixed_shape), output.dtype, buffer=memory, offset=offset
                )
                for output, offset in zip(shared, offsets, strict=True)
            }
            sent: dict[str, dict[int, Any]] = {name: {} for name in sent_names}
            try:
                outcomes.append((fill(values | sent, rows, state, mark, first_item), sent))
            except BaseException as error:
                outcomes.append((sendable_error(error, RuntimeError), {}))
            first_item += len(rows)
        state.enter("waiting for work")
        counts = state.bytes_read, state.read_s, state.decode_s, state.idle_s
        state.bytes_read, state.read_s, state.decode_s, state.idle_s = 0, 0.0, 0.0, 0.0
        return outcomes, counts

    return work


def _shared(reading: Reading) -> list[Output]:
    """The outputs whose arrays are in shared memory; the values of the others, text and fields of N rows, are sent back."""
    return [output for output in reading.outputs if output.has_array]


# --- in the process that trains -----------------------------------------------------------------------------------------

ENTRY = "tfprep.load.reader.workers:open_worker"
CLOSED = "the loader is closed; make a new one"


class WorkerPool(Pool):
    """The worker processes of a loader, which start with its first pass (`on_done(answer)`).

    Attributes:
        state: Counts what the processes have read and decoded.
    """

    def __init__(self, reading: Reading, memory: SharedMemory, processes: int, threads: int) -> None:
        """`threads` threads of each process work at a time."""
        super().__init__(
            ENTRY, (reading, memory.fd), processes, threads=threads, ahead=SPARE_TASKS, pass_fds=(memory.fd,)
        )
        self._paths, self._shared, self._memory = reading.paths, _shared(reading), memory
        self.state = ThreadState("tfprep-pool")

    def fill(self, chunks: list[Chunk], then: Filled) -> None:
        """Let a process fill these rows as one task, and call `then` for each chunk."""
        jobs = []
        try:
            for batch, rows in chunks:
                arrays = [batch.values[output.name] for output in self._shared]
                jobs.append((list(map(self._memory.offset, arrays)), rows.table))
            self.submit(jobs, (chunks, then))
        except Exception as error:
            for batch, rows in chunks:
                then(batch, rows, _ended(error) if isinstance(error, BuildError) else error)

    def describe(self) -> list[str]:
        """Return the first task of each process: the process, where it reads, and since when."""
        lines = []
        for task in filter(None, [process.task for process in self.workers()]):
            for _, rows in task.note[0][:1]:
                file, offset, _ = rows.place
                since_s = time.monotonic() - task.since
                lines.append(f"{task.worker} {self._paths[int(file[0])]} at byte {offset[0]} for {since_s:.1f} s")
        return lines


def answer(counts: ThreadState, task: Task, result: Any) -> None:
    """Let go of each chunk of a task that is done, as where threads read."""
    chunks, then = task.note
    if isinstance(result, BaseException):
        result = [(_ended(result), {}) for _ in chunks], (0, 0.0, 0.0, 0.0)
    counts.add(*result[1])
    for unread, sent in result[0]:
        batch, rows = chunks.pop(0)
        for name, by_row in sent.items():
            for row, value in by_row.items():
                batch.values[name][row] = value
        then(batch, rows, unread)


def _ended(error: BaseException) -> LoaderError:
    """Return the error of rows that no process fills any more."""
    return LoaderError(CLOSED if str(error) == ENDED else f"{error}; workers='threads' reads without processes")
