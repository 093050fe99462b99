"""The driver's side of a cluster: the connection, and for each node its actor and the calls in flight, one for each task."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tfprep.builder.planning.plan import building_versions
from tfprep.builder.workers.node import Json, Node
from tfprep.child_process import WorkerState, rebuilt_error
from tfprep.engines import Ray
from tfprep.errors import BuildError, TfprepError
from tfprep.storage.address import without_secrets

_CONNECT_S = 10.0
_FAILED_START = "error raised in its creation task"
"""Ray's words for an actor whose process runs and cannot make it, for example where tfprep is not installed."""
_POLL_S = 0.5
"""How old the driver's view of running tasks may be."""


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
      calls: The calls in flight, with the task of each; None for a call that runs no task.
      next_tasks: Tasks, with their numbers, that follow from its events: it has what is finished of them.
      states: What its workers did when it was last asked.
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
        self.next_tasks: deque[tuple[int, Any]] = deque()
        self.states: tuple[WorkerState, ...] = ()
        self._next_look = 0.0
        self._connection = connection
        place = NodeAffinitySchedulingStrategy(self.identifier, soft=False)
        try:
            actor = ray.remote(Node).options(
                num_cpus=self.workers,
                max_concurrency=self.workers + 1,
                scheduling_strategy=place,
                runtime_env=dict(connection.runtime_env),
            )
            self._actor = actor.remote(self.name, entry, self.workers, item_timeout_s)
        except ValueError as error:
            raise BuildError(f"runtime_env: {connection.summary_of(error)}") from error
        self.calls: dict[Any, tuple[int, Any] | None] = {self._actor.versions.remote(): None}

    @property
    def running(self) -> list[tuple[int, Any]]:
        """The tasks that it runs, with their numbers."""
        return [task for task in self.calls.values() if task is not None]

    @property
    def load(self) -> float:
        """The share of its workers that have a task."""
        return len(self.running) / self.workers

    def open(self, argument: Sequence[Any]) -> None:
        self.step = "opens"
        self.calls[self._actor.open.remote(*argument)] = None

    def run(self, task: tuple[int, Any]) -> None:
        self.calls[self._actor.run.remote(*task)] = task

    def look(self) -> None:
        """Ask what its workers do, unless that was done a moment ago."""
        if self.step == "works" and None not in self.calls.values() and time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + _POLL_S
            self.calls[self._actor.states.remote()] = None

    def answer(self, call: Any) -> tuple[tuple[int, Any] | None, Any]:
        """Return the task of a call that is done, and what the call returned. A call of a node that is lost keeps its task.

        Raises:
          NodeRefusedError, NodeLostError: It takes no part, or no longer.
          TfprepError: Its code, or a task, failed.
        """
        import ray

        try:
            answer = ray.get(call)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            text = self._connection.without_values(str(cause or error))
            if isinstance(cause, TfprepError) and self.step != "works":
                raise NodeRefusedError(text) from error
            raise rebuilt_error(type(cause).__name__, f"node {self.name}: {text}") from error
        except ray.exceptions.RuntimeEnvSetupError as error:
            raise NodeRefusedError(f"its runtime_env cannot be set up: {self._connection.summary_of(error)}") from error
        except ray.exceptions.RayError as error:
            if _FAILED_START in str(error):
                raise NodeRefusedError(self._connection.summary_of(error)) from error
            raise NodeLostError(self._connection.summary_of(error)) from error
        return self.calls.pop(call), answer

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
