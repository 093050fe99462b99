"""A build from beginning to end: plan, shard tasks, publication."""

from __future__ import annotations

import importlib
import os
import pickle
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfprep.augment.chain import is_idle
from tfprep.builder.layout import Layout, placed
from tfprep.builder.make_sample import BuildContext
from tfprep.builder.options import (
    BuildOptions,
    BuildProgress,
    BuildSummary,
    LogEvent,
    OnProgress,
    Part,
    PartSummary,
    worker_count,
)
from tfprep.builder.parts import agree, check_common_plan, check_complete, read_common_plan
from tfprep.builder.plan import Plan, make_plan, remember, warning_of_opencv
from tfprep.builder.receipts import Receipt, read_receipts, withdraw_receipt
from tfprep.builder.state import (
    CRASHED,
    DAMAGED,
    ShardState,
    accept_code,
    check_replacement,
    explain,
    shard_states,
)
from tfprep.builder.sums import expected_of, most_common
from tfprep.dataset.names import SHARDS
from tfprep.errors import BuildError, RecipeError, SourceError
from tfprep.pool import Died, Done, Pool, Progress, Task
from tfprep.recipe import Recipe
from tfprep.recipe.file import data_root, load_recipe
from tfprep.storage.local import remove_leftovers
from tfprep.storage.urls import is_remote, remove_file, size_of
from tfprep.units import duration

if TYPE_CHECKING:
    from tfprep.dataset import Manifest
    from tfprep.dataset.versions import NewVersion

_MOST_ROUNDS = 4
"""Rounds until all records of a field have one form. The second is the last, unless an input changes meanwhile."""
_TASKS_PER_WORKER = 4
"""Tasks that the engine gets for each worker before it asks for more. Their lists of samples are in memory."""
_PROGRESS_S = 0.1


def plan_build(
    recipe: Recipe | str | os.PathLike[str],
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    options: BuildOptions | None = None,
    part: Part | None = None,
) -> list[ShardState]:
    """Plan a build without writing anything.

    Args:
      recipe: The recipe, or the path of the Python file that defines `RECIPE`.
      out: The folder of the dataset.
      data: As in `build`.
      options: Those of the build.
      part: Look only at the shards of this part.

    Returns:
      The state of every shard, and why it would be built. `explain` summarizes them in a line.

    Raises:
      RecipeError: The recipe is wrong, or does not fit the raw data.
      SourceError: The raw data is not laid out as the source expects.
      BuildError: The build would refuse to start, for example because `out` holds another dataset.
    """
    options, (loaded, file) = options or BuildOptions(), loaded_recipe(recipe)
    root = data_root(file, data)
    with placed(out) as layout:
        check_folders(root, layout.out)
        plan = _plan(loaded, root, layout, options)
        shards = part.shards(plan.starts) if part else None
        states = list(shard_states(plan, layout, shards, verify=options.verify))
    return _accepted(states) if options.accept_code else states


def _accepted(states: Sequence[ShardState]) -> list[ShardState]:
    """Return the states with the shards for which nothing but code has changed as up to date."""
    return [replace(state, why="") if state.of_code else state for state in states]


