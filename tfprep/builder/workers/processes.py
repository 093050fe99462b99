"""Runs tasks in local processes, which never import TensorFlow and can die without taking this process down.

Each worker is a fresh `python -m tfprep.builder.workers.worker`: it inherits no threads and no locks, as a forked process would,
and a script that starts a build needs no `if __name__ == "__main__"`. A worker has one task at a time. A worker that dies is
replaced; if it had a task, that is reported as `TaskCrashed`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from tfprep import errors
from tfprep.builder.workers.engine import (
    MARK,
    MOST_OUTPUT_BYTES,
    NO_ITEM,
    Json,
    NothingNew,
    TaskCrashed,
    TaskDone,
    TaskProgress,
    WorkerEvent,
    WorkerOutput,
    WorkerState,
)
from tfprep.child_process import worker_environment

_POLL_S = 0.25
"""How often the time limit of items is checked."""
_GRACE_S = 5.0
"""Time that a process may take to exit after its output has ended, before it is killed."""
_MOST_IDLE_DEATHS = 5
"""Give up after this many workers died without a task while no task ended."""


class Processes:
    """Runs tasks in `workers` processes; a process whose item takes longer than `item_timeout_s` is killed. See `Engine`.

    All processes, also those that replace others, get `environment`; None is that of this process when the first one starts.
    """

    def __init__(
        self, entry: str, *, workers: int, item_timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> None:
        self._entry = entry
        self._count = workers
        self._item_timeout_s = item_timeout_s
        self._environment = environment
        self._argument: Json | None = None
        self._waiting: deque[tuple[int, Json]] = deque()
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._idle_deaths = 0

    def start(self) -> None:
        while len(self._workers) < self._count:
            self._start_one()

    def open(self, argument: Json) -> None:
        self._argument = argument
        for worker in self._workers:
            worker.open(argument)

    def submit(self, number: int, task: Json, *, urgent: bool = False) -> None:
        (self._waiting.appendleft if urgent else self._waiting.append)((number, task))

    def events(self) -> Iterator[WorkerEvent]:
        while self._waiting or any(worker.task is not None for worker in self._workers):
            self._hand_out()
            ready = self._selector.select(_POLL_S)
            for key, _ in ready:
                yield from self._read(key.data)
            if not ready:
                yield NothingNew()
            yield from self._end_late_ones()

    def workers(self) -> tuple[WorkerState, ...]:
        return tuple(worker.state() for worker in self._workers)

    def capacity(self) -> int:
        return self._count

    def close(self) -> None:
        self._waiting.clear()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._selector.close()

    def _start_one(self) -> None:
        if self._environment is None:
            self._environment = worker_environment()
        worker = _Worker(self._entry, self._environment)
        if self._argument is not None:
            worker.open(self._argument)
        self._workers.append(worker)
        self._selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.task is None and self._waiting:
                worker.hand(*self._waiting.popleft())

    def _read(self, worker: _Worker) -> Iterator[WorkerEvent]:
        lines = worker.read_lines()
        if lines is None:
            yield from self._bury(worker, "")
            return
        for line in lines:
            message = json.loads(line)
            if message["event"] == "failed":
                raise rebuilt(message["type"], message["message"])
            if message["event"] == "done":
                worker.task, self._idle_deaths = None, 0
                yield TaskDone(message["task"], message["result"])
            elif message["event"] == "output":
                yield WorkerOutput(message["task"], message["item"], message["text"])
            else:
                yield TaskProgress(message["task"], message["item"])

    def _end_late_ones(self) -> Iterator[WorkerEvent]:
        for worker in list(self._workers):
            state = worker.state()
            if state.item is not None and state.seconds > self._item_timeout_s:
                worker.kill()
                yield from self._bury(worker, f"no end after {self._item_timeout_s:g} s; its process was killed")

    def _bury(self, worker: _Worker, reason: str) -> Iterator[WorkerEvent]:
        """Replace a worker that is gone, and report what it was doing."""
        item = worker.state().item
        self._selector.unregister(worker.stdout)
        self._workers.remove(worker)
        last_words, status = worker.last_words(), worker.end()
        if last_words:
            yield WorkerOutput(worker.task, item, last_words)
        if worker.task is not None:
            self._start_one()
            yield TaskCrashed(worker.task, item, reason or f"its process was {_how(status)}")
            return
        self._idle_deaths += 1
        if self._idle_deaths > _MOST_IDLE_DEATHS:
            raise errors.BuildError(
                f"{self._idle_deaths} worker processes ended before they had a task (the last was {_how(status)}); "
                "their output is above, or in the build's log"
            )
        self._start_one()


class _Worker:
    """One process: its pipes, its mark file, what native code in it writes, and the number of its task."""

    def __init__(self, entry: str, environment: Mapping[str, str]) -> None:
        self.task: int | None = None
        self._rest = b""
        # Files without a name: nothing is left in the temporary folder when this process is killed.
        self._marks = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._marks.write(MARK.pack(NO_ITEM, 0.0))
        self._output = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        files = self._marks.fileno(), self._output.fileno()
        command = [sys.executable, "-m", "tfprep.builder.workers.worker", entry, *map(str, (*files, os.getpid()))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=files, env=environment
        )

    def open(self, argument: Json) -> None:
        self._send(argument)

    @property
    def stdout(self) -> Any:
        return self._process.stdout

    def hand(self, number: int, task: Json) -> None:
        self.task = number
        self._send({"task": number, "body": task})

    def read_lines(self) -> list[bytes] | None:
        """Return the whole lines that arrived; None at the end of the output."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def state(self) -> WorkerState:
        item, since = MARK.unpack(os.pread(self._marks.fileno(), MARK.size, 0))
        busy = self.task is not None and item != NO_ITEM
        seconds = time.monotonic() - since if busy else 0.0
        return WorkerState(self._process.pid, self.task, item if busy else None, seconds)

    def last_words(self) -> str:
        """Return what native code wrote since the worker last reported it."""
        return os.pread(self._output.fileno(), MOST_OUTPUT_BYTES, 0).decode(errors="backslashreplace")

    def kill(self) -> None:
        """Kill the process if it is alive."""
        self._process.kill()

    def end(self) -> int:
        """Wait until the process is gone and close its files; return its exit status, negative for a signal."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It died with a task half sent.
            self._process.stdin.close()
        try:
            status = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self.stdout.close()
        self._marks.close()
        self._output.close()
        return status

    def _send(self, message: Json) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It died: `read_lines` will see the end of its output.
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    name = signal.Signals(-status).name
    cause = {"SIGKILL": " (out of memory?)", "SIGSEGV": " (a crash in native code)"}.get(name, "")
    return f"killed by {name}{cause}"


def rebuilt(kind: str, message: str) -> Exception:
    """Return another process's exception, by the name of its type, if it is one of tfprep's; else a BuildError of its text."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.TfprepError) and known is not errors.RecordError:
        error: Exception = known(message)
        return error
    return errors.BuildError(message)
