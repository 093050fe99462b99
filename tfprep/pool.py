"""Worker processes: builds, loaders, listing and added fields give tasks to one kind of pool.

A task is worked on by a function that `entry` names, "package.module:function". That function is called once in each process with
an argument, and returns a callable of (task, mark). A task consists of numbered items; the work calls `mark(item)` before each
item, and `mark(NO_ITEM)` when it goes on without one.

When a process ends or an item takes too long, its tasks are run again in another process, item by item: each item is announced
before it begins, and no other task runs beside. An item that ends its process at two announced tries, or takes too long at one,
is lost: the task is run without it (`Mark.lost`). A signal from outside, which hits another item each time, costs none. Two such
signals at one announced item lose it, so that builds try a lost sample again in the next run.

A worker is a fresh `python -m tfprep.pool`: it inherits no threads and no locks, as a forked process would, and a script that
starts it needs no `if __name__ == "__main__"`. It never imports TensorFlow by itself. Messages go through one pipe in both
directions; each is a pickle of (kind, number of the task, content). Its standard input is empty. What users' functions print, and
what native code writes (warnings of libpng, the last lines before an abort), goes to standard error. A worker ends with its
parent: when the pipe closes, and on Linux by a signal as soon as the thread that started it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.machinery
import io
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeAlias

from tfprep import errors

NO_ITEM = -1
ENDED = "the worker processes were ended"
_added: set[str] = set()
"""Folders that `import_from` has added to `sys.path`, in this process or in its parent."""
_TASK, _ITEM, _DONE, _FAILED, _READY = range(5)
"""Kinds of messages."""
_POLL_S = 0.25
"""How often the time limit of items is checked, and whether a pool is still wanted."""
_GRACE_S = 5.0
"""Time that a process may take to exit after its pipe has ended, before it is killed."""
_ANNOUNCE_S = 0.2
"""Least time between two announced items of a task in its first run."""
_MOST_TRIES = 2
"""An item is lost when it has ended its process at this number of announced tries; without an item, the task is an error."""
MOST_DEATHS = 5
"""Give up after more deaths than these, for each process, without a finished item in between."""
_LISTED_DEATHS = 100
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
_KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""The largest thresholds that glibc reaches by itself on 64 bits (mallopt(3)); blocks above the first go back to the system."""


# --- what child processes have in common ------------------------------------------------------------------------------


def import_from(folder: str) -> None:
    """Import from a folder before all others, in this process and in the workers of pools that are made from now on.

    Workers import their own modules before: a file beside a recipe may have the name of a module of the standard library, which
    this process had imported, too. A module of an earlier folder makes way for one of its name in this one.
    """
    if folder in _added and folder in sys.path:
        sys.path.remove(folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)
        _added.add(folder)
    others = _added - {folder}
    for name in [name for name in list(sys.modules) if others and "." not in name]:  # other threads may import
        module = sys.modules[name]
        places = getattr(module, "__path__", None) or [getattr(module, "__file__", None) or ""]
        is_of_another = not others.isdisjoint(map(os.path.dirname, places))
        if is_of_another and importlib.machinery.PathFinder.find_spec(name, [folder]):
            for own in [own for own in list(sys.modules) if own == name or own.startswith(f"{name}.")]:
                del sys.modules[own]


