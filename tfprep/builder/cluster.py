"""Runs tasks on the nodes of a Ray cluster: one actor a node, which keeps worker processes of its own (`Node`).

The driver has one call in flight for each task that runs, which returns the task's events. The tasks of a node that is lost are
given to others, each a few times: one that ends every node is not tried for ever.

The user's code travels as an argument of the actor: Ray's own `working_dir` belongs to a connection, so it cannot be given to a
program that is connected already, and it would send all data files beside a recipe.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfprep.builder.node import Node, collected, shared_folder_check
from tfprep.builder.options import NodeNews
from tfprep.builder.planning.plan import building_versions
from tfprep.builder.shards.shard import BuildContext
from tfprep.engines import Ray
from tfprep.errors import BuildError, RecordError, TfprepError
from tfprep.optional import require_package
from tfprep.pool import Died, Done, Event, Idle, Task, WorkerState
from tfprep.storage.address import without_secrets

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
_MOST_LOSSES = 3
"""The build ends when a task has lost more nodes than these."""
_MOST_NAMES = 5
_CONNECT_S = 10.0
_FAILED_START = "error raised in its creation task"
"""Ray's words for an actor whose process runs and cannot make it, for example where tfprep is not installed."""


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
        self._waiting: deque[Task] = deque()
        self._count = 0
        self._losses: Counter[Task] = Counter()
        self._nodes: dict[str, RemoteNode] = {}
        self._failures: Counter[str] = Counter()
        self._refusals: dict[str, str] = {}
        self._news: deque[Event | NodeNews] = deque()
        self._has_begun = self._told_to_wait = False
        self._next_look = 0.0
        self._last_node = 0.0

    # --- the interface of engines -------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._connection is None:
            self._connection = Connection(self._options)
            self._find_nodes()

    def open(self, argument: BuildContext) -> None:
        code = collected(argument.source if isinstance(argument.source, Path) else None, argument.named)
        check = self._folders.enter_context(shared_folder_check(argument))
        self._opening = argument, code, check, building_versions()
        self._last_node = time.monotonic()
        for node in self._nodes.values():
            node.open(self._opening)

    def submit(self, content: Any, *, urgent: bool = False) -> Task:
        task = Task(self._count, content)
        self._count += 1
        (self._waiting.appendleft if urgent else self._waiting.append)(task)
        return task

    def events(self) -> Iterator[Event | NodeNews]:
        """See `Engine`. Raises BuildError if a node is refused before the first task, or if no node takes part for too long."""
        while self._waiting or self._news or any(node.running for node in self._nodes.values()):
            self._find_nodes()
            self._watch_the_wait()
            while self._has_begun and self._waiting and (free := [node for node in self._at_work() if node.load < 1]):
                min(free, key=lambda node: node.load).run(self._waiting.popleft())
            if not self._receive():
                yield Idle()
            while self._news:
                yield self._news.popleft()

    def workers(self) -> tuple[WorkerState, ...]:
        return ()

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
                if self._opening:
                    node.open(self._opening)

    def _watch_the_wait(self) -> None:
        """Begin when all nodes have answered; tell about waiting, and end it when it takes too long."""
        seconds, wait_s = time.monotonic() - self._last_node, self._options.wait_s
        if not self._has_begun:
            wait_s = max(wait_s, _PATIENCE_S)
            all_answered = bool(self._nodes or self._refusals) and len(self._at_work()) == len(self._nodes)
            self._has_begun = all_answered or seconds > min(wait_s, _START_S)
            if self._has_begun and self._refusals:
                raise BuildError(
                    "nothing was built, because not all nodes of the Ray cluster are like this machine: "
                    + "; ".join(f"node {name}: {reason}" for name, reason in self._refusals.items())
                )
        if self._has_begun and self._at_work():
            self._last_node, self._told_to_wait = time.monotonic(), False
        elif seconds > wait_s:
            raise BuildError(
                f"no node of the Ray cluster took part for {wait_s:g} s: {self._why_to_wait()}. The same command continues "
                "the build"
            )
        elif not self._told_to_wait and (self._has_begun or seconds > _PATIENCE_S):
            self._told_to_wait = True
            self._news.append(NodeNews("", "waiting", f"waiting {wait_s:g} s for a node: {self._why_to_wait()}"))

    def _why_to_wait(self) -> str:
        """Return what the nodes that do not work wait for."""
        import ray

        starting = [f"{node.name} ({node.workers})" for node in self._nodes.values()]
        if not starting:
            return "none that can be used is alive"
        more = f" and {len(starting) - _MOST_NAMES} more" if len(starting) > _MOST_NAMES else ""
        free, cpus = (
            int(resources.get("CPU", 0)) for resources in (ray.available_resources(), ray.cluster_resources())
        )
        return (
            f"{', '.join(starting[:_MOST_NAMES])}{more} start when that many of their CPUs are free, which other jobs may have; "
            f"{free} of {cpus} are free in the cluster. --workers takes fewer of a node"
        )

    def _at_work(self) -> list[RemoteNode]:
        return [node for node in self._nodes.values() if node.works]

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
                for event in node.answer(call):
                    if isinstance(event, Done):
                        self._failures[node.identifier] = 0
                    self._news.append(event)
            except NodeRefusedError as error:
                self._refusals[node.name] = str(error)
                self._remove(node, _MOST_FAILURES)
                self._news.append(NodeNews(node.name, "refused", f"node {node.name} takes no part: {error}"))
            except NodeLostError as error:
                self._remove(node, 1)
                again = f"; {len(node.running)} tasks are given to others" if node.running else ""
                self._news.append(NodeNews(node.name, "lost", f"node {node.name} was lost: {error}{again}"))
                self._run_again(node)
        return bool(ready)

    def _run_again(self, node: RemoteNode) -> None:
        """Give the tasks of a node that was lost to others."""
        reason = f"its node {node.name} was lost"
        for task in node.running:
            self._losses[task] += 1
            if self._losses[task] > _MOST_LOSSES:
                shard = f"shard {task.content.shard} of {task.content.split!r}"
                raise BuildError(
                    f"{shard}: {reason}, {self._losses[task]} times; its output is above, or in the build's log"
                )
            self._waiting.appendleft(task)
            self._news.append(Died(task, None, reason))

    def _remove(self, node: RemoteNode, failures: int) -> None:
        self._failures[node.identifier] += failures
        del self._nodes[node.identifier]
        node.end()


