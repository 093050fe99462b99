"""One node of a cluster: an actor that runs tasks in local worker processes and hands their events to the driver.

The driver calls `versions`, `open` and then `exchange`, again and again. Between the calls a thread keeps the workers busy with
the tasks that wait here. That thread starts the workers, because a worker ends with the thread that started it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tfprep.builder.planning.versions import building_versions
from tfprep.builder.scratch import scratch_folder
from tfprep.builder.workers.engine import Json, NothingNew, TaskProgress, WorkerEvent, WorkerState
from tfprep.builder.workers.processes import Processes
from tfprep.builder.workers.sight import Sight
from tfprep.builder.workers.user_code import UserCode, unpack

_EXCHANGE_S = 0.5
"""Longest time that `exchange` waits: how old the driver's view of running tasks may be."""


@dataclass(frozen=True)
class NodeTask:
    """A task for a node, as in `Engine.submit`."""

    number: int
    body: Json
    urgent: bool = False


@dataclass(frozen=True)
class NodeReply:
    """What happened at a node.

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

    def open(self, argument: Json, code: UserCode, sight: Sight) -> None:
        """Check the folders, unpack the user's code and start the workers.

        Raises:
          BuildError: The folders are not those of the driver.
        """
        sight.look(argument)
        own = self._folder.enter_context(scratch_folder(argument["scratch"] and Path(argument["scratch"]).parent))
        unpack(code, own / "code")
        # Another node may take over a shard while this one, which seemed dead, still writes to its files.
        changes = {
            "run": f"{argument['run']}-{self._name}",
            "mark": sight.mark,
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