@dataclass
class Build:
    """One build, and what its steps share.

    Attributes:
      recipe, file: The recipe, and its file if it came from one.
      layout, root: The folders of the build and of the raw files.
      options, on_progress: As in `tfprep.build`.
      engine: Where the tasks run.
      log_event: Reports an event.
      new: The version that is made, with the lock of the dataset; None for a part, which publishes nothing.
      started: `time.monotonic()` at the beginning.
      confirm: Asked, with a text, before shards are built again for which nothing but the user's code has changed.
    """

    recipe: Recipe
    file: Path | None
    layout: Layout
    root: Path
    options: BuildOptions
    engine: Pool
    on_progress: OnProgress | None
    log_event: LogEvent
    new: NewVersion | None
    started: float
    confirm: Callable[[str], bool] | None = None
    _run: str = field(default_factory=lambda: secrets.token_hex(6))
    # By split and shard, each counted once, however often it is built:
    _expected: dict[tuple[str, int], int] = field(default_factory=dict)  # the samples of all that are to be built
    _rejected: dict[tuple[str, int], int] = field(default_factory=dict)  # the rejected samples of those that are done
    _built: dict[tuple[str, int], int] = field(default_factory=dict)  # the samples of those that were written
    _items: dict[Task, int] = field(default_factory=dict)  # the sample that each task is at

    def build(self) -> BuildSummary:
        """Build what is due, and publish."""
        plan = self._plan()
        remove_file(self.layout.part_plan)
        states = self._states(plan)
        remember(plan, self.layout, self.options)
        due = [state for state in states if self._is_due(state)]
        return self._publish(plan, self._build_all(plan, due))

    def build_part(self, part: Part) -> PartSummary:
        """Build what is due of a part."""
        plan = self._plan()
        shards = part.shards(plan.starts)
        states = self._states(plan, shards)
        due = [state for state in states if self._is_due(state)]
        # A part that is started once more after the publication stores no plan that would bind later builds.
        if due or size_of(self.layout.part_plan) is not None:
            agree(plan, self.layout, part, self.options)
        remember(plan, self.layout, self.options)
        self._run_tasks(plan, due)
        receipts = _receipts(plan, self.layout, shards)
        rejected = sum(len(receipt.rejected) for receipt in receipts)
        summary = PartSummary(
            out=self.layout.out,
            part=part.number,
            parts=part.parts,
            shards=len(receipts),
            samples=sum(receipt.records for receipt in receipts) + rejected,
            rejected=rejected,
            built_samples=sum(self._built.values()),
            built_shards=len(self._built),
            seconds=time.monotonic() - self.started,
        )
        text = f"part {part}: {summary.shards} shards of {summary.samples} samples, {summary.rejected} rejected"
        self.log_event("part", text, part=part.number, parts=part.parts, rejected=summary.rejected)
        return summary

    def build_elsewhere(
        self, most: int, build_parts: Callable[[Sequence[Part]], Generator[PartSummary]]
    ) -> tuple[int, int]:
        """Let other machines build what is due, in parts; return the numbers of samples and of shards that they built.

        Args:
          most: The largest number of parts.
          build_parts: Builds parts, and yields the summary of each.
        """
        plan = self._plan()
        due = {(state.split, state.shard): state.samples for state in self._states(plan) if not state.up_to_date}
        if not due:
            return 0, 0
        count = min(most, len(plan.starts))
        agree(plan, self.layout, Part(0, count), self.options)
        remember(plan, self.layout, self.options)
        numbers = sorted({place % count for place, shard in enumerate(plan.starts) if shard in due})
        samples = shards = rejected = 0
        try:
            with closing(build_parts([Part(number, count) for number in numbers])) as summaries:
                for summary in summaries:
                    samples, shards = samples + summary.built_samples, shards + summary.built_shards
                    rejected += summary.rejected
                    if self.on_progress is not None:
                        seconds = time.monotonic() - self.started
                        self.on_progress(BuildProgress(samples, sum(due.values()), shards, len(due), rejected, seconds))
        except BaseException:
            remove_file(self.layout.part_plan)  # It binds no later build.
            raise
        return samples, shards

    def finish(self) -> BuildSummary:
        """Publish what the parts built."""
        plan = self._plan()
        stored = read_common_plan(self.layout)
        if stored is not None:
            check_common_plan(plan, self.layout, stored, self.options)
        # Parts may have had copies of the raw files, which have other inodes.
        states = self._states(plan, identities=False)
        check_complete(plan, states, self.layout, stored)
        summary = self._publish(plan, self._build_all(plan, []), report=stored is not None)
        remove_file(self.layout.part_plan)
        return summary

    def _plan(self) -> Plan:
        return _plan(self.recipe, self.root, self.layout, self.options)

    def _states(
        self, plan: Plan, shards: Sequence[tuple[str, int]] | None = None, *, identities: bool = True
    ) -> list[ShardState]:
        states = list(shard_states(plan, self.layout, shards, identities=identities, verify=self.options.verify))
        for state in states:
            if state.why == DAMAGED:  # a worker would take the receipt for that of a complete shard
                withdraw_receipt(self.layout, state.split, state.shard)
        if of_code := [state for state in states if state.of_code]:
            self._settle_code(plan, of_code)
            states = _accepted(states) if self.options.accept_code else states
        samples = sum(state.samples for state in states)
        self.log_event("planned", explain(states), samples=samples, shards=len(states))
        unused = [*map(repr, filter(is_idle, plan.recipe.geometry)), *(["color"] if plan.recipe.color else [])]
        if unused and all(plan.recipe.variants_of(split) == 1 for split in plan.splits):
            rule = f"{', '.join(unused)}: only augmented variants are changed, and the recipe asks for none"
            self.log_event("warning", f"{rule}; name the training split in variants={{'train': 4}}")
        if plan.recipe.geometry and (warning := warning_of_opencv()):
            self.log_event("warning", warning)
        if plan.recipe.geometry and (names := ", ".join(plan.listing.derived)):
            self.log_event(
                "warning",
                f"geometry moves the pixels of fields that an earlier recipe derived ({names}), and leaves their numbers as they "
                "are: distances, directions and coordinates fit no more after a resize or a flip. Derive them again (derive=)",
            )
        return states

    def _settle_code(self, plan: Plan, states: Sequence[ShardState]) -> None:
        """Keep the shards for which nothing but code has changed, or say what building them again costs, and ask."""
        changes = "; ".join(dict.fromkeys(state.why for state in states))
        if self.options.accept_code:
            accept_code(plan, self.layout, states)
            self.log_event("code", f"{len(states)} shards are kept as they are although {changes}", shards=len(states))
            return
        seconds = sum(state.seconds for state in states) / max(1, worker_count(self.options))
        text = (
            f"{changes}. Nothing else did: {len(states)} shards are built again, in about {duration(seconds)}. "
            "--accept-code (BuildOptions(accept_code=True)) keeps them as they are"
        )
        self.log_event("code", text, shards=len(states), expected_s=round(seconds, 1))
        if self.confirm is not None and not self.confirm(text):
            raise BuildError("nothing was built, because the code changed; --accept-code keeps the shards as they are")

    def _publish(self, plan: Plan, receipts: Sequence[Receipt], *, report: bool = False) -> BuildSummary:
        """Make the shards the dataset. `report`: write the report even if this run built nothing."""
        from tfprep.builder import publish
        from tfprep.dataset.other_readers import tfds_limits

        # A build with on_bad="fail" ends at its first bad sample; those left are of shards that an earlier run built.
        max_bad = 0.0 if self.options.on_bad == "fail" else self.options.max_bad
        publish.check_rejected(self.layout, receipts, len(plan), max_bad)
        assert self.new is not None
        before = self.layout.manifest
        manifest = publish.manifest_of(plan, receipts, most_common(receipt.forms for receipt in receipts), before)
        if self.layout.at_store:  # fields that were added to a copy of a local dataset are in the folder of its version
            manifest = replace(manifest, within=SHARDS).staying_in(
                self.layout.current.name if self.layout.current else ""
            )

        if before is not None and publish.is_published(
            self.layout, self.new, before, manifest, verify=self.options.verify
        ):
            manifest = before
        else:
            manifest = publish.write_files(self.layout, self.new, before, manifest, receipts)
            self._report(self.new.complete(manifest), manifest, plan, receipts, before)
            self.new.publish(self.options.keep)
        self.new.clear()
        publish.remove_notes(self.layout, receipts)
        if self.new.copied:
            self.log_event(
                "warning",
                f"{self.new.copied} unchanged files were copied: {self.layout.out} has no hard links, or not to files of another "
                "user, so that each version takes the space of a whole dataset",
            )
        for group in (before.groups.keys() if before else set()) - manifest.groups.keys():
            self.log_event(
                "warning",
                f"the fields {group!r} that a model added do not fit the dataset any more (shards were built again, or variants "
                "are gone): it is published without them; run tfprep fields add again, which computes only what is missing",
            )
        if self._built or report:
            for name, sentence in tfds_limits(manifest).items():
                self.log_event("warning", sentence, field=name)
        infos = manifest.splits
        splits = {
            name: {"samples": info.samples, "variants": info.variants, "shards": info.shards, "bytes": info.bytes}
            for name, info in infos.items()
        }
        assert self.new.before is not None
        summary = BuildSummary(
            out=self.layout.out,
            path=self.new.before.path,
            records=sum(info.samples * info.variants for info in infos.values()),
            **{name: sum(split[name] for split in splits.values()) for name in ("samples", "shards", "bytes")},
            rejected=manifest.rejected,
            first_rejected=publish.first_rejected(receipts),
            passed_over=plan.listing.tally,
            splits=splits,
            built_samples=sum(self._built.values()),
            built_shards=len(self._built),
            seconds=time.monotonic() - self.started,
        )
        text = f"{summary.records} records of {summary.samples} samples, {summary.rejected} rejected"
        self.log_event("published", text, records=summary.records, samples=summary.samples, rejected=summary.rejected)
        return summary

    def _report(
        self, folder: Path, manifest: Manifest, plan: Plan, receipts: Sequence[Receipt], before: Manifest | None
    ) -> None:
        """Write the report of a version into its folder before it is published, and say what is missing in the data."""
        from tfprep.builder import publish

        seconds, samples = time.monotonic() - self.started, sum(self._built.values())
        notes = publish.notes_on_build(receipts, manifest, before if self.options.limit is None else None)
        for line in notes:
            self.log_event("warning", line)
        shares = publish.other_shares(manifest) if self.options.limit is None else ()
        for line in [*publish.empty_parts(manifest), *shares]:
            self.log_event("empty", line)
        if fault := publish.write_report(folder, manifest, receipts, seconds, samples, plan.listing.tally, notes):
            self.log_event("report", fault)

    def _is_due(self, state: ShardState) -> bool:
        """A sample that crashed is not tried again in this process, which it would take down."""
        in_this_process = worker_count(self.options) == 0
        return not state.up_to_date and not (state.why == CRASHED and in_this_process)

    def _build_all(self, plan: Plan, pending: Sequence[ShardState]) -> list[Receipt]:
        """Build these shards, then those in which a field has another form than in most records; return all receipts."""
        for _ in range(_MOST_ROUNDS):
            self._run_tasks(plan, pending)
            receipts = _receipts(plan, self.layout)
            pending = self._differing(plan, receipts)
            if not pending:
                return receipts
            receipts.clear()  # before the next round reads them again
        raise BuildError("fields keep changing their form while they are built; are the raw files being rewritten?")

    def _run_tasks(self, plan: Plan, pending: Sequence[ShardState]) -> None:
        """Build these shards in worker processes, or in this one, and log what becomes of them. Raises BuildError."""
        if not pending:
            return
        if not self._expected:
            self.engine.start()
            self.engine.open(self._context(plan))
        for state in pending:
            self._expected[state.split, state.shard] = state.samples
            self._rejected.pop((state.split, state.shard), None)
        # The largest come first: the shards that are left at the end, when some workers have nothing to do, are then small.
        todo = deque(sorted(pending, key=lambda state: -state.samples))
        try:
            self._submit(plan, todo)
            if self.engine.workers():
                _import_publication()
            reported = 0.0
            for event in self.engine.events():
                if isinstance(event, Progress):
                    self._items[event.task] = event.item or 0
                elif isinstance(event, Done):
                    self._done(event)
                elif isinstance(event, Died):
                    self._died(event)
                self._submit(plan, todo)
                if time.monotonic() - reported > _PROGRESS_S:
                    reported = time.monotonic()
                    self._report_progress()
            self._report_progress()
        finally:
            remove_leftovers(self.layout.staged, f"{self._run}*")

    def _submit(self, plan: Plan, todo: deque[ShardState]) -> None:
        while todo and len(self._items) < _TASKS_PER_WORKER * max(1, len(self.engine.workers())):
            state = todo.popleft()  # The task is made only now: its list of samples is in memory.
            task = replace(plan.task(state.split, state.shard), expected=state.expected)
            self._items[self.engine.submit(task)] = 0

    def _done(self, event: Done) -> None:
        task = event.task.content
        del self._items[event.task]
        built, rejected, seconds = (event.result[name] for name in ("built", "rejected", "seconds"))
        samples = len(task.samples)
        if built:
            self._built[task.split, task.shard] = samples
        self._rejected[task.split, task.shard] = rejected
        what = "built" if built else "unchanged in content"
        text = f"{task.split} {task.shard} of {task.shards}: {what}, {samples} samples, {rejected} rejected, {seconds:.2f} s"
        facts: dict[str, Any] = {"rejected": rejected, "built": built, "shard_seconds": seconds}
        self.log_event("shard", text, split=task.split, shard=task.shard, samples=samples, **facts)

    def _died(self, event: Died) -> None:
        """Log that a process ended, and that a sample will be rejected because it ended several."""
        task = event.task.content
        key = "" if event.item is None else task.samples[event.item][0]
        what = f"{key or f'shard {task.shard} of {task.split!r}'}: {event.reason}"
        facts = {"key": key, "reason": event.reason, "split": task.split, "shard": task.shard}
        self.log_event("crash", f"{what}; the shard is built again", **facts)
        if event.lost:
            self.log_event("lost", f"{what}; it is left out", **facts)

    def _report_progress(self) -> None:
        if self.on_progress is not None:
            done = sum(self._expected[shard] for shard in self._rejected)
            self.on_progress(
                BuildProgress(
                    samples_done=done + sum(self._items.values()),
                    samples=sum(self._expected.values()),
                    shards_done=len(self._rejected),
                    shards=len(self._expected),
                    rejected=sum(self._rejected.values()),
                    seconds=time.monotonic() - self.started,
                )
            )

    def _differing(self, plan: Plan, receipts: Sequence[Receipt]) -> list[ShardState]:
        """Return the shards in which a field has another form than in most records."""
        common = most_common(receipt.forms for receipt in receipts)
        pending = []
        for receipt in receipts:
            expected = expected_of(receipt.forms, common)
            if expected != receipt.expected:
                samples = plan.size(receipt.split, receipt.shard)
                pending.append(ShardState(receipt.split, receipt.shard, samples, "fields differ", expected=expected))
        if pending:
            forms = ", ".join(f"{name} is {form}" for name, form in common.items())
            self.log_event(
                "differing", f"{len(pending)} shards hold records of another form; most: {forms}", forms=common
            )
        return pending

    def _context(self, plan: Plan) -> BuildContext:
        """Return the argument of `open_work`. A recipe that came from a file is loaded from it again, others are pickled."""
        source: Recipe | Path | bytes = plan.recipe
        modules: dict[str, str] = {}
        if self.file:
            source = self.file.absolute()
        elif worker_count(self.options):
            fix = "put the recipe into a file of its own and build from its path, or build with BuildOptions(workers=0)"
            try:
                source = pickle.dumps(plan.recipe)
            except Exception as error:
                rule = "the recipe holds what cannot be sent to a worker process"
                raise RecipeError(f"{rule} ({error}): {fix}") from error
            if b"__main__" in source:
                raise RecipeError(
                    f"the recipe holds a function of the script that was started, which no worker imports: {fix}"
                )
            loaded = {name: module for name, module in list(sys.modules.items()) if name.startswith("tfprep_recipe_")}
            modules = {
                name: os.path.abspath(str(module.__file__))
                for name, module in loaded.items()
                if name.encode("utf-8", "surrogatepass") in source  # as pickle writes it
            }
        return BuildContext(
            source=source, modules=modules, fingerprint=plan.fingerprint, root=str(self.root.absolute()),
            layout=Layout(self.layout.out.absolute(), self.layout.scratch),
            listing=plan.listing, train=plan.splits[0], run=self._run,
            options=self.options,
        )  # fmt: skip


