"""Runs tasks on the nodes of a Ray cluster: one actor a node, which keeps worker processes of its own (`Node`).

The driver has one call in flight for each task that runs, which returns the task's events. The tasks of a node that is lost are
reported as `TaskCrashed` between items, so that a task which ends every node is not tried for ever.

The user's code travels as an argument of the actor: Ray's own `working_dir` belongs to a connection, so it cannot be given to a
program that is connected already, and it would send all data files beside a recipe.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfprep.builder.options import NodeNews
from tfprep.builder.workers.node import Json, shared_folder_check
from tfprep.builder.workers.remote_node import Connection, NodeLostError, NodeRefusedError, RemoteNode, differences
from tfprep.builder.workers.user_code import collected
from tfprep.child_process import NothingNew, TaskCrashed, TaskDone, TaskProgress, WorkerEvent, WorkerState
from tfprep.engines import Ray
from tfprep.errors import BuildError
from tfprep.optional import require_package

_POLL_S = 0.25
"""Longest time without an event for the caller."""
_LOOK_S = 2.0
"""Time between two looks for nodes of the cluster."""
_PATIENCE_S = 8.0
"""A node takes 1 to 10 s to start. The user is told about what takes longer."""
_START_S = 60.0
"""A build begins without the nodes that have not answered by then; they are used as soon as they do."""
_MOST_FAILURES = 3
"""A node is given up after its actor ended this many times in a row without a finished task."""
_MOST_NAMES = 5


class RayNodes:
    """Runs tasks on the nodes of a Ray cluster that have a CPU. See `Engine`.

    No task is handed out before all nodes have answered, or `_START_S` have passed: a node that would make other bytes, or sees
    other folders, ends the build until then, and is left out later.
    """

    def __init__(self, entry: str, options: Ray, *, workers: int | None, item_timeout_s: float) -> None:
        """`workers` is the number of processes on each node; None takes one for each of its CPUs."""
        require_package("ray", "the engine Ray")
        self._entry, self._options, self._workers, self._item_timeout_s = entry, options, workers, item_timeout_s
        self._connection: Connection | None = None
        self._opening: tuple[Any, ...] = ()
        self._folders = ExitStack()
        self._waiting: deque[tuple[int, Any]] = deque()
        self._nodes: dict[str, RemoteNode] = {}
        self._failures: Counter[str] = Counter()
        self._refusals: dict[str, str] = {}
        self._news: deque[tuple[RemoteNode | None, WorkerEvent | NodeNews]] = deque()
        self._reporting: RemoteNode | None = None
        self._has_begun = self._told_to_wait = False
        self._next_look = 0.0
        self._last_node = 0.0

    # --- the interface of engines -------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._connection is None:
            self._connection = Connection(self._options)
            self._find_nodes()

    def open(self, argument: Json) -> None:
        files = {name: Path(path) for name, path in argument["recipe_files"].items()}
        code = collected(Path(argument["recipe_file"]), files) if argument["recipe_file"] else collected(None)
        self._opening = argument, code, self._folders.enter_context(shared_folder_check(argument))
        self._last_node = time.monotonic()
        for node in self._nodes.values():
            if node.step == "is ready":
                node.open(self._opening)

    def submit(self, number: int, task: Any, *, urgent: bool = False) -> None:
        """Queue a task. An urgent one that follows from a node's event goes to that node: it has what is finished of it."""
        if urgent and self._reporting is not None:
            self._reporting.next_tasks.append((number, task))
        else:
            (self._waiting.appendleft if urgent else self._waiting.append)((number, task))

    def events(self) -> Iterator[WorkerEvent | NodeNews]:
        """See `Engine`. Raises BuildError if a node is refused before the first task, or if no node takes part for too long."""
        while self._waiting or self._news or any(node.running or node.next_tasks for node in self._nodes.values()):
            self._find_nodes()
            self._watch_the_wait()
            if self._has_begun:
                self._hand_out()
            if not self._receive():
                yield NothingNew()
            yield from self._tell()

    def workers(self) -> tuple[WorkerState, ...]:
        return tuple(replace(state, node=node.name) for node in self._nodes.values() for state in node.states)

    def capacity(self) -> int:
        return sum(node.workers for node in self._at_work())

    def close(self) -> None:
        self._waiting.clear()
        try:
            self._folders.close()
        finally:
            for node in self._nodes.values():
                node.end()
            self._nodes.clear()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # --- nodes that come and go ---------------------------------------------------------------------------------------

    def _find_nodes(self) -> None:
        """Start an actor on each node that has none."""
        import ray

        assert self._connection is not None, "start() comes first"
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_S
        for facts in ray.nodes():
            identifier, cpus = facts["NodeID"], int(facts["Resources"].get("CPU", 0))
            is_given_up = self._failures[identifier] >= _MOST_FAILURES
            if facts["Alive"] and cpus and identifier not in self._nodes and not is_given_up:
                node = RemoteNode(facts, self._entry, self._workers, self._item_timeout_s, self._connection)
                self._nodes[identifier] = node

    def _watch_the_wait(self) -> None:
        """Begin when all nodes have answered; tell about waiting, and end it when it takes too long."""
        seconds, wait_s = time.monotonic() - self._last_node, self._options.wait_s
        if not self._has_begun:
            wait_s = max(wait_s, _PATIENCE_S)
            self._has_begun = self._all_answered() or seconds > min(wait_s, _START_S)
            self._check_refusals()
        if self._has_begun and self._at_work():
            self._last_node, self._told_to_wait = time.monotonic(), False
        elif seconds > wait_s:
            raise BuildError(
                f"no node of the Ray cluster took part for {wait_s:g} s: {self._why_to_wait()}. The same command continues "
                "the build"
            )
        elif not self._told_to_wait and (self._has_begun or seconds > _PATIENCE_S):
            self._told_to_wait = True
            text = f"waiting {wait_s:g} s for a node: {self._why_to_wait()}"
            self._add_news(NodeNews("", "waiting", text))

    def _all_answered(self) -> bool:
        return bool(self._nodes or self._refusals) and len(self._at_work()) == len(self._nodes)

    def _check_refusals(self) -> None:
        """Raise BuildError if the build would begin without nodes that were refused."""
        if self._has_begun and self._refusals:
            raise BuildError(
                "nothing was built, because not all nodes of the Ray cluster are like this machine: "
                + "; ".join(f"node {name}: {reason}" for name, reason in self._refusals.items())
            )

    def _why_to_wait(self) -> str:
        """Return what the nodes that do not work wait for."""
        import ray

        starting = [f"{node.name} ({node.workers})" for node in self._nodes.values() if node.step == "starts"]
        checking = [node.name for node in self._nodes.values() if node.step in ("is ready", "opens")]
        if checking:
            return f"{_first(checking)} check their folders"
        if not starting:
            return "none that can be used is alive"
        free, cpus = (
            int(resources.get("CPU", 0)) for resources in (ray.available_resources(), ray.cluster_resources())
        )
        return (
            f"{_first(starting)} start when that many of their CPUs are free, which other jobs may have; {free} of {cpus} are "
            "free in the cluster. --workers takes fewer of a node"
        )

    def _at_work(self) -> list[RemoteNode]:
        return [node for node in self._nodes.values() if node.step == "works"]

    def _refuse(self, node: RemoteNode, reason: str) -> None:
        """Leave a node out for the rest of the build."""
        self._remove(node, _MOST_FAILURES)
        self._refusals[node.name] = reason
        self._add_news(NodeNews(node.name, "refused", f"node {node.name} takes no part: {reason}"))

    def _lose(self, node: RemoteNode, reason: str) -> None:
        """Give the tasks of a node that is gone to others."""
        self._remove(node, 1)
        self._waiting.extendleft(reversed(node.next_tasks))
        count = len(node.running) + len(node.next_tasks)
        again = f"; {count} tasks are given to others" if count else ""
        self._add_news(NodeNews(node.name, "lost", f"node {node.name} was lost: {reason}{again}"))
        for number, _ in node.running:
            self._add_news(TaskCrashed(number, None, f"its node {node.name} was lost"))

    def _remove(self, node: RemoteNode, failures: int) -> None:
        self._failures[node.identifier] += failures
        del self._nodes[node.identifier]
        node.end()

    # --- calls and replies --------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Give tasks to the nodes that have an idle worker; the node with the least work comes first."""
        for node in self._at_work():
            while node.next_tasks and node.load < 1:
                node.run(node.next_tasks.popleft())
            node.look()
        while self._waiting and (free := [node for node in self._at_work() if node.load < 1]):
            min(free, key=lambda node: node.load).run(self._waiting.popleft())

    def _receive(self) -> bool:
        """Wait for answers, at most `_POLL_S`, and note what they say. Return whether any came."""
        import ray

        callers = {call: node for node in self._nodes.values() for call in node.calls}
        if not callers:
            time.sleep(_POLL_S)
            return False
        ready, _ = ray.wait(list(callers), timeout=_POLL_S)
        if ready:  # one: now take all that are there
            ready, _ = ray.wait(list(callers), num_returns=len(callers), timeout=0)
        for call in ready:
            node = callers[call]
            if node.identifier not in self._nodes:  # an answer before this one said that it is gone
                continue
            try:
                self._advance(node, *node.answer(call))
            except NodeRefusedError as error:
                self._refuse(node, str(error))
            except NodeLostError as error:
                self._lose(node, str(error))
        return bool(ready)

    def _advance(self, node: RemoteNode, task: tuple[int, Any] | None, answer: Any) -> None:
        """Note what a call returned: the events of its task, or what belongs to the node's step."""
        if task is not None:
            for event in answer:
                if isinstance(event, TaskDone):
                    self._failures[node.identifier] = 0
                own = replace(event, node=node.name) if isinstance(event, TaskDone | TaskCrashed) else event
                self._news.append((node, own))
        elif node.step == "starts":
            if differing := differences(answer):
                self._refuse(node, differing)
                return
            node.step = "is ready"
            if self._opening:
                node.open(self._opening)
        elif node.step == "opens":
            node.step = "works"
            self._add_news(
                NodeNews(node.name, "joined", f"node {node.name} joined with {node.workers} worker processes")
            )
        else:
            running, node.states = {number for number, _ in node.running}, answer
            for state in node.states:
                if state.task in running and state.item is not None:
                    self._add_news(TaskProgress(state.task, state.item))

    def _add_news(self, event: WorkerEvent | NodeNews) -> None:
        self._news.append((None, event))

    def _tell(self) -> Iterator[WorkerEvent | NodeNews]:
        while self._news:
            self._reporting, event = self._news.popleft()
            yield event
            self._reporting = None


def _first(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