class NodeLostError(Exception):
    """A node's actor ended."""


class NodeRefusedError(Exception):
    """A node would make other bytes, or cannot work."""


class RemoteNode:
    """A node of the cluster.

    Attributes:
      identifier: Ray's identifier of the node.
      name: Its address and the beginning of its identifier.
      workers: Number of its worker processes.
      works: Whether it has checked its folders and takes tasks.
      calls: The calls in flight, with the task of each; None for the one that opens it.
    """

    def __init__(
        self, facts: dict[str, Any], entry: str, most_workers: int | None, item_timeout_s: float, connection: Connection
    ) -> None:
        """Start the actor on the node that Ray describes with `facts`. Raises BuildError."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cpus = int(facts["Resources"]["CPU"])
        self.identifier: str = facts["NodeID"]
        self.name = f"{facts['NodeManagerAddress']}-{self.identifier[:6]}"
        self.workers = min(cpus, most_workers or cpus)
        self.works = False
        self.calls: dict[Any, Task | None] = {}
        self._connection = connection
        try:
            actor = ray.remote(Node).options(
                num_cpus=self.workers,
                max_concurrency=self.workers,
                scheduling_strategy=NodeAffinitySchedulingStrategy(self.identifier, soft=False),
                runtime_env=dict(connection.runtime_env),
            )
            self._actor = actor.remote(self.name, entry, self.workers, item_timeout_s)
        except ValueError as error:
            raise BuildError(f"runtime_env: {connection.summary_of(error)}") from error

    @property
    def running(self) -> list[Task]:
        """The tasks that it runs."""
        return [task for task in self.calls.values() if task is not None]

    @property
    def load(self) -> float:
        """The share of its workers that have a task."""
        return len(self.calls) / self.workers

    def open(self, opening: Sequence[Any]) -> None:
        self.calls[self._actor.open.remote(*opening)] = None

    def run(self, task: Task) -> None:
        self.calls[self._actor.run.remote(task.content)] = task

    def answer(self, call: Any) -> list[Event | NodeNews]:
        """Return the events of a call that is done. A call of a node that is lost keeps its task.

        Raises:
          NodeRefusedError, NodeLostError: It takes no part, or no longer.
          TfprepError: Its code, or a task, failed.
        """
        import ray

        try:
            events = ray.get(call)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            text = self._connection.without_values(str(cause or error))
            if isinstance(cause, TfprepError) and not self.works:
                raise NodeRefusedError(text) from error
            raise _named_error(cause, f"node {self.name}: {text}") from error
        except ray.exceptions.RuntimeEnvSetupError as error:
            raise NodeRefusedError(f"its runtime_env cannot be set up: {self._connection.summary_of(error)}") from error
        except ray.exceptions.RayError as error:
            if _FAILED_START in str(error):
                raise NodeRefusedError(self._connection.summary_of(error)) from error
            raise NodeLostError(self._connection.summary_of(error)) from error
        task = self.calls.pop(call)
        if task is None:
            self.works = True
            return [NodeNews(self.name, "joined", f"node {self.name} joined with {self.workers} worker processes")]
        own = [replace(event, task=task) for event in events]
        return [replace(event, node=self.name) if isinstance(event, Done) else event for event in own]

    def end(self) -> None:
        import ray

        ray.kill(self._actor)


def _named_error(error: BaseException | None, text: str) -> Exception:
    """Return an exception of a node with this text: of its type if it is one of tfprep's, else a BuildError."""
    kind = type(error)
    return kind(text) if issubclass(kind, TfprepError) and kind is not RecordError else BuildError(text)