def loaded_recipe(recipe: Recipe | str | os.PathLike[str]) -> tuple[Recipe, Path | None]:
    """Return the recipe, and its file if it came from one."""
    return (recipe, None) if isinstance(recipe, Recipe) else (load_recipe(Path(recipe)), Path(recipe))


def check_folders(root: Path, out: Path) -> None:
    """Raise SourceError or BuildError if there are no raw files, or the dataset would be built among them."""
    if not is_remote(root) and not root.is_dir():
        raise SourceError(f"{root}: no such folder of raw data; say where it is with --data")
    local = not is_remote(root) and not is_remote(out)
    if str(root) == str(out) or (local and out.is_dir() and os.path.samefile(root, out)):
        raise BuildError(f"{out} holds the raw data; choose another folder with --out, such as {out / 'built'}")


def _plan(recipe: Recipe, root: Path, layout: Layout, options: BuildOptions) -> Plan:
    plan = make_plan(recipe, root, layout, options)
    if not options.replace:
        check_replacement(plan, layout, options.limit)
    return plan


def _receipts(plan: Plan, layout: Layout, shards: Sequence[tuple[str, int]] | None = None) -> list[Receipt]:
    places, receipts = list(plan.starts if shards is None else shards), []
    for (split, shard), receipt in zip(places, read_receipts(layout, places), strict=True):
        if receipt is None:
            vanished = f"shard {shard} of {split!r} vanished from {layout.out} while it was built"
            raise BuildError(f"{vanished}; run the build again")
        # At a store, a build that was stopped while this one began may go on and write over the receipts.
        if receipt.signature != plan.signature(split, shard):
            raise BuildError(
                f"shard {shard} of {split!r} in {layout.out} was written by another build while this one ran; run the build "
                "again"
            )
        receipts.append(receipt)
    return receipts


def _import_publication() -> None:
    """Import what publishes a version, and what that imports when it runs, while the workers are busy: it takes 0.2 s."""
    import pyarrow as pa
    from PIL import Image

    from tfprep.builder import publish  # noqa: F401
    from tfprep.inspect.report import environment

    for module in ("importlib.metadata", "numpy.ma", "numpy.random", "pyarrow.compute"):
        importlib.import_module(module)
    for template in ("page", "macros", "report"):
        environment().get_template(f"inspect/pages/{template}.html.j2")
    Image.preinit()
    pa.array([0])  # PyArrow imports pandas, where it is installed, at its first array
