"""The plan of a loader: what it delivers, in which order, read how and by whom. A pure function of datasets and options.

Nothing is opened or started here but the index, where the options select samples by it. `Pipeline` makes the parts from the plan.

A run that resumes from a state delivers the same samples in the same steps, with the same values. So a state holds, beside its
step, the identity of the plan: the content of the dataset's shards, the rules of its manifest, and all options of the loader but
those that are declared not to decide what is delivered. A run that met a bad record may continue with on_bad="skip".
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from tfprep.checks import whole_number
from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS, FieldSpec
from tfprep.limits import available_memory, usable_cpus
from tfprep.load.augmentation import Augmentation, derived_specs, plan_augmentation
from tfprep.load.budget import (
    HELD_ELSEWHERE,
    MemoryPlan,
    SampleSizes,
    WorkersPlan,
    budget_bytes,
    not_sendable,
    plan_memory,
    plan_workers,
    row_bytes,
)
from tfprep.load.mixing import Mixing, plan_mixing
from tfprep.load.options import DEFAULTS, MOST_STEPS, LoaderOptions, deciding, described
from tfprep.load.order.samplers import used_variants
from tfprep.load.order.schedule import MOST_EPOCHS, BatchSchedule
from tfprep.load.outputs import EXTRA, Outputs, resolve
from tfprep.load.reader.rows import Reading, StoredField, targets_of
from tfprep.load.reader.table import RecordTable, SplitRows, digest
from tfprep.load.selection import added_fields, check_class_names, common_specs, is_training, select
from tfprep.storage.urls import is_remote

_LOG = logging.getLogger("tfprep.load")

PARTLY = 0.5
"""The least share of decoded records for which a cache is made: at one half, keeping them doubles the rate."""
OPS = 3
"""Raised with each change of what an op, a derived input or a decoder makes of the same input."""
_WHY = {
    "fingerprint": "; the dataset was built again, or its files differ: tfprep.open(..., version=N) opens an earlier version",
    "added": "; these fields were computed again meanwhile, by another model or from other samples",
    "selection": "; the fold, the mix, or what where and balance find differ",
    "rules": "; fill, border, min_visible, flip_indices, the number of classes or the declared fields of the dataset differ, or "
    "this version of tfprep computes an op in another way",
}


@dataclass(frozen=True, eq=False)
class LoaderPlan:
    """Splits under one set of options.

    Attributes:
        options: The options; where training, variants and order were not given, with what that means for these splits.
        ops: The ops and derived inputs that are given, as states name them; without those that cannot be described.
        mixing: What happens to full batches; None where nothing does.
        filled: The outputs as rows are filled with them.
        outputs: The outputs that are delivered.
        indexed: The outputs that the index itself holds, and what they are: "key", "variant", or "label" for the first label.
        channels_first: The outputs whose channels come first in the end.
        schedule: The samples of each step.
        tables: The places of records: "" for the records themselves, then by the names of added fields that are read. The records
            of added fields have the numbers of those that they belong to.
        reading: The files of all tables, the fields that are read from each, and what happens to each sample.
        threads: Threads that read and decode, in all processes together.
        workers: Who fills batches, and why.
        memory: The memory that batches, decoding, worker processes and the cache take.
        is_remote: True if records are at URLs.
        keeps_decoded: True if a cache is made: by default none that holds too little to be worth its memory.
    """

    options: LoaderOptions
    ops: Mapping[str, Any]
    mixing: Mixing | None
    filled: Outputs
    outputs: Outputs
    indexed: Mapping[str, str]
    channels_first: Sequence[str]
    schedule: BatchSchedule
    tables: Mapping[str, RecordTable]
    reading: Reading
    threads: int
    workers: WorkersPlan
    memory: MemoryPlan
    is_remote: bool
    keeps_decoded: bool

    @property
    def table(self) -> RecordTable:
        return self.tables[""]

    @property
    def training(self) -> bool:
        """True if each pass is the next epoch."""
        return bool(self.options.training)

    @property
    def sources(self) -> Sequence[SplitRows]:
        return self.table.parts

    @cached_property
    def fetch_steps(self) -> int:
        """Batches whose records are fetched from URLs ahead of their use: not more than those of an epoch, so that no record is
        fetched for the next one while it may still come into a cache, or the run may end."""
        nbytes = self.schedule.batch_rows * sum([table.record_bytes for table in self.tables.values()])
        return min(self.memory.fetch_bytes // nbytes, self.schedule.steps_per_epoch)

    # --- states -----------------------------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """What decides which samples a step holds, and their values, in the types that JSON returns."""
        schedule, sampler, manifest = self.schedule, self.schedule.sampler, self.sources[0].dataset.manifest
        chosen: dict[str, Any] = {name: getattr(self.options, name) for name in deciding("element", "order")}
        chosen |= {"remainder": schedule.remainder, **self.ops}
        options = {name: described(value) for name, value in chosen.items()}
        selection = [type(sampler).__name__, {option.name: getattr(sampler, option.name) for option in fields(sampler)}]
        rules = [
            OPS,
            self.reading.augmentation.views[0].forms[0].rules if self.reading.augmentation else {},
            self.mixing.labels if self.mixing else {},
        ]
        if manifest.imported is not None:  # another index of the same shards may declare other kinds, shapes and forms
            rules.append([manifest.fields[field.name] for field in self.reading.fields[0]])
        return {
            "dataset": [source.name for source in self.sources],
            "fingerprint": self.table.fingerprint,
            # An option that has its default is left out, so that a later version may have more of them.
            **{name: value for name, value in options.items() if value != DEFAULTS[name]},
            "added": {group: table.fingerprint for group, table in self.tables.items() if group},
            "selection": digest(described([*selection, schedule.rows])),
            "rules": digest(repr(rules)),
        }

    def state(self, step: int) -> dict[str, Any]:
        """The state before this step."""
        return {"step": whole_number("step", step, 0), "identity": self.identity()}

    def step_of(self, state: Mapping[str, Any]) -> int:
        """The state's next step; LoaderError where the state belongs to another run."""
        step, then = (state.get("step"), state.get("identity")) if isinstance(state, Mapping) else (None, None)
        if step is None or not isinstance(then, Mapping):
            raise LoaderError(f"a loader's state is the JSON object that state_dict returned, not {str(state)[:80]!r}")
        step = whole_number("the step of a state", step, 0, MOST_STEPS)
        now, digests = self.identity(), ("added", "selection", "rules")
        names = [name for name in {**then, **now} if name not in digests]  # what an option says comes first
        for name in (*names, *digests):
            if name not in then or name not in now or then[name] != now[name]:
                raise LoaderError(
                    f"this state belongs to another run: its {name} is {then.get(name, DEFAULTS.get(name))!r}, here it is "
                    f"{now.get(name, DEFAULTS.get(name))!r}. Make the "
                    f"loader as it was then, or start without the state{_WHY.get(name, '')}"
                )
        return step

    @property
    def first_step(self) -> int:
        """The step with which a run begins. LoaderError for a state of another run, or too large a number."""
        option = self.options.start_step
        if isinstance(option, Mapping):
            return self.step_of(option)
        if option // self.schedule.steps_per_epoch >= MOST_EPOCHS:
            raise LoaderError(f"start_step={option:,} is after the last of {MOST_EPOCHS:,} epochs, the most of a run")
        return option


