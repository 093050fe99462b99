"""Worker processes that fill rows in shared memory, so that decoding does not share one interpreter with training.

Each reading thread has a `Link`, a stage as reading is, which sends rows to a process of a `tfprep.pool.Pool` in place of filling
them itself. Their work is in `tfprep.load.reader.worker_process`. The rows of a process that dies are read again by another one,
and a row that ends every process is a bad record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

from tfprep.errors import BuildError, LoaderError
from tfprep.load.reader.rows import Rows, UnreadRow
from tfprep.load.reader.thread_state import ThreadState
from tfprep.load.reader.worker_process import COUNTS, Outcome, Setup, job_message
from tfprep.load.slots import SharedMemory
from tfprep.load.workers import SPARE_LINKS, check_sendable
from tfprep.pool import Pool, Task

ENTRY = "tfprep.load.reader.worker_process:open_worker"
CLOSED = "the loader is closed; make a new one"


class Link:
    """A stage that fills rows in a worker process (see `Stage`). For one thread at a time."""

    def __init__(self, pool: Pool, setup: Setup, memory: SharedMemory) -> None:
        self._pool, self._setup, self._memory = pool, setup, memory

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """See `Stage`. Raises LoaderError if the processes were given up, or the loader was closed."""
        cached = bool(rows["cached"].all())
        state.path = None if cached else self._setup.reading.paths[int(rows["file"][0])]
        state.offset = int(rows["offset"][0])
        offsets = [self._memory.offset(values[output.name]) for output in self._setup.outputs]
        answers: SimpleQueue[Any] = SimpleQueue()
        try:
            job = job_message(len(next(iter(values.values()))), offsets, rows)
            state.enter(self._pool.submit(job, note=answers).worker)
            answer = answers.get()
        except BuildError:
            answer = None
        if isinstance(answer, bytes):
            answer = Outcome(counts=COUNTS.unpack(answer))
        if not isinstance(answer, Outcome):
            failure = self._pool.failure
            raise LoaderError(f"{failure}; workers='threads' reads without processes" if failure else CLOSED)
        if answer.error is not None:
            raise answer.error
        for name, by_row in answer.values.items():
            for row, value in by_row.items():
                values[name][row] = value
        state.add(*answer.counts)
        return list(answer.unread)


class WorkerPool:
    """The worker processes of a loader, which start with its first reader. `stop` takes no lock."""

    def __init__(self, setup: Setup, memory: SharedMemory, processes: int) -> None:
        """Raises an error where the setup cannot be sent to another process."""
        check_sendable(setup)
        self._pool = Pool(ENTRY, setup, processes, threads=setup.threads, ahead=SPARE_LINKS, pass_fds=(setup.memory,))
        self.links = [Link(self._pool, setup, memory) for _ in range(processes * (setup.threads + SPARE_LINKS))]
        self._started = False

    def start(self) -> None:
        """Start the processes, unless they were started or stopped before."""
        if self._started or self._pool.stopped:
            return
        self._started = True
        try:
            self._pool.on_done(_answer)
        except RuntimeError as error:
            self._pool.failure = f"the thread that starts them cannot be started ({error})"
            self._pool.stop()

    def stop(self) -> None:
        """Ask for the end of the processes. Takes no lock and waits for nothing."""
        self._pool.stop()

    def close(self) -> None:
        """End the processes and wait for that."""
        self._pool.close()

    @property
    def ready(self) -> bool:
        """True when all processes have started: from then on, reading threads leave the work to them."""
        return self._pool.ready

    @property
    def stopped(self) -> bool:
        """Return True if its processes were ended, or will be at once."""
        return self._pool.stopped

    @property
    def failure(self) -> str:
        """Return why the processes were given up."""
        return self._pool.failure

    @property
    def deaths(self) -> deque[str]:
        """Causes of death of processes."""
        return self._pool.deaths


def _answer(task: Task, result: Any) -> None:
    task.note.put(result)
