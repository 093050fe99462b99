"""The driver's side of one node: its actor, the call in flight, and the tasks that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from tfprep.builder.planning.versions import building_versions
from tfprep.builder.workers.connection import FAILED_START, Connection
from tfprep.builder.workers.engine import Json, TaskCrashed, TaskDone, TaskProgress, WorkerEvent, WorkerState
from tfprep.builder.workers.node import Node, NodeReply, NodeTask
from tfprep.builder.workers.processes import rebuilt
from tfprep.errors import BuildError, TfprepError

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
        """What it was given and has not finished."""
        return [*self._tasks.values(), *self.next_tasks]

    @property
    def suspects(self) -> list[NodeTask]:
        """The tasks that its workers may be running: the first, those that it named, and urgent ones, which overtake others."""
        running = {state.task for state in self.states}
        return [
            task
            for place, task in enumerate(self._tasks.values())
            if place < self.workers or task.urgent or task.number in running
        ]

    @property
    def load(self) -> float:
        """How full it is; it has room for tasks below 1."""
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
            if FAILED_START in str(error):
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
            raise rebuilt(kind, f"node {self.name}: {self._connection.without_values(text)}")
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
