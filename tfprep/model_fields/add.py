"""`add_fields` and `remove_fields`: from the plan to the published fields."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from tfprep.builder.layout import scratch_folder
from tfprep.builder.options import Part
from tfprep.dataset.names import fields_receipts
from tfprep.dataset.versions import SAME_SHARDS, NewVersion, current_version, locked
from tfprep.errors import BuildError, DatasetError
from tfprep.load import Data
from tfprep.load import open as open_data
from tfprep.model_fields.compute import Computer
from tfprep.model_fields.plan import FieldsPlan, FieldsTask
from tfprep.model_fields.publish import publish_fields, remove_waiting, unpublish_fields
from tfprep.recipe.file import load_fields
from tfprep.recipe.model_fields import ModelFields
from tfprep.storage.urls import PathOrUrl, is_remote, names_in

OnProgress = Callable[[int, int], None]
"""Called with the samples that are computed and those that were due; each variant of a sample counts."""


@dataclass(frozen=True)
class FieldsSummary:
    """The result of `add_fields`.

    Attributes:
        path: The dataset.
        fields: The names of the fields.
        samples, shards: What was computed now; each variant of a sample counts.
        kept: Shards that were up to date.
        calls: How often the model was called.
        model_s, seconds: Seconds that the model took, and those of the whole run.
        published: Whether the dataset has the fields now; False for a part.
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


def add_fields(
    dataset: PathOrUrl,
    fields: ModelFields | str | os.PathLike[str],
    *,
    part: tuple[int, int] | None = None,
    replace: bool = False,
    verify: bool = False,
    on_progress: OnProgress | None = None,
) -> FieldsSummary:
    """Compute fields of a dataset with a model, and store them beside it. Its own shards do not change.

    What an earlier run computed, finished or killed, is kept where the model, its files and the main shard are the same.

    Args:
        dataset: The folder or URL of a dataset that was built or indexed.
        fields: What to compute, or the path of a Python file that defines it as `FIELDS`.
        part: (number, parts): compute only every `parts`-th shard, from that number on, and publish nothing. Parts may run at the
            same time, each with a GPU of its own or on machines that share the folder. A run without `part` then publishes.
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
    loaded = fields if isinstance(fields, ModelFields) else load_fields(Path(fields).absolute())
    plan = FieldsPlan(open_data(dataset), loaded, loaded.describe())
    plan.check()
    _check_replace(plan, replace)
    with ExitStack() as stack:
        # At a store, files are made in a local folder.
        scratch = stack.enter_context(scratch_folder()) if is_remote(plan.root) else plan.root
        new = _lock(stack, plan.data, scratch, shared=chosen is not None)
        tasks = plan.tasks[chosen.number :: chosen.parts] if chosen else plan.tasks
        due, calls, model_s = list[FieldsTask](), 0, 0.0
        if not plan.is_published(verify=verify):
            if verify:
                plan.forget_damaged(tasks)
            due = [task for task in tasks if plan.receipt(task) is None]
            if due:
                samples = sum(task.records for task in due)
                with closing(Computer(plan, scratch)) as computer:
                    computer.compute(due, lambda done: on_progress(done, samples) if on_progress else None)
                    calls, model_s = computer.calls, computer.model_s
            if new is not None:
                publish_fields(plan, scratch, new)
        if new is not None:
            remove_waiting(plan.root, plan.fields.name)
    return FieldsSummary(
        plan.root, tuple(plan.fields.store), sum(task.records for task in due), len(due), len(tasks) - len(due),
        calls, model_s, time.monotonic() - began, published=chosen is None,
    )  # fmt: skip


def remove_fields(dataset: PathOrUrl, name: str) -> list[str]:
    """Remove added fields from a dataset, or give up what an unfinished run computed.

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
        fingerprints = {receipt.fingerprint for task in plan.tasks if (receipt := plan.noted(task))}
    if fingerprints - {plan.fingerprint}:
        raise BuildError(
            f"{plan.data.path} has fields {plan.fields.name!r} of another model, or of other options"
            + (f" ({changed})" if changed else "")
            + "; allow them to be replaced (--replace), or give these another name"
        )


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
        new = stack.enter_context(NewVersion(root, scratch if is_remote(root) else None, SAME_SHARDS))
    if current_version(root) != data.version:
        raise BuildError(f"{root} was published again since it was opened; run the same command again")
    return new
