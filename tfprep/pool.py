"""Worker processes: builds, loaders, listing and added fields give tasks to one kind of pool.

A task is worked on by a function that `entry` names, "package.module:function". That function is called once in each process with
an argument, and returns a callable of (task, mark). A task consists of numbered items; the work calls `mark(item)` before each
item, and `mark(NO_ITEM)` when it goes on without one.

When a process ends or an item takes too long, its tasks are run again in another process, item by item: each item is announced
before it begins, and no other task runs beside. An item that ends its process at two announced tries (three if SIGKILL or SIGTERM
killed it), or takes too long at one, is lost: the task is run without it (`Mark.lost`). Its second try comes first in its process
(`Mark.first`): neither memory that other items have broken nor a signal from outside, which hits another item each time, costs an
item.

A worker is a fresh `python -m tfprep.pool`: it inherits no threads and no locks, as a forked process would, and a script that
starts it needs no `if __name__ == "__main__"`. It never imports TensorFlow by itself. Messages go to its standard input and come
from its standard output: a header, then bytes, or a pickle of anything else. Since both streams belong to the protocol, the
print() of a user's function goes to standard error, and its input is empty. What native code writes to descriptors 1 and 2
(warnings of libpng and OpenCV, the last lines before an abort), what Python warns and logs, and what its own child processes
print goes to a file, and is reported with the current item. A worker ends with its parent: when standard input closes, and on
Linux by a signal as soon as the thread that started it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import logging
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TextIO, TypeAlias

from tfprep import errors

NO_ITEM = -1
ENDED = "the worker processes were ended"
_FOLDERS = "TFPREP_FOLDERS"
_added: set[str] = set()
"""Folders that `import_from` has added to `sys.path`, in this process or in its parent."""
_CONTENT, _PICKLE, _AGAIN, _ITEM, _OUTPUT, _FAILED, _READY = range(7)
"""Kinds of messages. A task or a result is content (bytes) or a pickle; a task that is run again has more to it."""
_HEADER = struct.Struct("<qqq")
"""Before each message: its kind, the number of its task, and the bytes that follow."""
_NUMBER = struct.Struct("<q")
_NO_TASK = -1
_PIPE_BYTES = 1 << 20
"""The most that Linux gives a pipe of a user without privileges: 16 times the default, for which both ends take fewer turns."""
_READ_BYTES = 1 << 16
"""Bytes that are read at a time: memory for more would come from the system, and go back to it, for each short answer."""
_MOST_OUTPUT_BYTES = 4000
"""Number of bytes that are reported of what native code writes at one item."""
_POLL_S = 0.25
"""How often the time limit of items is checked, and whether a pool is still wanted."""
_GRACE_S = 5.0
"""Time that a process may take to exit after its output has ended, before it is killed."""
_ANNOUNCE_S = 0.2
"""Least time between two announced items of a task in its first run."""
_MOST_TRIES, _MOST_KILLED = 2, 3
"""An item is lost when it has ended its process at this number of announced tries; the second for signals of `_FROM_OUTSIDE`."""
_FROM_OUTSIDE = "SIGKILL", "SIGTERM"
"""Signals that may come from outside, also twice at the item that is tried first."""
_MOST_BETWEEN = 3
"""Give up after more deaths than these while a task was run again and was at no item."""
MOST_DEATHS = 5
"""Give up after more deaths than these, for each process, without a finished item in between."""
_LISTED_DEATHS = 100
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
_KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""The largest thresholds that glibc reaches by itself on 64 bits (mallopt(3)); blocks above the first go back to the system."""


# --- what child processes have in common ------------------------------------------------------------------------------