# --- the plan ---------------------------------------------------------------------------------------------------------


def plan_loader(sources: Sequence[SplitRows], options: LoaderOptions) -> LoaderPlan:
    """Plan the loader of these samples under these options.

    Raises:
        LoaderError: Options that exclude each other, or that the datasets cannot meet.
        DatasetError: There is no such split, or the index is damaged.
    """
    datasets, ops = [source.dataset for source in sources], dict[str, Any]()
    with suppress(LoaderError):  # which is only one of states
        for name in ("geometry", "derive", "color", "views"):  # before an op runs: what it keeps then is not an option
            ops |= {name: described(getattr(options, name))} if getattr(options, name) else {}
    options, table = _decided(sources, options)
    sources = table.parts

    # What is delivered, in which order.
    stored = specs = common_specs(sources)
    needed = frozenset[str]()
    if options.derive:
        derived, needed = derived_specs(
            options.derive, sources, stored, moves=bool(options.geometry or options.views or options.bucket)
        )
        specs = {**stored, **derived}
    read, augmentation, mixing = _read(sources, options, stored, specs, needed), None, None
    filled = read
    if options.geometry or options.derive or options.color or options.views or options.bucket:
        augmentation, filled = plan_augmentation(options, datasets, read, specs, needed)
    if options.mix or options.one_hot is not False:
        mixing = plan_mixing(options, datasets[0], filled, specs)
    outputs = filled if mixing is None else mixing.delivered(filled)
    channels_first = [] if options.layout == "NHWC" else _with_channels(outputs, specs)
    schedule = _schedule(options, table, augmentation, mixing)

    # How it is read: which fields, from which tables.
    of_index = {name for name in EXTRA if name not in stored}
    if stored.get("label") == FieldSpec("label", (), "int64") and {source.label for source in sources} == {"label"}:
        made_at_load = "label" in options.derive or (augmentation is not None and augmentation.has_custom)
        of_index |= set() if made_at_load else {"label"}
    indexed = {output.name: output.fields[0] for output in read.outputs if output.fields[0] in of_index}
    targets = targets_of([output for output in filled.outputs if output.name not in indexed], specs)
    delivered = [target.name for target in targets if target.name not in options.derive]
    fields_in: dict[str, list[StoredField]] = {"": []}
    for name in dict.fromkeys([*delivered, *sorted(needed)]):
        own = [target for target in targets if target.name == name]
        field = StoredField(name, datasets[0].codecs[name], stored[name], own)
        fields_in.setdefault(datasets[0].group_of(name), []).append(field)
    tables = {"": table} | {
        group: RecordTable(
            [replace(part, dataset=added_fields(part.dataset, part.split, group, part.read)) for part in sources]
        )
        for group in fields_in
        if group
    }
    cpus, free_memory = usable_cpus(), available_memory()
    reading = Reading(
        paths=[path for table in tables.values() for path in table.files],
        imported=[flag for table in tables.values() for flag in table.imported],
        fields=list(fields_in.values()),
        targets=targets,
        augmentation=augmentation,
        announce=sum([table.shard_bytes for table in tables.values()]) > free_memory,
    )

    # By whom, in which memory.
    remote = any(is_remote(dataset.shards_folder) for dataset in datasets)
    threads, budget = options.threads or cpus, budget_bytes(options.memory_budget, free_memory)
    sizes = SampleSizes(specs, table, schedule.rows, options.derive.keys())
    batch, working = sizes.of_batch(outputs.outputs, schedule.batch_rows), sizes.of_decoding(read.fields, threads)
    if outputs.ragged:  # TensorFlow's ragged tensors are put together from the arrays of a batch
        working += batch
    caches = _may_cache(options, read, augmentation)
    all_cached = caches and table.records * sum([output.row_bytes for output in reading.outputs]) <= budget // 2
    workers = plan_workers(
        options.workers, threads, cpus=cpus, records=0 if all_cached else schedule.size // options.host.count,
        views=len(augmentation.views) if augmentation else 0, budget=budget,
        needed=batch * ((options.prefetch or 1) + HELD_ELSEWHERE) + working,
        obstacle=lambda: _obstacle(filled, specs, reading, remote),
    )  # fmt: skip
    most = workers.most_prefetch(schedule.batch_rows)
    memory = plan_memory(budget, batch, options.prefetch, most, working + workers.nbytes, fetches=remote)
    if caches and options.cache == "auto":
        # A hit saves more than a read where something is decoded.
        decodes = not all(field.direct for fields in reading.fields for field in fields)
        least = math.ceil(table.records * (PARTLY if decodes else 1))
        caches = memory.cache_bytes >= least * row_bytes(reading.outputs)
    return LoaderPlan(
        options=options, ops=ops, mixing=mixing, filled=filled, outputs=outputs, indexed=indexed,
        channels_first=channels_first, schedule=schedule, tables=tables, reading=reading,
        threads=threads, workers=workers, memory=memory, is_remote=remote, keeps_decoded=caches,
    )  # fmt: skip


