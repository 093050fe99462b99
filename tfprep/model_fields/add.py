"""`add_fields` and `remove_fields`: from the plan to the published fields."""

from __future__ import annotations

import math
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from tfprep.builder.layout import scratch_folder
from tfprep.builder.options import Part
from tfprep.dataset.names import fields_receipts
from tfprep.dataset.versions import NewVersion, current_version, locked
from tfprep.errors import BuildError, DatasetError, RecipeError
from tfprep.limits import usable_cpus
from tfprep.load import Data
from tfprep.load import open as open_data
from tfprep.model_fields.compute import Computer, Timing
from tfprep.model_fields.plan import FieldsPlan, FieldsTask
from tfprep.model_fields.publish import publish_fields, remove_waiting, unpublish_fields
from tfprep.pool import Died, Done, Pool, Progress, worker_environment
from tfprep.recipe.model_fields import ModelFields, load_fields
from tfprep.storage.urls import PathOrUrl, is_remote, names_in

OnProgress = Callable[[int, int], None]
"""Called with the samples that are computed and those that were due; each variant of a sample counts."""
AnyFields = ModelFields | Sequence[ModelFields] | str | os.PathLike[str]
ENTRY = "tfprep.model_fields.compute:open_work"


@dataclass(frozen=True)
class FieldsSummary:
    """The result of `add_fields`.

    Attributes:
        path: The dataset.
        fields: The names of the fields.
        samples, shards: What was computed now; each variant of a sample counts.
        kept: Shards that were up to date.
        calls: How often the model was called.
        model_s, seconds: Seconds that the model took, in all processes together, and those of the whole run.
        published: Whether the dataset has the fields now; False for a part.
        withdrawn: Fields that the dataset has no longer, because they were computed from those that changed now.
    """

    path: Path
    fields: tuple[str, ...]
    samples: int
    shards: int
    kept: int
    calls: int
    model_s: float
    seconds: float
    published: bool
    withdrawn: tuple[str, ...] = ()


def add_fields(
    dataset: PathOrUrl,
    fields: AnyFields,
    *,
    devices: int | Sequence[str | int] | None = None,
    part: tuple[int, int] | None = None,
    replace: bool = False,
    verify: bool = False,
    on_progress: OnProgress | None = None,
) -> FieldsSummary:
    """Compute fields of a dataset with a model, and store them beside it. Its own shards do not change.

    What an earlier run computed, finished or killed, is kept where the model, its files and the main shard are the same.

    Args:
        dataset: The folder or URL of a dataset that was built or indexed.
        fields: What to compute, one or several one after the other, or the path of a Python file that defines it as `FIELDS`, or
            as the `model_fields` of a `RECIPE`.
        devices: None computes in this process. A number starts as many processes, each with one GPU
            (`CUDA_VISIBLE_DEVICES`); a list names the devices. They take shards in turn.
        part: (number, parts): compute only every `parts`-th shard, from that number on, and publish nothing. Parts may run at the
            same time on machines that share the folder. A run without `part` then publishes.
        replace: Allow fields of the same name to be replaced by those of another model.
        verify: Read all computed shards, and compute again those whose bytes are not those that were computed.
        on_progress: Called several times a second with the samples that are done, and all that were due.

    Returns:
        What was computed.

    Raises:
        RecipeError: `fields` does not fit the dataset, or is not a plain description of a model.
        BuildError: The model failed, or returned what cannot be stored; or the dataset is being built by another process.
        DatasetError: There is no such dataset, or a record of it is damaged.
    """
    began, chosen = time.monotonic(), Part(*part) if part else None
    loaded, source = _loaded(fields)
    names: list[str] = []
    withdrawn: list[str] = []
    samples, shards, kept, timing = 0, 0, 0, Timing()
    for one in loaded:  # each may get fields that were added before it
        plan = _plan(dataset, one, names)
        if missing := [name for name in one.inputs if name in names and name not in plan.data.fields]:
            raise BuildError(
                f"{one.name!r} is computed from {missing[0]!r}, which parts do not publish: run the parts of {missing[0]!r} from "
                "a file of its own, then the same without part, then those of the rest"
            )
        _check_replace(plan, replace)
        with ExitStack() as stack:
            scratch = (
                stack.enter_context(scratch_folder()) if is_remote(plan.root) else plan.root
            )  # on the way to a store
            new = _lock(stack, plan.data, scratch, shared=chosen is not None)
            tasks = plan.tasks[chosen.number :: chosen.parts] if chosen else plan.tasks
            due, gone = list[FieldsTask](), tuple[str, ...]()
            if not plan.is_published(verify=verify):
                if verify:
                    plan.forget_damaged(tasks)
                due = [task for task in tasks if plan.why(task, plan.receipt(task))]
                if due:
                    timing = timing.plus(_computed(plan, source, due, devices, scratch, on_progress))
                gone = () if new is None else publish_fields(plan, scratch, new)
            if new is not None:
                remove_waiting(plan.root, one.name)
        names += one.store
        withdrawn = [*(name for name in withdrawn if name not in one.store), *gone]
        samples += sum(task.records for task in due)
        shards, kept = shards + len(due), kept + len(tasks) - len(due)
    return FieldsSummary(
        plan.root, tuple(names), samples, shards, kept, timing.calls, timing.model_s, time.monotonic() - began,
        published=chosen is None, withdrawn=tuple(withdrawn),
    )  # fmt: skip


