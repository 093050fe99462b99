"""From datasets and options to batches, without TensorFlow: what the loaders of all frameworks share.

`plan_loader` decides everything first; this module makes the parts from its plan and passes batches on.
"""

from __future__ import annotations

import operator
import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.budget import MANY_CPUS
from tfprep.load.options import LoaderOptions
from tfprep.load.order.schedule import BatchIndices
from tfprep.load.plan import LoaderPlan, plan_loader
from tfprep.load.reader.ahead import fetch_now
from tfprep.load.reader.batch import BadRecords, Batch, BatchAssembler, DecodedCache
from tfprep.load.reader.rows import Reading, stop_opencv_threads
from tfprep.load.reader.workers import Setup, WorkerPool, answer
from tfprep.load.selection import SplitRows
from tfprep.load.slots import BatchSlots, SharedMemory
from tfprep.load.state import first_step
from tfprep.load.threads import Threads, ThreadState
from tfprep.storage.urls import is_remote

_OF_THREADS = {
    "records": "records", "records_cached": "cached", "bytes_read": "bytes", "read_s": "read_s", "decode_s": "decode_s",
    "idle_s": "idle_s",
}  # fmt: skip
"""Counters of a loader that its threads keep, and their names there."""


def _warn_of_versions(sources: Sequence[SplitRows]) -> None:
    """Warn where hosts could open different versions of a dataset, because a build publishes meanwhile."""
    for version in dict.fromkeys(source.dataset.version for source in sources):
        if version is not None and not version.is_chosen:
            warnings.warn(
                f"each host opens the current version of {version.root} by itself, and a build that publishes meanwhile would "
                f"give some of them another one: open the same version on all hosts, tfprep.open(path, version={version.number})",
                UserWarning,
                stacklevel=2,
            )


