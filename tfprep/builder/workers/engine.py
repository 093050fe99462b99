"""The interface of engines, which run tasks somewhere and report what became of each; and the engine within this process.

The work is named by `entry`, "package.module:function". That function is called once in each process that runs tasks, with
`argument`, and returns a callable of (task, mark). Task, argument and result are plain JSON, so nothing is pickled. The work
calls `mark(item)` before each item of a task, and `mark(NO_ITEM)` when it goes on without one: a crash, or an item that takes too
long, can so be attributed to one item.
"""

from __future__ import annotations

import importlib
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

Json: TypeAlias = "dict[str, Any]"
Mark: TypeAlias = Callable[[int], None]
Work: TypeAlias = Callable[[Json, Mark], Json]
NO_ITEM = -1
MARK = struct.Struct("<qd")
"""The content of a worker's mark file: its item (`NO_ITEM` between items), and when it began it (`time.monotonic`)."""

MOST_OUTPUT_BYTES = 4000
"""Number of bytes that are reported of what native code writes at one item."""


@dataclass(frozen=True)
class TaskProgress:
    """A running task began this item."""

    task: int
    item: int


@dataclass(frozen=True)
class TaskDone:
    """A task ended with this result, on this node of a cluster."""

    task: int
    result: Json
    node: str = ""


@dataclass(frozen=True)
class TaskCrashed:
    """The process that ran a task died, or was killed because an item took too long; `item` is None if it was between items."""

    task: int
    item: int | None
    reason: str
    node: str = ""


@dataclass(frozen=True)
class WorkerOutput:
    """What native code wrote to standard error while a task made this item (None: between items)."""

    task: int | None
    item: int | None
    text: str


@dataclass(frozen=True)
class NodeNews:
    """A node of a cluster joined the work, was lost, or was refused as it would make other bytes; or all wait for nodes."""

    node: str
    what: Literal["joined", "lost", "refused", "waiting"]
    text: str


@dataclass(frozen=True)
class NothingNew:
    """Nothing happened for a moment."""


WorkerEvent: TypeAlias = "TaskProgress | TaskDone | TaskCrashed | WorkerOutput | NodeNews | NothingNew"


@dataclass(frozen=True)
class WorkerState:
    """What one worker does: its task and item (None if it waits), how long it has been making that item, and on which node."""

    process: int
    task: int | None
    item: int | None
    seconds: float
    node: str = ""


class Engine(Protocol):
    """Runs submitted tasks. `events` yields what happens until no task is left; more tasks may be submitted meanwhile.

    A task that raises ends the run: `events` raises the task's exception if it is a TfprepError, else a BuildError.
    """

    def start(self) -> None:
        """Start the processes, so that they import while the caller plans. A second call does nothing."""
        ...

    def open(self, argument: Json) -> None:
        """Give the work its argument. Tasks may be submitted from now on."""
        ...

    def submit(self, number: int, task: Json, *, urgent: bool = False) -> None:
        """Queue a task; an urgent one comes before all others that wait."""
        ...

    def events(self) -> Iterator[WorkerEvent]: ...

    def workers(self) -> tuple[WorkerState, ...]: ...

    def capacity(self) -> int:
        """Return the number of tasks that can run at the same time now."""
        ...

    def close(self) -> None: ...


def load_entry(entry: str) -> Callable[[Json], Work]:
    module, function = entry.split(":")
    opener: Callable[[Json], Work] = getattr(importlib.import_module(module), function)
    return opener


class Inline:
    """Runs tasks in this process, one after another; a crash of a task is a crash of this process. See `Engine`."""

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

    def events(self) -> Iterator[WorkerEvent]:
        while self._waiting:
            number, task = self._waiting.popleft()
            assert self._work is not None, "open() comes first"
            yield TaskDone(number, self._work(task, lambda item: None))

    def workers(self) -> tuple[WorkerState, ...]:
        return ()

    def capacity(self) -> int:
        return 1

    def close(self) -> None:
        self._waiting.clear()