def explain_fields(dataset: PathOrUrl, fields: AnyFields) -> dict[str, str]:
    """Return why each shard would be computed, "" where it is up to date, without computing anything."""
    reasons: dict[str, str] = {}
    before: dict[str, set[str]] = {}  # by field, the shards of it that would be computed first
    loaded, _ = _loaded(fields)
    for one in loaded:
        plan, due = _plan(dataset, one, before), set()
        is_published = plan.is_published()
        for task in plan.tasks:
            why = "" if is_published else plan.why(task, plan.receipt(task))
            if not why and any(str(task) in before.get(name, ()) for name in one.inputs):
                why = "added fields among the inputs are computed first"
            if why:
                due.add(str(task))
            reasons[f"{one.name}: {task}" if len(loaded) > 1 else str(task)] = why
        before |= dict.fromkeys(one.store, due)
    return reasons


def remove_fields(dataset: PathOrUrl, name: str) -> list[str]:
    """Remove added fields from a dataset, or give up what a run computed that has not published.

    At a store, where somebody may be reading them, the files stay until `tfprep clean`.

    Args:
        dataset: The folder or URL of the dataset.
        name: One of the fields, or the name under which they were added together.

    Returns:
        The names of the fields that are gone; none where nothing was published.

    Raises:
        DatasetError: The dataset has no such added fields.
    """
    data = open_data(dataset)
    added = data.manifest.groups
    group = name if name in added else data.group_of(name) or name
    assert data.version is not None
    root = data.version.root
    if group not in added and not (group.isidentifier() and names_in(root / fields_receipts(group))):
        known = ", ".join(added) or "none"
        raise DatasetError(f"{data.path} has no added fields {name!r}; there are {known}. A field of the records stays")
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder()) if is_remote(root) else root
        new = _lock(stack, data, scratch, shared=False)
        assert new is not None
        unpublish_fields(data, root, group, new)
    return list(added[group].fields) if group in added else []


# --- steps --------------------------------------------------------------------------------------------------------------


def _loaded(fields: AnyFields) -> tuple[list[ModelFields], Path | None]:
    """The fields, and the file that they come from."""
    if isinstance(fields, str | os.PathLike):
        path = Path(fields).absolute()
        return load_fields(path), path
    several = [fields] if isinstance(fields, ModelFields) else list(fields)
    if not several:
        raise RecipeError("there is no ModelFields to compute")
    return several, None


def _plan(dataset: PathOrUrl, fields: ModelFields, before: Collection[str] = ()) -> FieldsPlan:
    plan = FieldsPlan(open_data(dataset), fields, fields.describe())
    plan.check(before)
    return plan


