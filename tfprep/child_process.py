"""Child processes: those that run tasks of this process (`Processes`, and the worker processes of loaders), and what all others
have in common with them.

A task is worked on by a function that `entry` names, "package.module:function". That function is called once in each process,
with an argument, and returns a callable of (task, mark). The work calls `mark(item)` before each item of a task, and
`mark(NO_ITEM)` when it goes on without one: a crash, or an item that takes too long, can so be attributed to one item.

A worker is a fresh `python -m tfprep.child_process`: it inherits no threads and no locks, as a forked process would, and a script
that starts it needs no `if __name__ == "__main__"`. It never imports TensorFlow by itself. Pickles go to its standard input and
come from its standard output, each after its length: first the argument and the number of threads that work, then tasks, for
`Processes` one at a time. Since both streams belong to the protocol, the print() of a user's function goes to standard error,
and its input is empty. What native code writes to descriptors 1 and 2 (warnings of libpng and OpenCV, the last lines before an
abort), what Python warns and logs, and what its own child processes print goes to a file, and is reported as an event of the
current item. A worker ends with its parent: when standard input closes, and on Linux by a signal as soon as the thread that
started it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import logging
import mmap
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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO, TypeAlias

from tfprep import errors
from tfprep.python_file import add_folders_of_parent, folders_for_child

Mark: TypeAlias = Callable[[int], None]
Work: TypeAlias = Callable[[Any, Mark], Any]
NO_ITEM = -1
_MARK = struct.Struct("<qd")
"""The content of a worker's mark file: its item (`NO_ITEM` between items), and when it began it (`time.monotonic`)."""
_LENGTH = struct.Struct("<q")
_PIPE_BYTES = 1 << 20
"""The most that Linux gives a pipe of a user without privileges: 16 times the default, and as many fewer turns of both ends."""
_READ_BYTES = 1 << 16
"""Bytes that are read at a time: memory for more would come from the system, and go back to it, for each short answer."""
_MOST_OUTPUT_BYTES = 4000
"""Number of bytes that are reported of what native code writes at one item."""
_POLL_S = 0.25
"""How often the time limit of items is checked."""
_GRACE_S = 5.0
"""Time that a process may take to exit after its output has ended, before it is killed."""
_PROGRESS_S = 0.2
"""Least time between two progress events of a task."""
_MOST_IDLE_DEATHS = 5
"""Give up after this many workers died without a task while no task ended."""
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


_KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""The largest thresholds that glibc reaches by itself on 64 bits (mallopt(3)); blocks above the first go back to the system."""


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


def rebuilt_error(kind: str, message: str) -> Exception:
    """Return another process's exception, by the name of its type, if it is one of tfprep's; else a BuildError of its text."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.TfprepError) and known is not errors.RecordError:
        error: Exception = known(message)
        return error
    return errors.BuildError(message)


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskProgress:
    """A running task began this item."""

    task: int
    item: int


@dataclass(frozen=True)
class TaskDone:
    """A task ended with this result, on this node of a cluster."""

    task: int
    result: Any
    node: str = ""


@dataclass(frozen=True)
class TaskCrashed:
    """The process that ran a task died, or was killed because an item took too long; `item` is None if it was between items.

    `worker` is the number of the process.
    """

    task: int
    item: int | None
    reason: str
    node: str = ""
    worker: int = 0


@dataclass(frozen=True)
class WorkerOutput:
    """Output of native code while a task made this item (None: between items)."""

    task: int | None
    item: int | None
    text: str


@dataclass(frozen=True)
class NothingNew:
    """Nothing happened for a moment."""


WorkerEvent: TypeAlias = "TaskProgress | TaskDone | TaskCrashed | WorkerOutput | NothingNew"


@dataclass(frozen=True)
class WorkerState:
    """A worker's process, task and item (None if it waits), and how long it has been making that item."""

    process: int
    task: int | None
    item: int | None
    seconds: float


# --- tasks in this process and in others ------------------------------------------------------------------------------


