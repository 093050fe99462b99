"""Runs the shard tasks of a build on a Ray cluster, each as a task of Ray (`tfprep.builder.node`).

Ray decides where a shard is built. What is finished is known from the receipts only: it does not matter who built a shard, how
often, or which nodes are gone. A node that would make other bytes ends the build, with its name.

The user's code travels as an argument: Ray's own `working_dir` belongs to a connection, so it cannot be given to a program that
is connected already, and it would send all data files beside a recipe.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfprep.builder.node import Opening, build_shard, collected, node_name, shared_folder_check
from tfprep.builder.options import NodeNews
from tfprep.builder.planning.plan import building_versions
from tfprep.builder.shards.shard import BuildContext
from tfprep.engines import Ray
from tfprep.errors import BuildError, RecordError, TfprepError
from tfprep.optional import require_package
from tfprep.pool import Died, Done, Event, Task, WorkerState
from tfprep.storage.address import without_secrets

_POLL_S = 0.25
"""Longest time without an event for the caller."""
_LOOK_S = 2.0
"""Time between two looks at the nodes of the cluster."""
_PATIENCE_S = 8.0
"""A node takes 1 to 10 s to start. The user is told about what takes longer."""
_MOST_LOSSES = 3
"""The build ends when a shard has lost more nodes than these."""
_CONNECT_S = 10.0


class RayNodes:
    """Runs shard tasks on the nodes of a Ray cluster. See `Engine`."""

    def __init__(self, entry: str, options: Ray, *, workers: int | None, item_timeout_s: float) -> None:
        """`workers` is the most shards that are built at a time; None for one on each CPU of the cluster."""
        require_package("ray", "the engine Ray")
        self._entry, self._options, self._workers, self._item_timeout_s = entry, options, workers, item_timeout_s
        self._connection: Connection | None = None
        self._folders = ExitStack()
        self._opening: list[Any] = []
        self._waiting: deque[Task] = deque()
        self._count = 0
        self._calls: dict[Any, Task | None] = {}
        self._losses: Counter[Task] = Counter()
        self._news: deque[Event | NodeNews] = deque()
        self._nodes: set[str] = set()
        """The names of the nodes that are alive and have CPUs."""
        self._has_answered = False
        self._next_look = self._seen = 0.0
        self._free = self._cpus = 0
        self._told_to_wait = False

    # --- the interface of engines -------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._connection is None:
            self._connection = Connection(self._options)

    def open(self, argument: BuildContext) -> None:
        import ray

        code = collected(argument.source if isinstance(argument.source, Path) else None, argument.named)
        check = self._folders.enter_context(shared_folder_check(argument))
        opening = Opening(self._entry, self._item_timeout_s, argument, code, check, building_versions())
        # In a list, which Ray passes on as it is: a node gets the content once, not with each shard.
        self._opening = [ray.put(opening)]
        self._seen = time.monotonic()
        self._call(None)
        self._look()

    def submit(self, content: Any, note: Any = None) -> Task:
        task = Task(self._count, content, note)
        self._count += 1
        self._waiting.append(task)
        return task

    def events(self) -> Iterator[Event | NodeNews]:
        """See `Engine`. Raises BuildError if a node differs, a shard loses its node again and again, or no node is left."""
        while self._waiting or self._calls or self._news:
            while self._has_answered and self._waiting and len(self._calls) < (self._workers or len(self._calls) + 1):
                self._call(self._waiting.popleft())
            self._look()
            if not self._receive():
                yield None
            while self._news:
                yield self._news.popleft()

    def workers(self) -> tuple[WorkerState, ...]:
        return ()

    def capacity(self) -> int:
        return self._workers or self._cpus

    def close(self) -> None:
        import ray

        self._waiting.clear()
        try:
            self._folders.close()
        finally:
            for call in self._calls:
                ray.cancel(call, force=True)
            self._calls.clear()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # --- tasks of Ray -------------------------------------------------------------------------------------------------

    def _call(self, task: Task | None) -> None:
        """Have a task done by any node; without one, it only says whether it would build the same as this machine."""
        import ray

        assert self._connection is not None, "start() comes first"
        try:
            environment = dict(self._connection.runtime_env)
            remote = ray.remote(build_shard).options(num_cpus=1, max_retries=0, runtime_env=environment)
            self._calls[remote.remote(self._opening, task and task.content)] = task
        except ValueError as error:
            raise BuildError(f"runtime_env: {self._connection.summary_of(error)}") from error

    def _receive(self) -> bool:
        """Wait for answers, at most `_POLL_S`, and note what they say. Return True if any came."""
        import ray

        if not self._calls:
            time.sleep(_POLL_S)
            return False
        ready, _ = ray.wait(list(self._calls), timeout=_POLL_S)
        if ready:  # one: now take all that are there
            ready, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        for call in ready:
            task = self._calls.pop(call)
            answer = self._answer(call)
            if answer is None:
                self._lost(task)
                continue
            node, events = answer
            self._has_answered = True
            for event in events:
                own = replace(event, task=task)
                self._news.append(replace(own, node=node) if isinstance(own, Done) else own)
        return bool(ready)

    def _answer(self, call: Any) -> tuple[str, list[Any]] | None:
        """Return the name of a node and its events; None if it was lost. Raises the error of a node, with its name."""
        import ray

        assert self._connection is not None, "start() comes first"
        try:
            answer: tuple[str, list[Any]] = ray.get(call)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if not isinstance(cause, TfprepError):  # of another version, or a fault of Ray
                raise BuildError(self._connection.summary_of(cause or error)) from error
            kind = BuildError if isinstance(cause, RecordError) else type(cause)
            raise kind(self._connection.without_values(str(cause))) from error
        except ray.exceptions.RuntimeEnvSetupError as error:
            raise BuildError(f"runtime_env cannot be set up: {self._connection.summary_of(error)}") from error
        except ray.exceptions.RayError:
            return None
        return answer

    def _lost(self, task: Task | None) -> None:
        """Give a task whose node or process was lost to another one."""
        if task is None:
            self._call(None)
            return
        self._losses[task] += 1
        if self._losses[task] > _MOST_LOSSES:
            shard = f"shard {task.content.shard} of {task.content.split!r}"
            raise BuildError(
                f"{shard} lost its node {self._losses[task]} times, and may be the cause; Ray's logs say more"
            )
        self._news.append(Died(task, None, "its node was lost"))
        self._waiting.appendleft(task)

    # --- nodes that come and go ---------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Note which nodes are gone; tell about waiting for one, and end it when it takes too long."""
        import ray

        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_S
        usable = [facts for facts in ray.nodes() if facts["Alive"] and facts["Resources"].get("CPU")]
        alive = {node_name(facts["NodeManagerAddress"], facts["NodeID"]) for facts in usable}
        for node in sorted(alive - self._nodes):
            self._news.append(NodeNews(node, "joined", f"node {node} joined"))
        for node in sorted(self._nodes - alive):
            self._news.append(NodeNews(node, "lost", f"node {node} was lost; others build what it was building"))
        self._nodes = alive
        self._free, self._cpus = (
            int(resources.get("CPU", 0)) for resources in (ray.available_resources(), ray.cluster_resources())
        )
        if self._nodes and self._has_answered:
            self._seen, self._told_to_wait = time.monotonic(), False
            return
        seconds, wait_s = time.monotonic() - self._seen, self._options.wait_s
        why = f"{self._free} of {self._cpus} CPUs of the cluster are free, and other jobs may have the rest"
        if seconds > _PATIENCE_S and not self._told_to_wait:
            self._told_to_wait = True
            self._news.append(NodeNews("", "waiting", f"waiting {wait_s:g} s for a node: {why}"))
        elif seconds > wait_s and self._told_to_wait:
            raise BuildError(
                f"no node of the Ray cluster took part for {wait_s:g} s: {why}. The same command continues the build"
            )


class Connection:
    """The connection that the program has, or else one to the cluster that `options` names.

    Attributes:
      runtime_env: What each task is given. A connection of our own has it whole, since folders travel only with that.
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
        is_traceback = lines[0].endswith(":") or "Traceback" in str(error)
        return self.without_values(lines[-1] if is_traceback else lines[0])

    def without_values(self, text: str) -> str:
        """Return a message of Ray or of a node with the values of the nodes' environment variables replaced by their names."""
        variables = self._options.runtime_env.get("env_vars")
        if not isinstance(variables, Mapping):  # it is checked later
            return without_secrets(text)
        return without_secrets(text, {name: str(value) for name, value in variables.items()})