def _decided(sources: Sequence[SplitRows], options: LoaderOptions) -> tuple[LoaderOptions, RecordTable]:
    """The options, with what None means for these samples, and the samples in the variants that are read."""
    training = is_training(sources) if options.training is None else options.training
    variants = ("rotate" if training else 0) if options.variants is None else options.variants
    order = options.order or ("global" if training else "sequential")
    table = RecordTable([replace(source, read=used_variants(variants, source.variants)) for source in sources])
    return replace(options, training=training, variants=variants, order=order), table


def _read(
    sources: Sequence[SplitRows],
    options: LoaderOptions,
    stored: Mapping[str, FieldSpec],
    specs: Mapping[str, FieldSpec],
    needed: frozenset[str],
) -> Outputs:
    """The outputs that the options name, as records give them."""
    try:
        outputs = resolve(specs, options)
    except LoaderError as error:
        if len(sources) == 1:
            raise
        raise LoaderError(
            f"{error}. A mix loads fields that all its datasets have, alike: {', '.join(stored)}"
        ) from None
    check_class_names(sources, {*outputs.fields, *needed})
    # Pixels must not change after a model has computed a field from them that does not follow.
    changes = (*options.geometry, *options.color, *(options.views or ()), *options.mix)
    if not changes and options.bucket is None:
        return outputs
    what = type(changes[0]).__name__ if changes and options.views is None else "bucket" if options.bucket else "views"
    for source, name in itertools.product(sources, outputs.fields):
        manifest = source.dataset.manifest
        entry = manifest.groups.get(source.dataset.group_of(name)) if name in stored else None
        if entry is None or stored[name].kind in RASTER_KINDS:
            continue
        if options.mix:
            raise LoaderError(
                f"{type(options.mix[0]).__name__} mixes images and labels of two samples, and '{name}', which a model "
                "computed, would stay that of one: leave it out of `fields`, or mix both in the training step"
            )
        if entry.pixels:
            raise LoaderError(
                f"{what} changes the pixels that a model computed '{name}' from, which stays as it is. Leave it out of "
                "`fields`, put the op into the recipe's geometry, or say ModelFields(follows_pixels=False) and run tfprep "
                "fields add, which computes nothing again for it"
            )
    return outputs