class Inline:
    """Runs tasks in this process, one after another, as `Processes` does in others; a crash of a task is one of this process."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._work: Work | None = None
        self._waiting: deque[tuple[int, Any]] = deque()

    def start(self) -> None:
        pass

    def open(self, argument: Any) -> None:
        self._work = _load_entry(self._entry)(argument)

    def submit(self, number: int, task: Any, *, urgent: bool = False) -> None:
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


class Processes:
    """Runs tasks in `workers` processes; a process whose item takes longer than `item_timeout_s` is killed.

    A worker has one task at a time. A worker that dies is replaced; if it had a task, that is reported as `TaskCrashed`. Its
    replacement gets the same environment variables: `environment`, which is that of this process when the first worker starts if
    it is None, and those of `own[number]`.
    """

    def __init__(
        self, entry: str, *, workers: int, item_timeout_s: float, environment: Mapping[str, str] | None = None,
        own: Sequence[Mapping[str, str]] = (),
    ) -> None:  # fmt: skip
        self._entry, self._count, self._item_timeout_s = entry, workers, item_timeout_s
        self._environment, self._own = environment, own or [{}] * workers
        self._argument: bytes | None = None
        self._waiting: deque[tuple[int, Any]] = deque()
        self._selector = selectors.DefaultSelector()
        self._workers: list[ChildProcess] = []
        self._idle_deaths = 0

    def start(self) -> None:
        """Start the processes, so that they import while the caller goes on. A second call does nothing."""
        for number in range(len(self._workers), self._count):
            self._start_one(number)

    def open(self, argument: Any) -> None:
        """Give the work its argument. Tasks may be submitted from now on."""
        self._argument = framed((argument, 1))
        for worker in self._workers:
            worker.send(self._argument)

    def submit(self, number: int, task: Any, *, urgent: bool = False) -> None:
        """Give a task to a worker that waits, or queue it; an urgent one comes before all others in the queue."""
        (self._waiting.appendleft if urgent else self._waiting.append)((number, task))
        if self._argument is not None:
            self._hand_out()

    def events(self) -> Iterator[WorkerEvent]:
        """Yield what happens until no task is left; more tasks may be submitted meanwhile.

        A task that raises ends the run.

        Raises:
            TfprepError: The exception of a task, of the argument, or of a worker's start.
            BuildError: The same for other exceptions, with the traceback as text; or workers die without a task.
        """
        while self._waiting or any(worker.task is not None for worker in self._workers):
            self._hand_out()
            ready = self._selector.select(_POLL_S)
            for key, _ in ready:
                yield from self._read(key.data)
            if not ready:
                yield NothingNew()
            for worker in list(self._workers):
                state = worker.state()
                if state.item is not None and state.seconds > self._item_timeout_s:
                    worker.process.kill()
                    yield from self._replace_dead(
                        worker, f"no end after {self._item_timeout_s:g} s; its process was killed"
                    )

    def workers(self) -> tuple[WorkerState, ...]:
        return tuple(worker.state() for worker in self._workers)

    def capacity(self) -> int:
        """Return the number of tasks that can run at the same time."""
        return self._count

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        self._waiting.clear()
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._selector.close()

    def _start_one(self, number: int) -> None:
        if self._environment is None:
            self._environment = worker_environment()
        worker = ChildProcess(self._entry, {**self._environment, **self._own[number]}, number=number)
        if self._argument is not None:
            worker.send(self._argument)
        self._workers.append(worker)
        self._selector.register(worker.output, selectors.EVENT_READ, worker)

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.task is None and self._waiting:
                worker.task, task = self._waiting.popleft()
                worker.send(framed((worker.task, task)))

    def _read(self, worker: ChildProcess) -> Iterator[WorkerEvent]:
        messages = worker.receive()
        if messages is None:
            yield from self._replace_dead(worker, "")
            return
        for kind, content in messages:
            if kind == "failed":
                raise rebuilt_error(*content)
            if kind == "event":
                yield content
            else:
                worker.task, self._idle_deaths = None, 0
                yield TaskDone(*content)

    def _replace_dead(self, worker: ChildProcess, reason: str) -> Iterator[WorkerEvent]:
        """Replace a worker that is gone, and report what it was doing."""
        item = worker.state().item
        self._selector.unregister(worker.output)
        self._workers.remove(worker)
        tail, status = worker.output_tail(), worker.end()
        if tail:
            yield WorkerOutput(worker.task, item, tail)
        if worker.task is not None:
            self._start_one(worker.number)
            yield TaskCrashed(worker.task, item, reason or f"its process was {ending_of(status)}", worker=worker.number)
            return
        self._idle_deaths += 1
        if self._idle_deaths > _MOST_IDLE_DEATHS:
            raise errors.BuildError(
                f"{self._idle_deaths} worker processes ended before they had a task (the last was {ending_of(status)}); "
                "their output is above, or in the build's log"
            )
        self._start_one(worker.number)


class ChildProcess:
    """One process, seen from its parent: its number, its pipes, its mark file, its output, and the number of its task."""

    def __init__(
        self, entry: str, environment: Mapping[str, str], *, number: int = 0, pass_fds: Sequence[int] = (),
        own_session: bool = False,
    ) -> None:  # fmt: skip
        """`pass_fds`: descriptors that it inherits. `own_session`: a terminal's Ctrl-C never reaches it, not while it starts."""
        self.task: int | None = None
        self.number = number
        self._rest = bytearray()
        open_standard_descriptors()
        # Files without a name: nothing is left in the temporary folder when this process is killed.
        self._marks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._marks.write(_MARK.pack(NO_ITEM, 0.0))
        self._native = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        files = self._marks.fileno(), self._native.fileno()
        command = [sys.executable, "-m", "tfprep.child_process", entry, *map(str, (*files, os.getpid()))]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(*files, *pass_fds),
            env=environment,
            start_new_session=own_session,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self.output = self.process.stdin, self.process.stdout
        for pipe in (self._input, self.output):
            with contextlib.suppress(OSError, AttributeError):  # Linux has it, within a limit for each user.
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def send(self, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # It died: `receive` will see the end of its output.
            self._input.write(message)
            self._input.flush()

    def receive(self) -> list[tuple[str, Any]] | None:
        """Return the whole messages that arrived; None at the end of the output."""
        data = os.read(self.output.fileno(), _READ_BYTES)
        if not data:
            return None
        self._rest += data
        messages = []
        while len(self._rest) >= (start := _LENGTH.size) and len(self._rest) >= (
            end := start + _LENGTH.unpack_from(self._rest)[0]
        ):
            messages.append(pickle.loads(memoryview(self._rest)[start:end].tobytes()))
            del self._rest[:end]
        return messages

    def state(self) -> WorkerState:
        item, since = _MARK.unpack(os.pread(self._marks.fileno(), _MARK.size, 0))
        busy = self.task is not None and item != NO_ITEM
        seconds = time.monotonic() - since if busy else 0.0
        return WorkerState(self.process.pid, self.task, item if busy else None, seconds)

    def output_tail(self) -> str:
        """Return what native code wrote since the worker last reported it."""
        return os.pread(self._native.fileno(), _MOST_OUTPUT_BYTES, 0).decode(errors="backslashreplace")

    def end(self) -> int:
        """Wait until the process is gone and close its files; return its exit status, negative for a signal."""
        with contextlib.suppress(BrokenPipeError):  # It died with a task half sent.
            self._input.close()
        try:
            status = self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        for file in (self.output, self._marks, self._native):
            file.close()
        return status


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


def framed(content: Any) -> bytes:
    """Return the message that sends this: its pickle, after the length of that."""
    pickled = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(pickled)) + pickled


