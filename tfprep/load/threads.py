"""The threads of a loader, which run tasks in the order in which they come, and the state of each."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import Array

JOIN_S = 1.0
"""Time that `join` waits for the threads: one that hangs in a read ends by itself when the read does."""


@dataclass(eq=False)
class ThreadState:
    """The counters and the stage of one thread. Only that thread writes them; others may read them a moment late."""

    name: str = ""
    stage: str = "waiting for work"
    path: Path | None = None
    offset: int = 0
    since: float = field(default_factory=time.monotonic)
    is_linked: bool = False
    """A worker process does the work, and counts the time."""
    records_read: int = 0
    records_cached: int = 0
    bytes_read: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    idle_s: float = 0.0
    fetched: Any = None
    """What was fetched from URLs for the batch that the thread fills (`tfprep.load.reader.files.Fetched`)."""
    _rooms: dict[str, Array] = field(default_factory=dict)

    def enter(self, stage: str) -> None:
        """Note what comes next; the time since the last note goes to the stage that ends."""
        now = time.monotonic()
        spent = now - self.since
        if self.is_linked:
            pass
        elif self.stage == "read":
            self.read_s += spent
        elif self.stage == "decode":
            self.decode_s += spent
        else:
            self.idle_s += spent
        self.stage, self.since = stage, now

    def array(self, shape: tuple[int, ...], dtype: str, purpose: str) -> Array:
        """An array over memory of its own, the same for every call with this purpose; it grows as it is needed."""
        typed: Array = self.room(prod(shape) * np.dtype(dtype).itemsize, purpose).view(dtype)
        return typed.reshape(shape)

    def room(self, nbytes: int, purpose: str) -> Array:
        """Memory of its own as uint8 [nbytes], as in `array`."""
        room = self._rooms.get(purpose)
        if room is None or len(room) < nbytes:
            room = self._rooms[purpose] = np.empty(nbytes + nbytes // 4, np.uint8)
        return room[:nbytes]

    def add(self, nbytes: int, read_s: float, decode_s: float, idle_s: float) -> None:
        """Add what a worker process has read, in bytes, and how many seconds it has read, decoded and had no work."""
        self.bytes_read += nbytes
        self.read_s += read_s
        self.decode_s += decode_s
        self.idle_s += idle_s

    def describe(self) -> str:
        where = f" {self.path} at byte {self.offset}" if self.path is not None else ""
        return f"{self.name}: {self.stage}{where} for {time.monotonic() - self.since:.1f} s"


Task: TypeAlias = Callable[[ThreadState], None]


T = TypeVar("T")


class WeakList(Generic[T]):
    """Objects that live as long as others hold them.

    Unlike a `WeakSet`, it runs no code when one of them goes: Python ignores a Ctrl-C that arrives in such code. It has no lock,
    which a forked process could find taken.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}
        self._numbers = itertools.count()

    def add(self, value: T) -> None:
        for number, reference in self._references.copy().items():
            if reference() is None:
                self._references.pop(number, None)
        self._references[next(self._numbers)] = weakref.ref(value)

    def __iter__(self) -> Iterator[T]:
        return (value for reference in self._references.copy().values() if (value := reference()) is not None)


class Threads:
    """Daemon threads that run tasks in the order in which they come. `stop` takes no lock, so that a finalizer may call it."""

    def __init__(self, fewer: str = "use fewer `threads`, or ") -> None:
        self._fewer = fewer
        self.states: list[ThreadState] = []
        self.threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()

    def grow(self, count: int) -> None:
        """Start threads until there are `count`. LoaderError where the system allows no more."""
        with self._lock:
            while len(self.threads) < count:
                state = ThreadState(f"tfprep-read-{len(self.threads)}")
                thread = threading.Thread(target=_run_tasks, args=(self._tasks, state), name=state.name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise LoaderError(
                        f"thread {len(self.threads) + 1} of {count} cannot be started ({error}); {self._fewer}raise the limit of "
                        "processes (ulimit -u) or of addresses (ulimit -v)"
                    ) from error
                self.states.append(state)
                self.threads.append(thread)

    def submit(self, task: Task) -> None:
        """Let a thread run this task, after all that were submitted before."""
        self._tasks.put(task)

    def stop(self) -> None:
        """End the threads after the tasks that were submitted before."""
        self._tasks.put(None)

    def join(self) -> None:
        """Wait for the threads, at most `JOIN_S` together."""
        end = time.monotonic() + JOIN_S
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, end - time.monotonic()))

    def __del__(self) -> None:
        self.stop()


def _run_tasks(tasks: SimpleQueue[Task | None], state: ThreadState) -> None:
    while (task := tasks.get()) is not None:
        task(state)
        del task  # the memory of its batch
        state.enter("waiting for work")
    tasks.put(None)  # for the next thread: after Ctrl-C in `grow` the number of threads is not known


# --- the loader that a thread takes batches from, for monitors that see only a framework's loop ---------------------------

_of_thread = threading.local()


class CountingLoader(Protocol):
    """A loader with counters."""

    @property
    def stats(self) -> dict[str, Any]:
        """Counters as plain numbers."""


def note_loader(loader: CountingLoader) -> None:
    """Note that this thread takes a batch from `loader`."""
    if loader_of_this_thread() is not loader:
        _of_thread.loader = weakref.ref(loader)


def loader_of_this_thread() -> CountingLoader | None:
    """Return the loader that this thread took its last batch from; None since `forget_loader`."""
    reference = getattr(_of_thread, "loader", None)
    return reference() if reference is not None else None


def forget_loader() -> None:
    """Forget which loader this thread took its last batch from: another input begins."""
    _of_thread.loader = None