def worker_environment() -> dict[str, str]:
    """Return the environment variables of a child process that runs tfprep's code.

    The child imports from the same folders as this process, without those of `import_from`, and no others: not from the current
    folder, unless this process does. OpenMP and BLAS get one thread each, because the children already share all cores. glibc
    keeps the memory of freed arrays, unless its variables are set: with the thresholds that it begins with, a photo of a
    megapixel takes a quarter more time.
    """
    folders = [os.path.abspath(path) for path in sys.path if isinstance(path, str) and path not in _added]
    own = {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}
    return {**_KEEP_FREED, **os.environ, **own, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


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
      lost: The items to leave out, with the reasons.
    """

    careful = False
    lost: Mapping[int, str] = {}

    def __call__(self, item: int) -> None:
        """Note that `item` begins (`NO_ITEM`: the work goes on without one)."""


Work: TypeAlias = Callable[[Any, Mark], Any]


@dataclass(eq=False)
class Task:
    """A task that a pool was given.

    Attributes:
      number: Counts the tasks of the pool.
      content: What the work gets.
      note: Anything of the caller; it is not sent.
      careful: True when it is run again, item by item.
      item: The item that was announced last; None before the first and between items.
      since: When that item began, or the task was sent (`time.monotonic`).
      worker: The name of the process that has it.
      lost: The items that it is run without, with the reasons.
      tries: How often each item, or none of them (None), has ended its process when it had been announced.
    """

    number: int
    content: Any
    note: Any = None
    careful: bool = False
    item: int | None = None
    since: float = 0.0
    worker: str = ""
    lost: dict[int, str] = field(default_factory=dict)
    tries: dict[int | None, int] = field(default_factory=dict)


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
    """A process ended while it had a task, at this item if that is known; the task is run again.

    It is run without the item if that is `lost`, since it ends every process that begins it.
    """

    task: Task
    item: int | None
    reason: str
    lost: bool = False


Event: TypeAlias = Progress | Done | Died | None
"""What happened to a task; None if nothing did for a moment, so that the caller can look after other things."""


def _message(kind: int, number: int, content: Any) -> bytes:
    return pickle.dumps((kind, number, content), pickle.HIGHEST_PROTOCOL)


def _load_entry(entry: str) -> Callable[[Any], Work]:
    module, function = entry.split(":")
    opener: Callable[[Any], Work] = getattr(importlib.import_module(module), function)
    return opener


# --- pools ------------------------------------------------------------------------------------------------------------


LATER = object()
"""Stands for the argument of a pool whose `open` will tell it."""


class Pool:
    """Runs tasks in `workers` processes; a process whose item takes longer than `item_timeout_s` is killed.

    With no workers, `events` runs the tasks in this process, one after another, and a crash of a task is one of this process.

    A process has at most `threads + ahead` tasks. One that ends is replaced, and what it was doing is run again (see above).
    Either `events` tells what happens, in the thread that starts the processes; or `on_done` is called in a thread of the pool,
    and tasks may be submitted from any thread.

    Attributes:
      ready: Whether all processes have started; from then on it stays so.
      deaths: The ends of the last processes, in words.
      failure: Why the pool of an `on_done` was given up; empty while it works.
      stopped: Whether the processes were ended, or will be at once.
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
        self._folders = [path for path in sys.path if path in _added]
        self._pass_fds = tuple(pass_fds)
        self._opening: bytes | None = None
        self._work: Work | None = None
        self._tasks: dict[int, Task] = {}
        self._numbers = 0
        self._waiting: deque[Task] = deque()
        self._again: deque[Task] = deque()
        self._processes: list[Process] = []
        self._selector = selectors.DefaultSelector()
        self._lock = threading.RLock()
        self._deaths_in_a_row = 0
        self._callback: Callable[[Task, Any], None] | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self.ready = self.stopped = False
        self.deaths: deque[str] = deque(maxlen=_LISTED_DEATHS)
        self.failure = ""
        if argument is not LATER:
            self.open(argument)

    def start(self) -> None:
        """Start the processes, so that they import while the caller goes on. A second call does nothing."""
        for number in range(len(self._processes), self._count):
            self._start_one(number)

    def open(self, argument: Any) -> None:
        """Give the work its argument. Tasks are handed out as soon as a process is ready."""
        if not self._count:
            self._work = _load_entry(self._entry)(argument)
            return
        with self._lock:
            self._opening = _message(_READY, 0, (self._folders, argument, self._threads))
            for process in self._processes:
                process.send(self._opening)

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
            if self.stopped:
                raise errors.BuildError(self.failure or ENDED)
            task = Task(self._numbers, content, note)
            self._numbers += 1
            self._tasks[task.number] = task
            self._waiting.append(task)
            if len(self._waiting) == 1:  # where others wait no process has room
                self._hand_out(self._processes)
        return task

    def events(self) -> Iterator[Event]:
        """Yield what happens until no task is left; more tasks may be submitted meanwhile.

        Raises:
          TfprepError: The exception of a task, which ends the run, or of the start of a process.
          BuildError: The same for other exceptions, with the traceback as text; or processes end again and again.
        """
        self.start()
        while self._tasks:
            if self._work is not None:
                task = self._waiting.popleft()
                result = self._work(task.content, Mark())
                del self._tasks[task.number]
                yield Done(task, result)
                continue
            yield from self._step()

    def on_done(self, callback: Callable[[Task, Any], None]) -> None:
        """Start the processes in a thread that calls `callback(task, result)` for each task; an error is its result as well.

        When processes cannot go on, all tasks that are left get the reason as a BuildError. A second call does nothing.
        """
        with self._lock:  # Ctrl-C may end an earlier call before or after the thread has started
            if self.stopped or (self._thread is not None and self._thread.is_alive()):
                return
            self._callback = callback
            self._thread = threading.Thread(target=self._call_back, name="tfprep-pool", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self.failure, self.stopped = f"the thread that starts them cannot be started ({error})", True

    def workers(self) -> tuple[Process, ...]:
        return tuple(self._processes)

    def stop(self) -> None:
        """Ask the thread of `on_done` to end the processes. Takes no lock and waits for nothing, so a finalizer may call it."""
        self.stopped = True

    def close(self) -> None:
        """End all processes, whatever they are doing, and wait for that. A forked process leaves its parent's as they are."""
        if self._process != os.getpid():
            return
        self.stopped = True
        for process in list(self._processes):
            process.kill()
        if self._thread is None or not self._thread.is_alive():
            self._end_all()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start_one(self, number: int) -> None:
        process = Process(self._entry, self._environment, self._pass_fds, number)
        with self._lock:
            if self._opening is not None:
                process.send(self._opening)
            self._processes.append(process)
            self._selector.register(process.pipe, selectors.EVENT_READ, process)

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

    def _hand_out(self, processes: Sequence[Process]) -> None:
        """Give tasks to those of these processes that are ready and have room. A task that is run again has one to itself."""
        ready = [process for process in processes if process.is_ready]
        while self._again and (free := [process for process in ready if not process.tasks]):
            free[0].give(self._again.popleft())
        while self._waiting and ready:
            process = min(ready, key=lambda worker: worker.load)
            if process.load >= self._most_tasks:
                return
            process.give(self._waiting.popleft())

    # --- what they say ------------------------------------------------------------------------------------------------

    def _step(self) -> Iterator[Event]:
        ready = self._selector.select(_POLL_S)
        for key, _ in ready:
            yield from self._take(key.data)
        if not ready:
            yield None
        if self._item_timeout_s is None:
            return
        for process in list(self._processes):
            task = process.task
            if task is None or task.item is None:
                continue
            slack_s = 0.0 if task.careful else _ANNOUNCE_S
            if time.monotonic() - task.since > self._item_timeout_s + slack_s:
                process.kill()
                yield from self._replace(process, f"no end after {self._item_timeout_s:g} s; its process was killed")

    def _take(self, process: Process) -> Iterator[Event]:
        try:
            kind, number, content = pickle.loads(process.pipe.recv_bytes())
        except (EOFError, OSError):  # also within a message
            yield from self._replace(process)
            return
        task = self._tasks.get(number)
        if kind == _READY:
            with self._lock:
                process.is_ready = True
                self._hand_out([process])
            self.ready = self.ready or all(worker.is_ready for worker in self._processes)
        elif kind == _FAILED and (task is None or self._callback is None):
            raise content
        elif task is not None and kind == _ITEM:
            self._deaths_in_a_row = 0 if task.item is not None else self._deaths_in_a_row
            task.item, task.since = content, time.monotonic()
            yield Progress(task, content)
        elif task is not None:
            self._deaths_in_a_row = 0
            with self._lock:
                del process.tasks[number], self._tasks[number]
                self._hand_out([process])
            yield Done(task, content)

    def _replace(self, process: Process, too_long: str = "") -> Iterator[Event]:
        """Replace a process that has ended, or was killed because an item took too long, and run its tasks again."""
        self._selector.unregister(process.pipe)
        tasks = list(process.tasks.values())
        with self._lock:
            self._processes.remove(process)
        ending = ending_of(process.end())
        if self.stopped:
            return
        self.deaths.append(f"{process.name} {ending if ending.startswith('ended') else f'was {ending}'}")
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > MOST_DEATHS * self._count:
            raise errors.BuildError(
                f"{self._deaths_in_a_row} worker processes died one after another (the last was {ending}) and finished nothing; "
                "what they wrote is on standard error"
            )
        for task in tasks:
            reason = too_long or f"its process was {ending}"
            yield from self._run_again(task, reason, 1 if too_long else _MOST_TRIES)
        self._start_one(process.number)
        with self._lock:  # another may be free for a task that is run again
            self._hand_out(self._processes)

    def _run_again(self, task: Task, reason: str, most_tries: int) -> Iterator[Event]:
        """Run a task again whose process has ended; only announced items can be blamed for that."""
        item = task.item if task.careful else None
        task.tries[item] = task.tries.get(item, 0) + task.careful
        lost = task.tries[item] >= most_tries
        yield Died(task, item, reason, lost and item is not None)
        if lost and item is None:
            raise errors.BuildError(
                f"{reason}, {task.tries[item]} times, while it was at no item; what it wrote is on standard error"
            )
        if lost and item is not None:
            task.lost[item] = reason
        task.careful, task.item = True, None
        with self._lock:
            self._again.append(task)

    # --- the thread of `on_done` --------------------------------------------------------------------------------------

    def _call_back(self) -> None:
        """Start the processes and call back; they end with the thread that started them, which is this one."""
        assert self._callback is not None
        try:
            self.start()
            while not self.stopped:
                for event in self._step():
                    if isinstance(event, Done):
                        self._callback(event.task, event.result)
        except BaseException as caught:
            *_, reason = str(caught).strip().splitlines() or [type(caught).__name__]  # of a traceback the last line
            self.failure = f"the worker processes cannot go on ({reason})"
        finally:
            self.stopped, self.ready = True, False
            self._end_all()
            with self._lock:
                remaining = list(self._tasks.values())
                self._tasks.clear()
            for task in remaining:
                self._callback(task, errors.BuildError(self.failure or ENDED))


class Process:
    """One process, seen from its parent: its id, its pipe, and its tasks by number."""

    def __init__(self, entry: str, environment: Mapping[str, str], pass_fds: Sequence[int], number: int) -> None:
        self.number, self.tasks, self.is_ready = number, dict[int, Task](), False
        open_standard_descriptors()
        self.pipe, of_child = Pipe()
        command = [sys.executable, "-u", "-m", "tfprep.pool", entry, str(of_child.fileno()), str(os.getpid())]
        # Ctrl-C reaches the whole process group, also while Python starts: blocked signals stay blocked in a child.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output is for results of the program
                pass_fds=(of_child.fileno(), *pass_fds),
                env={**environment, "TFPREP_WORKER": str(number)},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            of_child.close()
        self.pid = self._process.pid
        self.name = f"worker process {number} (pid {self.pid})"

    @property
    def task(self) -> Task | None:
        """The task that it got first of those that it has."""
        return next(iter(list(self.tasks.values())), None)

    @property
    def load(self) -> float:
        """The number of its tasks; infinite where the only one has it to itself."""
        return float("inf") if self.task is not None and self.task.careful else len(self.tasks)

    def give(self, task: Task) -> None:
        self.tasks[task.number] = task
        task.worker, task.since = self.name, time.monotonic()
        self.send(_message(_TASK, task.number, (task.careful, task.lost, task.content)))

    def send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # It died: its pipe will end.
            self.pipe.send_bytes(message)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """Wait until the process is gone and close its files; return its exit status, negative for a signal."""
        self.pipe.close()
        try:
            status = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        return status


# --- in the worker ----------------------------------------------------------------------------------------------------


def main() -> int:
    """Run as a worker: the arguments are the entry, the descriptor of the pipe, and the process id of the parent."""
    entry, (pipe, parent) = sys.argv[1], map(int, sys.argv[2:])
    end_with_parent(parent)
    # Ctrl-C reaches the whole process group; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.set_inheritable(pipe, False)
    # What is imported stays for ever: the collector need not look at it, now or later.
    gc.disable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # a print must not reject a sample
    worker = _Worker(Connection(pipe))
    try:
        opener = _load_entry(entry)
        try:
            message = worker.pipe.recv_bytes()
        except (EOFError, OSError):  # the parent is gone
            return 0
        _, _, (folders, argument, threads) = pickle.loads(message)
        for folder in reversed(folders):
            import_from(folder)
        work = opener(argument)
    except BaseException as error:
        worker.send(_FAILED, NO_ITEM, _failure(error))
        return 1
    worker.send(_READY, NO_ITEM, None)
    gc.freeze()
    gc.enable()
    for _ in range(1, threads):
        threading.Thread(target=worker.run_tasks, args=(work,), daemon=True).start()
    worker.run_tasks(work)
    os._exit(0)  # other threads may be at work, for which nobody waits any more


class _Worker:
    """A worker's end of its pipe, which its threads share."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self._sending, self._receiving = threading.Lock(), threading.Lock()

    def run_tasks(self, work: Work) -> None:
        """Run tasks until the parent is gone. The thread that waits for one reads it itself: no other need be woken."""
        while True:
            try:
                with self._receiving:
                    message = self.pipe.recv_bytes()
            except (EOFError, OSError):
                return
            try:
                self._run(work, message)
            except BaseException:
                # Such as no memory: another process tries it. A thread that ended here would be missed by nobody.
                traceback.print_exc()
                os._exit(1)

    def _run(self, work: Work, message: bytes) -> None:
        _, number, (careful, lost, content) = pickle.loads(message)
        mark = _SentMark(self, number, careful, lost)
        try:
            kind, result = _DONE, work(content, mark)
        except BaseException as error:
            kind, result = _FAILED, _failure(error)
        try:
            self.send(kind, number, result)
        except Exception as error:  # the result cannot be pickled
            self.send(_FAILED, number, _failure(error))

    def send(self, kind: int, number: int, content: Any) -> None:
        message = _message(kind, number, content)
        try:
            with self._sending:
                self.pipe.send_bytes(message)
        except OSError:
            os._exit(1)  # The parent is gone.


class _SentMark(Mark):
    """The marks of one task in a worker: they go to the parent now and then, or each at once if the task is run again."""

    def __init__(self, worker: _Worker, number: int, careful: bool, lost: Mapping[int, str]) -> None:
        self._worker, self._number, self.careful, self.lost = worker, number, careful, lost
        self._announced = float("-inf")

    def __call__(self, item: int) -> None:
        now = time.monotonic()
        if self.careful or item == NO_ITEM or now - self._announced > _ANNOUNCE_S:
            self._announced = now
            self._worker.send(_ITEM, self._number, None if item == NO_ITEM else item)


def _failure(error: BaseException) -> BaseException:
    """Return what is sent of an exception: itself if it is one of tfprep's, else a BuildError of its text or traceback."""
    if isinstance(error, errors.TfprepError):
        return sendable_error(error, errors.BuildError)
    return errors.BuildError(str(error) if isinstance(error, OSError) else "".join(traceback.format_exception(error)))


if __name__ == "__main__":
    # Under its usual name: what it pickles is then of the classes that the parent knows.
    sys.exit(importlib.import_module("tfprep.pool").main())
