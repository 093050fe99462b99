"""From datasets and options to batches, without TensorFlow: what the loaders of all frameworks share.

`plan_loader` decides everything first; this module makes the parts from its plan and passes batches on.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from tfprep.dataset import FileInfo
from tfprep.errors import LoaderError
from tfprep.limits import available_memory
from tfprep.load.local import FIRST_POSITIONS, LocalShards, first_needed, local_shards
from tfprep.load.options import LoaderOptions
from tfprep.load.order.schedule import Numbers
from tfprep.load.outputs import has_array
from tfprep.load.passes import PassBatches, Passes, Steps
from tfprep.load.plan import LoaderPlan, plan_loader
from tfprep.load.reader.ahead import ReadAhead, requests_per_sample
from tfprep.load.reader.assembler import BadRecords, BatchAssembler
from tfprep.load.reader.batch import Batch, BatchMemory, DecodedCache
from tfprep.load.reader.buffers import SharedMemory
from tfprep.load.reader.reader import NOTHING, Counts, Reader, added
from tfprep.load.reader.table import TableSplit
from tfprep.load.reader.worker_pool import WorkerPool
from tfprep.load.reader.worker_process import Setup
from tfprep.load.selection import SplitRows
from tfprep.storage.local import FileIdentity

T = TypeVar("T")


class Pipeline:
    """The parts of a loader, made from its plan. `batches` may be called many times; every call is a pass (see `Passes`)."""

    def __init__(self, sources: Sequence[SplitRows], options: LoaderOptions, class_names: Sequence[str] = ()) -> None:
        self._process = os.getpid()
        self._shared: SharedMemory | None = None
        plan = plan_loader(sources, options, class_names)
        if plan.workers.processes:
            try:
                self._shared = SharedMemory()
            except LoaderError as error:  # with "auto", threads read where this process may not map it
                if options.workers == "processes":
                    raise
                plan = plan_loader(sources, options, class_names, obstacle=str(error))
        self.plan = plan
        self.sources, self.options, self.class_names = plan.sources, plan.options, plan.class_names
        self.outputs, self.table, self.schedule, self.variants = plan.outputs, plan.table, plan.schedule, plan.variants
        self.workers, self.memory, self.is_remote = plan.workers, plan.memory, plan.is_remote
        identities: list[FileIdentity | None] = []
        sizes = options.on_bad == "raise"  # with "skip" what is cut short counts as bad records
        for part in _table_splits(plan):
            identities += part.dataset.check_files(part.split, part.variants, sizes=sizes)
        self.local: LocalShards | None = None
        if options.local is not None:
            imported = any(source.dataset.manifest.imported is not None for source in sources)
            self.local = local_shards(options.local, options.local_limit, plan.files, _infos(plan), imported=imported)
        self.passes = Passes(self.schedule, self.options.start_step)
        self.bad = BadRecords(self.options.on_bad)
        self.cache: DecodedCache | None = None
        if plan.keeps_decoded:
            self.cache = DecodedCache(plan.cached_outputs, plan.table.records, plan.memory.cache_bytes, self._shared)
        # The page cache cannot hold all files, so that most reads go to the disk.
        cold = sum(info.bytes for info in _infos(plan)) > available_memory()
        paths, damaged = (self.local.paths, self.local.damaged) if self.local else (None, None)
        self.assembler = BatchAssembler(plan, identities, self.bad, self.cache, cold=cold, paths=paths, damaged=damaged)
        self._pool: WorkerPool | None = None
        if self._shared is not None:
            self._pool = _make_pool(plan, self._shared, self.assembler)
        self._lock = threading.Lock()
        self._readers: list[Reader] = []
        self._ended = NOTHING
        self.error: BaseException | None = None
        """The error that ended a pass, until `take_error`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the options: another process opens files and starts threads of its own."""
        return Pipeline, (self.sources, self.options, self.class_names)

    def on_host(self, hosts: tuple[int, int] | None) -> Pipeline:
        """This pipeline; where the option `hosts` says nothing, that of this host's part of every batch (None: a single host)."""
        if hosts is None or self.options.hosts is not None:
            return self
        return Pipeline(self.sources, replace(self.options, hosts=hosts), self.class_names)

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        return bool(self.options.training)

    @property
    def steps_per_epoch(self) -> int:
        return self.schedule.steps_per_epoch

    @property
    def left_out(self) -> int:
        """Samples that each epoch leaves out, because they would be a smaller batch."""
        drops = self.schedule.remainder == "drop"
        return self.schedule.size - self.steps_per_epoch * self.options.batch_size if drops else 0

    # --- reading ----------------------------------------------------------------------------------------------------

    def batches(
        self,
        convert: Callable[[Batch], T],
        *,
        epochs: int | None = 1,
        steps: Steps | None = None,
        look: int = 0,
        whole: bool = False,
    ) -> PassBatches[T]:
        """A pass over batches.

        Args:
            convert: Makes an element of a batch.
            epochs: The pass is over the next epochs, so many, or None for a pass without an end.
            steps: The pass is over these steps instead.
            look: The number of batches that may be taken without using an epoch.
            whole: Whether the first epoch is as long as any other, wherever it begins.

        Raises:
            LoaderError: This is a forked process: threads, locks and open files of the other one are not here, or not usable.
        """
        if os.getpid() != self._process:
            raise LoaderError(
                "this loader belongs to the process that forked this one: make a loader here, or start this process with the "
                "method 'spawn', which sends a loader as its options"
            )
        return PassBatches(self, convert, epochs, steps, look, whole)

    def open_reader(self, start: int) -> Reader:
        """A new reader of the batches from a step on."""
        memory = BatchMemory(self.plan.batch_outputs, self.plan.batch_rows, self.memory.in_turn, self._shared)
        pool = None if self._pool is None or self._pool.failure else self._pool
        ahead = None
        if self.local is not None:
            self.local.start(self.first_needed, self.assembler.reader.files.arrived)
        if self.is_remote and self.memory.fetch_bytes:
            ahead = ReadAhead(self.assembler, self.schedule, self.memory.fetch_bytes, start=start)
        reader = Reader(self.plan, self.assembler, memory, start=start, pool=pool, ahead=ahead)
        with self._lock:
            self._fold_ended()
            self._readers.append(reader)
        return reader

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
            return functools.reduce(added, [reader.counters for reader in self._readers], self._ended)

    def _fold_ended(self) -> None:
        """Replace readers that have ended by their counts. Runs under the lock."""
        for reader in [reader for reader in self._readers if reader.ended]:
            self._ended = added(self._ended, reader.counters)
            self._readers.remove(reader)

    def take_error(self) -> BaseException | None:
        """The error that ended an iteration, once: for a framework that passes errors on as text alone."""
        error, self.error = self.error, None
        return error

    def close(self) -> None:
        """Stop all threads and give the memory back."""
        for reader in list(self._readers):
            reader.close()
        if self._pool is not None:
            self._pool.close()
        self.assembler.close()
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

    # --- what its report says ---------------------------------------------------------------------------------------

    @property
    def shard_records(self) -> Numbers:
        """The number of records of each of the plan's shards: int64 [shards]."""
        return np.array([info.records for info in _infos(self.plan)], np.int64)

    @cached_property
    def fetching(self) -> dict[str, float]:
        """Return what an epoch fetches from URLs before anything is in a cache, by the plan of its first part."""
        budget = max(self.memory.fetch_bytes // 4, 1)
        samples = self.schedule.size / self.options.host.count
        per_sample = requests_per_sample(self.assembler, self.schedule, self.options.start_step, budget)
        return {f"{name}_per_sample": value for name, value in per_sample.items()} | {
            f"{name}_per_epoch": value * samples for name, value in per_sample.items()
        }

    @cached_property
    def first_needed(self) -> list[int]:
        """The numbers of the plan's shards, in the order in which the run needs them first."""
        schedule = self.schedule
        start, _ = schedule.global_span(self.options.start_step)
        stop = start + FIRST_POSITIONS if schedule.epochs is None else schedule.size * schedule.epochs
        indices = schedule.at(np.arange(start, max(start, min(stop, start + FIRST_POSITIONS))))
        files = self.table.file_of(self.table.record(indices.row, indices.variant))
        order, count = first_needed(files, len(self.table.files)), len(self.table.files)
        return [number + count * place for number in order for place in range(len(self.plan.tables))]

    def workers_report(self) -> dict[str, Any]:
        """Return what fills batches, why, and which worker processes died of what."""
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


# --- the parts, from the plan ------------------------------------------------------------------------------------------------


def _infos(plan: LoaderPlan) -> list[FileInfo]:
    """Return what the manifests say of the plan's files, in their order."""
    splits = [(part.dataset.split(part.split), part.variants) for part in _table_splits(plan)]
    return [file for split, variants in splits for variant in variants for file in split.files[variant]]


def _table_splits(plan: LoaderPlan) -> list[TableSplit]:
    return [part for table in plan.tables.values() for part in table.parts]


def _make_pool(plan: LoaderPlan, memory: SharedMemory, assembler: BatchAssembler) -> WorkerPool:
    """The pool; its processes start with the first batch that is asked for. Batches and the cache lie in `memory`."""
    filled = {part.output.name for part in plan.parts} | {cast.output.name for cast in plan.casts}
    ours = [output for output in plan.batch_outputs if output.name in filled]
    cache = None
    if (cached := assembler.cached_arrays) is not None:
        cache = {name: (memory.offset(rows), rows.shape, rows.dtype.name) for name, rows in cached.items() if rows.size}
    setup = Setup(
        assembler.reading,
        memory.fd,
        outputs=[output for output in ours if has_array(output)],
        sent=[output.name for output in ours if not has_array(output)],
        cache=cache,
        casts=plan.casts,
        cuts=plan.cuts,
        threads=plan.workers.threads,
    )
    return WorkerPool(setup, memory, plan.workers.processes)