def import_from(folder: str) -> None:
    """Import from a folder before all others, in this process and in those that it starts from now on."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
        _added.add(folder)


def folders_for_child() -> dict[str, str]:
    """Return the environment variables with which a child process imports from the same folders.

    Folders that `import_from` has added are not among those from the beginning: a file beside a recipe may have the name of a
    module of the standard library, which this process had imported before. The child calls `add_folders_of_parent` when it has
    imported what it needs itself.
    """
    others = [path or os.getcwd() for path in sys.path if path not in _added]
    added = [path for path in sys.path if path in _added]
    return {"PYTHONPATH": os.pathsep.join(others), "PYTHONSAFEPATH": "1", _FOLDERS: os.pathsep.join(added)}


def add_folders_of_parent() -> None:
    """Import from the folders that `import_from` has added in the parent, before all others, as there."""
    for folder in reversed(os.environ.get(_FOLDERS, "").split(os.pathsep)):
        if folder:
            import_from(folder)


def worker_environment() -> dict[str, str]:
    """Return the environment variables of a child process that runs tfprep's code.

    The child imports from the same folders as this process and no others: not from the current folder, unless this process does.
    OpenMP and BLAS get one thread each, because the children already share all cores. glibc keeps the memory of freed arrays,
    unless its variables are set: with the thresholds that it begins with, a photo of a megapixel takes a quarter more time.
    """
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**_KEEP_FREED, **os.environ, **folders_for_child(), **alone}


def open_standard_descriptors() -> None:
    """Open the null device as descriptors 0 to 2 where this process has closed them.

    A descriptor that a child is to inherit would get such a number, and the child's own streams would take its place.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def end_with_parent(parent: int) -> None:
    """End this process, with status 1, if the process `parent` that started it has ended.

    On Linux the kernel kills it as soon as the thread that started it ends. Elsewhere a child must notice that its pipe closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def sendable_error(error: BaseException, substitute: Callable[[str], Exception]) -> BaseException:
    """Return `error` if it survives pickling, else what `substitute` makes of its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return substitute(errors.summary_of(error))
    return error


def ending_of(status: int) -> str:
    """Return how a process ended, in words, by its exit status; negative for a signal."""
    if status >= 0:
        return f"ended with exit status {status}"
    name = signal.Signals(-status).name
    cause = {
        "SIGKILL": " (out of memory?)",
        "SIGSEGV": " (a crash in native code)",
        "SIGBUS": " (a file was cut short, or a disk failed, while it was read)",
    }.get(name, "")
    return f"killed by {name}{cause}"


# --- tasks and events -------------------------------------------------------------------------------------------------


class Mark:
    """Work calls it before each item of a task.

    Attributes:
      careful: True if the task is run again because its process ended: the work then takes one item after the other.
      first: The item to begin with, because its last try ended the process; None for any order.
      lost: The items to leave out, with the reasons.
    """

    careful = False
    first: int | None = None
    lost: Mapping[int, str] = {}

    def __call__(self, item: int) -> None:
        """Note that `item` begins (`NO_ITEM`: the work goes on without one)."""


Work: TypeAlias = Callable[[Any, Mark], Any]


@dataclass(eq=False)
class Task:
    """A task that a pool was given.

    Attributes:
      number: Counts the tasks of the pool.
      content: What the work gets: bytes are sent as they are, all else as a pickle.
      note: Anything of the caller; it is not sent.
      careful: True when it is run again, item by item.
      item: The item that was announced last; None before the first and between items.
      since: When that item began, or the task was sent (`time.monotonic`).
      worker: The name of the process that has it.
      lost: The items that it is run without, with the reasons.
    """

    number: int
    content: Any
    note: Any = None
    careful: bool = False
    item: int | None = None
    since: float = 0.0
    worker: str = ""
    lost: dict[int, str] = field(default_factory=dict)
    first: int | None = None
    tries: Counter[int] = field(default_factory=Counter)
    between: int = 0


@dataclass(frozen=True)
class Progress:
    """A task began this item, or is between items (None)."""

    task: Task
    item: int | None


@dataclass(frozen=True)
class Done:
    """A task ended with this result."""

    task: Task
    result: Any


@dataclass(frozen=True)
class Died:
    """The process number `worker` ended while it had a task, at this item if that is known; the task is run again."""

    task: Task
    item: int | None
    reason: str
    worker: int = 0


@dataclass(frozen=True)
class Lost:
    """An item ends every process that begins it: its task is run without it."""

    task: Task
    item: int
    reason: str


@dataclass(frozen=True)
class Output:
    """Output of native code while a task made this item (None: it is not known which)."""

    task: Task | None
    item: int | None
    text: str


Event: TypeAlias = Progress | Done | Died | Lost | Output | None
"""What happened to a task; None if nothing did for a moment, so that the caller can look after other things."""


