"""Runs shard tasks through an engine, and decides what to do when one of them takes its worker down.

A crash is attributed to the sample that the worker was making. That sample is tried once more, alone. If it crashes again, it is
rejected by name and the shard is continued without it. Otherwise the shard is continued at that sample; a sample that takes a
worker down every time, although it succeeds alone, is rejected at the third crash. The samples that were finished are kept.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

from tfprep import units
from tfprep.builder.layout import Layout
from tfprep.builder.options import BuildProgress, LogEvent, NodeNews, NodeProgress, OnProgress, WorkerProgress
from tfprep.builder.planning.plan import Plan
from tfprep.builder.planning.state import ShardState
from tfprep.builder.receipts import ShardTask
from tfprep.child_process import TaskCrashed, TaskDone, TaskProgress, WorkerEvent, WorkerOutput, WorkerState
from tfprep.errors import BuildError
from tfprep.storage.local import free_bytes

TASKS_PER_WORKER = 4
"""Tasks that the engine gets for each worker before it asks for more. Their lists of samples are in memory."""
_MOST_CRASHES = 3
_AMBIGUOUS = "SIGKILL", "SIGTERM"
"""Signals that may come from outside: a sample alone is tried twice before it is blamed for one."""
_PROGRESS_S = 0.1
_MOST_OUTPUTS = 1000
"""Number of samples whose native warnings are logged: a warning for each of a million files must not fill the disk."""

OnBuilt = Callable[[ShardTask, int], None]
"""A function that gets the task of each shard that was written, and the size of its files in bytes."""


class Engine(Protocol):
    """Runs submitted tasks somewhere, as `tfprep.child_process.Processes` does: `Inline`, `Processes` or `RayNodes`."""

    def start(self) -> None: ...

    def open(self, argument: Any) -> None: ...

    def submit(self, number: int, task: Any, *, urgent: bool = False) -> None: ...

    def events(self) -> Iterator[WorkerEvent | NodeNews]: ...

    def workers(self) -> tuple[WorkerState, ...]: ...

    def capacity(self) -> int: ...

    def close(self) -> None: ...


@dataclass
class _Attempt:
    """A task that an engine runs.

    Attributes:
      task: The task.
      in_shard, alone: How often each sample (by position) took a worker down: in its shard, and when it was tried alone.
      between: How often a worker ended between samples.
      item: The position of the sample that the worker makes now.
    """

    task: ShardTask
    in_shard: Counter[int] = field(default_factory=Counter)
    alone: Counter[int] = field(default_factory=Counter)
    between: int = 0
    item: int = 0


class ShardScheduler:
    """Runs shard tasks.

    Attributes:
      built: The shards that were written, by split and shard.
      nodes: What each node of a cluster did, by its name; empty for a build on one machine.
    """

    def __init__(
        self, plan: Plan, engine: Engine, log_event: LogEvent, on_progress: OnProgress | None, on_built: OnBuilt,
        started: float,
    ) -> None:  # fmt: skip
        self._plan, self._engine, self._log_event, self._started = plan, engine, log_event, started
        self._on_progress, self._on_built = on_progress, on_built
        self._todo: deque[ShardState] = deque()
        self._running: dict[int, _Attempt] = {}
        self._numbers = count()
        self._outputs = 0
        self._reported = 0.0
        # Each shard counts once, however often it is built: the samples of all, and the rejects of those that are done.
        self._expected: dict[tuple[str, int], int] = {}
        self._rejects: dict[tuple[str, int], int] = {}
        self._samples = self._samples_done = 0
        self.built: dict[tuple[str, int], ShardState] = {}
        self.nodes: dict[str, NodeProgress] = {}

    def run(self, shards: Sequence[ShardState]) -> None:
        """Build the shards, and return when all are done. Raises BuildError."""
        # The largest come first: the shards that are left at the end, when some workers have nothing to do, are then small.
        self._todo.extend(sorted(shards, key=lambda state: -state.samples))
        for state in shards:
            shard = state.split, state.shard
            self._samples += state.samples if shard not in self._expected else 0
            self._samples_done -= state.samples if self._rejects.pop(shard, None) is not None else 0
            self._expected[shard] = state.samples
        self._fill()
        for event in self._engine.events():
            if isinstance(event, TaskProgress):
                self._running[event.task].item = event.item
            elif isinstance(event, TaskDone):
                self._done(self._running.pop(event.task), event.result, event.node)
            elif isinstance(event, TaskCrashed):
                self._crashed(self._running.pop(event.task), event)
            elif isinstance(event, WorkerOutput):
                self._outputs += 1  # warnings of native decoders, with the sample that caused them
                if self._outputs <= _MOST_OUTPUTS:
                    at = self._running.get(event.task) if event.task is not None else None
                    key = at.task.samples[event.item][0] if at is not None and event.item is not None else ""
                    text = "; ".join(line for line in event.text.splitlines() if line.strip())
                    more = " (further output is not logged)" if self._outputs == _MOST_OUTPUTS else ""
                    self._log_event(
                        "output", f"{key}: {text}{more}" if key else text + more, key=key, output=event.text
                    )
            elif isinstance(event, NodeNews):
                if event.state != "waiting":
                    before = self.nodes.get(event.node, NodeProgress(event.node))
                    self.nodes[event.node] = replace(before, state=event.state)
                # A node that takes no part any more costs time that nobody would notice otherwise.
                name = "node" if event.state == "joined" else "warning"
                self._log_event(name, event.text, node=event.node, state=event.state)
            self._fill()
            if time.monotonic() - self._reported > _PROGRESS_S:
                self._report()
        self._report()

    def _fill(self) -> None:
        """Give the engine shards for all workers that it has now."""
        most_tasks = TASKS_PER_WORKER * max(1, self._engine.capacity())
        while self._todo and len(self._running) < most_tasks:
            # The task is made only now: its list of samples is in memory.
            state = self._todo.popleft()
            self._submit(_Attempt(replace(self._plan.task(state.split, state.shard), expected=state.expected)))

    def _submit(self, attempt: _Attempt, *, urgent: bool = False) -> None:
        number = next(self._numbers)
        self._running[number] = attempt
        self._engine.submit(number, attempt.task, urgent=urgent)

    # --- what became of a task ---------------------------------------------------------------------------------------

    def _done(self, attempt: _Attempt, result: Mapping[str, Any], node: str) -> None:
        task = attempt.task
        if task.probe is not None:
            self._build_rest(attempt, task.skip)
            return
        built, rejects, seconds = (result[name] for name in ("built", "rejects", "seconds"))
        samples = len(task.samples)
        if built:
            self.built[task.split, task.shard] = ShardState(task.split, task.shard, samples, "")
            self._on_built(task, result["bytes"])
        self._rejects[task.split, task.shard] = rejects
        self._samples_done += samples
        what = "built" if built else "unchanged in content"
        text = f"{task.split} {task.shard} of {task.shards}: {what}, {samples} samples, {rejects} rejected, {seconds:.2f} s"
        facts: dict[str, Any] = {"rejects": rejects, "built": built, "shard_seconds": seconds}
        if node:
            facts["node"], text, before = node, f"{text}, by {node}", self.nodes[node]
            self.nodes[node] = replace(
                before, shards=before.shards + 1, samples=before.samples + samples, rejects=before.rejects + rejects
            )
        self._log_event("shard", text, split=task.split, shard=task.shard, samples=samples, **facts)

    def _crashed(self, attempt: _Attempt, event: TaskCrashed) -> None:
        task, item = attempt.task, event.item
        if item is None:
            attempt.between += 1
            if attempt.between > _MOST_CRASHES:
                raise BuildError(
                    f"shard {task.shard} of {task.split!r}: {event.reason}, {attempt.between} times, at no sample; its output is "
                    "above, or in the build's log"
                )
            self._submit(attempt, urgent=True)
            return
        alone = task.probe is not None
        (attempt.alone if alone else attempt.in_shard)[item] += 1
        key, node = task.samples[item][0], {"node": event.node} if event.node else {}
        text = f"{key}: {event.reason}{', tried alone' if alone else ''}{f', by {event.node}' if node else ''}"
        facts = {"key": key, "reason": event.reason, "alone": alone, "split": task.split, "shard": task.shard, **node}
        self._log_event("crash", text, **facts)
        most_alone = 2 if any(signal in event.reason for signal in _AMBIGUOUS) else 1
        if attempt.alone[item] < most_alone and attempt.in_shard[item] < _MOST_CRASHES:
            self._submit(replace(attempt, task=replace(task, probe=item)), urgent=True)
        else:
            self._build_rest(attempt, {**task.skip, item: event.reason})

    def _build_rest(self, attempt: _Attempt, skip: Mapping[int, str]) -> None:
        """Build the rest of the shard, without the samples to skip: what is finished of it is kept."""
        self._submit(replace(attempt, task=replace(attempt.task, probe=None, skip=skip), item=0), urgent=True)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        self._reported = time.monotonic()
        if self._on_progress is None:
            return
        running = sum(attempt.item for attempt in self._running.values() if attempt.task.probe is None)
        workers: list[WorkerProgress] = []
        for state in self._engine.workers():
            at = self._running.get(state.task) if state.task is not None else None
            if at is None:
                workers.append(WorkerProgress(state.process, None, None, None, 0.0))
            else:
                key = at.task.samples[state.item][0] if state.item is not None else None
                workers.append(WorkerProgress(state.process, at.task.split, at.task.shard, key, state.seconds))
        self._on_progress(
            BuildProgress(
                samples_done=self._samples_done + running,
                samples=self._samples,
                shards_done=len(self._rejects),
                shards=len(self._expected),
                rejects=sum(self._rejects.values()),
                seconds=self._reported - self._started,
                workers=tuple(workers),
                nodes=tuple(self.nodes.values()),
            )
        )


class SpaceCheck:
    """Estimates the size on disk from the first shard of each split that is finished, and warns if the disk has less room.

    A shard is a random part of the data. It is no more than a warning all the same: the estimate may be wrong. A disk that is
    really full ends the build with an error, and the same command continues it.
    """

    def __init__(self, layout: Layout, waiting: Sequence[ShardState], log_event: LogEvent) -> None:
        self._layout, self._log_event = layout, log_event
        self._samples: Counter[str] = Counter()
        for state in waiting:
            self._samples[state.split] += state.samples
        self._estimate = self._written = 0
        self._warned = False

    def finished(self, task: ShardTask, size: int) -> None:
        """Note that a shard was built, which takes `size` bytes."""
        if not (samples := self._samples.pop(task.split, 0)) or not task.samples:
            return
        self._estimate += size * samples // len(task.samples)
        self._written += size
        more = f"about {units.size(self._estimate - self._written)} more"
        if self._layout.at_store:
            self._log_event("space", f"{more} to write", estimate=self._estimate)
            return
        free = free_bytes(self._layout.out)
        self._log_event("space", f"{more} to write, {units.size(free)} free", estimate=self._estimate, free=free)
        if self._estimate - self._written > free and not self._warned:
            self._warned = True
            self._log_event(
                "warning",
                f"{self._layout.out}: {more} would be written, estimated from the first shards, and {units.size(free)} are free. "
                "If the disk becomes full, the build ends and the same command continues it",
            )
