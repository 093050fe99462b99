"""The driver's side of a cluster: the connection, and for each node its actor, the call in flight, and the tasks it was given."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from tfprep.builder.planning.plan import building_versions
from tfprep.builder.workers.node import Json, Node, NodeReply, NodeTask
from tfprep.child_process import TaskCrashed, TaskDone, TaskProgress, WorkerEvent, WorkerState, rebuilt_error
from tfprep.engines import Ray
from tfprep.errors import BuildError, TfprepError
from tfprep.storage.address import without_secrets

_CONNECT_S = 10.0
_FAILED_START = "error raised in its creation task"
"""Ray's words for an actor whose process runs and cannot make it, for example where tfprep is not installed."""
_TASKS_PER_WORKER = 2
"""A node gets few tasks ahead, so that few are lost with it."""


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
      step: What it does: it starts, has started, checks its folders, or works.
      reply: The call in flight; None without one.
      next_tasks: Tasks that it gets with the next call.
      states: What its workers did at its last reply.
    """

    def __init__(
        self, facts: Json, entry: str, most_workers: int | None, item_timeout_s: float, connection: Connection
    ) -> None:
        """Start the actor on the node that Ray describes with `facts`. Raises BuildError."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cpus = int(facts["Resources"]["CPU"])
        self.identifier: str = facts["NodeID"]
        self.name = f"{facts['NodeManagerAddress']}-{self.identifier[:6]}"
        self.workers = min(cpus, most_workers or cpus)
        self.step: Literal["starts", "is ready", "opens", "works"] = "starts"
        self.next_tasks: list[NodeTask] = []
        self.states: tuple[WorkerState, ...] = ()
        self._tasks: dict[int, NodeTask] = {}  # in the order of giving
        self._connection = connection
        place = NodeAffinitySchedulingStrategy(self.identifier, soft=False)
        try:
            actor = ray.remote(Node).options(
                num_cpus=self.workers, scheduling_strategy=place, runtime_env=dict(connection.runtime_env)
            )
            self._actor = actor.remote(self.name, entry, self.workers, item_timeout_s)
        except ValueError as error:
            raise BuildError(f"runtime_env: {connection.summary_of(error)}") from error
        self.reply: Any = self._actor.versions.remote()

    @property
    def tasks(self) -> list[NodeTask]:
        """The tasks that it was given and has not finished."""
        return [*self._tasks.values(), *self.next_tasks]

    @property
    def to_retry_alone(self) -> list[NodeTask]:
        """The tasks that its workers may be running: the first, those that it named, and urgent ones, which overtake others."""
        running = {state.task for state in self.states}
        return [
            task
            for place, task in enumerate(self._tasks.values())
            if place < self.workers or task.urgent or task.number in running
        ]

    @property
    def load(self) -> float:
        """Return the share of its places for tasks that are taken; it has room for tasks below 1."""
        return (len(self._tasks) + len(self.next_tasks)) / (_TASKS_PER_WORKER * self.workers)

    def open(self, argument: Sequence[Any]) -> None:
        self.step, self.reply = "opens", self._actor.open.remote(*argument)

    def exchange(self) -> None:
        """Hand it the next tasks, and ask for events if it has any task."""
        tasks, self.next_tasks = self.next_tasks, []
        self._tasks.update((task.number, task) for task in tasks)
        if self._tasks:
            self.reply = self._actor.exchange.remote(tasks)

    def answer(self) -> Any:
        """Return what the call in flight returned, which is done.

        Raises:
          NodeRefusedError, NodeLostError: It takes no part, or no longer.
          BuildError: Its code failed.
        """
        import ray

        reply, self.reply = self.reply, None
        try:
            return ray.get(reply)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TfprepError) and self.step != "works":
                raise NodeRefusedError(self._connection.without_values(str(error.cause))) from error
            raise BuildError(f"node {self.name}: {self._connection.without_values(str(error))}") from error
        except ray.exceptions.RuntimeEnvSetupError as error:
            raise NodeRefusedError(f"its runtime_env cannot be set up: {self._connection.summary_of(error)}") from error
        except ray.exceptions.RayError as error:
            if _FAILED_START in str(error):
                raise NodeRefusedError(self._connection.summary_of(error)) from error
            raise NodeLostError(self._connection.summary_of(error)) from error

    def take_over(self, reply: NodeReply) -> list[WorkerEvent]:
        """Return the events of an exchange, of tasks that it was given. Raises what ended the node's work."""
        self.states = reply.workers
        events: list[WorkerEvent] = []
        for event in reply.events:
            if isinstance(event, TaskDone | TaskCrashed):
                del self._tasks[event.task]
                event = replace(event, node=self.name)  # noqa: PLW2901
            if not isinstance(event, TaskProgress) or event.task in self._tasks:
                events.append(event)
        if reply.failure is not None:
            kind, text = reply.failure
            raise rebuilt_error(kind, f"node {self.name}: {self._connection.without_values(text)}")
        return events

    def end(self) -> None:
        import ray

        ray.kill(self._actor)


def differences(versions: Json) -> str:
    """Return which versions of a node are not those of this process; empty if none."""
    here = building_versions()
    differing = [name for name in {**here, **versions} if here.get(name) != versions.get(name)]
    texts = [f"{name} is {versions.get(name)} there and {here.get(name)} here" for name in differing]
    return f"{', '.join(texts)}; other versions make other bytes" if texts else ""


# --- the connection ---------------------------------------------------------------------------------------------------


class Connection:
    """The connection that the program has, or else one to the cluster that `options` names.

    Attributes:
      runtime_env: What each actor is given. A connection of our own has it whole, since folders travel with that alone.
    """

    def __init__(self, options: Ray) -> None:
        """Connect. Raises BuildError."""
        import ray

        self._options = options
        self._check_environment()
        self._is_own = not ray.is_initialized()
        self.runtime_env = {} if self._is_own else dict(options.runtime_env)
        if self._is_own:
            self._connect()

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

    def _check_environment(self) -> None:
        """Raise BuildError for a value that Ray refuses, and for a field that Ray ignores."""
        from ray.runtime_env import RuntimeEnv

        runtime_env = self._options.runtime_env
        unknown = sorted(set(runtime_env) - RuntimeEnv.known_fields)
        if unknown and "RAY_RUNTIME_ENV_PLUGINS" not in os.environ:
            known = ", ".join(sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_")))
            raise BuildError(f"runtime_env has no field {unknown[0]!r}; those of Ray are {known}")
        try:
            RuntimeEnv(**runtime_env)
        except (TypeError, ValueError) as error:
            # Without the cause, whose text may hold a value.
            raise BuildError(f"runtime_env: {self.summary_of(error)}") from None

    def _connect(self) -> None:
        import ray

        options = self._options
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            _check_port(options.address)
            ray.init(options.address, runtime_env=dict(options.runtime_env), **quiet)
        except Exception as error:  # OSError, RuntimeError, ValueError or an exception of gRPC
            raise BuildError(
                f"no Ray cluster at {options.address!r}: {self.summary_of(error)}. Start one with `ray start --head`, or say "
                "with --address where it is"
            ) from error


def _check_port(address: str) -> None:
    """Raise OSError if nothing answers at "host:port", which Ray itself would try for up to minutes."""
    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
