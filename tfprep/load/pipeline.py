"""From datasets and options to batches, without TensorFlow: what the loaders of all frameworks share.

`plan_loader` decides everything first; this module makes the parts from its plan and passes batches on.
"""

from __future__ import annotations

import operator
import os
import threading
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.budget import MANY_CPUS
from tfprep.load.options import MOST_STEPS, LoaderOptions
from tfprep.load.order.schedule import Samples
from tfprep.load.plan import plan_loader
from tfprep.load.reader.batch import BadRecords, Batch, BatchAssembler, DecodedCache
from tfprep.load.reader.rows import stop_opencv_threads
from tfprep.load.reader.table import SplitRows
from tfprep.load.reader.workers import CLOSED, Part, Setup, WorkerPool, answer
from tfprep.load.slots import BatchSlots, SharedMemory
from tfprep.load.threads import Threads, ThreadState

_COUNTED = ("records_read", "records_cached", "bytes_read", "read_s", "decode_s", "idle_s")
"""The counters that each thread keeps."""


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
        closed: True after `close`: no pass begins any more.
    """

    def __init__(self, sources: Sequence[SplitRows], options: LoaderOptions) -> None:
        self.made_in = self._process = os.getpid()
        self.closed = False
        self._held: dict[str, Any] = {"kind": "none"}  # what the cache of a closed pipeline held
        plan = plan_loader(sources, options)
        self._shared = SharedMemory() if plan.workers.processes else None
        if options.host.count > 1:
            _warn_of_versions(sources)
        self.plan, self.start_step = plan, plan.first_step
        self.sources, self.options = plan.sources, plan.options
        self.outputs, self.schedule = plan.outputs, plan.schedule
        sizes = options.on_bad == "raise"  # with "skip" what is cut short counts as bad records
        for part in (part for table in plan.tables.values() for part in table.parts):
            part.dataset.check_files(part.split, part.read, sizes=sizes)
        self.cache: DecodedCache | None = None
        if plan.keeps_decoded:
            self.cache = DecodedCache(plan.from_records, plan.table.records, plan.memory.cache_bytes)
        self._open_files()
        self.pool: WorkerPool | None = None
        if self._shared is not None:
            setup = Setup(
                self.plan.reading,
                self._shared.fd,
                outputs=[output for output in plan.from_records if output.has_array],
                sent=[output.name for output in plan.from_records if not output.has_array],
                threads=plan.workers.threads,
            )
            self.pool = WorkerPool(setup, self._shared, plan.workers.processes)  # started by the first batch
        self.threads = Threads()
        self.slots = BatchSlots(plan.filled.outputs, plan.batch_rows, plan.memory.prefetch + 2, self._shared)
        self.counts: dict[str, Any] = {
            "batches": 0, "samples": 0, "bytes_delivered": 0, "waits": 0, "wait_s": 0.0, "longest_wait_s": 0.0,
        }  # fmt: skip

    def _open_files(self) -> None:
        self.bad = BadRecords(self.options.on_bad)
        self.assembler = BatchAssembler(self.plan, self.bad, self.cache)
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the options: another process opens files and starts threads of its own."""
        return Pipeline, (self.sources, self.options)

    # --- a batch in the calling thread ----------------------------------------------------------------------------------

    def batch(self, step: int) -> Batch:
        """The batch of a step, read in this thread; IndexError for a step that the run does not have."""
        number, count = operator.index(step), self.schedule.steps or MOST_STEPS
        if not 0 <= number < count:
            raise IndexError(f"the steps of a run are numbered from 0 to {count - 1:,}; there is no {step}")
        (positions,) = self.schedule.positions([number])
        batch = self.read(self.schedule.at(positions), number)
        self.assembler.finish(batch)
        return batch

    def read(self, samples: Samples, step: int = 0, values: dict[str, Any] | None = None) -> Batch:
        """A batch of these samples before they are mixed, in these arrays or in new ones. Any thread and process may call it."""
        if os.getpid() != self._process:  # forked: locks may be held by threads that are not here
            self.cache = None
            self._open_files()
            self._process = os.getpid()
        count = len(samples.row)
        rows = self.assembler.located(samples, np.arange(count))
        if values is None:
            form = int(rows["form"][0]) if count else self.schedule.form(step)
            values = {output.name: output.of_form(form).empty(count) for output in self.plan.filled.outputs}
        batch = Batch(step, rows, values)
        if self.plan.is_remote:
            batch.fetched = self.assembler.reader.files.fetch(self.assembler.byte_spans(rows))
        results: list[Any] = []
        state = self._of_thread.__dict__.setdefault("state", ThreadState(threading.current_thread().name))
        self.assembler.fill([Part(batch, rows, results.append)], state)
        if isinstance(results[0], BaseException):
            raise results[0]
        batch.fetched = None
        return batch

    # --- what prefetchers use -------------------------------------------------------------------------------------------

    def start_threads(self) -> None:
        """Start the reading threads and worker processes, unless they run. LoaderError after `close`."""
        if self.closed:
            raise LoaderError(CLOSED)
        stop_opencv_threads(self.plan.reading)
        threads = self.plan.threads
        if self.pool is not None:
            self.pool.on_done(partial(answer, self.pool.state))
            if not self.pool.stopped:  # they read until the processes have started, and then hand out rows only
                threads = min(threads, MANY_CPUS)
        self.threads.grow(threads)

    def close(self) -> None:
        """Stop all threads and give the memory back. What fills batches in advance is closed before."""
        self.closed = True
        if os.getpid() == self.made_in:
            self.threads.stop()
            if self.pool is not None:
                self.pool.close()
            self.threads.join()
        self.slots.close()
        self.assembler.close()
        self._held = self._cache_report()
        self.cache = None

    def __del__(self) -> None:
        pool = getattr(self, "pool", None)
        if pool is not None:
            pool.stop()

    # --- what its report says ---------------------------------------------------------------------------------------

    @property
    def stats(self) -> dict[str, Any]:
        """See `Loader.stats`."""
        files = self.assembler.reader.files
        states = [*self.threads.states, *([self.pool.state] if self.pool is not None else ())]
        return {
            **self.counts,
            **{name: sum([getattr(state, name) for state in states]) for name in _COUNTED},
            "prefetch": self.assembler.prefetch,
            "threads": self.plan.threads,
            "cache_bytes": 0 if self.cache is None else self.cache.nbytes,
            "requests": files.requests,
            "bytes_fetched": files.bytes_fetched,
            "bad_records": self.bad.count,
            "rows_lost": self.bad.rows_lost,
        }

    def report(self) -> dict[str, Any]:
        """See `Loader.report`."""
        plan, schedule, memory = self.plan, self.schedule, self.plan.memory
        return {
            "samples": schedule.sampler.size,
            "training": plan.training,
            "steps_per_epoch": schedule.steps_per_epoch,
            "left_out_per_epoch": schedule.left_out,
            "order": schedule.order,
            "variants": schedule.variants,
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
        failure, workers = "" if self.pool is None else self.pool.failure, self.plan.workers
        processes = 0 if failure else workers.processes
        return {
            "kind": "processes" if processes else "threads",
            "processes": processes,
            "threads_each": workers.threads,
            "started": self.pool is not None and self.pool.ready,
            "because": failure or workers.because,
            "deaths": [] if self.pool is None else list(self.pool.deaths),
        }
