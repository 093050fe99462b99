"""Runs shard tasks through a pool and reports what becomes of them: events for the log, numbers for a progress bar."""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfprep.builder.options import BuildProgress, LogEvent, OnProgress
from tfprep.builder.planning.plan import Plan
from tfprep.builder.planning.state import ShardState
from tfprep.pool import Died, Done, Pool, Progress, Task

TASKS_PER_WORKER = 4
"""Tasks that the engine gets for each worker before it asks for more. Their lists of samples are in memory."""
_PROGRESS_S = 0.1


class ShardScheduler:
    """Runs shard tasks.

    Attributes:
      built: The number of samples of each shard that was written, by split and shard.
    """

    def __init__(
        self, plan: Plan, engine: Pool, log_event: LogEvent, on_progress: OnProgress | None, started: float
    ) -> None:
        self._plan, self._engine, self._log_event, self._started = plan, engine, log_event, started
        self._on_progress = on_progress
        self._todo: deque[ShardState] = deque()
        self._items: dict[Task, int] = {}
        self._reported = 0.0
        # Each shard counts once, however often it is built: the samples of all, and the rejected ones of those that are done.
        self._expected: dict[tuple[str, int], int] = {}
        self._rejected: dict[tuple[str, int], int] = {}
        self._samples = self._samples_done = 0
        self._most_tasks = TASKS_PER_WORKER * max(1, len(engine.workers()))
        self.built: dict[tuple[str, int], int] = {}

    def run(self, shards: Sequence[ShardState]) -> None:
        """Build the shards, and return when all are done. Raises BuildError."""
        # The largest come first: the shards that are left at the end, when some workers have nothing to do, are then small.
        self._todo.extend(sorted(shards, key=lambda state: -state.samples))
        for state in shards:
            shard = state.split, state.shard
            self._samples += state.samples if shard not in self._expected else 0
            self._samples_done -= state.samples if self._rejected.pop(shard, None) is not None else 0
            self._expected[shard] = state.samples
        self._fill()
        if self._engine.workers():
            _import_publication()
        for event in self._engine.events():
            if isinstance(event, Progress):
                self._items[event.task] = event.item or 0
            elif isinstance(event, Done):
                self._done(event)
            elif isinstance(event, Died):
                self._died(event)
            self._fill()
            if time.monotonic() - self._reported > _PROGRESS_S:
                self._report()
        self._report()

    def _fill(self) -> None:
        while self._todo and len(self._items) < self._most_tasks:
            # The task is made only now: its list of samples is in memory.
            state = self._todo.popleft()
            task = replace(self._plan.task(state.split, state.shard), expected=state.expected)
            self._items[self._engine.submit(task)] = 0

    # --- what became of a task ---------------------------------------------------------------------------------------

    def _done(self, event: Done) -> None:
        task = event.task.content
        del self._items[event.task]
        built, rejected, seconds = (event.result[name] for name in ("built", "rejected", "seconds"))
        samples = len(task.samples)
        if built:
            self.built[task.split, task.shard] = samples
        self._rejected[task.split, task.shard] = rejected
        self._samples_done += samples
        what = "built" if built else "unchanged in content"
        text = f"{task.split} {task.shard} of {task.shards}: {what}, {samples} samples, {rejected} rejected, {seconds:.2f} s"
        facts: dict[str, Any] = {"rejected": rejected, "built": built, "shard_seconds": seconds}
        self._log_event("shard", text, split=task.split, shard=task.shard, samples=samples, **facts)

    def _died(self, event: Died) -> None:
        """Log that a process ended, and that a sample will be rejected because it ended several."""
        task = event.task.content
        key = "" if event.item is None else task.samples[event.item][0]
        what = f"{key or f'shard {task.shard} of {task.split!r}'}: {event.reason}"
        facts = {"key": key, "reason": event.reason, "split": task.split, "shard": task.shard}
        self._log_event("crash", f"{what}; the shard is built again", **facts)
        if event.lost:
            self._log_event("lost", f"{what}; it is left out", **facts)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        self._reported = time.monotonic()
        if self._on_progress is None:
            return
        self._on_progress(
            BuildProgress(
                samples_done=self._samples_done + sum(self._items.values()),
                samples=self._samples,
                shards_done=len(self._rejected),
                shards=len(self._expected),
                rejected=sum(self._rejected.values()),
                seconds=self._reported - self._started,
            )
        )


def _import_publication() -> None:
    """Import what publishes a version, and what that imports when it runs, while the workers are busy: it takes 0.2 s."""
    import pyarrow as pa
    from PIL import Image

    from tfprep.builder import publish, report  # noqa: F401
    from tfprep.inspect.pages import environment

    for module in ("importlib.metadata", "numpy.ma", "numpy.random", "pyarrow.compute"):
        importlib.import_module(module)
    for template in ("page", "macros", "report"):
        environment().get_template(f"inspect/pages/{template}.html.j2")
    Image.preinit()
    pa.array([0])  # PyArrow imports pandas, where it is installed, at its first array
