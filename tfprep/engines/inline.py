"""Tasks in this process, one after another: for debugging, and where no process can be started."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tfprep.engines.engine import Done, Event, Json, Mark, load_work


class Inline:
    """See `Engine`. A crash of a task is a crash of this process."""

    def __init__(self, entry: str, argument: Json, on_item: Mark | None = None) -> None:
        self._work = load_work(entry, argument)
        self._waiting: deque[tuple[int, Json]] = deque()
        self._on_item = on_item or (lambda item: None)

    def submit(self, number: int, task: Json) -> None:
        self._waiting.append((number, task))

    def events(self) -> Iterator[Event]:
        while self._waiting:
            number, task = self._waiting.popleft()
            yield Done(number, self._work(task, self._on_item))

    def close(self) -> None:
        self._waiting.clear()
