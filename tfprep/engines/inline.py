"""Tasks in this process, one after another: for debugging, and where no process can be started."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tfprep.engines.engine import Done, Event, Json, Work, WorkerState, load_entry


class Inline:
    """See `Engine`. A crash of a task is a crash of this process."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._work: Work | None = None
        self._waiting: deque[tuple[int, Json]] = deque()

    def start(self) -> None:
        pass

    def open(self, argument: Json) -> None:
        self._work = load_entry(self._entry)(argument)

    def submit(self, number: int, task: Json, *, urgent: bool = False) -> None:
        (self._waiting.appendleft if urgent else self._waiting.append)((number, task))

    def events(self) -> Iterator[Event]:
        while self._waiting:
            number, task = self._waiting.popleft()
            assert self._work is not None, "open() comes first"
            yield Done(number, self._work(task, lambda item: None))

    def workers(self) -> tuple[WorkerState, ...]:
        return ()

    def close(self) -> None:
        self._waiting.clear()
