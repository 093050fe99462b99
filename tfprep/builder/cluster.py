"""Builds on a Ray cluster: each part of a build (`build_part`) is a task of Ray, and this process publishes what they built.

Ray decides where a part is built, and gives it to another node where one is lost. What is finished is known from the receipts
only, so that a part that is built again continues. Each part compares its versions, its recipe and its raw files with the plan
that this process has stored (`tfprep.builder.parts`): a node that would make other bytes refuses, and is named.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tfprep.builder.layout import Layout
from tfprep.builder.options import BuildEvent, BuildOptions, LogEvent, Part, PartSummary
from tfprep.errors import BuildError, RecordError, TfprepError
from tfprep.optional import require_package
from tfprep.recipe import Recipe
from tfprep.storage.address import without_secrets
from tfprep.storage.urls import folder_at, size_of

PARTS_PER_CPU = 4
"""A part lists all raw files, so fewer are cheaper; with several for each CPU, none has to build the last ones by itself."""
_MOST_RETRIES = 3
"""How often Ray gives a part to another node. A part that loses more may be the cause."""
_LOOK_S = 2.0
"""Time between two looks at the nodes of the cluster."""
_CONNECT_S = 10.0
_OF_SAMPLES = {"shard", "crash", "lost"}
"""The events of a part that become events of the build; the others are the same on all machines."""


@dataclass(frozen=True)
class Ray:
    """The nodes of a Ray cluster build the shards, each in worker processes of its own.

    tfprep, the recipe's libraries and the raw files are the same on each node, and `out` is a folder that all nodes see, or an
    object store. The recipe's file has the same path there, or travels in Ray's working directory.

    Attributes:
      address: The address of the cluster, such as "10.0.0.1:6379"; "auto" takes the one that this machine belongs to, and
        "ray://10.0.0.1:10001" is one that it does not belong to. A connection that exists (`ray.init`) is used whatever the
        address.

    Example:
      >>> engine = tfprep.builder.Ray("10.0.0.1:6379")
      >>> tfprep.build("photos.py", "/shared/photos", "/shared/raw", engine=engine)
    """

    address: str = "auto"


PartCall: TypeAlias = "tuple[Callable[..., PartSummary], Recipe | Sequence[str], str, str, BuildOptions]"
"""`tfprep.builder.build_part` and its recipe, or the paths at which that may be on a node, its `out`, `data` and `options`."""


def node_paths(recipe: Path) -> list[str]:
    """Return the paths at which a recipe's file may be on a node: the same as here, or below Ray's working directory."""
    path, here = recipe.absolute(), Path.cwd()
    return [str(path), *([str(path.relative_to(here))] if path.is_relative_to(here) else [])]


@contextmanager
def connected(cluster: Ray) -> Iterator[int]:
    """Use the connection that the program has, or make one; yield the number of CPUs of the cluster. Raises BuildError."""
    require_package("ray", "the engine Ray")
    import ray

    own = not ray.is_initialized()
    host, _, port = cluster.address.removeprefix("ray://").rpartition(":")
    try:
        if own and host and port.isdecimal():  # where nothing answers, Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
        if own:
            ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # OSError, RuntimeError, ValueError or an exception of gRPC
        raise BuildError(
            f"no Ray cluster at {cluster.address!r}: {_line_of(error)}. Start one with `ray start --head`, or say with --address "
            "where it is"
        ) from error
    try:
        yield int(ray.cluster_resources().get("CPU", 0))
    finally:
        if own:
            ray.shutdown()


def build_parts(call: PartCall, parts: Sequence[Part], most: int, log_event: LogEvent) -> Generator[PartSummary]:
    """Build parts on the cluster to which this process is connected.

    Args:
      call: What all of them share.
      parts: The parts.
      most: How many Ray gets at a time.
      log_event: Reports what becomes of samples and shards, and nodes that are lost.

    Yields:
      The summary of each part when it is complete.

    Raises:
      TfprepError: The error of a part, with the node's name.
      BuildError: A part lost its node again and again, or Ray cannot start it.
    """
    import ray

    remote = ray.remote(_build_part).options(num_cpus=1, max_retries=_MOST_RETRIES)
    shared, waiting, running, nodes = ray.put(call), deque(parts), dict[Any, Part](), None
    try:
        while waiting or running:
            nodes = _alive_nodes(nodes, log_event)
            while waiting and len(running) < most:
                part = waiting.popleft()
                running[remote.remote(shared, part)] = part
            ready, _ = ray.wait(list(running), timeout=_LOOK_S)
            for answer in ready:
                part = running.pop(answer)
                node, summary, events = _answer(answer, part)
                for event in events:
                    log_event(event.name, f"node {node}: {event.text}", **event.facts, node=node)
                yield summary
    finally:
        for answer in running:
            ray.cancel(answer, force=True)


def _build_part(call: PartCall, part: Part) -> tuple[str, PartSummary, list[BuildEvent]]:
    """Build a part on a node, and return the name of the node first; a task of Ray. Raises TfprepError with that name."""
    import ray

    node, events = ray.util.get_node_ip_address(), list[BuildEvent]()
    build_part, recipe, out, data, options = call
    if not isinstance(recipe, Recipe):
        recipe = next((path for path in recipe if Path(path).is_file()), recipe[0])
    try:
        if size_of(Layout(folder_at(out)).part_plan) is None:
            raise BuildError(
                f"{out} does not hold the plan of this build there; --out names a folder that all nodes see"
            )
        summary = build_part(
            recipe, out, data, part=part.number, parts=part.parts, options=options, on_event=events.append
        )
    except TfprepError as error:
        kind = BuildError if isinstance(error, RecordError) else type(error)
        raise kind(f"node {node}: {error}") from None
    return node, summary, [event for event in events if event.name in _OF_SAMPLES]


def _answer(answer: Any, part: Part) -> tuple[str, PartSummary, list[BuildEvent]]:
    import ray

    try:
        result: tuple[str, PartSummary, list[BuildEvent]] = ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TfprepError):
            raise error.cause from None
        raise BuildError(f"part {part}: {_line_of(error.cause or error)}") from error
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError) as error:
        raise BuildError(
            f"part {part} lost its node {_MOST_RETRIES + 1} times, and may be the cause; Ray's logs say more. The same command "
            "continues the build"
        ) from error
    except ray.exceptions.RayError as error:
        raise BuildError(f"part {part}: {_line_of(error)}") from error
    return result


def _alive_nodes(known: set[str] | None, log_event: LogEvent) -> set[str]:
    """Return the addresses of the nodes; warn about known ones that have gone, and where none is left."""
    import ray

    alive = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
    for node in sorted((known or set()) - alive):
        log_event("warning", f"node {node} was lost; others build what it was building", node=node)
    if not alive and known != alive:
        log_event("warning", "the cluster has no node with a CPU; the build waits for one")
    return alive


def _line_of(error: Exception) -> str:
    """Return one line of an error's text: the first, or the last where the first only announces a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    is_traceback = lines[0].endswith(":") or "Traceback" in str(error)
    return without_secrets(lines[-1] if is_traceback else lines[0])
