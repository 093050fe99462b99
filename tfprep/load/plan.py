"""The plan of a loader: what it delivers, in which order, read how and by whom. A pure function of datasets and options.

Nothing is opened or started here but the index, where the options select samples by it. `Pipeline` makes the parts from the plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.derive.inputs import follows_of
from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS, FieldSpec
from tfprep.limits import usable_cpus
from tfprep.load.augmentation import Augmentation, StageOptions, derived_specs, plan_augmentation
from tfprep.load.memory import HELD_ELSEWHERE, PREFETCH, MemoryPlan, Sizes, budget_bytes, plan_memory
from tfprep.load.mixing import Mixing, plan_mixing
from tfprep.load.options import LoaderOptions, op_texts
from tfprep.load.order.buckets import BucketOrder
from tfprep.load.order.permutation import EpochOrder
from tfprep.load.order.samplers import Variants
from tfprep.load.order.schedule import BatchSchedule, Numbers
from tfprep.load.outputs import EXTRA, Output, Outputs, convert, pad_outputs, resolve, row_bytes
from tfprep.load.reader.batch import cached_records
from tfprep.load.reader.parts import Cast, FieldPart, field_parts, smaller_forms
from tfprep.load.reader.table import RecordTable, TableSplit
from tfprep.load.selection import (
    SplitRows,
    check_buckets,
    check_class_names,
    columns_of,
    common_specs,
    in_buckets,
    is_training,
    select,
    table_rows,
)
from tfprep.load.workers import WorkersPlan, most_prefetch, plan_workers
from tfprep.storage.urls import is_remote

PARTLY = 0.5
"""The least share of decoded records for which a cache is made: at one half, keeping them doubles the rate."""


@dataclass(frozen=True, eq=False)
class LoaderPlan:
    """Splits under one set of options. Each part of the plan is computed once, of those that come before it.

    Attributes:
        sources: The samples.
        options: The options, with `training` decided.
        obstacle: A reason against worker processes, in words, that only an attempt shows.
    """

    sources: tuple[SplitRows, ...]
    options: LoaderOptions
    obstacle: str = ""

    # --- what is delivered, in which order -------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        return bool(self.options.training)

    @cached_property
    def variants(self) -> Variants:
        """The variants that are read: by default all in turn in training, and otherwise the unaugmented one."""
        choice = self.options.variants
        return Variants(("rotate" if self.training else 0) if choice is None else choice, self.options.seed)

    @cached_property
    def op_texts(self) -> Mapping[str, Any]:
        """The ops and derived inputs as states name them. LoaderError where one cannot be described."""
        options = self.options
        return {name: op_texts(getattr(options, name)) for name in ("geometry", "derive", "color", "views")}

    @cached_property
    def specs(self) -> Mapping[str, FieldSpec]:
        """The fields that all datasets have."""
        return common_specs(self.sources)

    @cached_property
    def _derived(self) -> tuple[Mapping[str, FieldSpec], frozenset[str]]:
        """The fields that are derived at load, and the stored ones that they read."""
        datasets, split = [source.dataset for source in self.sources], self.sources[0].split
        count = 1 if self.variants.choice == 0 else max(source.variants for source in self.sources)
        return derived_specs(self.options.derive, datasets, split, self.specs, count)

    @cached_property
    def all_specs(self) -> Mapping[str, FieldSpec]:
        """The stored fields, before geometry, and those that are derived at load."""
        return {**self.specs, **self._derived[0]}

    @cached_property
    def _named(self) -> Outputs:
        """The outputs that the options name, before rows are dropped or added."""
        options = self.options
        try:
            return resolve(self.all_specs, options.fields, options.inputs, options.targets, options.sample_weight)
        except LoaderError as error:
            if len(self.sources) == 1:
                if added := self.sources[0].dataset.fields_added_since():
                    raise LoaderError(f"{error}; {', '.join(added)} came since it was opened: open it again") from None
                raise
            raise LoaderError(
                f"{error}. A mix loads fields that all its datasets have, alike: {', '.join(self.specs)}"
            ) from None

    @cached_property
    def read(self) -> Outputs:
        """The outputs as records give them."""
        options = self.options
        outputs = pad_outputs(self._named, self.all_specs, options.pad)
        self._check_computed(outputs)
        check_class_names(self.sources, outputs.fields)
        manifest = self.sources[0].dataset.manifest
        if options.normalize and manifest.imported is not None and not manifest.statistics:
            raise LoaderError(
                "normalize=True subtracts the mean of the training split, which an index does not know; use dtype='float32' and "
                "normalize in the model: keras.layers.Rescaling(1 / 255), or a Normalization layer that is adapted"
            )
        return convert(outputs, self.all_specs, manifest.statistics, options.dtype, options.normalize)

    def _check_computed(self, outputs: Outputs) -> None:
        """Raise LoaderError where pixels change after a model has computed a field from them that does not follow."""
        options = self.options
        changes = (*options.geometry, *options.color, *(options.views or ()), *options.mix)
        if not changes and options.bucket is None:
            return
        what = (
            type(changes[0]).__name__ if changes and options.views is None else "bucket" if options.bucket else "views"
        )
        datasets = [source.dataset for source in self.sources]
        for dataset, name in itertools.product(datasets, outputs.fields):
            entry = dataset.manifest.groups.get(dataset.group_of(name)) if name in self.specs else None
            if entry is None or self.specs[name].kind in RASTER_KINDS:
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

    @cached_property
    def augmentation(self) -> Augmentation | None:
        """What happens to each sample; None where nothing does."""
        options, (_, needed) = self.options, self._derived
        stages = StageOptions(
            options.geometry, options.derive, options.color, options.views, options.bucket, options.seed, self.training
        )
        return plan_augmentation(stages, self.read, self.all_specs, needed, [source.dataset for source in self.sources])

    @cached_property
    def filled(self) -> Outputs:
        """The outputs as rows are filled with them."""
        return self.read if self.augmentation is None else self.augmentation.filled(self.read, self.all_specs)

    @cached_property
    def mixing(self) -> Mixing | None:
        """What happens to full batches; None where nothing does."""
        dataset, options = self.sources[0].dataset, self.options
        follows = {name: frozenset(info.follows) for name, info in dataset.infos.items() if name not in options.derive}
        follows |= {name: follows_of(one) for name, one in options.derive.items()}
        return plan_mixing(
            options.mix, options.one_hot, self.filled, self.all_specs, dataset.manifest.classes, follows,
            seed=options.seed, training=self.training,
        )  # fmt: skip

    @cached_property
    def outputs(self) -> Outputs:
        """The outputs that are delivered."""
        return self.filled if self.mixing is None else self.mixing.delivered(self.filled)

    @cached_property
    def indexed(self) -> Mapping[str, str]:
        """The outputs that the index itself holds, and what they are: "key", "variant", or "label" for the first label."""
        of_index = {name for name in EXTRA if name not in self.specs}
        if {source.label for source in self.sources} == {"label"}:
            of_index |= {"label"} if self.specs.get("label") == FieldSpec("label", (), "int64") else set()
        return {output.name: output.fields[0] for output in self.read.outputs if output.fields[0] in of_index}

    @cached_property
    def table(self) -> RecordTable:
        """The places of the records."""
        splits = [TableSplit(each.dataset, each.split, self.variants.used(each.variants)) for each in self.sources]
        return RecordTable(splits)

    @cached_property
    def tables(self) -> Mapping[str, RecordTable]:
        """The places of records: "" for the records themselves, then by the names of added fields that are read.

        The records of added fields have the numbers of those that they belong to.
        """
        needed = self.augmentation.needed if self.augmentation else ()
        derived = self.options.derive
        read = (name for output in self._not_indexed(self.read.outputs) for name in output.fields)
        fields = [name for name in (*read, *needed) if name in self.specs and name not in derived]
        tables = {"": self.table}
        for group in dict.fromkeys(self.sources[0].dataset.group_of(name) for name in fields):
            for part in self.table.parts if group else ():
                there = part.dataset.manifest.groups[group].variants.get(part.split, 0)
                if max(part.variants) >= there:
                    raise LoaderError(
                        f"the added fields {group!r} of {part.dataset.path} are of {there} variants of {part.split!r}, and "
                        f"variant {max(part.variants)} is read: choose variants=0 or `fields`, or run tfprep fields add for all "
                        "variants"
                    )
            if group:
                tables[group] = RecordTable(
                    [replace(each, dataset=each.dataset.added(group)) for each in self.table.parts]
                )
        return tables

    @cached_property
    def parts_in(self) -> Mapping[str, Sequence[FieldPart]]:
        """The parts by the table in which their records lie."""
        group_of = self.sources[0].dataset.group_of
        return {group: [part for part in self.parts if group_of(part.field) == group] for group in self.tables}

    @property
    def files(self) -> list[Path]:
        """The shards of all tables."""
        return [path for table in self.tables.values() for path in table.files]

    @cached_property
    def schedule(self) -> BatchSchedule:
        """The samples of each step."""
        sources, options, table = self.sources, self.options, self.table
        order = options.order or ("global" if self.training else "sequential")
        shares = [source.share for source in sources if source.share is not None] or None
        if "label" in columns_of(options):
            check_class_names(sources, {source.label for source in sources if source.label is not None})
        class_names, rows = sources[0].dataset.class_names, table_rows(sources, table)
        selection, buckets = select(table, options, class_names, rows, shares), None
        if options.bucket is not None:
            selection, sizes = in_buckets(table, selection, options.bucket)
            times = sources[0].variants if options.variants == "all" else 1
            keeps = options.remainder == "keep" or (options.remainder is None and not self.training)
            buckets = BucketOrder(
                tuple(size * times for size in sizes), options.batch_size, options.seed, keeps, order == "global"
            )
            check_buckets(options.bucket, buckets)
        numbers = [source.variants for source in sources]
        groups: Numbers | None = None  # in order "global" each row takes its variant by itself
        if order == "block":
            groups = np.arange(table.samples) // options.block
        elif order == "sequential":  # with its file
            first_variant = np.concatenate([np.full(part.samples, part.variants[0]) for part in table.parts])
            groups = table.file_of(table.record(np.arange(table.samples), first_variant))
        schedule = BatchSchedule(
            sampler=selection[0],
            order=EpochOrder(order, options.seed, options.block, options.window),
            variants=self.variants,
            batch_size=options.batch_size,
            remainder=options.remainder or "keep",
            hosts=options.host,
            epochs=None if self.training else 1,
            rows=selection[1],
            groups=groups,
            counts=numbers[0] if len(set(numbers)) == 1 else np.repeat(numbers, [each.samples for each in sources]),
            partners=self.mixing is not None and self.mixing.mixes_samples,
            since=self.augmentation.since if self.augmentation else (),
            buckets=buckets,
        )
        # All batches of training have one shape, so that Keras traces once and XLA compiles once.
        full = schedule.size >= options.batch_size or buckets is not None
        drop = options.remainder is None and self.training and full
        return replace(schedule, remainder="drop") if drop else schedule

    @cached_property
    def batch_rows(self) -> int:
        """Samples that this host reads for its largest batch."""
        schedule = self.schedule
        return -(-min(schedule.size, schedule.batch_size) // schedule.hosts.count) + schedule.partners

    # --- how it is read ------------------------------------------------------------------------------------------------------

    @cached_property
    def _smaller(self) -> tuple[Cast, ...]:
        """The outputs that a decoded cache would keep in their stored form, because that is smaller."""
        choice = self.options.cache
        if choice is False or self.read.ragged or self.augmentation or not (self.training or choice == "decoded"):
            return ()
        return tuple(smaller_forms(self._not_indexed(self.read.outputs), self.specs))

    @cached_property
    def casts(self) -> tuple[Cast, ...]:
        """The outputs that the cache keeps in their stored form."""
        return self._smaller if self.keeps_decoded else ()

    @cached_property
    def parts(self) -> tuple[FieldPart, ...]:
        """The stored fields that fill the outputs."""
        return self._parts(self.casts)

    @cached_property
    def batch_outputs(self) -> list[Output]:
        """All arrays of a batch while it is filled."""
        return self._batch_outputs(self.casts)

    @cached_property
    def cached_outputs(self) -> list[Output]:
        """The arrays that a decoded cache keeps."""
        return self._not_indexed(_kept(self.read, self._smaller))

    def _not_indexed(self, outputs: Sequence[Output]) -> list[Output]:
        return [output for output in outputs if output.name not in self.indexed]

    def _parts(self, casts: Sequence[Cast]) -> tuple[FieldPart, ...]:
        codecs = self.sources[0].dataset.codecs
        if self.augmentation is None:
            return tuple(field_parts(self._not_indexed(_kept(self.read, casts)), self.specs, codecs, warped=False))
        stored = {part.name: part for part in self.placed if part.name not in self.augmentation.derived}
        needed = [Output(name, (name,), spec.shape, spec.dtype) for name, spec in self.augmentation.needed.items()]
        return (*stored.values(), *field_parts(needed, self.specs, codecs, warped=True))

    @cached_property
    def placed(self) -> tuple[FieldPart, ...]:
        """With an augmentation, the fields that fill outputs: those that are read, and those that are derived."""
        if self.augmentation is None:
            return ()
        codecs = {
            name: one for name, one in self.sources[0].dataset.codecs.items() if name not in self.augmentation.derived
        }
        return tuple(field_parts(self._not_indexed(self.filled.outputs), self.all_specs, codecs, warped=True))

    def _batch_outputs(self, casts: Sequence[Cast]) -> list[Output]:
        return [*self.filled.outputs, *(cast.stored for cast in casts)]

    @cached_property
    def _means(self) -> tuple[WorkersPlan, MemoryPlan]:
        """Divide the memory budget: worker processes get what batches and decoding leave, and prefetching what those leave."""
        options, casts, table = self.options, self._smaller, self.table
        budget, threads = budget_bytes(options.memory_budget), options.threads or usable_cpus()
        sizes = Sizes(self.all_specs, table, self.schedule.rows, self.options.derive.keys())
        batch = sizes.of_batch([*self.outputs.outputs, *(cast.stored for cast in casts)], self.batch_rows)
        working = sizes.of_decoding(self.read.outputs, threads)
        if self.outputs.ragged:  # TensorFlow's ragged tensors are put together from the arrays of a batch
            working += batch
        needed = batch * ((options.prefetch or 1) + HELD_ELSEWHERE) + working
        obstacle = self.obstacle
        for output in self._batch_outputs(casts):
            if None in output.shape and {self.all_specs[name].kind for name in output.fields} & RASTER_KINDS:
                obstacle = (
                    f"the samples of {output.name!r} differ in size, and worker processes fill arrays of one size"
                )
        if options.local is not None:
            obstacle = "shards arrive in the folder `local` while it runs"
        row = sum(map(row_bytes, self.cached_outputs))
        fits = (
            not (self.read.ragged or self.augmentation) and table.records * row <= budget // 2
        )  # batches leave at least half
        all_cached = fits and (options.cache == "decoded" or (options.cache == "auto" and self.training))
        workers = plan_workers(
            options.workers, threads, parts=self._parts(casts), ops=(self.augmentation, casts), files=table.files,
            records=0 if all_cached else self.schedule.size // options.host.count, budget=budget, needed=needed, other=obstacle,
        )  # fmt: skip
        working += workers.nbytes
        most = max(PREFETCH, most_prefetch(workers, self.batch_rows))
        memory = plan_memory(budget, batch, options.prefetch, most, working)
        return workers, memory.with_fetching() if self.is_remote else memory

    @property
    def workers(self) -> WorkersPlan:
        """Who fills batches, and why."""
        return self._means[0]

    @property
    def memory(self) -> MemoryPlan:
        """The memory that batches, decoding and the cache take."""
        return self._means[1]

    @cached_property
    def keeps_decoded(self) -> bool:
        """Return whether a cache is made: by default none that holds too little to be worth its memory."""
        choice = self.options.cache
        if self.augmentation and choice == "decoded":
            raise LoaderError(
                "cache='decoded' keeps decoded rows, and geometry, derive and color make other rows in each epoch; leave "
                "cache= out"
            )
        if self.read.ragged and choice == "decoded":
            raise LoaderError("cache='decoded' keeps arrays of one size; these images differ: use geometry, or pad")
        if choice is False or self.read.ragged or self.augmentation:
            return False
        if choice == "decoded":
            return True
        decodes = not all(part.direct for part in self._parts(self._smaller))  # a hit then saves more than a read
        least = math.ceil(self.table.records * (PARTLY if decodes else 1))
        fits = cached_records(self.cached_outputs, self.table.records, self.memory.cache_bytes) >= least
        return fits and self.training

    @property
    def is_remote(self) -> bool:
        """Return whether records lie at URLs."""
        return any(is_remote(path) for path in self.files)


def plan_loader(sources: Sequence[SplitRows], options: LoaderOptions, obstacle: str = "") -> LoaderPlan:
    """Plan the loader of these samples under these options.

    Raises:
        LoaderError: Options that exclude each other, or that the datasets cannot meet.
        DatasetError: There is no such split, or the index is damaged.
    """
    if options.training is None:
        options = replace(options, training=is_training(sources))
    plan = LoaderPlan(tuple(sources), options, obstacle)
    with suppress(LoaderError):  # which is one of states alone
        _ = plan.op_texts  # before an op runs: what it keeps from then on is no option
    _ = plan.schedule, plan.memory, plan.tables  # all else comes before these: what cannot be is an error now
    return plan


def _kept(read: Outputs, casts: Sequence[Cast]) -> list[Output]:
    """Return what is read and kept: the outputs that are delivered, or their stored form."""
    stored = {cast.output.name: cast.stored for cast in casts}
    return [stored.get(output.name, output) for output in read.outputs]
