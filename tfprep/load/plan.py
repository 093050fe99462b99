"""The plan of a loader: what it delivers, in which order, read how and by whom. A pure function of datasets and options.

Nothing is opened or started here but the index, where the options select samples by it. `Pipeline` makes the parts from the plan.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.dataset import FileInfo
from tfprep.derive.inputs import follows_of
from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS, FieldSpec
from tfprep.limits import available_memory, usable_cpus
from tfprep.load.augmentation import Augmentation, StageOptions, derived_specs, plan_augmentation
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
from tfprep.load.options import LoaderOptions, op_texts
from tfprep.load.order.buckets import BucketOrder
from tfprep.load.order.permutation import EpochOrder, Numbers
from tfprep.load.order.samplers import Variants
from tfprep.load.order.schedule import BatchSchedule
from tfprep.load.outputs import EXTRA, Output, Outputs, pad_outputs, resolve
from tfprep.load.reader.rows import FieldPart, field_parts
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
from tfprep.storage.urls import is_remote

_LOG = logging.getLogger("tfprep.load")

PARTLY = 0.5
"""The least share of decoded records for which a cache is made: at one half, keeping them doubles the rate."""


@dataclass(frozen=True, eq=False)
class LoaderPlan:
    """Splits under one set of options. Each part of the plan is computed once, of those that come before it.

    Attributes:
        sources: The samples.
        options: The options.
    """

    sources: tuple[SplitRows, ...]
    options: LoaderOptions

    # --- what is delivered, in which order -------------------------------------------------------------------------------

    @cached_property
    def training(self) -> bool:
        """True if each pass is the next epoch; by default the splits' names say what they are for."""
        return is_training(self.sources) if self.options.training is None else self.options.training

    @cached_property
    def variants(self) -> Variants:
        """The variants that are read: by default all in turn in training, and otherwise the unaugmented one."""
        choice = self.options.variants
        return Variants(("rotate" if self.training else 0) if choice is None else choice, self.options.seed)

    @cached_property
    def op_texts(self) -> Mapping[str, Any]:
        """The ops and derived inputs that are given, as states name them. LoaderError where one cannot be described."""
        names = ("geometry", "derive", "color", "views")
        return {name: op_texts(ops) for name in names if (ops := getattr(self.options, name))}

    @cached_property
    def specs(self) -> Mapping[str, FieldSpec]:
        """The fields that all datasets have."""
        return common_specs(self.sources)

    @cached_property
    def _derived(self) -> tuple[Mapping[str, FieldSpec], frozenset[str]]:
        """The fields that are derived at load, and the stored ones that they read."""
        if not self.options.derive:
            return {}, frozenset()
        datasets, split = [source.dataset for source in self.sources], self.sources[0].split
        count = 1 if self.variants.choice == 0 else max(source.variants for source in self.sources)
        return derived_specs(self.options.derive, datasets, split, self.specs, count)

    @cached_property
    def all_specs(self) -> Mapping[str, FieldSpec]:
        """The stored fields, before geometry, and those that are derived at load."""
        return {**self.specs, **self._derived[0]}

    @cached_property
    def read(self) -> Outputs:
        """The outputs as records give them."""
        options = self.options
        try:
            named = resolve(self.all_specs, options.fields, options.inputs, options.targets, options.sample_weight)
        except LoaderError as error:
            reason = str(error)
            if len(self.sources) > 1:
                reason += f". A mix loads fields that all its datasets have, alike: {', '.join(self.specs)}"
            raise LoaderError(reason) from None
        outputs = pad_outputs(named, self.all_specs, options.pad) if options.pad else named
        self._check_computed(outputs)
        check_class_names(self.sources, outputs.fields)
        return outputs

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
        if not (options.geometry or options.derive or options.color or options.views or options.bucket):
            return None
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
        if not options.mix and options.one_hot is False:
            return None
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
    def keeps_batches(self) -> bool:
        """True if nothing is done to batches whose rows are filled."""
        return self.mixing is None and self.options.layout == "NHWC"

    @property
    def rasters_with_channels(self) -> list[str]:
        """The outputs of images, and of masks and maps [H, W, C]."""
        rasters = {name for name, spec in self.all_specs.items() if spec.kind in RASTER_KINDS}
        return [each.name for each in self.outputs.outputs if len(each.shape) == 3 and rasters.issuperset(each.fields)]

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
        read = [name for output in self.cached_outputs for name in output.fields]
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
        """The parts, by the table that has their records."""
        group_of = self.sources[0].dataset.group_of
        return {group: [part for part in self.parts if group_of(part.field) == group] for group in self.tables}

    @property
    def files(self) -> list[Path]:
        """The shards of all tables."""
        return [path for table in self.tables.values() for path in table.files]

    @property
    def file_infos(self) -> list[FileInfo]:
        """What the manifests say of the shards of all tables."""
        return [info for table in self.tables.values() for info in table.infos]

    @cached_property
    def schedule(self) -> BatchSchedule:
        """The samples of each step."""
        sources, options, table = self.sources, self.options, self.table
        order = options.order or ("global" if self.training else "sequential")
        shares = [source.share for source in sources if source.share is not None] or None
        if "label" in columns_of(options):
            check_class_names(sources, {source.label for source in sources if source.label is not None})
        class_names, rows = sources[0].dataset.class_names, table_rows(sources, table)
        selection, buckets = select(table, options, self.training, class_names, rows, shares), None
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
        if order == "sequential":  # with its file
            first_variant = np.concatenate([np.full(part.samples, part.variants[0]) for part in table.parts])
            groups = table.file_of(table.record(np.arange(table.samples), first_variant))
        # All batches of training have one shape, so that Keras traces once and XLA compiles once.
        drop = self.training if options.remainder is None else options.remainder == "drop"
        size = selection[0].size * (sources[0].variants if self.variants.choice == "all" else 1)
        if self.training and options.remainder is None and size < options.batch_size and buckets is None:
            drop = False
            _LOG.warning(
                "batch_size=%d is larger than the %d samples of an epoch: its only batch is smaller",
                options.batch_size,
                size,
            )
        return BatchSchedule(
            sampler=selection[0],
            order=EpochOrder(order, options.seed),
            variants=self.variants,
            batch_size=options.batch_size,
            remainder="drop" if drop else "keep",
            hosts=options.host,
            epochs=None if self.training else 1,
            rows=selection[1],
            groups=groups,
            counts=numbers[0] if len(set(numbers)) == 1 else np.repeat(numbers, [each.samples for each in sources]),
            partners=self.mixing is not None and self.mixing.mixes_samples,
            since=self.augmentation.since if self.augmentation else (),
            buckets=buckets,
        )

    @cached_property
    def batch_rows(self) -> int:
        """Samples that this host reads for its largest batch."""
        schedule = self.schedule
        return -(-min(schedule.size, schedule.batch_size) // schedule.hosts.count) + schedule.partners

    # --- how it is read ------------------------------------------------------------------------------------------------------

    @cached_property
    def parts(self) -> tuple[FieldPart, ...]:
        """The stored fields that fill the outputs."""
        codecs = self.sources[0].dataset.codecs
        if self.augmentation is None:
            return tuple(field_parts(self.cached_outputs, self.specs, codecs, warped=False))
        stored = {part.name: part for part in self.placed if part.name not in self.augmentation.derived}
        needed = [Output(name, (name,), spec.shape, spec.dtype) for name, spec in self.augmentation.needed.items()]
        return (*stored.values(), *field_parts(needed, self.specs, codecs, warped=True))

    @cached_property
    def placed(self) -> tuple[FieldPart, ...]:
        """With an augmentation, the fields that fill outputs: those that are read, and those that are derived."""
        if self.augmentation is None:
            return ()
        codecs = self.sources[0].dataset.codecs
        codecs = {name: codec for name, codec in codecs.items() if name not in self.augmentation.derived}
        return tuple(field_parts(self._not_indexed(self.filled), self.all_specs, codecs, warped=True))

    @cached_property
    def cached_outputs(self) -> list[Output]:
        """The arrays that a decoded cache keeps: those that are delivered, but for what the index holds."""
        return self._not_indexed(self.read)

    def _not_indexed(self, outputs: Outputs) -> list[Output]:
        return [output for output in outputs.outputs if output.name not in self.indexed]

    @cached_property
    def cpus(self) -> int:
        """The CPUs that this process may use."""
        return usable_cpus()

    @cached_property
    def free_memory(self) -> int:
        """The memory that is free now, in bytes."""
        return available_memory()

    @cached_property
    def threads(self) -> int:
        """Threads that read and decode, in all processes together."""
        return self.options.threads or self.cpus

    @cached_property
    def _batch_and_decoding(self) -> tuple[int, int]:
        """Bytes of the largest batch, and of what threads decode at a time."""
        sizes = SampleSizes(self.all_specs, self.table, self.schedule.rows, self.options.derive.keys())
        batch = sizes.of_batch(self.outputs.outputs, self.batch_rows)
        decoding = sizes.of_decoding(self.read.outputs, self.threads)
        if self.outputs.ragged:  # TensorFlow's ragged tensors are put together from the arrays of a batch
            decoding += batch
        return batch, decoding

    @cached_property
    def workers(self) -> WorkersPlan:
        """Who fills batches, and why. They get what batches and decoding leave of the memory budget."""
        options, (batch, decoding) = self.options, self._batch_and_decoding
        least = batch * ((options.prefetch or 1) + HELD_ELSEWHERE) + decoding
        rows_bytes = self.table.records * sum(output.row_bytes for output in self.cached_outputs)
        all_cached = self._may_cache and rows_bytes <= self.budget // 2  # batches leave at least half
        records = 0 if all_cached else self.schedule.size // options.host.count
        return plan_workers(
            options.workers, self.threads, cpus=self.cpus, records=records, budget=self.budget, needed=least,
            obstacle=self._obstacle,
        )  # fmt: skip

    def _obstacle(self) -> str:
        """Why worker processes cannot read this; empty where they can."""
        for output in self.filled.outputs:
            if None in output.shape and {self.all_specs[name].kind for name in output.fields} & RASTER_KINDS:
                return f"the samples of {output.name!r} differ in size, and worker processes fill arrays of one size"
        if not self.parts:
            return "the index holds all that is read"
        if self.is_remote:
            return "records at a URL are fetched by threads"
        return not_sendable(self.parts, self.augmentation)

    @cached_property
    def budget(self) -> int:
        """The memory budget, in bytes."""
        return budget_bytes(self.options.memory_budget, self.free_memory)

    @cached_property
    def memory(self) -> MemoryPlan:
        """The memory that batches, decoding, worker processes and the cache take."""
        batch, decoding = self._batch_and_decoding
        most, working = self.workers.most_prefetch(self.batch_rows), decoding + self.workers.nbytes
        return plan_memory(self.budget, batch, self.options.prefetch, most, working, fetches=self.is_remote)

    @cached_property
    def _may_cache(self) -> bool:
        """True if decoded rows can be kept, and are asked for or read again."""
        choice = self.options.cache
        if self.augmentation and choice == "decoded":
            raise LoaderError(
                "cache='decoded' keeps decoded rows, and geometry, derive and color make other rows in each epoch; leave "
                "cache= out"
            )
        if self.read.ragged and choice == "decoded":
            raise LoaderError("cache='decoded' keeps arrays of one size; these images differ: use geometry, or pad")
        possible = not self.read.ragged and not self.augmentation
        return possible and (choice == "decoded" or (choice == "auto" and self.training))

    @cached_property
    def keeps_decoded(self) -> bool:
        """True if a cache is made: by default none that holds too little to be worth its memory."""
        if not self._may_cache or self.options.cache == "decoded":
            return self._may_cache
        decodes = not all(part.direct for part in self.parts)  # a hit then saves more than a read
        least = math.ceil(self.table.records * (PARTLY if decodes else 1))
        return self.memory.cache_bytes >= least * row_bytes(self.cached_outputs)

    @cached_property
    def is_remote(self) -> bool:
        """True if records are at URLs."""
        return any(is_remote(source.dataset.shards_folder) for source in self.sources)


def plan_loader(sources: Sequence[SplitRows], options: LoaderOptions) -> LoaderPlan:
    """Plan the loader of these samples under these options.

    Raises:
        LoaderError: Options that exclude each other, or that the datasets cannot meet.
        DatasetError: There is no such split, or the index is damaged.
    """
    plan = LoaderPlan(tuple(sources), options)
    with suppress(LoaderError):  # which is only one of states
        _ = plan.op_texts  # before an op runs: what it keeps from then on is not an option
    _ = plan.schedule, plan.memory, plan.tables  # all else comes before these: what cannot be is an error now
    return plan
