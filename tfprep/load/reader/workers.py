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
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tfprep.codecs.raw import require_bfloat16
from tfprep.errors import BuildError, LoaderError
from tfprep.load.budget import SPARE_TASKS
from tfprep.load.outputs import Output
from tfprep.load.reader.rows import Reading, RowReader, Rows, UnreadRow, stop_opencv_threads
from tfprep.load.slots import SharedMemory
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


Job: TypeAlias = tuple[Sequence[int], Any]
"""The offsets of a batch's arrays in the shared memory, and rows to be filled, as `Rows.table`. A task is a list of jobs, and its
items are all their rows."""
Unread: TypeAlias = Sequence[UnreadRow] | BaseException
"""Rows that cannot be read, or an error."""
Outcome: TypeAlias = tuple[Sequence[tuple[Unread, Mapping[str, Mapping[int, Any]]]], tuple[int, float, float, float]]
"""What is unread of each job of a task, and the values that are sent by output and row; the bytes that were read, and the seconds
of reading, decoding and waiting."""


def open_worker(setup: Setup) -> Work:
    """Return the work of a process."""
    if hasattr(os, "SCHED_BATCH"):
        # A thread that has read or waited does not take the processor from the thread that trains (sched(7)).
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    dtypes = {field.spec.dtype for fields in setup.reading.fields for field in fields}
    if "bfloat16" in dtypes | {target.output.dtype for target in setup.reading.targets}:
        require_bfloat16()
    memory, reader = mmap.mmap(setup.memory, 0), RowReader(setup.reading)
    reader.maps = not setup.reading.announce  # what is not in the page cache is read in larger pieces
    stop_opencv_threads(setup.reading)
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
                for output, offset in zip(setup.outputs, offsets, strict=True)
            }
            sent: dict[str, dict[int, Any]] = {name: {} for name in setup.sent}
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


# --- in the process that trains -----------------------------------------------------------------------------------------

ENTRY = "tfprep.load.reader.workers:open_worker"
CLOSED = "the loader is closed; make a new one"


class Part(NamedTuple):
    """Some rows of a batch (`tfprep.load.reader.batch.Batch`), and what is called when they are filled."""

    batch: Any
    rows: Rows
    then: Callable[[Unread], None]


class WorkerPool(Pool):
    """The worker processes of a loader, which start with its first pass (`on_done(answer)`).

    Attributes:
        state: Counts what the processes have read and decoded.
    """

    def __init__(self, setup: Setup, memory: SharedMemory, processes: int) -> None:
        super().__init__(ENTRY, setup, processes, threads=setup.threads, ahead=SPARE_TASKS, pass_fds=(setup.memory,))
        self._setup, self._memory = setup, memory
        self.state = ThreadState("tfprep-pool")

    def fill(self, parts: list[Part]) -> None:
        """Let a process fill these rows as one task, and call `then` of each part."""
        jobs = []
        try:
            for batch, rows, _ in parts:
                arrays = [batch.values[output.name] for output in self._setup.outputs]
                jobs.append((list(map(self._memory.offset, arrays)), rows.table))
            self.submit(jobs, parts)
        except Exception as error:
            for part in parts:
                part.then(_ended(error) if isinstance(error, BuildError) else error)

    def describe(self) -> list[str]:
        """Return the first task of each process: the process, where it reads, and since when."""
        paths, lines = self._setup.reading.paths, []
        for task in filter(None, [process.task for process in self.workers()]):
            for _, rows, _ in task.note[:1]:
                file, offset, _ = rows.place
                since_s = time.monotonic() - task.since
                lines.append(f"{task.worker} {paths[int(file[0])]} at byte {offset[0]} for {since_s:.1f} s")
        return lines


def answer(counts: ThreadState, task: Task, result: Any) -> None:
    """Let go of each part with its `then`, as where threads read."""
    parts: list[Part] = task.note
    if isinstance(result, BaseException):
        result = [(_ended(result), {}) for _ in parts], (0, 0.0, 0.0, 0.0)
    counts.add(*result[1])
    for unread, sent in result[0]:
        batch, _, then = parts.pop(0)
        for name, by_row in sent.items():
            for row, value in by_row.items():
                batch.values[name][row] = value
        then(unread)


def _ended(error: BaseException) -> LoaderError:
    """Return the error of rows that no process fills any more."""
    return LoaderError(CLOSED if str(error) == ENDED else f"{error}; workers='threads' reads without processes")
