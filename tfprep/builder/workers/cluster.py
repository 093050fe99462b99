"""Runs tasks on the nodes of a Ray cluster: one actor a node, which keeps worker processes of its own (`Node`).

The driver has one call in flight to each node that has work: it carries new tasks there and events back. A node gets
`_TASKS_PER_WORKER` tasks for each of its workers, so that few are lost with it. Tasks of a node that is lost are given to others:
those that it may have been running as `TaskCrashed` between items, so that a task which ends every node is not tried for ever.

The user's code travels as an argument of the actor: Ray's own `working_dir` belongs to a connection, so it cannot be given to a
program that is connected already, and it would send all data files beside a recipe.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tfprep.builder.planning.versions import building_versions
from tfprep.builder.workers.engine import (
    Json,
    NodeNews,
    NothingNew,
    TaskCrashed,
    TaskDone,
    TaskProgress,
    WorkerEvent,
    WorkerState,
)
from tfprep.builder.workers.node import Node, NodeReply, NodeTask
from tfprep.builder.workers.processes import rebuilt
from tfprep.builder.workers.sight import Sight, shown
from tfprep.builder.workers.user_code import UserCode, collected
from tfprep.engines import Ray
from tfprep.errors import BuildError, TfprepError
from tfprep.optional import require_package

_TASKS_PER_WORKER = 2
_POLL_S = 0.25
"""Longest time without an event for the caller."""
_LOOK_S = 2.0
"""How often the cluster is asked for its nodes."""
_CONNECT_S = 10.0
_START_S = 60.0
"""A build begins without the nodes that have not answered by then; they are used as soon as they do. A node takes 1 to 10 s."""
_MOST_FAILURES = 3
"""A node is given up after its actor ended this many times in a row without a finished task."""


@dataclass
class _Remote:
    """The driver's view of a node.

    Attributes:
      identifier: Ray's identifier of the node.
      name: Its address and the beginning of its identifier.
      actor: The handle of its `Node`.
      workers: Number of its worker processes.
      step: What it does: it starts, checks its folders, or works.
      reply: The call in flight.
      tasks: What it has been given and has not finished, in the order of giving.
      urgent: Tasks that it gets with the next call.
      states: What its workers did at its last reply.
    """

    identifier: str
    name: str
    actor: Any
    workers: int
    step: Literal["starts", "is ready", "opens", "works"] = "starts"
    reply: Any = None
    tasks: dict[int, NodeTask] = field(default_factory=dict)
    urgent: list[NodeTask] = field(default_factory=list)
    states: tuple[WorkerState, ...] = ()


class RayNodes:
    """Runs tasks on the nodes of a Ray cluster that have a CPU. See `Engine`."""

    def __init__(self, entry: str, options: Ray, *, workers: int | None, item_timeout_s: float) -> None:
        """`workers` is the number of processes on each node; None takes one for each of its CPUs."""
        require_package("ray", "the engine Ray")
        self._entry, self._options, self._workers, self._item_timeout_s = entry, options, workers, item_timeout_s
        self._waiting: deque[NodeTask] = deque()
        self._nodes: dict[str, _Remote] = {}
        self._failures: Counter[str] = Counter()
        self._refusals: dict[str, str] = {}
        self._news: deque[tuple[_Remote | None, WorkerEvent]] = deque()
        self._reporting: _Remote | None = None
        self._opening: tuple[Json, UserCode, Sight] | None = None
        self._folders = ExitStack()
        self._is_connected = self._is_own = False
        self._next_look = 0.0
        self._last_node = time.monotonic()
        self._is_alone = False

    # --- the interface of engines -------------------------------------------------------------------------------------

    def start(self) -> None:
        if not self._is_connected:
            self._is_own = _connected(self._options.address)
            self._is_connected = True
            self._find_nodes()

    def open(self, argument: Json) -> None:
        """Prepare the nodes. Raises BuildError if one of them would make other bytes, or sees other folders."""
        code = collected(Path(argument["recipe_file"]) if argument["recipe_file"] else None)
        sight = self._folders.enter_context(shown(argument))
        self._opening = argument, code, sight
        self._last_node = time.monotonic()
        for node in self._nodes.values():
            if node.step == "is ready":
                self._open(node)
        started = time.monotonic()
        while not self._all_open(time.monotonic() - started):
            self._find_nodes()
            self._receive()
        if self._refusals:
            raise BuildError(
                "nothing was built, because not all nodes of the Ray cluster are like this machine: "
                + "; ".join(f"node {name}: {reason}" for name, reason in self._refusals.items())
            )

    def submit(self, number: int, task: Json, *, urgent: bool = False) -> None:
        """Queue a task. An urgent one that follows from a node's event goes to that node: it has what is finished of it."""
        new = NodeTask(number, task, urgent)
        if urgent and self._reporting is not None:
            self._reporting.urgent.append(new)
        else:
            (self._waiting.appendleft if urgent else self._waiting.append)(new)

    def events(self) -> Iterator[WorkerEvent]:
        while self._waiting or self._news or any(node.tasks or node.urgent for node in self._nodes.values()):
            self._find_nodes()
            self._hand_out()
            if not self.capacity() and not self._is_alone:
                self._is_alone = True
                self._add_news(
                    NodeNews("", "lost", f"no node takes part now; waiting {self._options.wait_s:g} s for one")
                )
            if not self._receive():
                yield NothingNew()
            yield from self._tell()

    def workers(self) -> tuple[WorkerState, ...]:
        return tuple(replace(state, node=node.name) for node in self._nodes.values() for state in node.states)

    def capacity(self) -> int:
        return sum(node.workers for node in self._nodes.values() if node.step == "works")

    def close(self) -> None:
        self._waiting.clear()
        self._folders.close()
        if not self._is_connected:
            return
        import ray

        for node in self._nodes.values():
            ray.kill(node.actor)
        self._nodes.clear()
        if self._is_own:
            ray.shutdown()
        self._is_connected = False

    # --- nodes that come and go ---------------------------------------------------------------------------------------

    def _find_nodes(self) -> None:
        """Start an actor on each node that has none."""
        import ray

        now = time.monotonic()
        if self.capacity():
            self._last_node, self._is_alone = now, False
        elif now - self._last_node > self._options.wait_s and self._opening is not None:
            raise BuildError(
                f"no node of the Ray cluster took part for {self._options.wait_s:g} s: none with a CPU is alive, or other jobs "
                "have their CPUs. The same command continues the build"
            )
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        for facts in ray.nodes():
            cpus = int(facts["Resources"].get("CPU", 0))
            given_up = self._failures[facts["NodeID"]] >= _MOST_FAILURES
            if facts["Alive"] and cpus and facts["NodeID"] not in self._nodes and not given_up:
                self._nodes[facts["NodeID"]] = self._started(facts, min(cpus, self._workers or cpus))

    def _started(self, facts: Json, workers: int) -> _Remote:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        name = f"{facts['NodeManagerAddress']}-{facts['NodeID'][:6]}"
        place = NodeAffinitySchedulingStrategy(facts["NodeID"], soft=False)
        actor = (
            ray.remote(Node)
            .options(num_cpus=workers, scheduling_strategy=place, runtime_env=dict(self._options.runtime_env))
            .remote(name, self._entry, workers, self._item_timeout_s)
        )
        return _Remote(facts["NodeID"], name, actor, workers, reply=actor.versions.remote())

    def _all_open(self, seconds: float) -> bool:
        """Return whether the build can begin: all nodes work or were refused, or the others had enough time."""
        steps = {node.step for node in self._nodes.values()}
        return steps <= {"works"} or seconds > _START_S

    def _open(self, node: _Remote) -> None:
        assert self._opening is not None, "open() comes first"
        node.step, node.reply = "opens", node.actor.open.remote(*self._opening)

    def _refuse(self, node: _Remote, reason: str) -> None:
        """Leave a node out for the rest of the build."""
        self._remove(node, _MOST_FAILURES)
        self._refusals[node.name] = reason
        self._add_news(NodeNews(node.name, "refused", f"node {node.name} takes no part: {reason}"))

    def _lose(self, node: _Remote, reason: str) -> None:
        """Give the tasks of a node that is gone to others."""
        self._remove(node, 1)
        tasks = [*node.tasks.values(), *node.urgent]
        for task in reversed(tasks[node.workers :]):
            self._waiting.appendleft(task)
        again = f"; {len(tasks)} tasks are given to others" if tasks else ""
        self._add_news(NodeNews(node.name, "lost", f"node {node.name} was lost: {reason}{again}"))
        for task in tasks[: node.workers]:
            self._add_news(TaskCrashed(task.number, None, f"its node {node.name} was lost"))

    def _remove(self, node: _Remote, failures: int) -> None:
        import ray

        self._failures[node.identifier] += failures
        del self._nodes[node.identifier]
        ray.kill(node.actor)

    def _add_news(self, event: WorkerEvent, node: _Remote | None = None) -> None:
        self._news.append((node, event))

    # --- calls and replies --------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Call each node that works, with tasks if it has room for them; the node with the least work comes first."""
        idle = [node for node in self._nodes.values() if node.step == "works" and node.reply is None]
        shares: dict[str, list[NodeTask]] = {node.name: node.urgent for node in idle}
        for node in idle:
            node.urgent = []
        while self._waiting and idle:
            node = min(idle, key=lambda node: (len(node.tasks) + len(shares[node.name])) / node.workers)
            if len(node.tasks) + len(shares[node.name]) >= _TASKS_PER_WORKER * node.workers:
                break
            shares[node.name].append(self._waiting.popleft())
        for node in idle:
            node.tasks.update((task.number, task) for task in shares[node.name])
            if node.tasks:
                node.reply = node.actor.exchange.remote(shares[node.name])

    def _receive(self) -> bool:
        """Wait for replies, at most `_POLL_S`, and note what they say. Return whether any came."""
        import ray

        callers = {node.reply: node for node in self._nodes.values() if node.reply is not None}
        if not callers:
            time.sleep(_POLL_S)
            return False
        ready, _ = ray.wait(list(callers), timeout=_POLL_S)
        if ready:  # one: now take all that are there
            ready, _ = ray.wait(list(callers), num_returns=len(callers), timeout=0)
        for reply in ready:
            callers[reply].reply = None
            self._note(callers[reply], reply)
        return bool(ready)

    def _note(self, node: _Remote, reply: Any) -> None:
        import ray

        try:
            answer = ray.get(reply)
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, TfprepError) or node.step == "works":
                raise BuildError(f"node {node.name}: {error}") from error
            self._refuse(node, str(error.cause))
        except ray.exceptions.RuntimeEnvSetupError as error:
            self._refuse(node, str(error))
        except ray.exceptions.RayError as error:
            self._lose(node, _first_line(error))
        else:
            self._advance(node, answer)

    def _advance(self, node: _Remote, answer: Any) -> None:
        if node.step == "starts":
            if differing := _differences(answer):
                self._refuse(node, differing)
                return
            node.step = "is ready"
            if self._opening is not None:
                self._open(node)
        elif node.step == "opens":
            node.step = "works"
            text = f"node {node.name} joined with {node.workers} worker processes"
            self._add_news(NodeNews(node.name, "joined", text))
        else:
            self._take_over(node, answer)

    def _take_over(self, node: _Remote, reply: NodeReply) -> None:
        node.states = reply.workers
        for event in reply.events:
            if isinstance(event, TaskDone | TaskCrashed):
                del node.tasks[event.task]
            if isinstance(event, TaskDone):
                self._failures[node.identifier] = 0
                event = replace(event, node=node.name)  # noqa: PLW2901
            if not isinstance(event, TaskProgress) or event.task in node.tasks:
                self._add_news(event, node)
        if reply.failure is not None:
            kind, text = reply.failure
            raise rebuilt(kind, f"node {node.name}: {text}")

    def _tell(self) -> Iterator[WorkerEvent]:
        while self._news:
            self._reporting, event = self._news.popleft()
            yield event
            self._reporting = None


def _connected(address: str) -> bool:
    """Connect to the cluster unless this process is. Return whether it was done here."""
    import ray

    if ray.is_initialized():
        return False
    try:
        _check_port(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError or an exception of gRPC
        raise BuildError(
            f"no Ray cluster at {address!r}: {_first_line(error)}. Start one with `ray start --head`, or say with --address "
            "where it is"
        ) from error
    return True


def _check_port(address: str) -> None:
    """Raise OSError if nothing answers at "host:port", which Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "://" not in address:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()


def _differences(versions: Json) -> str:
    """Return which versions of a node are not those of this process; empty if none."""
    here = building_versions()
    differing = [name for name in {**here, **versions} if here.get(name) != versions.get(name)]
    texts = [f"{name} is {versions.get(name)} there and {here.get(name)} here" for name in differing]
    return f"{', '.join(texts)}; other versions make other bytes" if texts else ""


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
