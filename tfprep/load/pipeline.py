"""From datasets and options to batches, without TensorFlow: what the loaders of all frameworks share."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import FieldSpec
from tfprep.limits import available_memory, usable_cpus
from tfprep.load.at_load.mixing import Mixing
from tfprep.load.at_load.ops import AtLoad, plan_at_load, unfit_fields
from tfprep.load.local import FIRST_POSITIONS, LocalShards, first_needed
from tfprep.load.memory import (
    HELD_ELSEWHERE,
    PREFETCH,
    MemoryPlan,
    batch_bytes,
    budget_bytes,
    parse_bytes,
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
from tfprep.load.passes import PassBatches, Passes, Steps
from tfprep.load.reader.ahead import PLAN_ROWS, ReadAhead, plan_ranges
from tfprep.load.reader.assembler import BadRecords, BatchAssembler, ReadPolicy
from tfprep.load.reader.batch import Batch, BatchMemory, VaryingBytes
from tfprep.load.reader.buffers import SharedMemory
from tfprep.load.reader.cache import DecodedCache, EncodedCache
from tfprep.load.reader.files import Fetched
from tfprep.load.reader.parts import Cast, FieldPart, field_parts, smaller_forms
from tfprep.load.reader.reader import PrefetchSettings, Reader
from tfprep.load.reader.stages import STAGED_ROWS, Cuts
from tfprep.load.reader.table import RecordTable
from tfprep.load.reader.worker_pool import WorkerPool
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
from tfprep.load.workers import WorkersPlan, make_pool, most_prefetch, plan_workers
from tfprep.storage.cache import CachedObject, LocalCache
from tfprep.storage.local import FileIdentity
from tfprep.storage.urls import is_remote

T = TypeVar("T")

MOST_EPOCHS = 1 << 32
PARTLY = 0.5
"""The least share of decoded records for which a cache is made: at one half, keeping them doubles the rate."""


Counts: TypeAlias = dict[str, Any]
"""Counters of readers by name, as `stats.snapshot` returns them."""

_CONSUMER = ("batches", "samples", "bytes_delivered", "waits", "wait_s")
_WORKER = {
    "records": "records",
    "records_cached": "cached",
    "bytes_read": "bytes",
    "read_s": "read_s",
    "decode_s": "decode_s",
    "idle_s": "idle_s",
}
NOTHING: Counts = dict.fromkeys((*_CONSUMER, "longest_wait_s", "records_read", *_WORKER), 0)


class Pipeline:
    """Splits under one set of options. `batches` may be called many times; every call is a pass (see `Passes`)."""

    def __init__(self, sources: Sequence[SplitRows], options: LoaderOptions, class_names: Sequence[str] = ()) -> None:
        if options.training is None:
            options = replace(options, training=is_training(sources))
        self.sources, self.options, self.class_names = tuple(sources), options, tuple(class_names)
        self._process = os.getpid()
        self.dataset = sources[0].dataset
        self._identities = self._check_files()
        self.specs = common_specs(sources)
        self.read_outputs = self._resolve_outputs()  # as records give them
        self.at_load = self._plan_at_load()
        self.outputs = self.at_load.delivered(self.read_outputs) if self.at_load else self.read_outputs
        self._filled = self.at_load.filled(self.read_outputs) if self.at_load else self.read_outputs
        self.indexed = self._find_indexed()
        self.table = self._make_table()
        self.local = self._make_local()
        self.schedule = self._make_schedule()
        self.passes = Passes(self.schedule, self.options.start_step)
        self._casts = self._plan_casts()
        self._parts = self._make_parts()
        self._budget = budget_bytes(options.memory_budget)
        self._needs = self._measure_needs()
        self.workers = self._plan_workers()
        self._shared = self._make_shared()
        self._varying = self._measure_varying() if self._shared else None
        self.memory = self._plan_memory()
        self.bad = BadRecords(options.on_bad)
        self.cache = self._make_cache()
        self._assembler = self._make_filler()
        self._pool = self._make_pool()
        self._lock = threading.Lock()
        self._readers: list[Reader] = []
        self._ended: Counts = NOTHING
        self.interruption: LoaderError | None = None
        """The error with which Ctrl-C ended the waits for batches, the last time."""
        self._error: BaseException | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the options: another process opens files and starts threads of its own."""
        return Pipeline, (self.sources, self.options, self.class_names)

    def with_options(self, options: LoaderOptions) -> Pipeline:
        """The same samples under other options."""
        return Pipeline(self.sources, options, self.class_names)

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        return bool(self.options.training)

    @property
    def steps_per_epoch(self) -> int:
        return self.schedule.steps_per_epoch

    @property
    def left_out(self) -> int:
        """Samples that each epoch leaves out, because they would be a smaller batch: other ones each time."""
        return (
            self.schedule.size - self.steps_per_epoch * self.options.batch_size
            if self.schedule.remainder == "drop"
            else 0
        )

    @cached_property
    def variants(self) -> Variants:
        """The variants that are read: by default all in turn in training, and otherwise the unaugmented one."""
        choice = self.options.variants
        if choice is None:
            choice = "rotate" if self.options.training else 0
        return Variants(choice, self.options.seed)

    # --- reading ----------------------------------------------------------------------------------------------------

    def batches(
        self,
        convert: Callable[[Batch], T],
        *,
        epochs: int | None = 1,
        steps: Steps | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> PassBatches[T]:
        """A pass over these batches, each converted: the next `epochs` epochs, or `steps` (see `PassBatches`)."""
        self._belong_to_this_process()
        return PassBatches(self.passes, self._reader, convert, self._failed, epochs=epochs, steps=steps, part=part)

    def _belong_to_this_process(self) -> None:
        """In a forked process, open files and start threads anew: those of the other process are not here."""
        if os.getpid() != self._process:
            step = self.passes.next_step
            self.__init__(self.sources, self.options, self.class_names)  # type: ignore[misc]
            self.passes.skip_to(step)

    def _reader(self, start: int, stride: int) -> Reader:
        self._belong_to_this_process()
        memory = BatchMemory(self._batch_outputs, self._batch_rows, self.memory.in_turn, self._shared, self._varying)
        settings = PrefetchSettings(self.memory.prefetch, self.options.threads, self.options.timeout_s)
        pool = None if self._pool is None or self._pool.failure else self._pool
        ahead = None
        if self.local is not None:
            self.local.start(self.first_needed, self._assembler.reading.files.arrived)
        if self.is_remote and self.memory.fetch_bytes:
            ahead = ReadAhead(self._assembler, self.schedule, self.memory.fetch_bytes, start=start, stride=stride)
        reader = Reader(
            self.schedule, self._assembler, memory, settings, start=start, stride=stride, pool=pool, ahead=ahead
        )
        with self._lock:
            self._fold_ended()
            self._readers.append(reader)
        return reader

    def _failed(self, error: BaseException) -> None:
        self._error = error

    @property
    def fetched(self) -> Fetched:
        """What was fetched from URLs."""
        return self._assembler.fetched

    @property
    def readers(self) -> list[Reader]:
        """The readers that are at work."""
        with self._lock:
            self._fold_ended()
            return list(self._readers)

    @property
    def counts(self) -> Counts:
        """Counters over all readers, those at work and those that have ended."""
        with self._lock:
            self._fold_ended()
            counts = self._ended
            for reader in self._readers:
                counts = add_counts(counts, reader)
            return counts

    def _fold_ended(self) -> None:
        """Replace readers that have ended by their counts. Runs under the lock."""
        for reader in [reader for reader in self._readers if reader.ended]:
            self._ended = add_counts(self._ended, reader)
            self._readers.remove(reader)

    def take_error(self) -> BaseException | None:
        """The error that ended an iteration, once: for a framework that passes errors on as text alone."""
        error, self._error = self._error, None
        return error

    def interrupt(self) -> None:
        """End all waits for batches at once, with an error."""
        self.interruption = LoaderError("interrupted (Ctrl-C); make a new iterator to continue")
        for reader in list(self._readers):
            reader.stop(self.interruption)

    def close(self) -> None:
        """Stop all threads and give the memory back."""
        for reader in list(self._readers):
            reader.close()
        if self._pool is not None:
            self._pool.close()
        self._assembler.close()
        if self.local is not None:
            self.local.close()
        self.passes.close()
        self.cache = None

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)
        if pool is not None:
            pool.stop()
        local = getattr(self, "local", None)
        if local is not None:
            local.stop()

    # --- the steps of putting it together, in their order -----------------------------------------------------------

    def _check_files(self) -> list[FileIdentity | None]:
        """Refuse shards of other sizes before the first batch. With on_bad="skip" what is cut short counts as bad records.

        Returns the identities of the table's files, in their order.
        """
        identities: list[FileIdentity | None] = []
        for source in self.sources:
            variants = self.variants.used(source.dataset.split(source.split).variants)
            identities += source.dataset.check_files(source.split, variants, sizes=self.options.on_bad == "raise")
        return identities

    def _resolve_outputs(self) -> Outputs:
        options, geometry = self.options, tuple(self.options.geometry)
        specs = {name: warped_spec(spec, geometry) for name, spec in self.specs.items()}
        try:
            outputs = resolve(specs, options.fields, options.inputs, options.targets, options.sample_weight)
        except LoaderError as error:
            if len(self.sources) == 1:
                raise
            raise LoaderError(
                f"{error}. A mix loads fields that all its datasets have, alike: {', '.join(specs)}"
            ) from None
        outputs = pad_outputs(outputs, specs, options.pad)
        check_class_names(self.sources, outputs.fields)
        statistics = self.dataset.manifest.statistics
        if options.normalize and self.dataset.manifest.imported is not None and not statistics:
            raise LoaderError(
                "normalize=True subtracts the mean of the training split, which an index does not know; use dtype='float32' and "
                "normalise in the model: keras.layers.Rescaling(1 / 255), or a Normalization layer that is adapted"
            )
        return convert(outputs, self.specs, statistics, options.dtype, options.normalize)

    def _plan_at_load(self) -> AtLoad | None:
        recipes = [source.dataset.manifest.recipe for source in self.sources]
        unfit = {name: why for recipe in recipes for name, why in unfit_fields(recipe).items()}
        options, classes = self.options, self.dataset.manifest.classes
        return plan_at_load(
            options.at_load,
            self.read_outputs,
            self.specs,
            classes,
            unfit,
            seed=options.seed,
            training=self.training,
        )

    def _find_indexed(self) -> dict[str, str]:
        """The outputs that the index itself holds, and what they are: "key", "variant", or "label" for the first label."""
        labels = {source.label for source in self.sources}
        plain = labels == {"label"} and self.specs.get("label") == FieldSpec("label", (), "int64")
        indexed = {name for name in EXTRA if name not in self.specs} | ({"label"} if plain else set())
        outputs = self.read_outputs.outputs
        return {output.name: output.fields[0] for output in outputs if output.fields[0] in indexed}

    def _make_table(self) -> RecordTable:
        indexed = set(self.indexed.values())
        stored = [name for name in self.read_outputs.fields if name not in indexed]
        return table_of(self.sources, self.variants, stored, with_label="label" in indexed)

    def _make_local(self) -> LocalShards | None:
        """The shards that lie, or will lie, in the folder `local`."""
        folder, limit = self.options.local, self.options.local_limit
        if folder is None:
            return None
        here = [path for path in self.table.files if not is_remote(path)]
        if here:
            raise LoaderError(
                f"local= keeps shards of datasets at URLs; {here[0].parent} is a folder, which is read as it is"
            )
        if any(source.dataset.manifest.imported is not None for source in self.sources):
            rule = "local= compares shards with their SHA-256, which an index of other tools' TFRecords does not hold"
            raise LoaderError(f"{rule}; build a dataset with tfprep, or copy the shards to this machine")
        cache = LocalCache(Path(folder), None if limit is None else parse_bytes(limit, "local_limit"))
        infos = [info for source in self.sources for info in source.files(self.variants)]
        urls: list[Any] = list(self.table.files)
        items = [CachedObject(url, info.bytes, info.sha256) for url, info in zip(urls, infos, strict=True)]
        return LocalShards(cache, items, urls)

    @property
    def shard_records(self) -> Numbers:
        """The number of records of each shard: int64 [shards]."""
        infos = [info for source in self.sources for info in source.files(self.variants)]
        return np.array([info.records for info in infos], np.int64)

    @cached_property
    def fetching(self) -> dict[str, float]:
        """What an epoch fetches from URLs before anything is in a cache, by the plan of its first part."""
        rows, requests, nbytes = 0, 0, 0
        first = self.options.start_step
        last = first + max(1, min(self.steps_per_epoch, PLAN_ROWS // self.options.batch_size))
        steps = iter(range(first, last if self.schedule.steps is None else min(last, self.schedule.steps)))
        for ranges in plan_ranges(self._assembler, self.schedule, steps, max(self.memory.fetch_bytes // 4, 1)):
            requests += len(ranges)
            nbytes += sum(part.nbytes for part in ranges)
            rows += sum(len(np.unique(part.records)) for part in ranges)
        samples = self.schedule.size / self.options.host.count
        return {
            "bytes_per_sample": nbytes / max(rows, 1),
            "requests_per_sample": requests / max(rows, 1),
            "bytes_per_epoch": nbytes / max(rows, 1) * samples,
            "requests_per_epoch": requests / max(rows, 1) * samples,
        }

    @cached_property
    def first_needed(self) -> list[int]:
        """The numbers of the shards, in the order in which the run needs them first."""
        schedule = self.schedule
        start, _ = schedule.global_span(self.options.start_step)
        stop = start + FIRST_POSITIONS if schedule.epochs is None else schedule.size * schedule.epochs
        indices = schedule.at(np.arange(start, max(start, min(stop, start + FIRST_POSITIONS))))
        files = self.table.file_of(self.table.record(indices.row, indices.variant))
        return first_needed(files, len(self.table.files))

    def _make_schedule(self) -> BatchSchedule:
        options, training = self.options, self.training
        order = options.order or ("global" if training else "sequential")
        shares = [source.share for source in self.sources if source.share is not None] or None
        if "label" in columns_of(options):
            check_class_names(self.sources, {source.label for source in self.sources if source.label is not None})
        selection = select(self.table, options, self.class_names, table_rows(self.sources, self.table), shares)
        variants = [source.variants for source in self.sources]
        counts = variants[0] if len(set(variants)) == 1 else np.repeat(variants, [s.samples for s in self.sources])
        schedule = BatchSchedule(
            sampler=selection.sampler,
            order=EpochOrder(order, options.seed, options.block, options.window),
            variants=self.variants,
            batch_size=options.batch_size,
            remainder=options.remainder or "keep",
            hosts=options.host,
            epochs=None if training else 1,
            rows=selection.rows,
            groups=_groups(order, options.block, self.table),
            counts=counts,
            partners=self.at_load is not None and self.at_load.mixes_samples,
        )
        if options.start_step // schedule.steps_per_epoch >= MOST_EPOCHS:
            raise LoaderError(
                f"start_step={options.start_step:,} lies behind {MOST_EPOCHS:,} epochs, which a run has at most"
            )
        # All batches of training have one shape, so that Keras traces once and XLA compiles once.
        drop = options.remainder is None and training and schedule.size >= options.batch_size
        return replace(schedule, remainder="drop") if drop else schedule

    def _plan_memory(self) -> MemoryPlan:
        (batch, working), options = self._needs, self.options
        most = max(PREFETCH, most_prefetch(self.workers, self._batch_rows))
        rooms = 0 if self._varying is None else self._varying.units_of_row.nbytes
        plan = plan_memory(self._budget, batch, options.prefetch, most, working + self.workers.nbytes + rooms)
        return plan.with_fetching() if self.is_remote else plan

    def _measure_needs(self) -> tuple[int, int]:
        """Bytes of the largest batch, and of decoding."""
        rows = self.schedule.rows
        outputs = [*self.outputs.outputs, *(cast.stored for cast in self._casts)]
        batch = batch_bytes(outputs, self.specs, self.table, rows, self._batch_rows)
        threads = (self.options.threads or usable_cpus()) * (STAGED_ROWS if self.at_load else 1)
        working = working_bytes(self.read_outputs.outputs, self.specs, self.table, rows, threads)
        # TensorFlow's ragged tensors are put together from the arrays of a batch.
        return batch, working + batch if self.outputs.ragged else working

    def _measure_varying(self) -> VaryingBytes | None:
        """The room that worker processes need for arrays that differ in size."""
        return varying_bytes(self._batch_outputs, self.specs, self.table, self.schedule.rows, self._batch_rows)

    @property
    def is_remote(self) -> bool:
        """Whether records lie at URLs."""
        return any(is_remote(path) for path in self.table.files)

    def _plan_workers(self) -> WorkersPlan:
        options, threads = self.options, self.options.threads or usable_cpus()
        other = ""
        if self.options.cache == "encoded":
            other = "cache='encoded' lies in the memory of this process"
        if self.local is not None:
            other = "shards arrive in the folder `local` while it runs"
        return plan_workers(
            options.workers, threads, parts=self._parts, ops=(options.geometry, self.at_load, self._casts),
            files=self.table.files, records=self._records_of_each_epoch, budget=self._budget,
            needed=self._least_bytes, other=other,
        )  # fmt: skip

    def _make_shared(self) -> SharedMemory | None:
        """The memory that worker processes fill; threads read where this process may not map it."""
        if not self.workers.processes:
            return None
        try:
            return SharedMemory()
        except LoaderError as error:
            if self.options.workers == "processes":
                raise
            self.workers = WorkersPlan(0, self.options.threads or usable_cpus(), str(error))
            return None

    @property
    def _least_bytes(self) -> int:
        """What batches and decoding take at least: worker processes get none of it."""
        batch, working = self._needs
        rooms = rooms_bytes(self._batch_outputs, self.table)
        return batch * ((self.options.prefetch or 1) + HELD_ELSEWHERE) + working + rooms

    @property
    def _records_of_each_epoch(self) -> int:
        """How many records this host reads in every epoch; 0 where all of them fit into the cache."""
        choice = self.options.cache
        row = sum(row_bytes(output) for output in self._kept_outputs() if output.name not in self.indexed)
        fits = (
            not self.read_outputs.ragged and self.table.records * row <= self._budget // 2
        )  # batches leave at least half
        if fits and (choice == "decoded" or (choice == "auto" and self.training)):
            return 0
        return self.schedule.size // self.options.host.count

    @property
    def _batch_rows(self) -> int:
        """Samples that this host reads for its largest batch."""
        return len(self.schedule.positions(0))

    @property
    def _batch_outputs(self) -> list[Output]:
        """All arrays of a batch while it is filled."""
        return [*self._filled.outputs, *(cast.stored for cast in self._casts)]

    def _make_parts(self) -> list[FieldPart]:
        parts = field_parts(self._kept_outputs(), self.specs, self.dataset.codecs, warped=bool(self.options.geometry))
        return [part for part in parts if part.output.name not in self.indexed]

    def _kept_outputs(self) -> list[Output]:
        """What is read and kept: the outputs that are delivered, or their stored form."""
        stored = {cast.output.name: cast.stored for cast in self._casts}
        return [stored.get(output.name, output) for output in self.read_outputs.outputs]

    def _plan_casts(self) -> list[Cast]:
        """The outputs that a decoded cache keeps in their stored form, because that is smaller."""
        choice = self.options.cache
        if choice in (False, "encoded") or self.read_outputs.ragged or not (self.training or choice == "decoded"):
            return []
        outputs = [output for output in self.read_outputs.outputs if output.name not in self.indexed]
        return smaller_forms(outputs, self.specs)

    def _make_cache(self) -> DecodedCache | EncodedCache | None:
        """By default none that holds too little to be worth its memory."""
        choice, left = self.options.cache, self.memory.cache_bytes
        if choice is False or choice == "encoded":
            return EncodedCache(left) if choice else None
        if self.read_outputs.ragged:
            if self.options.cache == "decoded":
                raise LoaderError(
                    "cache='decoded' keeps arrays of one size; these images differ: use 'encoded', or geometry"
                )
            return None
        decodes = not all(part.direct for part in self._parts)  # a hit then saves more than a read
        outputs = [output for output in self._kept_outputs() if output.name not in self.indexed]
        cache = DecodedCache(outputs, self.table.records, left, self._shared)
        least = math.ceil(self.table.records * (PARTLY if decodes else 1))
        if choice == "auto" and (cache.capacity < least or not self.options.training):
            self._casts = []  # only a cache needs the stored form
            self._parts = self._make_parts()
            return None
        return cache

    def _make_filler(self) -> BatchAssembler:
        substitute = self.schedule.substitute if self.options.training else None
        policy = ReadPolicy(self.options.verify, self.bad, substitute, self.options.geometry)
        cuts = None
        if self.at_load and self.at_load.cuts:
            cuts = Cuts(self.at_load, {output.name: output for output in self.read_outputs.outputs})
        return BatchAssembler(
            self.table, self._identities, self._parts, self.indexed, policy, self.cache, casts=self._casts, cuts=cuts,
            mixing=Mixing(self.at_load, self.schedule) if self.at_load else None, cold=self._is_cold(),
            paths=self.local.paths if self.local else None, damaged=self.local.damaged if self.local else None,
        )  # fmt: skip

    def _make_pool(self) -> WorkerPool | None:
        if self._shared is None:
            return None
        in_turn = self.memory.batch_bytes * self.memory.in_turn
        return make_pool(self.workers, self._shared, self._assembler, self._batch_outputs, in_turn)

    def workers_report(self) -> dict[str, Any]:
        """What fills batches, why, and which worker processes died of what."""
        failure = "" if self._pool is None else self._pool.failure
        if not failure and self._pool is not None and self._pool.stopped:
            failure = "the loader was closed: threads read from then on"
        processes = 0 if failure else self.workers.processes
        return {
            "kind": "processes" if processes else "threads",
            "processes": processes,
            "threads_each": self.workers.threads,
            "started": self._pool is not None and self._pool.ready,
            "because": failure or self.workers.because,
            "deaths": [] if self._pool is None else list(self._pool.deaths),
        }

    def _is_cold(self) -> bool:
        """Whether the page cache cannot hold all files, so that most reads go to the disk."""
        return sum(file.bytes for source in self.sources for file in source.files(self.variants)) > available_memory()


def repeated(pipeline: Pipeline, count: Any) -> int | None:
    """The epochs of `repeat(count)`, None for a stream without an end; LoaderError where the count or the loader is wrong."""
    if not pipeline.training:
        raise LoaderError("repeat() is for training; with training=False every pass reads the same samples once")
    if count is None or (isinstance(count, int) and count == -1):
        return None
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise LoaderError(
            f"repeat() takes a number of epochs from 1, or None for a stream without an end, not {count!r}"
        )
    return int(count)


def add_counts(counts: Counts, reader: Reader) -> Counts:
    """The counts with those of one reader added."""
    total = dict(counts)
    for name in _CONSUMER:
        total[name] += getattr(reader.counts, name)
    for worker in [*reader.states, reader.remote]:
        for name, attribute in _WORKER.items():
            total[name] += getattr(worker, attribute)
    total["longest_wait_s"] = max(counts["longest_wait_s"], reader.counts.longest_wait_s)
    total["records_read"] = total["records"] - total["records_cached"]
    return total


def _groups(order: str, block: int, table: RecordTable) -> Numbers | None:
    """What each row takes its variant with: its block, or its file; None where that is the row itself."""
    if order == "global":
        return None
    if order == "block":
        return np.arange(table.samples) // block
    rows = np.arange(table.samples)
    first_variant = np.concatenate([np.full(part.samples, part.variants[0]) for part in table.parts])
    return table.file_of(table.record(rows, first_variant))
