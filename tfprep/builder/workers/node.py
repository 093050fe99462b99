"""One node of a cluster: an actor that runs tasks in local worker processes and hands their events to the driver.

The driver calls `versions`, `open` and then `exchange`, again and again. Between the calls a thread keeps the workers busy with
the tasks that wait here. That thread starts the workers, because a worker ends with the thread that started it.

Before that, `SharedFolderCheck` compares the node's output folder, its lock and some raw files with those of the driver.
"""

from __future__ import annotations

import fcntl
import queue
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfprep.builder.layout import Layout, scratch_folder
from tfprep.builder.planning.plan import building_versions
from tfprep.builder.shards.inputs import Inputs
from tfprep.builder.workers.user_code import UserCode, unpack
from tfprep.child_process import NothingNew, Processes, TaskProgress, WorkerEvent, WorkerState
from tfprep.errors import BuildError, DatasetError, StorageError
from tfprep.sources.raw import raw_root
from tfprep.storage.urls import folder_at, read_content, remove_file, write_content

Json = dict[str, Any]

_EXCHANGE_S = 0.5
"""Longest time that `exchange` waits: how old the driver's view of running tasks may be."""


@dataclass(frozen=True)
class NodeTask:
    """A task for a node, as in `Engine.submit`."""

    number: int
    body: Any
    urgent: bool = False


@dataclass(frozen=True)
class NodeReply:
    """The events of a node.

    Attributes:
      events: The events since the last reply.
      workers: What its workers do.
      failure: The type and the text of the exception that ended the node's work; None if it goes on.
    """

    events: Sequence[WorkerEvent]
    workers: tuple[WorkerState, ...]
    failure: tuple[str, str] | None


class Node:
    """Runs tasks in `workers` processes of this machine, as `Processes` does."""

    def __init__(self, name: str, entry: str, workers: int, item_timeout_s: float) -> None:
        self._name = name
        self._engine = Processes(entry, workers=workers, item_timeout_s=item_timeout_s)
        self._tasks: queue.SimpleQueue[NodeTask] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self._workers: tuple[WorkerState, ...] = ()
        self._failure: tuple[str, str] | None = None
        self._folder = ExitStack()

    def versions(self) -> dict[str, str]:
        """Return the versions of the software that decides what bytes are made."""
        return building_versions()

    def open(self, argument: Json, code: UserCode, check: SharedFolderCheck) -> None:
        """Check the folders, unpack the user's code and start the workers.

        Raises:
          BuildError: The folders are not those of the driver.
        """
        check.compare(argument)
        own = self._folder.enter_context(scratch_folder(argument["scratch"] and Path(argument["scratch"]).parent))
        unpack(code, own / "code")
        # Another node may take over a shard while this one, which seemed dead, still writes to its files.
        changes = {
            "run": f"{argument['run']}-{self._name}",
            "mark": check.mark,
            "scratch": argument["scratch"] and str(own),
        }
        if code.recipe:
            changes["recipe_file"] = str(own / "code" / code.recipe)
        argument = {**argument, **changes}
        threading.Thread(target=self._work, args=(argument,), daemon=True).start()

    def exchange(self, tasks: Sequence[NodeTask]) -> NodeReply:
        """Take tasks over and return what happened since; wait at most `_EXCHANGE_S` for something other than progress."""
        for task in tasks:
            self._tasks.put(task)
        progress: dict[int, WorkerEvent] = {}
        events: list[WorkerEvent] = []
        end = time.monotonic() + _EXCHANGE_S
        while self._failure is None or not self._events.empty():
            try:
                event = self._events.get(timeout=0 if events else max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(event, TaskProgress):
                progress[event.task] = event
            elif not isinstance(event, NothingNew):
                events.append(event)
        # Progress comes first: its task may have ended since.
        return NodeReply([*progress.values(), *events], self._workers, self._failure)

    def _work(self, argument: Json) -> None:
        """Run tasks until the process ends. An exception of a task is the last thing that happens here."""
        try:
            self._engine.start()
            self._engine.open(argument)
            while True:
                self._take(self._tasks.get())
                for event in self._engine.events():
                    while not self._tasks.empty():
                        self._take(self._tasks.get())
                    self._workers = self._engine.workers()
                    self._events.put(event)
        except BaseException as error:
            try:
                self._engine.close()
            finally:
                self._failure = type(error).__name__, str(error)
                self._events.put(NothingNew())  # wakes `exchange`

    def _take(self, task: NodeTask) -> None:
        self._engine.submit(task.number, task.body, urgent=task.urgent)


# --- the folders of a node -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedFolderCheck:
    """Facts that another machine has to see as well.

    Attributes:
      mark: The name and the content of a file below the output folder.
      samples: Files, values and digest of some samples.
    """

    mark: str
    samples: Sequence[tuple[Sequence[str], Sequence[Any], bytes]]

    def compare(self, argument: Json) -> None:
        """Compare the folders of this machine. Raises BuildError that says what differs."""
        layout = Layout(folder_at(argument["out"]))
        self._check_output(layout)
        if not layout.at_store:
            _check_lock(layout)
        inputs = _raw_inputs(argument)
        for files, values, digest in self.samples:
            if inputs.digest(files, values) != digest:
                names = ", ".join(files) or "a sample"
                raise BuildError(
                    f"{names} below {argument['root']} is missing or another file there; --data names a folder that all nodes "
                    "see, or a copy on each node"
                )

    def _check_output(self, layout: Layout) -> None:
        path = layout.marks / self.mark
        own = path.with_name(f"{self.mark}-{secrets.token_hex(4)}")
        try:
            same = read_content(path).decode() == self.mark
            write_content(own, self.mark)
            remove_file(own)
        except FileNotFoundError:
            same = False
        except (OSError, DatasetError, BuildError) as error:
            raise BuildError(f"{layout.out} cannot be used there: {error}") from error
        if not same:
            raise BuildError(f"{layout.out} is not the driver's folder there; --out names a folder that all nodes see")


def _check_lock(layout: Layout) -> None:
    """Raise BuildError if the driver's lock is not seen: attempts at one shard rely on locks that all machines share."""
    with layout.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
    raise BuildError(
        f"{layout.lock} is locked by the driver and not locked there: the file system is mounted without shared locks "
        "(the options nolock and local_lock of NFS, noflock of Lustre)"
    )


@contextmanager
def shared_folder_check(argument: Json) -> Iterator[SharedFolderCheck]:
    """Leave a mark in the output folder, and digest the samples of `argument["witnesses"]`."""
    layout, mark = Layout(folder_at(argument["out"])), secrets.token_hex(8)
    inputs = _raw_inputs(argument)
    samples = [(files, values, inputs.digest(files, values)) for files, values in argument["witnesses"]]
    path = layout.marks / mark
    if not layout.at_store:
        path.parent.mkdir(exist_ok=True)
    write_content(path, mark)
    try:
        yield SharedFolderCheck(mark, samples)
    finally:
        with suppress(StorageError):  # The next build removes it.
            remove_file(path)


def _raw_inputs(argument: Json) -> Inputs:
    return Inputs(raw_root(argument["root"]), tuple(argument["files"]), tuple(argument["values"]))
