"""The parts of a loader, made from its plan, and what happens to the rows of a batch: what the loaders of all frameworks share.

`plan_loader` decides everything first. A batch is filled in chunks of rows, by threads or by worker processes. The index and the
cache fill what they know, the others are read, and those that cannot be read are replaced or left out, as `on_bad` says.
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

from tfprep.errors import LoaderError, RecordError
from tfprep.load.budget import MANY_CPUS, PREFETCH_FROM_MEMORY
from tfprep.load.mixing import mix_batch
from tfprep.load.options import MOST_STEPS, LoaderOptions
from tfprep.load.order.samplers import Numbers
from tfprep.load.order.schedule import Samples
from tfprep.load.plan import plan_loader
from tfprep.load.reader.batch import BadRecords, Batch, Chunk, DecodedCache
from tfprep.load.reader.files import REQUESTS, ByteSpans
from tfprep.load.reader.rows import RowReader, Rows, stop_opencv_threads
from tfprep.load.reader.table import SplitRows
from tfprep.load.reader.workers import CLOSED, Unread, WorkerPool, answer
from tfprep.load.slots import BatchSlots, SharedMemory
from tfprep.load.threads import Threads, ThreadState

_COUNTED = ("records_read", "records_cached", "bytes_read", "read_s", "decode_s", "idle_s")
"""The counters that each thread keeps."""
ATTEMPTS = 100
"""Samples that are tried, one after another, in place of one that cannot be read."""


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
    """The parts of a loader. Its passes share it, and any number of threads fill batches at once.

    Attributes:
        plan: What is delivered, and how it is read.
        start_step: The step with which the run begins.
        threads: They read and decode, or hand out rows to the worker processes of `pool`.
        requests: The threads that fetch from URLs.
        counts: Counters of what consumers received, and of the time that they waited.
        made_in: The process that made it: in a fork of that, its threads and worker processes are not there.
        closed: True after `close`: no pass begins any more.
    """

    def __init__(self, sources: Sequence[SplitRows], options: LoaderOptions) -> None:
        self.made_in = self._process = os.getpid()
        self.closed = False
        self._held: dict[str, Any] = {"kind": "none"}  # what the cache of a closed pipeline held
        self.plan = plan = plan_loader(sources, options)
        self.start_step, workers, reading = plan.first_step, plan.workers, plan.reading
        self.sources, self.options = plan.sources, plan.options
        self.outputs, self.schedule = plan.outputs, plan.schedule
        shared = SharedMemory() if workers.processes else None
        if options.host.count > 1:
            _warn_of_versions(sources)
        sizes = options.on_bad == "raise"  # with "skip" what is cut short counts as bad records
        for part in (part for table in plan.tables.values() for part in table.parts):
            part.dataset.check_files(part.split, part.read, sizes=sizes)
        self.cache: DecodedCache | None = None
        if plan.keeps_decoded:
            self.cache = DecodedCache(reading.outputs, plan.table.records, plan.memory.cache_bytes)
        self._open_files()
        self.pool: WorkerPool | None = None
        if shared is not None:  # the processes start with the first batch
            self.pool = WorkerPool(reading, shared, workers.processes, workers.threads)
        self.threads, self.requests = Threads(), Threads(fewer="")
        self.slots = BatchSlots(plan.filled.outputs, plan.schedule.batch_rows, plan.memory.prefetch + 2, shared)
        self.counts: dict[str, Any] = {
            "batches": 0, "samples": 0, "bytes_delivered": 0, "waits": 0, "wait_s": 0.0, "longest_wait_s": 0.0,
        }  # fmt: skip

    def _open_files(self) -> None:
        self.bad, self.reader = BadRecords(self.options.on_bad), RowReader(self.plan.reading)
        self._verified = np.full(self.plan.table.records, self.options.verify == "never", np.uint8)
        """The records whose checksums are not compared any more, unless the option `verify` says "always"."""
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the options: another process opens files and starts threads of its own."""
        return Pipeline, (self.sources, self.options)

    # --- a batch in the calling thread ----------------------------------------------------------------------------------

    def batch(self, step: int) -> Batch:
        """The batch of a step, read in this thread; IndexError for a step that the run does not have."""
        number, count = operator.index(step), MOST_STEPS if self.plan.training else self.schedule.steps_per_epoch
        if not 0 <= number < count:
            raise IndexError(f"the steps of a run are numbered from 0 to {count - 1:,}; there is no {step}")
        (positions,) = self.schedule.positions([number])
        return self.read(self.schedule.at(positions), number)

    def read(self, samples: Samples, step: int = 0, values: dict[str, Any] | None = None) -> Batch:
        """The batch of these samples, in these arrays or in new ones. Any thread and process may call it."""
        if os.getpid() != self._process:  # forked: locks may be held by threads that are not here
            self.cache = None
            self._open_files()
            self._process = os.getpid()
        count = len(samples.row)
        batch, rows = Batch(step), self.located(samples, np.arange(count))
        if values is None:
            form = int(rows["form"][0]) if count else self.schedule.form(step)
            values = {output.name: output.of_form(form).empty(count) for output in self.plan.filled.outputs}
        batch.begin(rows, values)
        if self.plan.is_remote:
            batch.fetched = self.reader.files.fetch(self.byte_spans(rows))
        state = self._of_thread.__dict__.setdefault("state", ThreadState(threading.current_thread().name))
        if count:
            self.fill([Chunk(batch, rows)], state)
        else:
            self.complete(batch)
        batch.future.result()
        return batch

    # --- where the records are ------------------------------------------------------------------------------------------

    def rows_of(self, steps: Sequence[int]) -> list[Rows]:
        """The rows of the batch of each step. Many steps at once cost hardly more than one."""
        positions = self.schedule.positions(steps)
        sizes = [len(position) for position in positions]
        rows = self.located(
            self.schedule.at(np.concatenate(positions)), np.concatenate([np.arange(size) for size in sizes])
        )
        return [Rows(table) for table in np.split(rows.table, np.cumsum(sizes)[:-1], axis=1)]

    def located(self, samples: Samples, numbers: Numbers) -> Rows:
        """These samples as rows of a batch, of these numbers, with the places of their records."""
        records = self.plan.table.record(samples.row, samples.variant)
        has_label = "label" in self.plan.indexed.values()
        rows = Rows(np.zeros((self.reader.columns, len(records)), np.int64))
        rows.table[: len(samples) + 1] = numbers, *samples  # row, sample, variant, position
        rows["record"][:], rows["form"][:] = records, self.schedule.forms_at(samples.position)
        rows["verify"][:] = 1 if self.options.verify == "always" else 1 - self._verified[records]
        first_file = 0
        for place, table in zip(self.reader.places, self.plan.tables.values(), strict=True):
            wants_label = has_label and table is self.plan.table
            columns = table.locate(records, [*place.columns, *(["label"] if wants_label else [])])
            rows.table[place.first] = table.file_of(records) + first_file
            for number, name in enumerate(place.columns, place.first + 1):
                rows.table[number] = columns[name]
            if wants_label:
                rows["label"][:] = columns["label"]
            first_file += len(table.files)
        return rows

    def byte_spans(self, rows: Rows) -> ByteSpans:
        """The bytes at URLs that reading these rows takes; not those of rows that the cache holds."""
        cache = self.cache
        return self.reader.byte_spans(rows if cache is None else rows.take(~cache.holds(rows["record"])))

    # --- filling --------------------------------------------------------------------------------------------------------

    def fill(self, chunks: list[Chunk], state: ThreadState, pool: WorkerPool | None = None) -> None:
        """Fill chunks, in this thread or together by a worker process. Empties the list.

        Each chunk is let go as soon as it is filled: the memory of its batch may be used again before the next one is full.
        """
        state.is_linked = pool is not None  # the processes count the time
        unread: list[Chunk] = []
        while chunks:
            batch, rows = chunks.pop(0)
            try:
                rows = self._not_known(batch, rows, state)
            except BaseException as error:
                batch.fail(error)
                continue
            if len(rows):
                unread.append(Chunk(batch, rows))
        if pool is not None and unread:
            pool.fill(unread, partial(self._filled, state=pool.state, pool=pool))
        while unread and pool is None:
            batch, rows = unread.pop(0)
            state.fetched = batch.fetched
            try:
                failures: Unread = self.reader.fill(batch.values, rows, state)
            except BaseException as error:
                failures = error
            state.fetched = None
            self._filled(batch, rows, failures, state)

    def _not_known(self, batch: Batch, rows: Rows, state: ThreadState) -> Rows:
        """Fill what the index knows of these rows, and rows that the cache holds; return the others, which are to be read."""
        if self.options.verify != "always":
            rows["verify"][:] = 1 - self._verified[rows["record"]]
        places = rows["row"]
        for name, what in self.plan.indexed.items():
            known = self.plan.table.column("key").take(rows["sample"]).to_pylist() if what == "key" else rows[what]
            batch.values[name][places] = known
        cache = self.cache  # `close` may take it away at any time
        if not self.reader.read_places:  # the index has it all
            state.records_read += len(rows)
            self._count(batch, len(rows), state)
            return rows.take(slice(0))
        if cache is None or not (held := cache.holds(rows["record"])).any():
            return rows
        state.enter("read")
        cache.copy(rows.take(held), batch.values)
        cached = int(np.count_nonzero(held))
        state.records_cached += cached
        self._count(batch, cached, state)
        return rows.take(~held)

    def _filled(
        self, batch: Batch, rows: Rows, unread: Unread, state: ThreadState, pool: WorkerPool | None = None
    ) -> None:
        """Take over rows that were filled, all but the `unread` ones, and fill the rows that replace those."""
        if isinstance(unread, BaseException):
            batch.fail(unread)  # not raised: its traceback would hold the batch
            return
        try:
            state.records_read += len(rows) - len(unread)
            filled, cache = rows, self.cache
            if unread:
                filled = rows.take(np.delete(np.arange(len(rows)), [failure.number for failure in unread]))
            self._verified[filled["record"]] = 1
            if cache is not None:
                cache.keep(filled, batch.values)
            others = [self._replacement(batch, rows.take([number]), reason) for number, reason in unread]
        except BaseException as error:
            batch.fail(error)
            return
        replaced = [Chunk(batch, other) for other in others if other is not None]
        self._count(batch, len(rows) - len(replaced), state)
        if replaced:
            self.fill(replaced, state, pool)

    def _count(self, batch: Batch, rows: int, state: ThreadState) -> None:
        """Note that `rows` more rows of a batch are filled; complete it after the last one."""
        if not batch.fill(rows) or batch.future.done():
            return
        in_pool = self.pool is not None and state is self.pool.state
        if in_pool and (self.plan.mixing is not None or self.plan.channels_first):
            self.threads.submit(lambda _: self.complete(batch))  # it would hold up the thread of the pool
        else:
            self.complete(batch)

    def complete(self, batch: Batch) -> None:
        """Complete a batch whose rows are filled: drop lost rows, mix samples, and put channels first."""
        try:
            batch.fetched, mixing = None, self.plan.mixing
            if batch.lost:
                batch.drop_lost()
            if mixing is not None:
                start, stop = self.schedule.span(batch.step)  # of all rows but a partner after them
                mix_batch(batch.values, mixing, start, stop)
                if mixing.ops:  # the partner goes
                    batch.values = {name: value[: stop - start] for name, value in batch.values.items()}
            for name in self.plan.channels_first:
                batch.values[name] = _channels_first(batch.values[name])
            self.slots.finish(batch.values)
            batch.future.set_result(None)
        except BaseException as error:
            batch.fail(error)

    def _replacement(self, batch: Batch, unread: Rows, reason: str) -> Rows | None:
        """Return another sample for a row that cannot be read; None if the policy drops the row.

        Raises:
            RecordError: By the policy, bad records are errors.
            LoaderError: `ATTEMPTS` other samples, one after another, cannot be read either.
        """
        bad, table = self.bad, self.plan.table
        row, sample, position, record = (int(unread[name][0]) for name in ("row", "sample", "position", "record"))
        (file,), (offset,), _ = unread.place
        key, path, number = table.key(sample), str(table.files[file]), table.number_in_file(record)
        error = RecordError(f"{reason} (key {key!r})", path=path, record=number, offset=int(offset))
        if bad.on_bad == "raise":
            raise error
        bad.note(record, key, error, is_first=row not in batch.attempts)
        if not self.plan.training:
            batch.lost.append(row)
            return None
        while (attempt := batch.attempts.get(row, 0)) < ATTEMPTS:
            batch.attempts[row] = attempt + 1
            other = np.array([self.schedule.substitute(position, attempt)])
            rows = self.located(Samples(other, unread["variant"], unread["position"]), unread["row"])
            if not bad.known(int(rows["record"][0])):
                return rows
        raise LoaderError(
            f"{ATTEMPTS} records in a row could not be read for place {position} of the run, the last one because: {reason}. "
            "report() names them; where files are damaged, build the dataset again"
        )

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
        if self.plan.is_remote:
            self.requests.grow(REQUESTS)

    @property
    def prefetch(self) -> int:
        """The number of batches that may be filled beyond the one delivered last."""
        planned, cache = self.plan.memory.prefetch, self.cache  # `close` may take it away at any time
        if cache is not None and cache.full and self.plan.mixing is None:  # all rows are copied as they are
            return min(planned, PREFETCH_FROM_MEMORY)
        return planned

    def stop(self) -> None:
        """Stop the threads."""
        for threads in (self.threads, self.requests):
            threads.stop()
        for threads in (self.threads, self.requests):
            threads.join()

    def close(self) -> None:
        """Stop all threads and give the memory back. What fills batches in advance is closed before."""
        self.closed = True
        if os.getpid() == self.made_in:
            if self.pool is not None:
                self.pool.close()
            self.stop()
        self.slots.close()
        self.reader.files.close()
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
        files = self.reader.files
        states = [*self.threads.states, *([self.pool.state] if self.pool is not None else ())]
        return {
            **self.counts,
            **{name: sum([getattr(state, name) for state in states]) for name in _COUNTED},
            "prefetch": self.prefetch,
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


def _channels_first(images: Any) -> Any:
    """Return an array [B, H, W, C] as [B, C, H, W], or a list of arrays [H, W, C] as [C, H, W]: contiguous copies."""
    if isinstance(images, list):
        return [_channels_first(image) for image in images]
    return np.ascontiguousarray(np.moveaxis(images, -1, -3))