@dataclass(frozen=True)
class WorkerState:
    """A worker's process, its task and the item that it announced last (None if it waits), and the time since then."""

    process: int
    task: Task | None
    item: int | None
    seconds: float


def _message(number: int, content: Any, kind: int = _PICKLE) -> bytes:
    body = content if isinstance(content, bytes) else pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    if kind == _PICKLE and body is content:
        kind = _CONTENT
    return _HEADER.pack(kind, number, len(body)) + body


def _load_entry(entry: str) -> Callable[[Any], Work]:
    module, function = entry.split(":")
    opener: Callable[[Any], Work] = getattr(importlib.import_module(module), function)
    return opener


# --- pools ------------------------------------------------------------------------------------------------------------


LATER = object()
"""Stands for the argument of a pool whose `open` will tell it."""


class InlinePool:
    """Runs tasks in this process, one after another, as `Pool` does in others; a crash of a task is one of this process."""

    def __init__(self, entry: str, argument: Any) -> None:
        self._entry = entry
        self._work = None if argument is LATER else _load_entry(entry)(argument)
        self._waiting: deque[Task] = deque()
        self._count = 0

    def start(self) -> None:
        pass

    def open(self, argument: Any) -> None:
        self._work = _load_entry(self._entry)(argument)

    def submit(self, content: Any, note: Any = None) -> Task:
        task = Task(self._count, content, note)
        self._count += 1
        self._waiting.append(task)
        return task

    def events(self) -> Iterator[Event]:
        assert self._work is not None, "open() comes first"
        while self._waiting:
            task = self._waiting.popleft()
            yield Done(task, self._work(task.content, Mark()))

    def workers(self) -> tuple[WorkerState, ...]:
        return ()

    def close(self) -> None:
        self._waiting.clear()


