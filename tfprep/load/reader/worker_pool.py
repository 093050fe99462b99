"""Worker processes that fill rows in shared memory, so that decoding does not share one interpreter with training.

Rows are tasks of a `tfprep.pool.Pool`, whose work is in `tfprep.load.reader.worker_process`: the numbers of the rows go to a
process, and counts come back. The rows of a process that dies are read again by another one, and a row that ends every
process is a bad record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tfprep.errors import BuildError, LoaderError
from tfprep.load.budget import SPARE_TASKS, check_sendable
from tfprep.load.reader.rows import Rows, UnreadRow
from tfprep.load.reader.thread_state import ThreadState
from tfprep.load.reader.worker_process import Job, Outcome, Setup
from tfprep.load.slots import SharedMemory
from tfprep.pool import ENDED, Pool, Task

ENTRY = "tfprep.load.reader.worker_process:open_worker"
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
        """Raises an error where the setup cannot be sent to another process."""
        check_sendable(setup)
        super().__init__(ENTRY, setup, processes, threads=setup.threads, ahead=SPARE_TASKS, pass_fds=(setup.memory,))
        self._setup, self._memory = setup, memory
        self.tasks = processes * (setup.threads + SPARE_TASKS)
        self.state = ThreadState("tfprep-pool")

    def fill(self, values: Mapping[str, Any], rows: Rows, then: Then) -> None:
        """Let a process fill rows of the arrays in `values`, and call `then`."""
        where = (
            ""
            if rows["cached"].all()
            else f" {self._setup.reading.paths[int(rows['file'][0])]} at byte {rows['offset'][0]}"
        )
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
    """Take over the result of a task."""
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
