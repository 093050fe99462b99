"""The plan of a loader: what it delivers, in which order, read how and by whom. A pure function of datasets and options.

Nothing is opened or started here but the index, where the options select samples by it. `Pipeline` makes the parts from the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import FieldSpec
from tfprep.limits import usable_cpus
from tfprep.load.at_load.ops import AtLoad, plan_at_load, unfit_fields
from tfprep.load.memory import (
    HELD_ELSEWHERE,
    PREFETCH,
    MemoryPlan,
    batch_bytes,
    budget_bytes,
    plan_memory,
    rooms_bytes,
    varying_bytes,
    working_bytes,
)
from tfprep.load.options import LoaderOptions
from tfprep.load.order.permutation import EpochOrder
from tfprep.load.order.samplers import Variants
from tfprep.load.order.schedule import BatchSchedule, Numbers
from tfprep.load.outputs import EXTRA, Output, Outputs, convert, pad_outputs, resolve, row_bytes, warped_spec
from tfprep.load.reader.batch import VaryingBytes
from tfprep.load.reader.cache import cached_records
from tfprep.load.reader.parts import Cast, FieldPart, field_parts, smaller_forms
from tfprep.load.reader.stages import STAGED_ROWS
from tfprep.load.reader.table import RecordTable
from tfprep.load.selection import (
    SplitRows,
    check_class_names,
    columns_of,
    common_specs,
    is_training,
    select,
    table_of,
    table_rows,
)
from tfprep.load.workers import WorkersPlan, most_prefetch, plan_workers
from tfprep.storage.urls import is_remote

CacheKind: TypeAlias = Literal["decoded", "encoded", "none"]

MOST_EPOCHS = 1 << 32
PARTLY = 0.5
"""The least share of decoded records for which a cache is made: at one half, keeping them doubles the rate."""


@dataclass(frozen=True, eq=False)
class LoaderPlan:
    """Splits under one set of options.

    Attributes:
        sources: The samples.
        options: The options, with `training` decided.
        class_names: The names that may stand for a label's numbers.
        variants: The variants that are read: by default all in turn in training, and otherwise the unaugmented one.
        specs: The fields that all datasets have.
        read: The outputs as records give them.
        at_load: The ops at load; None without any.
        indexed: The outputs that the index itself holds, and what they are: "key", "variant", or "label" for the first label.
        table: Where the records lie.
        schedule: What each step holds.
        casts: The outputs that a decoded cache keeps in their stored form, because that is smaller.
        parts: The stored fields that fill the outputs.
        workers: Who fills batches, and why.
        varying: The room that worker processes need for arrays that differ in size.
        memory: What takes how much memory.
        cache: The cache that is made.
    """

    sources: tuple[SplitRows, ...]
    options: LoaderOptions
    class_names: tuple[str, ...]
    variants: Variants
    specs: Mapping[str, FieldSpec]
    read: Outputs
    at_load: AtLoad | None
    indexed: Mapping[str, str]
    table: RecordTable
    schedule: BatchSchedule
    casts: tuple[Cast, ...]
    parts: tuple[FieldPart, ...]
    workers: WorkersPlan
    varying: VaryingBytes | None
    memory: MemoryPlan
    cache: CacheKind

    @property
    def outputs(self) -> Outputs:
        """The outputs that are delivered."""
        return self.at_load.delivered(self.read) if self.at_load else self.read

    @property
    def batch_rows(self) -> int:
        """Samples that this host reads for its largest batch."""
        return len(self.schedule.positions(0))

    @property
    def batch_outputs(self) -> list[Output]:
        """All arrays of a batch while it is filled."""
        return _batch_outputs(self.read, self.at_load, self.casts)

    @property
    def cached_outputs(self) -> list[Output]:
        """Return what a decoded cache keeps."""
        return [output for output in _kept(self.read, self.casts) if output.name not in self.indexed]

    @property
    def is_remote(self) -> bool:
        """Return whether records lie at URLs."""
        return any(is_remote(path) for path in self.table.files)


def plan_loader(sources: Sequence[SplitRows], options: LoaderOptions, class_names: Sequence[str] = ()) -> LoaderPlan:
    """Plan the loader of these samples under these options.

    Raises:
        LoaderError: Options that exclude each other, or that the datasets cannot meet.
        DatasetError: There is no such split, or the index is damaged.
    """
    if options.training is None:
        options = replace(options, training=is_training(sources))
    sources, training = tuple(sources), bool(options.training)
    variants = Variants(("rotate" if training else 0) if options.variants is None else options.variants, options.seed)
    specs = common_specs(sources)
    read = _read_outputs(sources, options, specs)
    at_load = _plan_at_load(sources, options, specs, read)
    indexed = _find_indexed(sources, specs, read)
    stored = [name for name in read.fields if name not in indexed.values()]
    table = table_of(sources, variants, stored, with_label="label" in indexed.values())
    partners = at_load is not None and at_load.mixes_samples
    schedule = _plan_schedule(sources, options, class_names, variants, table, partners=partners)
    casts = _plan_casts(options, specs, read, indexed)
    parts = _make_parts(sources, options, specs, read, indexed, casts)
    workers, varying, memory = _plan_means(options, specs, read, at_load, indexed, table, schedule, casts, parts)
    plan = LoaderPlan(
        sources, options, tuple(class_names), variants, specs, read, at_load, indexed, table, schedule, casts, parts, workers,
        varying, memory, cache="none",
    )  # fmt: skip
    cache = _choose_cache(plan)
    if cache == "decoded":
        return replace(plan, cache=cache)
    # Only a decoded cache needs the stored form.
    return replace(plan, cache=cache, casts=(), parts=_make_parts(sources, options, specs, read, indexed, ()))


# --- what is delivered, in which order -----------------------------------------------------------------------------------


def _read_outputs(sources: Sequence[SplitRows], options: LoaderOptions, specs: Mapping[str, FieldSpec]) -> Outputs:
    dataset, geometry = sources[0].dataset, tuple(options.geometry)
    warped = {name: warped_spec(spec, geometry) for name, spec in specs.items()}
    try:
        outputs = resolve(warped, options.fields, options.inputs, options.targets, options.sample_weight)
    except LoaderError as error:
        if len(sources) == 1:
            raise
        raise LoaderError(
            f"{error}. A mix loads fields that all its datasets have, alike: {', '.join(specs)}"
        ) from None
    outputs = pad_outputs(outputs, warped, options.pad)
    check_class_names(sources, outputs.fields)
    statistics = dataset.manifest.statistics
    if options.normalize and dataset.manifest.imported is not None and not statistics:
        raise LoaderError(
            "normalize=True subtracts the mean of the training split, which an index does not know; use dtype='float32' and "
            "normalise in the model: keras.layers.Rescaling(1 / 255), or a Normalization layer that is adapted"
        )
    return convert(outputs, specs, statistics, options.dtype, options.normalize)


def _plan_at_load(
    sources: Sequence[SplitRows], options: LoaderOptions, specs: Mapping[str, FieldSpec], read: Outputs
) -> AtLoad | None:
    recipes = [source.dataset.manifest.recipe for source in sources]
    unfit = {name: why for recipe in recipes for name, why in unfit_fields(recipe).items()}
    classes, training = sources[0].dataset.manifest.classes, bool(options.training)
    return plan_at_load(options.at_load, read, specs, classes, unfit, seed=options.seed, training=training)


def _find_indexed(sources: Sequence[SplitRows], specs: Mapping[str, FieldSpec], read: Outputs) -> dict[str, str]:
    plain = {source.label for source in sources} == {"label"} and specs.get("label") == FieldSpec("label", (), "int64")
    indexed = {name for name in EXTRA if name not in specs} | ({"label"} if plain else set())
    return {output.name: output.fields[0] for output in read.outputs if output.fields[0] in indexed}


def _plan_schedule(
    sources: Sequence[SplitRows],
    options: LoaderOptions,
    class_names: Sequence[str],
    variants: Variants,
    table: RecordTable,
    *,
    partners: bool,
) -> BatchSchedule:
    training = bool(options.training)
    order = options.order or ("global" if training else "sequential")
    shares = [source.share for source in sources if source.share is not None] or None
    if "label" in columns_of(options):
        check_class_names(sources, {source.label for source in sources if source.label is not None})
    selection = select(table, options, class_names, table_rows(sources, table), shares)
    numbers = [source.variants for source in sources]
    schedule = BatchSchedule(
        sampler=selection.sampler,
        order=EpochOrder(order, options.seed, options.block, options.window),
        variants=variants,
        batch_size=options.batch_size,
        remainder=options.remainder or "keep",
        hosts=options.host,
        epochs=None if training else 1,
        rows=selection.rows,
        groups=_groups(order, options.block, table),
        counts=numbers[0] if len(set(numbers)) == 1 else np.repeat(numbers, [source.samples for source in sources]),
        partners=partners,
    )
    if options.start_step // schedule.steps_per_epoch >= MOST_EPOCHS:
        raise LoaderError(
            f"start_step={options.start_step:,} lies behind {MOST_EPOCHS:,} epochs, which a run has at most"
        )
    # All batches of training have one shape, so that Keras traces once and XLA compiles once.
    drop = options.remainder is None and training and schedule.size >= options.batch_size
    return replace(schedule, remainder="drop") if drop else schedule


def _groups(order: str, block: int, table: RecordTable) -> Numbers | None:
    """The group with which each row takes its variant: its block, or its file; None where that is the row itself."""
    if order == "global":
        return None
    if order == "block":
        return np.arange(table.samples) // block
    rows = np.arange(table.samples)
    first_variant = np.concatenate([np.full(part.samples, part.variants[0]) for part in table.parts])
    return table.file_of(table.record(rows, first_variant))


# --- how it is read --------------------------------------------------------------------------------------------------------


def _plan_casts(
    options: LoaderOptions, specs: Mapping[str, FieldSpec], read: Outputs, indexed: Mapping[str, str]
) -> tuple[Cast, ...]:
    choice = options.cache
    if choice in (False, "encoded") or read.ragged or not (options.training or choice == "decoded"):
        return ()
    return tuple(smaller_forms([output for output in read.outputs if output.name not in indexed], specs))


def _kept(read: Outputs, casts: Sequence[Cast]) -> list[Output]:
    """Return what is read and kept: the outputs that are delivered, or their stored form."""
    stored = {cast.output.name: cast.stored for cast in casts}
    return [stored.get(output.name, output) for output in read.outputs]


def _batch_outputs(read: Outputs, at_load: AtLoad | None, casts: Sequence[Cast]) -> list[Output]:
    filled = at_load.filled(read) if at_load else read
    return [*filled.outputs, *(cast.stored for cast in casts)]


def _make_parts(
    sources: Sequence[SplitRows],
    options: LoaderOptions,
    specs: Mapping[str, FieldSpec],
    read: Outputs,
    indexed: Mapping[str, str],
    casts: Sequence[Cast],
) -> tuple[FieldPart, ...]:
    parts = field_parts(_kept(read, casts), specs, sources[0].dataset.codecs, warped=bool(options.geometry))
    return tuple(part for part in parts if part.output.name not in indexed)


def _plan_means(
    options: LoaderOptions,
    specs: Mapping[str, FieldSpec],
    read: Outputs,
    at_load: AtLoad | None,
    indexed: Mapping[str, str],
    table: RecordTable,
    schedule: BatchSchedule,
    casts: Sequence[Cast],
    parts: Sequence[FieldPart],
) -> tuple[WorkersPlan, VaryingBytes | None, MemoryPlan]:
    """Divide the memory budget: worker processes get what batches and decoding leave, and prefetching what those leave."""
    delivered = at_load.delivered(read) if at_load else read
    budget, batch_rows, rows = budget_bytes(options.memory_budget), len(schedule.positions(0)), schedule.rows
    threads = options.threads or usable_cpus()
    batch = batch_bytes([*delivered.outputs, *(cast.stored for cast in casts)], specs, table, rows, batch_rows)
    working = working_bytes(read.outputs, specs, table, rows, threads * (STAGED_ROWS if at_load else 1))
    working += (
        batch if delivered.ragged else 0
    )  # TensorFlow's ragged tensors are put together from the arrays of a batch
    in_batch = _batch_outputs(read, at_load, casts)
    needed = batch * ((options.prefetch or 1) + HELD_ELSEWHERE) + working + rooms_bytes(in_batch, table)
    records = _records_of_each_epoch(options, read, indexed, table, schedule, casts, budget)
    other = "cache='encoded' lies in the memory of this process" if options.cache == "encoded" else ""
    if options.local is not None:
        other = "shards arrive in the folder `local` while it runs"
    workers = plan_workers(
        options.workers, threads, parts=parts, ops=(options.geometry, at_load, casts), files=table.files, records=records,
        budget=budget, needed=needed, other=other,
    )  # fmt: skip
    varying = varying_bytes(in_batch, specs, table, rows, batch_rows) if workers.processes else None
    working += workers.nbytes + (0 if varying is None else varying.units_of_row.nbytes)
    memory = plan_memory(budget, batch, options.prefetch, max(PREFETCH, most_prefetch(workers, batch_rows)), working)
    remote = any(is_remote(path) for path in table.files)
    return workers, varying, memory.with_fetching() if remote else memory


def _records_of_each_epoch(
    options: LoaderOptions,
    read: Outputs,
    indexed: Mapping[str, str],
    table: RecordTable,
    schedule: BatchSchedule,
    casts: Sequence[Cast],
    budget: int,
) -> int:
    """Return how many records this host reads in every epoch; 0 where all of them fit into the cache."""
    row = sum(row_bytes(output) for output in _kept(read, casts) if output.name not in indexed)
    fits = not read.ragged and table.records * row <= budget // 2  # batches leave at least half
    if fits and (options.cache == "decoded" or (options.cache == "auto" and options.training)):
        return 0
    return schedule.size // options.host.count


def _choose_cache(plan: LoaderPlan) -> CacheKind:
    """By default none that holds too little to be worth its memory."""
    choice = plan.options.cache
    if choice is False or choice == "encoded":
        return choice or "none"
    if plan.read.ragged:
        if choice == "decoded":
            raise LoaderError(
                "cache='decoded' keeps arrays of one size; these images differ: use 'encoded', or geometry"
            )
        return "none"
    if choice == "decoded":
        return "decoded"
    decodes = not all(part.direct for part in plan.parts)  # a hit then saves more than a read
    least = math.ceil(plan.table.records * (PARTLY if decodes else 1))
    fits = cached_records(plan.cached_outputs, plan.table.records, plan.memory.cache_bytes) >= least
    return "decoded" if fits and plan.options.training else "none"
