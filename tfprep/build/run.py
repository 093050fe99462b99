"""A build from beginning to end: plan, shards, publication."""

from __future__ import annotations

import base64
import os
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tfprep.build.files import remove_leftovers
from tfprep.build.layout import Layout
from tfprep.build.lock import locked
from tfprep.build.plan import Plan, ShardState, make_plan, shard_states
from tfprep.build.publish import publish
from tfprep.build.shard import ENTRY
from tfprep.build.task import ShardTask
from tfprep.dataset import Manifest
from tfprep.dataset.manifest import MANIFEST
from tfprep.engines import Crashed, Done, Engine, Inline, Processes, Progress
from tfprep.engines.engine import Json
from tfprep.errors import BuildError, RecipeError, SourceError
from tfprep.recipe import Recipe
from tfprep.recipe_file import load_recipe, locate

ITEM_TIMEOUT_S = 300.0
_AHEAD = 64
"""Shard tasks handed to the engine ahead of time: enough for as many workers."""
_MOST_CRASHES = 3


@dataclass(frozen=True)
class BuildProgress:
    """Where a build is: samples and shards done of those that had to be built, rejects among them, seconds so far."""

    samples_done: int
    samples: int
    shards_done: int
    shards: int
    rejects: int
    seconds: float


@dataclass(frozen=True)
class BuildSummary:
    """What a build did. `built` samples and shards were made now, the rest was up to date; `bytes` are of all shards."""

    out: Path
    samples: int
    records: int
    shards: int
    bytes: int
    rejects: int
    splits: Mapping[str, Mapping[str, int]]
    built_samples: int
    built_shards: int
    seconds: float


OnProgress: TypeAlias = Callable[[BuildProgress], None]


@dataclass(frozen=True)
class BuildOptions:
    """How a build runs; nothing here changes what it makes, but `limit`.

    - `workers`: processes; 0 builds in this one; None takes one for each core this process may use.
    - `limit`: only this many samples, the same ones every time, for a first look.
    - `on_bad`: "skip" leaves a bad input out and lists it in `rejects.jsonl`; "fail" ends the build at the first.
    - `max_bad`: the share of rejects (0 to 1) above which nothing is published.
    - `item_timeout_s`: a sample that takes longer is ended with its process, and rejected if it does so again.
    """

    workers: int | None = None
    limit: int | None = None
    on_bad: Literal["skip", "fail"] = "skip"
    max_bad: float = 1.0
    item_timeout_s: float = ITEM_TIMEOUT_S

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("limit", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise BuildError(f"{name} is at least {least}, not {value}")
        if self.on_bad not in ("skip", "fail"):
            raise BuildError(f"on_bad is 'skip' or 'fail', not {self.on_bad!r}")
        if not 0 <= self.max_bad <= 1:
            raise BuildError(f"max_bad is a share from 0 to 1, not {self.max_bad}")


def build(
    recipe: Recipe | str | os.PathLike[str],
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] = ".",
    *,
    options: BuildOptions | None = None,
    on_progress: OnProgress | None = None,
) -> BuildSummary:
    """Build `recipe` (or the file that holds it) from the raw files below `data` into the folder `out`.

    What an earlier build left there, finished or killed, is kept where it is up to date. Raises RecipeError, SourceError,
    BuildError.
    """
    started = time.monotonic()
    options = options or BuildOptions()
    layout, root = Layout(Path(out)), Path(data)
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(Path(recipe))
    file = None if isinstance(recipe, Recipe) else Path(recipe)
    if not root.is_dir():
        raise SourceError(f"{root}: no such folder of raw data; say where it is with --data")
    with locked(layout), closing(_engine(options)) as engine:
        if not (layout.out / MANIFEST).exists():
            engine.start()  # the workers import while this process plans
        remove_leftovers(layout.staged)
        plan = _plan(loaded, file, root, layout, options.limit)
        waiting = [state for state, _ in shard_states(plan, layout) if not state.up_to_date]
        if waiting:
            engine.start()
            engine.open(_job_argument(plan, file, layout.out, root, stop_at_reject=options.on_bad == "fail"))
            _Run(plan, engine, waiting, on_progress, started).run()
        manifest = publish(plan, layout, options.max_bad)
    return _summary(manifest, layout, waiting, time.monotonic() - started)


def plan_build(
    recipe: Recipe | str | os.PathLike[str],
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] = ".",
    *,
    limit: int | None = None,
) -> list[ShardState]:
    """What `build` would do, shard by shard, and why; nothing is written."""
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(Path(recipe))
    file = None if isinstance(recipe, Recipe) else Path(recipe)
    layout = Layout(Path(out))
    return [state for state, _ in shard_states(_plan(loaded, file, Path(data), layout, limit), layout)]


def _plan(recipe: Recipe, file: Path | None, root: Path, layout: Layout, limit: int | None) -> Plan:
    try:
        return make_plan(recipe, root, layout, limit=limit)
    except RecipeError as error:
        raise (locate(file, error) if file else error) from error


def _engine(options: BuildOptions) -> Engine:
    workers = available_cores() if options.workers is None else options.workers
    if workers == 0:
        return Inline(ENTRY)
    return Processes(ENTRY, workers=workers, item_timeout_s=options.item_timeout_s)


