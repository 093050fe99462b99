"""One node of a cluster: an actor that runs tasks in local worker processes and returns their events to the driver.

The driver calls `versions` and `open`, then `run` for each task. `open` compares the node's output folder, its lock and some raw
files with those of the driver (`SharedFolderCheck`).
"""

from __future__ import annotations

import queue
import secrets
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
from tfprep.errors import BuildError, BuildLockedError, DatasetError, StorageError
from tfprep.sources.raw import raw_root
from tfprep.storage.local import locked
from tfprep.storage.urls import folder_at, read_content, remove_file, write_content

Json = dict[str, Any]


class Node:
    """Runs tasks in `workers` processes of this machine, each as the only one of a `Processes`.

    The methods are called from `workers + 1` threads. These live as long as the actor, which counts because a process ends with
    the thread that started it.
    """

    def __init__(self, name: str, entry: str, workers: int, item_timeout_s: float) -> None:
        self._name = name
        self._engines = [Processes(entry, workers=1, item_timeout_s=item_timeout_s) for _ in range(workers)]
        self._idle: queue.SimpleQueue[Processes] = queue.SimpleQueue()
        self._states: dict[int, WorkerState] = {}
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
        for engine in self._engines:
            engine.start()
            engine.open({**argument, **changes})
            self._idle.put(engine)

    def run(self, number: int, task: Any) -> list[WorkerEvent]:
        """Run a task and return its events, of which the last says that it is done or that its process died.

        Raises:
          TfprepError: That of the task (`Processes.events`).
        """
        engine = self._idle.get()
        events: list[WorkerEvent] = []
        try:
            engine.submit(number, task)
            for event in engine.events():
                self._states[number] = engine.workers()[0]
                if not isinstance(event, NothingNew | TaskProgress):
                    events.append(event)
        finally:
            self._states.pop(number, None)
            self._idle.put(engine)
        return events

    def states(self) -> tuple[WorkerState, ...]:
        """Return what the workers that have a task did a moment ago."""
        return tuple(self._states.copy().values())


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
    with suppress(BuildLockedError), locked(layout.lock, BuildLockedError()):
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