def _load_entry(entry: str) -> Callable[[Any], Work]:
    module, function = entry.split(":")
    opener: Callable[[Any], Work] = getattr(importlib.import_module(module), function)
    return opener


# --- in the worker ----------------------------------------------------------------------------------------------------


def main() -> int:
    """Run as a worker: the arguments are the entry, the descriptors of mark file and output file, and the parent's process id."""
    entry, (mark_file, native, parent) = sys.argv[1], map(int, sys.argv[2:])
    end_with_parent(parent)
    # Ctrl-C reaches the whole process group; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
        argument, count = first[0]
        work = opener(argument)
    except BaseException as error:
        channel.send("failed", _failure(error))
        return 1
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
            number, task = message[0]
            _run(number, task, work, marks, channel)

    with mmap.mmap(mark_file, _MARK.size) as marks:
        for _ in range(1, count):
            threading.Thread(target=run_tasks, daemon=True).start()
        run_tasks()
        if count > 1:
            os._exit(0)  # others may be at work, for which nobody waits any more
    return 0


def _received(tasks: BinaryIO) -> tuple[Any] | None:
    """Return the next message, in a tuple; None at the end, also in the middle of a message."""
    head = tasks.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    content = tasks.read(size)
    return (pickle.loads(content),) if len(content) == size else None


class _Channel:
    """The way of a worker's threads to its parent: messages, and what native code has written."""

    def __init__(self, out: BinaryIO, native: int) -> None:
        self._out, self._native = out, native
        self._lock = threading.Lock()

    def send(self, kind: str, content: Any) -> None:
        with self._lock:
            self._send(kind, content)

    def send_output(self, number: int, item: int) -> None:
        """Report what was written to the file since it was last emptied, and empty it."""
        with self._lock:
            if size := os.fstat(self._native).st_size:
                text = os.pread(self._native, min(size, _MOST_OUTPUT_BYTES), 0).decode(errors="backslashreplace")
                os.ftruncate(self._native, 0)
                self._send("event", WorkerOutput(number, None if item == NO_ITEM else item, text))

    def _send(self, kind: str, content: Any) -> None:
        try:
            self._out.write(framed((kind, content)))
            self._out.flush()
        except BrokenPipeError:
            os._exit(1)  # The parent is gone.


def _failure(error: BaseException) -> tuple[str, str]:
    known = isinstance(error, errors.TfprepError | OSError)
    return type(error).__name__, str(error) if known else "".join(traceback.format_exception(error))


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


def _run(number: int, task: Any, work: Work, marks: mmap.mmap, channel: _Channel) -> None:
    """Run one task; its marks go to the mark file, and now and then to the parent."""
    reported, current = time.monotonic(), NO_ITEM

    def mark(item: int) -> None:
        nonlocal reported, current
        channel.send_output(number, current)
        current, now = item, time.monotonic()
        # pack_into zeroes its target first: the parent would at times read an item that began at 0, when the machine did, and
        # kill this worker for it. An assignment copies the 16 bytes at once.
        marks[:] = _MARK.pack(item, now)
        if now - reported > _PROGRESS_S:
            reported = now
            channel.send("event", TaskProgress(number, item))

    content: tuple[Any, Any]
    try:
        kind, content = "done", (number, work(task, mark))
    except BaseException as error:
        kind, content = "failed", _failure(error)
    channel.send_output(number, current)
    marks[:] = _MARK.pack(NO_ITEM, time.monotonic())
    channel.send(kind, content)


if __name__ == "__main__":
    # Under its usual name: what it pickles is then of the classes that the parent knows.
    sys.exit(importlib.import_module("tfprep.child_process").main())