def available_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Run:
    """Shards through an engine, and what to do when one of them takes its worker down.

    A crash is laid at the sample in hand. That sample is tried alone: if it crashes again it is left out by name and the
    shard built without it; if it does not, the shard is tried again as it was, and the sample left out at its second crash.
    """

    def __init__(
        self, plan: Plan, engine: Engine, waiting: Sequence[ShardState], on_progress: OnProgress | None, started: float
    ) -> None:
        self._plan, self._engine, self._started = plan, engine, started
        self._on_progress = on_progress or (lambda progress: None)
        self._todo = deque(waiting)
        self._total = BuildProgress(0, sum(state.samples for state in waiting), 0, len(waiting), 0, 0.0)
        self._running: dict[int, _Attempt] = {}
        self._numbers = count()
        self._samples_done = self._shards_done = self._rejects = 0

    def run(self) -> None:
        for _ in range(_AHEAD):
            self._next_shard()
        for event in self._engine.events():
            if isinstance(event, Progress):
                self._running[event.task].item = event.item
            elif isinstance(event, Done):
                self._done(self._running.pop(event.task), event.result)
            else:
                self._crashed(self._running.pop(event.task), event)
            self._tell()

    def _next_shard(self) -> None:
        """Cut out the task of a shard only when its turn is near: few are in memory at a time."""
        if self._todo:
            state = self._todo.popleft()
            self._submit(_Attempt(self._plan.task(state.split, state.shard)))

    def _submit(self, attempt: _Attempt) -> None:
        number = next(self._numbers)
        self._running[number] = attempt
        self._engine.submit(number, vars(attempt.task))

    def _done(self, attempt: _Attempt, result: Mapping[str, Any]) -> None:
        if attempt.task.only is not None:
            self._submit(_Attempt(replace(attempt.task, only=None), attempt.crashes))
            return
        self._samples_done += len(attempt.task.samples)
        self._shards_done += 1
        self._rejects += result["rejects"]
        self._next_shard()

    def _crashed(self, attempt: _Attempt, event: Crashed) -> None:
        task = attempt.task
        if event.item is None:
            attempt.crashes[-1] += 1
            if attempt.crashes[-1] > _MOST_CRASHES:
                raise BuildError(
                    f"shard {task.shard} of {task.split!r}: {event.reason}, {_MOST_CRASHES} times, at no sample"
                )
            self._submit(_Attempt(task, attempt.crashes))
            return
        attempt.crashes[event.item] += 1
        if task.only is None and attempt.crashes[event.item] < 2:
            self._submit(_Attempt(replace(task, only=event.item), attempt.crashes))
        else:
            skip = {**task.skip, str(event.item): event.reason}
            self._submit(_Attempt(replace(task, only=None, skip=skip), attempt.crashes))

    def _tell(self) -> None:
        running = sum(attempt.item for attempt in self._running.values() if attempt.task.only is None)
        self._on_progress(
            replace(
                self._total,
                samples_done=self._samples_done + running,
                shards_done=self._shards_done,
                rejects=self._rejects,
                seconds=time.monotonic() - self._started,
            )
        )


@dataclass
class _Attempt:
    """A task on its way, how far it is, and how often each of its samples (-1: none of them) took a worker down."""

    task: ShardTask
    crashes: Counter[int] = field(default_factory=Counter)
    item: int = 0


def _summary(manifest: Manifest, layout: Layout, built: Sequence[ShardState], seconds: float) -> BuildSummary:
    splits = {
        name: {"samples": info.samples, "variants": info.variants, "shards": info.shards, "bytes": info.bytes}
        for name, info in manifest.splits.items()
    }
    return BuildSummary(
        out=layout.out,
        samples=sum(info.samples for info in manifest.splits.values()),
        records=sum(info.samples * info.variants for info in manifest.splits.values()),
        shards=sum(info.shards for info in manifest.splits.values()),
        bytes=sum(info.bytes for info in manifest.splits.values()),
        rejects=manifest.rejects,
        splits=splits,
        built_samples=sum(state.samples for state in built),
        built_shards=len(built),
        seconds=seconds,
    )


def _job_argument(plan: Plan, recipe_file: Path | None, out: Path, root: Path, *, stop_at_reject: bool) -> Json:
    """What `open_job` takes, as plain JSON. A recipe that came from a file is loaded from it again; another is pickled."""
    return {
        "recipe_file": str(recipe_file) if recipe_file else None,
        "recipe": None if recipe_file else _pickled(plan.recipe),
        "out": str(out),
        "root": str(root),
        "kinds": dict(plan.kinds),
        "files": list(plan.files),
        "values": list(plan.values),
        "classes": dict(plan.classes),
        "train": plan.splits[0],
        "stop_at_reject": stop_at_reject,
    }


def _pickled(recipe: Recipe) -> str:
    try:
        pickled = pickle.dumps(recipe)
    except Exception as error:
        way_out = "put the recipe into a file and build from its path, or build with workers=0"
        raise RecipeError(f"the recipe holds what cannot be sent to a worker process ({error}): {way_out}") from error
    return base64.b64encode(pickled).decode()