def _check_replace(plan: FieldsPlan, replace: bool) -> None:
    entry = plan.data.manifest.groups.get(plan.fields.name)
    if entry is None or replace:
        return
    changed = ""
    try:
        published = plan.data.added(plan.fields.name).manifest
        fingerprints = {published.fingerprint}
        changed = ", ".join(plan.changes(published.recipe["model_fields"]))
    except DatasetError:  # it is damaged, which this run mends: the receipts know what there was
        fingerprints = {receipt.fingerprint for task in plan.tasks if (receipt := plan.receipt(task))}
    if fingerprints - {plan.fingerprint}:
        raise BuildError(
            f"{plan.data.path} has fields {plan.fields.name!r} of another model, or of other options"
            + (f" ({changed})" if changed else "")
            + "; allow them to be replaced (--replace), or give these another name"
        )


_TURNS = 4
"""A device takes so many turns at what is left, at least, so that all end at about the same time."""


def _computed(
    plan: FieldsPlan, source: Path | None, due: Sequence[FieldsTask], devices: int | Sequence[str | int] | None,
    scratch: Path, on_progress: OnProgress | None,
) -> Timing:  # fmt: skip
    """Compute the tasks that are due: here, or in a process for each device."""
    samples = sum(task.records for task in due)
    done: Counter[int] = Counter()

    def note(number: int, item: int) -> None:
        """Note how many samples of the shards that a process got together are done."""
        if item >= 0 and on_progress is not None:
            done[number] = item
            on_progress(done.total(), samples)

    if devices is None:
        with closing(Computer(plan, scratch)) as computer:
            return computer.compute(due, lambda item: note(0, item))
    names = [str(number) for number in range(devices)] if isinstance(devices, int) else [str(one) for one in devices]
    if not names:
        raise BuildError("devices is a number from 1 on, or a list of devices")
    path = str(plan.data.path if is_remote(plan.data.path) else plan.data.path.absolute())
    job = (path, source or _pickled(plan.fields), plan.fields.name, plan.fingerprint, scratch, names)
    cores = str(max(1, usable_cpus() // len(names)))  # for the model; readers have one thread each
    threads = {name: os.environ.get(name, cores) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    timing, first = Timing(), 0
    with closing(Pool(ENTRY, job, len(names), environment={**worker_environment(), **threads})) as processes:
        while first < len(due):  # a share of what is left, so that batches of the next shard are read ahead, too
            stop = first + math.ceil((len(due) - first) / (_TURNS * len(names)))
            processes.submit(due[first:stop])
            first = stop
        for event in processes.events():
            if isinstance(event, Progress) and event.item is not None:
                note(event.task.number, event.item)
            elif isinstance(event, Died):
                at = f"{names[event.worker]} died at {event.task.content[0]} or after it"
                raise BuildError(f"the process of device {at}: {event.reason}")
            elif isinstance(event, Done):
                note(event.task.number, sum(task.records for task in event.task.content))
                timing = timing.plus(event.result)
    return timing


def _lock(stack: ExitStack, data: Data, scratch: Path, *, shared: bool) -> NewVersion | None:
    """Hold the lock of the dataset; return the version that is made, None for a part, which publishes nothing.

    Raises:
        BuildError: Another version was published since the dataset was opened.
    """
    assert data.version is not None
    root, new = data.version.root, None
    if shared:
        stack.enter_context(locked(root, shared=True))
    else:
        new = stack.enter_context(NewVersion(root, scratch if is_remote(root) else None))
    if current_version(root) != data.version:
        raise BuildError(f"{root} was published again since it was opened; run the same command again")
    return new


def _pickled(fields: ModelFields) -> bytes:
    try:
        pickled = pickle.dumps(fields)
    except Exception as error:
        raise RecipeError(
            f"the model cannot be sent to another process ({error}); put FIELDS into a file of its own"
        ) from error
    if b"__main__" in pickled:
        raise RecipeError(
            "the model is of the script that was started, which no process imports: put FIELDS into a file of its own"
        )
    return pickled
