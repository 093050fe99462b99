"""What a build reports while it runs: numbers for a progress bar, and events for people, machines and the log."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

from tfprep.errors import summary_of

_LOG_BYTES = 10 << 20
"""A longer log is renamed to `build.log.1`, and a new one begins."""


@dataclass(frozen=True)
class WorkerProgress:
    """What one worker process does.

    Attributes:
      process: Its process id.
      split, shard, key: The shard and the sample that it makes; None if it waits.
      seconds: How long it has been making that sample.
      node: The node of a cluster that it runs on; empty on this machine.
    """

    process: int
    split: str | None
    shard: int | None
    key: str | None
    seconds: float
    node: str = ""


@dataclass(frozen=True)
class NodeProgress:
    """What one node of a cluster did in this build.

    Attributes:
      node: The node's name: its address and the beginning of its identifier.
      state: Whether it joined, was lost, or was refused.
      shards, samples, rejects: Numbers of what it finished.
    """

    node: str
    state: Literal["joined", "lost", "refused"] = "joined"
    shards: int = 0
    samples: int = 0
    rejects: int = 0

    def plus(self, samples: int, rejects: int) -> NodeProgress:
        """Return the progress with one more shard."""
        more = self.shards + 1, self.samples + samples, self.rejects + rejects
        return NodeProgress(self.node, self.state, *more)


@dataclass(frozen=True)
class NodeNews:
    """A node of a cluster joined the work, was lost, or was refused as it would make other bytes; or all wait for nodes."""

    node: str
    state: Literal["joined", "lost", "refused", "waiting"]
    text: str


@dataclass(frozen=True)
class BuildProgress:
    """How far a build is.

    Attributes:
      samples_done, samples: Number of samples made, of those in shards that have to be built.
      shards_done, shards: The same in shards.
      rejects: Number of rejects in the shards that are done.
      seconds: Time since the build began.
      workers: What each worker process does.
      nodes: What each node of a cluster did; empty for a build on one machine.
    """

    samples_done: int
    samples: int
    shards_done: int
    shards: int
    rejects: int
    seconds: float
    workers: tuple[WorkerProgress, ...] = ()
    nodes: tuple[NodeProgress, ...] = ()


@dataclass(frozen=True)
class BuildEvent:
    """One step of a build, or one problem.

    Attributes:
      name: `planned`, `space` (the estimated size), `shard`, `crash`, `output` (what native code wrote, by sample), `differing`
        (shards hold records of different forms), `node` (a node of a cluster joined), `warning`, `part` (a part is complete),
        `published`, `report` (it could not be written) or `failed`.
      text: One line for people.
      seconds: Time since the build began.
      facts: The same as plain JSON.
    """

    name: str
    text: str
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps({"event": self.name, "seconds": round(self.seconds, 3), **self.facts, "text": self.text})


OnProgress: TypeAlias = Callable[[BuildProgress], None]
OnEvent: TypeAlias = Callable[[BuildEvent], None]
Tell: TypeAlias = Callable[..., None]
"""A function that reports an event: `tell(name, text, **facts)`."""


@contextmanager
def logged_events(log_path: Path, on_event: OnEvent | None) -> Iterator[Tell]:
    """Yield a function that sends events to `on_event` and to a log. A build that fails ends with `failed`.

    A warning that no `on_event` receives becomes a Python warning.
    """
    started = time.monotonic()
    log = _open_log(log_path)

    def tell(name: str, text: str, **facts: Any) -> None:
        event = BuildEvent(name, text, time.monotonic() - started, facts)
        with suppress(OSError):  # A log that cannot be written stops no build.
            if log is not None:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {event.name}: {event.text}\n")
                log.flush()
        if on_event is not None:
            on_event(event)
        elif name == "warning":
            warnings.warn(text, stacklevel=2)

    try:
        yield tell
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        text = "stopped; the same command continues" if stopped else summary_of(error)
        tell("failed", text, error=type(error).__name__)
        raise
    finally:
        if log is not None:
            with suppress(OSError):
                log.close()


def _open_log(path: Path) -> TextIO | None:
    try:
        path.parent.mkdir(exist_ok=True)
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
        return path.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError:
        return None