class Pipeline:
    """The parts of a loader, made from its plan. The passes of a loader share it.

    Attributes:
        plan: What is delivered, and how it is read.
        start_step: The step with which the run begins.
        counts: Counters of what consumers received, and of the time that they waited.
        made_in: The process that made it: in a fork of that, its threads and worker processes are not there.
    """

    def __init__(self, sources: Sequence[SplitRows], options: LoaderOptions) -> None:
        self.made_in = self._process = os.getpid()
        self._held: dict[str, Any] = {"kind": "none"}  # what the cache of a closed pipeline held
        self._shared: SharedMemory | None = None
        plan = plan_loader(sources, options)
        if plan.workers.processes:
            try:
                self._shared = SharedMemory()
            except LoaderError:  # with "auto", threads read where this process may not map it
                if options.workers == "processes":
                    raise
                plan = plan_loader(sources, replace(options, workers="threads"))
        if options.host.count > 1:
            _warn_of_versions(sources)
        self.plan, self.start_step = plan, first_step(plan)
        self.sources, self.options = plan.sources, plan.options
        self.outputs, self.schedule = plan.outputs, plan.schedule
        self._imported: list[bool] = []
        sizes = options.on_bad == "raise"  # with "skip" what is cut short counts as bad records
        for table in plan.tables.values():
            for part in table.parts:
                part.dataset.check_files(part.split, part.variants, sizes=sizes)
                is_imported = part.dataset.manifest.imported is not None and not is_remote(part.dataset.shards_folder)
                for variant in part.variants:
                    self._imported += [is_imported] * len(part.info.files[variant])
        self.cache: DecodedCache | None = None
        if plan.keeps_decoded:
            self.cache = DecodedCache(plan.cached_outputs, plan.table.records, plan.memory.cache_bytes)
        # The page cache cannot hold all files, so that most reads go to the disk.
        self._cold = sum(info.bytes for info in plan.file_infos) > plan.free_memory
        self._open_files()
        self.pool: WorkerPool | None = None
        if self._shared is not None:
            self.pool = _make_pool(plan, self._shared, self.assembler.reading)
        self.threads = Threads()
        self.slots = BatchSlots(plan.filled.outputs, plan.batch_rows, plan.memory.prefetch + 2, self._shared)
        self.counts: dict[str, Any] = {
            "batches": 0, "samples": 0, "bytes_delivered": 0, "waits": 0, "wait_s": 0.0, "longest_wait_s": 0.0,
        }  # fmt: skip
        self._ended = dict.fromkeys(_OF_THREADS, 0)  # counters of threads that have ended

    def _open_files(self) -> None:
        self.bad = BadRecords(self.options.on_bad)
        self.assembler = BatchAssembler(self.plan, self._imported, self.bad, self.cache, cold=self._cold)
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the options: another process opens files and starts threads of its own."""
        return Pipeline, (self.sources, self.options)

    def on_host(self, hosts: tuple[int, int] | None) -> Pipeline:
        """This pipeline; where the option `hosts` says nothing, that of this host's part of every batch (None: a single host)."""
        if hosts is None or self.options.hosts is not None:
            return self
        return Pipeline(self.sources, replace(self.options, hosts=hosts))

    @property
    def training(self) -> bool:
        return self.plan.training

    # --- a batch in the calling thread ----------------------------------------------------------------------------------

    def batch(self, step: int) -> Batch:
        """The batch of a step, read in this thread; IndexError for a step that the run does not have."""
        number, last = operator.index(step), self.schedule.steps
        if number < 0 or (last is not None and number >= last):
            end = "" if last is None else f" to {last - 1:,}"
            raise IndexError(f"the steps of a run are numbered from 0{end}; there is no {step}")
        (indices,) = self.schedule.batch_indices([number])
        batch = self.read(indices, number)
        self.assembler.finish(batch)
        return batch

    def read(self, indices: BatchIndices, step: int = 0, values: dict[str, Any] | None = None) -> Batch:
        """A batch of these samples before they are mixed, in these arrays or in new ones. Any thread and process may call it."""
        if os.getpid() != self._process:  # forked: locks may be held by threads that are not here
            self._process, self.cache = os.getpid(), None
            self._open_files()
        rows = len(indices.row)
        located = self.assembler.located(indices, np.arange(rows))
        form = int(located["form"][0]) if rows else self.schedule.form(step)
        if values is None:
            values = {output.name: output.of_form(form).empty(rows) for output in self.plan.filled.outputs}
        batch = Batch(step, indices, located, values)
        if self.plan.is_remote:
            batch.fetched = fetch_now(self.assembler, located)
        self.assembler.fill_here(batch, 0, rows, self._state())
        batch.fetched = None
        return batch

    def _state(self) -> ThreadState:
        if not hasattr(self._of_thread, "state"):
            self._of_thread.state = ThreadState(threading.current_thread().name)
        state: ThreadState = self._of_thread.state
        return state

    # --- what prefetchers use -------------------------------------------------------------------------------------------

    def start_threads(self) -> None:
        """Start the reading threads, unless they run: after `close` new ones."""
        stop_opencv_threads(self.assembler.reading)
        threads = self.plan.threads
        if self.pool is not None:
            self.pool.on_done(answer)
            if not self.pool.stopped:  # they read until the processes have started, and then hand out rows only
                threads = min(threads, MANY_CPUS)
        self.threads.grow(threads)

    def close(self) -> None:
        """Stop all threads and give the memory back. What fills batches in advance is closed before."""
        is_ours = os.getpid() == self.made_in
        threads, self.threads = self.threads, Threads()
        threads.stop()
        if self.pool is not None and is_ours:
            self.pool.close()
        if is_ours:
            threads.join()
        for name, own in _OF_THREADS.items():
            self._ended[name] += sum(getattr(state, own) for state in self._states(threads))
        if self.pool is not None:
            self.pool.state = ThreadState("tfprep-pool")
        self.slots.close()
        self.assembler.close()
        self._held = self._cache_report()
        self.cache = None

    def __del__(self) -> None:
        pool = getattr(self, "pool", None)
        if pool is not None:
            pool.stop()

    # --- what its report says ---------------------------------------------------------------------------------------

    def _states(self, threads: Threads) -> list[ThreadState]:
        return [*threads.states, *([self.pool.state] if self.pool is not None else ())]

    @property
    def stats(self) -> dict[str, Any]:
        """See `Loader.stats`."""
        store = self.assembler.reader.files.store
        counts = {
            name: ended + sum(getattr(state, _OF_THREADS[name]) for state in self._states(self.threads))
            for name, ended in self._ended.items()
        }
        return {
            **self.counts,
            **{name: value for name, value in counts.items() if name != "records"},
            "records_read": counts["records"] - counts["records_cached"],
            "prefetch": self.assembler.prefetch,
            "threads": self.plan.threads,
            "cache_bytes": 0 if self.cache is None else self.cache.nbytes,
            "requests": store.requests,
            "bytes_fetched": store.bytes,
            "bad_records": self.bad.count,
            "rows_lost": self.bad.rows_lost,
        }

    def report(self) -> dict[str, Any]:
        """See `Loader.report`."""
        plan, schedule, memory = self.plan, self.schedule, self.plan.memory
        return {
            "samples": schedule.sampler.size,
            "training": self.training,
            "steps_per_epoch": schedule.steps_per_epoch,
            "left_out_per_epoch": schedule.left_out,
            "order": schedule.order,
            "variants": plan.variants,
            "memory": {
                "budget_bytes": memory.budget,
                "batch_bytes": memory.batch_bytes,
                "prefetch": memory.prefetch,
                "batches_bytes": memory.batches_bytes,
                "workers_bytes": plan.workers.nbytes,
                "index_bytes": plan.table.nbytes,
            },
            "cache": self._cache_report(),
            "fetching": {"memory_bytes": memory.fetch_bytes} if plan.is_remote else None,
            "threads": plan.threads,
            "workers": self._workers_report(),
            "verify": self.options.verify,
            "on_bad": self.options.on_bad,
            "bad_records": self.bad.report(),
        }

    def _cache_report(self) -> dict[str, Any]:
        """Return what the decoded cache holds, or held when the loader was closed."""
        if self.cache is None:
            return self._held
        held = {"records": self.cache.records, "bytes": self.cache.nbytes}
        return {"kind": "decoded", "capacity": self.cache.capacity, "of": self.plan.table.records, **held}

    def _workers_report(self) -> dict[str, Any]:
        """Return what fills batches, why, and which worker processes died of what."""
        failure = "" if self.pool is None else self.pool.failure
        if not failure and self.pool is not None and self.pool.stopped:
            failure = "the loader was closed: threads read from then on"
        workers = self.plan.workers
        processes = 0 if failure else workers.processes
        return {
            "kind": "processes" if processes else "threads",
            "processes": processes,
            "threads_each": workers.threads,
            "started": self.pool is not None and self.pool.ready,
            "because": failure or workers.because,
            "deaths": [] if self.pool is None else list(self.pool.deaths),
        }


# --- the parts, from the plan ------------------------------------------------------------------------------------------------


def _make_pool(plan: LoaderPlan, memory: SharedMemory, reading: Reading) -> WorkerPool:
    """The pool; its processes start with the first batch that is asked for. Batches are in `memory`."""
    filled = {part.output.name for parts in (*plan.parts_in.values(), plan.placed) for part in parts}
    ours = [output for output in plan.filled.outputs if output.name in filled]
    setup = Setup(
        reading,
        memory.fd,
        outputs=[output for output in ours if output.has_array],
        sent=[output.name for output in ours if not output.has_array],
        threads=plan.workers.threads,
    )
    return WorkerPool(setup, memory, plan.workers.processes)