def _schedule(
    options: LoaderOptions,
    table: RecordTable,
    augmentation: Augmentation | None,
    mixing: Mixing | None,
) -> BatchSchedule:
    assert options.order is not None  # `_decided` sets both
    assert options.variants is not None
    training, counts = bool(options.training), [part.variants for part in table.parts]
    times = counts[0] if options.variants == "all" else 1
    # All batches of training have one shape, so that Keras traces once and XLA compiles once.
    drop = training if options.remainder is None else options.remainder == "drop"
    least = -(-options.batch_size // times) if drop else 1
    sampler, rows, buckets = select(table, options, least)
    if training and options.remainder is None and sampler.size < least and not buckets:
        drop = False
        _LOG.warning(
            "batch_size=%d is larger than the %d samples of an epoch: its only batch is smaller",
            options.batch_size,
            sampler.size * times,
        )
    groups = None
    if options.order == "sequential":  # each row takes its variant with its file, in order "global" by itself
        first_variant = np.concatenate([np.full(part.samples, part.read[0]) for part in table.parts])
        groups = table.file_of(table.record(np.arange(table.samples), first_variant))
    return BatchSchedule(
        sampler=sampler,
        order=options.order,
        seed=options.seed,
        variants=options.variants,
        batch_size=options.batch_size,
        remainder="drop" if drop else "keep",
        hosts=options.host,
        rows=rows,
        groups=groups,
        counts=counts[0] if len(set(counts)) == 1 else np.repeat(counts, [part.samples for part in table.parts]),
        partners=mixing is not None and bool(mixing.ops),
        since=augmentation.since if augmentation else (),
        buckets=buckets,
    )


def _with_channels(outputs: Outputs, specs: Mapping[str, FieldSpec]) -> list[str]:
    """The outputs of images, and of masks and maps [H, W, C]."""
    rasters = {name for name, spec in specs.items() if spec.kind in RASTER_KINDS}
    return [output.name for output in outputs.outputs if len(output.shape) == 3 and rasters.issuperset(output.fields)]


def _may_cache(options: LoaderOptions, read: Outputs, augmentation: Augmentation | None) -> bool:
    """True if decoded rows can be kept, and are asked for or read again."""
    if augmentation and options.cache == "decoded":
        raise LoaderError(
            "cache='decoded' keeps decoded rows, and geometry, derive and color make other rows in each epoch; leave "
            "cache= out"
        )
    if read.ragged and options.cache == "decoded":
        raise LoaderError("cache='decoded' keeps arrays of one size; these images differ: use geometry, or pad")
    possible = not read.ragged and not augmentation
    return possible and (options.cache == "decoded" or (options.cache == "auto" and bool(options.training)))


def _obstacle(
    filled: Outputs,
    specs: Mapping[str, FieldSpec],
    reading: Reading,
    remote: bool,
) -> str:
    """Why worker processes cannot read this; empty where they can."""
    for output in filled.outputs:
        if None in output.shape and {specs[name].kind for name in output.fields} & RASTER_KINDS:
            return f"the samples of {output.name!r} differ in size, and worker processes fill arrays of one size"
    if not any(reading.fields):
        return "the index holds all that is read"
    return "records at a URL are fetched by threads" if remote else not_sendable(reading)