class Pool:
    """Runs tasks in `workers` processes; a process whose item takes longer than `item_timeout_s` is killed.

    A process has at most `threads + ahead` tasks. One that ends is replaced, and what it was doing is run again (see above).
    Either `events` tells what happens, in the thread that starts the processes; or `on_done` is called in a thread of the pool,
    and tasks may be submitted from any thread.

    Attributes:
      ready: Whether all processes have started; from then on it stays so.
      deaths: The ends of the last processes, in words.
      failure: Why the pool of an `on_done` was given up; empty while it works.
    """

    def __init__(
        self, entry: str, argument: Any, workers: int, *, item_timeout_s: float | None = None, threads: int = 1,
        ahead: int = 0, environment: Mapping[str, str] | None = None, pass_fds: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Plan the processes; nothing starts yet.

        Args:
          entry: The function of the work, "package.module:function".
          argument: What it is called with; `LATER` if `open` will tell.
          workers: The number of processes. Each finds its own in the variable `TFPREP_WORKER`, from 0.
          item_timeout_s: Time that an item may take; None for any.
          threads: Threads of a process that work.
          ahead: Small tasks that wait in a process for a thread. Large ones, and large results, fill the pipes of both.
          environment: The environment variables of all processes; None takes those of now (`worker_environment`).
          pass_fds: Descriptors that they inherit.
        """
        self._entry, self._count, self._item_timeout_s = entry, workers, item_timeout_s
        self._threads, self._most_tasks = threads, threads + ahead
        self._environment = dict(environment or worker_environment())
        self._pass_fds = tuple(pass_fds)
        self._argument = None if argument is LATER else _message(_NO_TASK, (argument, threads))
        self._tasks: dict[int, Task] = {}
        self._numbers = 0
        self._waiting: deque[Task] = deque()
        self._again: deque[Task] = deque()
        self._processes: list[_Process] = []
        self._selector = selectors.DefaultSelector()
        self._lock = threading.RLock()
        self._deaths_in_a_row = 0
        self._callback: Callable[[Task, Any], None] | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._process = os.getpid()
        self.ready = False
        self.deaths: deque[str] = deque(maxlen=_LISTED_DEATHS)
        self.failure = ""

    def start(self) -> None:
        """Start the processes, so that they import while the caller goes on. A second call does nothing."""
        for number in range(len(self._processes), self._count):
            self._start_one(number)

    def open(self, argument: Any) -> None:
        """Give the work its argument. Tasks are handed out from now on."""
        with self._lock:
            self._argument = _message(_NO_TASK, (argument, self._threads))
            for process in self._processes:
                process.send(self._argument)
            self._hand_out()

    def submit(self, content: Any, note: Any = None) -> Task:
        """Give a task to a process that has room, or queue it.

        Args:
          content: What the work gets.
          note: Anything of the caller, who finds it in the task again. It is not sent.

        Raises:
          BuildError: The pool was closed or given up, or belongs to the process that forked this one.
        """
        with self._lock:
            if self._process != os.getpid():
                raise errors.BuildError(
                    "the worker processes belong to the process that forked this one; start it by 'spawn'"
                )
            if self._stopping:
                raise errors.BuildError(self.failure or ENDED)
            task = Task(self._numbers, content, note)
            self._numbers += 1
            self._tasks[task.number] = task
            self._waiting.append(task)
            self._hand_out()
        return task

    def events(self) -> Iterator[Event]:
        """Yield what happens until no task is left; more tasks may be submitted meanwhile.

        Raises:
          TfprepError: The exception of a task, which ends the run, or of the start of a process.
          BuildError: The same for other exceptions, with the traceback as text; or processes end again and again.
        """
        self.start()
        while self._tasks:
            with self._lock:
                self._hand_out()
            yield from self._step()

    def on_done(self, callback: Callable[[Task, Any], None]) -> None:
        """Start the processes in a thread that calls `callback(task, result)` for each task; an error is its result as well.

        When processes cannot go on, all tasks that are left get the reason as a BuildError. A second call does nothing.
        """
        if self._thread is not None or self._stopping:
            return
        if not _open_pools:
            atexit.register(_close_all)
        _open_pools.add(self)
        self._callback = callback
        thread = threading.Thread(target=self._call_back, name="tfprep-pool", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self.failure, self._stopping = f"the thread that starts them cannot be started ({error})", True
        else:
            self._thread = thread

    def workers(self) -> tuple[WorkerState, ...]:
        return tuple(process.state() for process in list(self._processes))

    @property
    def stopped(self) -> bool:
        """Return True if the processes were ended, or will be at once."""
        return self._stopping

    def stop(self) -> None:
        """Ask the thread of `on_done` to end the processes. Takes no lock and waits for nothing, so a finalizer may call it."""
        self._stopping = True

    def close(self) -> None:
        """End all processes, whatever they are doing, and wait for that. A forked process leaves its parent's as they are."""
        if self._process != os.getpid():
            return
        self._stopping = True
        for process in list(self._processes):
            process.kill()
        if self._thread is None:
            self._end_all()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start_one(self, number: int) -> None:
        process = _Process(self._entry, self._environment, self._pass_fds, number)
        with self._lock:
            if self._argument is not None:
                process.send(self._argument)
            self._processes.append(process)
            self._selector.register(process.output, selectors.EVENT_READ, process)

    def _end_all(self) -> None:
        with self._lock:
            self._waiting.clear()
            self._again.clear()
            for process in self._processes:
                process.kill()
            for process in self._processes:
                process.end()
            self._processes.clear()
            self._selector.close()

    def _hand_out(self) -> None:
        """Give tasks to processes that have room. A task that is run again has a process to itself."""
        if self._argument is None or not self._processes:
            return
        while self._again and (free := [process for process in self._processes if not process.tasks]):
            free[0].give(self._again.popleft())
        while self._waiting:
            process = min(self._processes, key=lambda one: one.load)
            if process.load >= self._most_tasks:
                return
            process.give(self._waiting.popleft())

    # --- what they say ------------------------------------------------------------------------------------------------

    def _step(self) -> Iterator[Event]:
        """Yield what happens within a moment."""
        ready = self._selector.select(_POLL_S)
        for key, _ in ready:
            yield from self._take(key.data)
        if not ready:
            yield None
        if self._item_timeout_s is None:
            return
        for process in list(self._processes):
            state = process.state()
            slack_s = _ANNOUNCE_S if state.task is not None and not state.task.careful else 0.0
            if state.item is not None and state.seconds > self._item_timeout_s + slack_s:
                process.kill()
                reason = f"no end after {self._item_timeout_s:g} s; its process was killed"
                yield from self._replace(process, reason, most_tries=1)

    def _take(self, process: _Process) -> Iterator[Event]:
        messages = process.receive()
        if messages is None:
            yield from self._replace(process, "")
            return
        for kind, number, body in messages:
            task = self._tasks.get(number)
            if kind == _READY:
                process.is_ready = True
                self.ready = self.ready or all(one.is_ready for one in self._processes)
            elif kind == _OUTPUT:
                item, text = pickle.loads(body)
                yield Output(task, item, text)
            elif kind == _FAILED and (task is None or self._callback is None):
                raise pickle.loads(body)
            elif task is not None and kind == _ITEM:
                self._deaths_in_a_row = 0 if task.item is not None else self._deaths_in_a_row
                (item,) = _NUMBER.unpack(body)
                task.item, task.since = None if item == NO_ITEM else item, time.monotonic()
                yield Progress(task, task.item)
            elif task is not None:
                self._deaths_in_a_row = 0
                with self._lock:
                    del process.tasks[number], self._tasks[number]
                    self._hand_out()
                yield Done(task, body if kind == _CONTENT else pickle.loads(body))

    def _replace(self, process: _Process, reason: str, most_tries: int | None = None) -> Iterator[Event]:
        """Replace a process that has ended, and run its tasks again."""
        self._selector.unregister(process.output)
        tasks = list(process.tasks.values())
        with self._lock:
            self._processes.remove(process)
        tail, ending = process.output_tail(), ending_of(process.end())
        if self._stopping:
            return
        self.deaths.append(f"{process.name} {ending if ending.startswith('ended') else f'was {ending}'}")
        most_tries = most_tries or (_MOST_KILLED if any(name in ending for name in _FROM_OUTSIDE) else _MOST_TRIES)
        at = tasks[0] if tasks and tasks[0].careful else None
        if tail:
            yield Output(tasks[0] if tasks else None, at.item if at else None, tail)
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > MOST_DEATHS * self._count:
            raise errors.BuildError(
                f"{self._deaths_in_a_row} worker processes died one after another (the last was {ending}) and finished nothing; "
                "their output is above, or in the build's log"
            )
        for task in tasks:
            if process.is_ready:
                yield from self._run_again(task, reason or f"its process was {ending}", process.number, most_tries)
            else:  # it has not seen the task
                (self._again if task.careful else self._waiting).appendleft(task)
        self._start_one(process.number)
        with self._lock:
            self._hand_out()

    def _run_again(self, task: Task, reason: str, worker: int, most_tries: int) -> Iterator[Event]:
        """Run a task again whose process has ended; only announced items can be blamed for that."""
        item = task.item if task.careful else None
        yield Died(task, item, reason, worker)
        if item is not None:
            task.tries[item] += 1
            if task.tries[item] >= most_tries:
                task.lost[item] = reason
                yield Lost(task, item, reason)
        elif task.careful:
            task.between += 1
            if task.between > _MOST_BETWEEN:
                raise errors.BuildError(
                    f"{reason}, {task.between} times, at no item; its output is above, or in the build's log"
                )
        task.careful, task.item = True, None
        task.first = item if item not in task.lost else None
        with self._lock:
            self._again.append(task)

    # --- the thread of `on_done` --------------------------------------------------------------------------------------

    def _call_back(self) -> None:
        """Start the processes and call back; they end with the thread that started them, which is this one."""
        assert self._callback is not None
        try:
            self.start()
            with self._lock:
                self._hand_out()
            while not self._stopping:
                for event in self._step():
                    if isinstance(event, Done):
                        self._callback(event.task, event.result)
                    elif isinstance(event, Output) and sys.stderr is not None:
                        with contextlib.suppress(OSError, ValueError):  # it is closed, or its disk is full
                            sys.stderr.write(event.text)
        except BaseException as caught:
            *_, reason = str(caught).strip().splitlines() or [type(caught).__name__]  # of a traceback the last line
            self.failure = f"the worker processes cannot go on ({reason})"
        finally:
            self._stopping, self.ready = True, False
            self._end_all()
            with self._lock:
                left = list(self._tasks.values())
                self._tasks.clear()
            for task in left:
                self._callback(task, errors.BuildError(self.failure or ENDED))
            _open_pools.discard(self)


_open_pools: set[Pool] = set()
"""The pools whose thread runs."""


def _close_all() -> None:
    for pool in list(_open_pools):
        pool.close()


class _Process:
    """One process, seen from its parent: its pipes, its output, and its tasks by number."""

    def __init__(self, entry: str, environment: Mapping[str, str], pass_fds: Sequence[int], number: int) -> None:
        self.number, self.tasks, self.is_ready = number, dict[int, Task](), False
        self._rest = bytearray()
        open_standard_descriptors()
        # A file without a name: nothing is left in the temporary folder when this process is killed.
        self._native = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        command = [sys.executable, "-m", "tfprep.pool", entry, str(self._native.fileno()), str(os.getpid())]
        # Ctrl-C reaches the whole process group, also while Python starts: blocked signals stay blocked in a child.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self._native.fileno(), *pass_fds),
                env={**environment, "TFPREP_WORKER": str(number)},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self.output = self._process.stdin, self._process.stdout
        self.name = f"worker process {number} (pid {self._process.pid})"
        for pipe in (self._input, self.output):
            with contextlib.suppress(OSError, AttributeError):  # Linux has it, within a limit for each user.
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def load(self) -> float:
        """The number of its tasks; infinite where it has one to itself."""
        return float("inf") if any(task.careful for task in self.tasks.values()) else len(self.tasks)

    def give(self, task: Task) -> None:
        self.tasks[task.number] = task
        task.worker, task.since = self.name, time.monotonic()
        again = task.first, task.lost, task.content
        self.send(_message(task.number, again, _AGAIN) if task.careful else _message(task.number, task.content))

    def send(self, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # It died: `receive` will see the end of its output.
            self._input.write(message)
            self._input.flush()

    def receive(self) -> list[tuple[int, int, bytes]] | None:
        """Return the whole messages that arrived: kind, number of the task, content. None at the end of the output."""
        data = os.read(self.output.fileno(), _READ_BYTES)
        if not data:
            return None
        self._rest += data
        messages, start = [], 0
        while len(self._rest) >= (content := start + _HEADER.size):
            kind, number, size = _HEADER.unpack_from(self._rest, start)
            if len(self._rest) < content + size:
                break
            start = content + size
            messages.append((kind, number, bytes(memoryview(self._rest)[content:start])))
        del self._rest[:start]
        return messages

    def state(self) -> WorkerState:
        task = next(iter(list(self.tasks.values())), None)
        item = None if task is None else task.item
        seconds = 0.0 if task is None or item is None else time.monotonic() - task.since
        return WorkerState(self._process.pid, task, item, seconds)

    def output_tail(self) -> str:
        """Return what native code wrote since the process last reported it."""
        return os.pread(self._native.fileno(), _MOST_OUTPUT_BYTES, 0).decode(errors="backslashreplace")

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """Wait until the process is gone and close its files; return its exit status, negative for a signal."""
        with contextlib.suppress(BrokenPipeError):  # It died with a task half sent.
            self._input.close()
        try:
            status = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self.output.close()
        self._native.close()
        return status


# --- in the worker ----------------------------------------------------------------------------------------------------


def main() -> int:
    """Run as a worker: the arguments are the entry, the descriptor of the output file, and the parent's process id."""
    entry, (native, parent) = sys.argv[1], map(int, sys.argv[2:])
    end_with_parent(parent)
    # Ctrl-C reaches the whole process group; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # The pipes of the protocol leave standard input and output, where a user's function would read and write.
    tasks, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    _redirect_output(native)
    # What is imported stays for ever: the collector need not look at it, now or later.
    gc.disable()
    channel = _Channel(out, native)
    try:
        opener = _load_entry(entry)
        add_folders_of_parent()
        if (first := _received(tasks)) is None:
            return 0
        argument, threads = pickle.loads(first[2])
        work = opener(argument)
    except BaseException as error:
        channel.send(_NO_TASK, _failure(error), _FAILED)
        return 1
    channel.send(_NO_TASK, b"", _READY)
    gc.freeze()
    gc.enable()
    receiving = threading.Lock()

    def run_tasks() -> None:
        """Run tasks until there are none any more. The thread that waits for one reads it itself: no other need be woken."""
        while True:
            with receiving:
                message = _received(tasks)
            if message is None:
                return
            _run(*message, work, channel)

    for _ in range(1, threads):
        threading.Thread(target=run_tasks, daemon=True).start()
    run_tasks()
    if threads > 1:
        os._exit(0)  # others may be at work, for which nobody waits any more
    return 0


def _received(tasks: BinaryIO) -> tuple[int, int, bytes] | None:
    """Return the kind, the task's number and the content of the next message; None at the end, also within a message."""
    head = tasks.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return None
    kind, number, size = _HEADER.unpack(head)
    content = tasks.read(size)
    return (kind, number, content) if len(content) == size else None


class _Channel:
    """The way of a worker's threads to its parent: messages, and what native code has written."""

    def __init__(self, out: BinaryIO, native: int) -> None:
        self._out, self._native = out, native
        self._lock = threading.Lock()

    def send(self, number: int, content: Any, kind: int = _PICKLE) -> None:
        message = _message(number, content, kind)
        with self._lock:
            self._write(message)

    def send_output(self, number: int, item: int) -> None:
        """Report what was written to the file since it was last emptied, and empty it."""
        if not os.fstat(self._native).st_size:
            return
        with self._lock:
            text = os.pread(self._native, _MOST_OUTPUT_BYTES, 0).decode(errors="backslashreplace")
            os.ftruncate(self._native, 0)
            if text:
                self._write(_message(number, (None if item == NO_ITEM else item, text), _OUTPUT))

    def _write(self, message: bytes) -> None:
        try:
            self._out.write(message)
            self._out.flush()
        except BrokenPipeError:
            os._exit(1)  # The parent is gone.


class _SentMark(Mark):
    """The marks of one task in a worker: they go to the parent now and then, or each at once if the task is run again."""

    def __init__(self, number: int, channel: _Channel) -> None:
        self._number, self._channel = number, channel
        self._announced, self._item = float("-inf"), NO_ITEM

    def __call__(self, item: int) -> None:
        self.report_output()
        self._item, now = item, time.monotonic()
        if self.careful or item == NO_ITEM or now - self._announced > _ANNOUNCE_S:
            self._announced = now
            self._channel.send(self._number, _NUMBER.pack(item), _ITEM)

    def report_output(self) -> None:
        self._channel.send_output(self._number, self._item)


def _run(kind: int, number: int, body: bytes, work: Work, channel: _Channel) -> None:
    """Run one task."""
    mark = _SentMark(number, channel)
    try:
        content: Any = body if kind == _CONTENT else pickle.loads(body)
        if kind == _AGAIN:
            mark.careful = True
            mark.first, mark.lost, content = content
        result: Any = work(content, mark)
        sent = _PICKLE
    except BaseException as error:
        result, sent = _failure(error), _FAILED
    mark.report_output()
    channel.send(number, result, sent)


def _failure(error: BaseException) -> BaseException:
    """Return what is sent of an exception: itself if it is one of tfprep's, else a BuildError of its text or traceback."""
    if isinstance(error, errors.TfprepError):
        return sendable_error(error, errors.BuildError)
    return errors.BuildError(str(error) if isinstance(error, OSError) else "".join(traceback.format_exception(error)))


def _redirect_output(file: int) -> None:
    """Put the file in the place of descriptors 1 and 2; Python's own streams keep the terminal."""
    terminal = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    # The file is emptied each time it is reported: without O_APPEND the next write would leave a hole before it.
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = sys.stderr = terminal
    warnings.showwarning = _write_warning
    native = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    logging.lastResort = logging.StreamHandler(native)
    logging.lastResort.setLevel(logging.WARNING)


def _write_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Treat Python's warnings as those of native code: a user's function may cause one at every sample."""
    os.write(2, warnings.formatwarning(message, category, filename, lineno, line).encode(errors="backslashreplace"))


if __name__ == "__main__":
    # Under its usual name: what it pickles is then of the classes that the parent knows.
    sys.exit(importlib.import_module("tfprep.pool").main())