class Connection:
    """The connection that the program has, or else one to the cluster that `options` names.

    Attributes:
      runtime_env: What each actor is given. A connection of our own has it whole, since folders travel with that alone.
    """

    def __init__(self, options: Ray) -> None:
        """Connect. Raises BuildError."""
        import ray
        from ray.runtime_env import RuntimeEnv

        self._options = options
        unknown = sorted(set(options.runtime_env) - RuntimeEnv.known_fields)  # Ray ignores them
        if unknown and "RAY_RUNTIME_ENV_PLUGINS" not in os.environ:
            known = ", ".join(sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_")))
            raise BuildError(f"runtime_env has no field {unknown[0]!r}; those of Ray are {known}")
        try:
            RuntimeEnv(**options.runtime_env)
        except (TypeError, ValueError) as error:
            # Without the cause, whose text may hold a value.
            raise BuildError(f"runtime_env: {self.summary_of(error)}") from None
        self._is_own = not ray.is_initialized()
        self.runtime_env = {} if self._is_own else dict(options.runtime_env)
        if not self._is_own:
            return
        address = os.environ.get("RAY_ADDRESS", options.address) if options.address == "auto" else options.address
        if address == "auto":  # what Ray then reads, which a cluster that was killed leaves behind
            place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
            with suppress(OSError):
                address = Path(place, "ray/ray_current_cluster").read_text().strip()
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if host and port.isdecimal() and "/" not in host:  # where nothing answers, Ray itself would try for minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
            runtime_env = dict(options.runtime_env)
            ray.init(options.address, runtime_env=runtime_env, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # OSError, RuntimeError, ValueError or an exception of gRPC
            raise BuildError(
                f"no Ray cluster at {options.address!r}: {self.summary_of(error)}. Start one with `ray start --head`, or say "
                "with --address where it is"
            ) from error

    def close(self) -> None:
        import ray

        if self._is_own:
            ray.shutdown()

    def summary_of(self, error: Exception) -> str:
        """Return one line of an error's text: the first, or the last where the first only announces a traceback."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        is_traceback = lines[0].endswith(":") or _FAILED_START in lines[0] or "Traceback" in str(error)
        return self.without_values(lines[-1] if is_traceback else lines[0])

    def without_values(self, text: str) -> str:
        """Return a message of Ray or of a node with the values of the nodes' environment variables replaced by their names."""
        variables = self._options.runtime_env.get("env_vars")
        if not isinstance(variables, Mapping):  # it is checked later
            return without_secrets(text)
        return without_secrets(text, {name: str(value) for name, value in variables.items()})
