"""The memory budget of a loader: what batches and decoding take, whether threads or processes fill them, and what is left.

Batches come first. Worker processes get at most half of the budget, prefetching what is left of the other half, then what is
fetched ahead from URLs, and the decoded cache gets the rest.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS, FieldSpec
from tfprep.limits import available_memory
from tfprep.load.order.samplers import Numbers
from tfprep.load.outputs import Output

if TYPE_CHECKING:
    from tfprep.load.options import WorkersChoice
    from tfprep.load.reader.table import RecordTable

DEFAULT_SHARE = 0.25
"""The default budget, as a share of the memory that is free when the loader is made."""
PREFETCH = 8
"""Batches that are prefetched where the budget allows: more would hide no delay of a disk, and cost processor cache."""
PREFETCH_FROM_MEMORY = 2
"""Batches ahead where rows are copied from memory. There is no delay of a disk to hide, and memory that was used a moment ago is
still in the processor's cache: with eight batches in turn, copying takes a third longer."""
HELD_ELSEWHERE = 4
"""Batches that TensorFlow prefetches or that the consumer works on."""
FETCH_SHARE, MOST_FETCH_BYTES = 0.25, 1 << 30
"""For records that are fetched from URLs ahead of their use. A link of 10 Gbit/s brings 1 GiB in less than a second: more would
hide no longer delay."""


def budget_bytes(memory_budget: Any, free: int | None = None) -> int:
    """The option `memory_budget`, which its check has made a number, or by default `DEFAULT_SHARE` of the free memory."""
    return memory_budget or int((available_memory() if free is None else free) * DEFAULT_SHARE)


# --- bytes of samples ---------------------------------------------------------------------------------------------------

SMALLEST_ROW = 64
"""Bytes of a label or a text, counted roughly."""
MOST_CHANNELS = 4
"""Of a raster whose samples differ in their channels: RGBA."""
MOST_ARRAY_BYTES = 1 << 40
"""An index in which a sample's array is larger than this is damaged."""


def row_bytes(outputs: Sequence[Output]) -> int:
    """Bytes of one row of these outputs, without arrays that differ in size."""
    return sum([max(output.row_bytes, SMALLEST_ROW) for output in outputs])


@dataclass(frozen=True)
class SampleSizes:
    """Bytes of samples; where they differ, by the index.

    `rows` are those of the table that are read; None for all. `derived` are the fields that are derived at load.
    """

    specs: Mapping[str, FieldSpec]
    table: RecordTable
    rows: Numbers | None
    derived: Collection[str] = ()

    def of_batch(self, outputs: Sequence[Output], batch_rows: int) -> int:
        """Bytes of the largest batch of `batch_rows` samples."""
        return batch_rows * row_bytes(outputs) + self._varying(outputs, batch_rows)

    def of_decoding(self, names: Sequence[str], at_once: int) -> int:
        """Bytes of these fields of `at_once` samples, where their stored sizes differ: of others the memory is not counted."""
        specs = {name: self.specs[name] for name in names if name in self.specs}
        return at_once * self._varying([Output(n, (n,), spec.shape, spec.dtype) for n, spec in specs.items()], 1)

    def _varying(self, outputs: Sequence[Output], count: int) -> int:
        """Bytes of the arrays that have no fixed size, of the `count` samples whose arrays are the largest."""
        values = np.zeros((), np.int64)
        for output in outputs:
            # An index does not have the few bytes of boxes and numbers that are derived at load.
            few = output.fields[0] in self.derived and self.specs[output.fields[0]].kind not in RASTER_KINDS
            if None in output.shape and output.dtype != "string" and not few:
                values = values + self._decoded_bytes(output)
        if not values.ndim:
            return 0
        chosen = values if self.rows is None else values[self.rows]
        return int(np.partition(chosen, -count)[-count:].sum() if count < len(chosen) else chosen.sum())

    def _decoded_bytes(self, output: Output) -> Numbers:
        """Bytes of an output by row, int64 [N]; LoaderError where no array has them."""
        name, itemsize = output.fields[0], np.dtype(output.dtype).itemsize
        if self.specs[name].kind in RASTER_KINDS:
            height, width = (
                self._largest(column, name) if side is None else np.int64(side)
                for column, side in zip(("height", "width"), output.shape[:2], strict=True)
            )
            channels = prod(MOST_CHANNELS if side is None else side for side in output.shape[2:])
            factors: tuple[Any, ...] = (height, width, channels * itemsize)
        else:
            dtype = np.dtype(self.specs[name].dtype)
            stored = 1 if dtype.kind in "iu" else dtype.itemsize  # varints, floats
            factors = (self._largest(f"{name}_size", name), itemsize / stored)
        nbytes = np.asarray(prod(np.asarray(factor, np.float64) for factor in factors))
        if any(np.any(np.asarray(factor) < 0) for factor in factors) or (nbytes > MOST_ARRAY_BYTES).any():
            raise LoaderError(
                f"the index gives sizes of {name!r} that no array has: {nbytes.min():,.0f} to {nbytes.max():,.0f} bytes; it "
                "is damaged: build the dataset again"
            )
        return nbytes.astype(np.int64)

    def _largest(self, column: str, field: str) -> Numbers:
        """A column of the index that a field is in, for each row the largest of the variants that are read: int64 [N]."""
        parts = []
        for part in self.table.parts:
            group = part.dataset.group_of(field)
            dataset = part.dataset.added(group) if group else part.dataset
            values = [dataset.index(part.split, variant, [column]).column(column) for variant in part.read]
            parts.append(np.max([value.fill_null(0).to_numpy() for value in values], axis=0).astype(np.int64))
        return np.concatenate(parts)


# --- batches ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryPlan:
    """The budget, what a batch takes, and what decoding and processes take, in bytes; and the number of batches to prefetch."""

    budget: int
    batch_bytes: int
    prefetch: int
    working_bytes: int = 0
    fetch_bytes: int = 0
    """Bytes for records that are fetched from URLs ahead of their use."""

    @property
    def batches_bytes(self) -> int:
        return self.batch_bytes * (self.prefetch + HELD_ELSEWHERE) + self.working_bytes

    @property
    def cache_bytes(self) -> int:
        return max(0, self.budget - self.batches_bytes - self.fetch_bytes)


def plan_memory(
    budget: int,
    batch_bytes: int,
    prefetch: int | None,
    most: int = PREFETCH,
    working_bytes: int = 0,
    *,
    fetches: bool = False,
) -> MemoryPlan:
    """Return how many batches to prefetch: `prefetch`, or else `most`, but within half the budget.

    `batch_bytes` are those of the largest batch, `working_bytes` what decoding and worker processes take. With `fetches`, records
    at URLs get a share of what the batches leave. LoaderError where not even one batch, or not that number, fits.
    """
    free = budget - working_bytes
    if batch_bytes * (1 + HELD_ELSEWHERE) > free:
        working = f" and {working_bytes:,} bytes for decoding and worker processes" if working_bytes else ""
        raise LoaderError(
            f"memory_budget={budget:,} bytes cannot hold {1 + HELD_ELSEWHERE} batches of {batch_bytes:,}{working}; a batch is "
            "filled, one waits, and TensorFlow and the trainer hold the others. Allow more, or make batch_size smaller"
        )
    fits = max(1, (free - budget // 2) // max(batch_bytes, 1) - HELD_ELSEWHERE)
    prefetched = prefetch or min(most, fits)
    batches = batch_bytes * (prefetched + HELD_ELSEWHERE)
    if batches > free:
        raise LoaderError(
            f"prefetch={prefetch} takes {batches + working_bytes:,} bytes with the {HELD_ELSEWHERE} batches that TensorFlow and "
            f"the trainer hold, memory_budget is {budget:,}; prefetch={free // batch_bytes - HELD_ELSEWHERE} fits, or allow more"
        )
    fetched = min(int(budget * FETCH_SHARE), MOST_FETCH_BYTES, free - batches) if fetches else 0
    return MemoryPlan(budget, batch_bytes, prefetched, working_bytes, fetched)


# --- threads or processes -----------------------------------------------------------------------------------------------

MANY_CPUS = 8
"""From this many on, "auto" takes processes. The threads of one interpreter deliver at most some 20,000 images a second, which is
what five cores decode, and training shares that interpreter."""
MANY_RECORDS = 10_000
"""On fewer CPUs, "auto" takes processes where every epoch reads this many records. Starting two of them takes about a second of
processor time, and they save some 15 us a record."""
MANY_AUGMENTED = 1_000
"""The same for augmented records, each view counted: threads wait for each other's Python, 100 us for a window and a flip."""
THREADS_EACH = 4
"""Threads of a process: 16 processes of 4 delivered more than 64 of one, and take a quarter of the memory."""
LEAST_PROCESSES = 2
"""One process would have one interpreter again."""
PROCESS_BYTES = 40 << 20
"""Memory of a worker process beside batches and cache: Python, NumPy, OpenCV and scratch memory. 24 to 35 MB were measured."""
SPARE_TASKS = 1
"""Tasks that wait in a process for a thread: the next rows are there when one has finished."""
TASK_ROWS, TASK_BYTES = 128, 24 << 20
"""The most rows of a task, which costs some 300 µs of Python and as much again in a worker process, and the most bytes that it
fills: some 30 ms, as the batches of a task come at the same time."""
PROCESSES_SHARE = 0.5
"""The most that all processes may take of `memory_budget`."""


@dataclass(frozen=True)
class WorkersPlan:
    """`processes` of `threads` threads each; 0 processes: threads of this process. `because` says why."""

    processes: int
    threads: int
    because: str

    @property
    def nbytes(self) -> int:
        """Memory of the processes beside batches and cache."""
        return self.processes * PROCESS_BYTES

    @cached_property
    def tasks(self) -> int:
        """The number of tasks that are taken at a time, or wait for a thread."""
        return max(1, self.processes) * (self.threads + SPARE_TASKS)

    def most_prefetch(self, batch_rows: int) -> int:
        """One and a half times the batches that have rows for every task: the first of them may be the last to be full."""
        rows = 3 * self.tasks * TASK_ROWS // 2 if self.processes else 0
        return max(PREFETCH, -(-rows // max(batch_rows, 1)))


def plan_workers(
    choice: WorkersChoice,
    threads: int,
    *,
    cpus: int,
    records: int,
    views: int,
    budget: int,
    needed: int,
    obstacle: Callable[[], str],
) -> WorkersPlan:
    """Return what fills batches. LoaderError where processes were asked for and are not possible.

    Args:
        choice: What the user asked for.
        threads: Reading threads, over all processes together.
        cpus: The CPUs that this process may use.
        records: How many records every epoch reads; 0 where a cache holds them.
        views: The views of each that go through geometry, derived inputs or color; 0 where nothing does.
        budget: The memory budget, in bytes; fewer processes of more threads start where it is small.
        needed: What batches and decoding take of it at least, in bytes.
        obstacle: Returns why worker processes cannot read this, in words; empty where they can.
    """
    takes, because = choice == "processes", f"workers={choice!r}"
    few = f"{cpus} CPUs are fewer than {MANY_CPUS}"
    if choice == "auto" and cpus >= MANY_CPUS:
        takes, because = True, f"{cpus} CPUs are more than one interpreter keeps busy"
    elif choice == "auto" and min(cpus, threads) < LEAST_PROCESSES:
        because = "one thread reads, for which the interpreter of this process is enough"
    elif choice == "auto" and not records:
        because = f"the cache holds all records after the first epoch, and {few}"
    elif choice == "auto" and records < MANY_RECORDS and records * views < MANY_AUGMENTED:
        because = f"{few}, and an epoch of {records:,} records does not repay the start of processes"
    elif choice == "auto":
        takes, because = True, f"every epoch reads {records:,} records, which repays the start of processes"
    if not takes:
        return WorkersPlan(0, threads, because)
    most = max(0, min(int(budget * PROCESSES_SHARE), budget - needed)) // PROCESS_BYTES
    reason = obstacle()
    if not reason and most < LEAST_PROCESSES:
        reason = (
            f"memory_budget={budget:,} bytes has no room for {LEAST_PROCESSES} processes of {PROCESS_BYTES:,} bytes"
            " beside the batches"
        )
    if reason and choice == "processes":
        raise LoaderError(
            f"workers='processes' is not possible here: {reason}; use workers='auto', with which threads read it"
        )
    if reason:
        return WorkersPlan(0, threads, reason)
    processes = min(threads, max(LEAST_PROCESSES, threads // THREADS_EACH), most)
    return WorkersPlan(processes, -(-threads // processes), because)


class _Sender(pickle.Pickler):
    """Refuses what another process cannot import."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in the script that runs; move it into a module"
            )
        return NotImplemented


def not_sendable(reading: Any) -> str:
    """Return why worker processes cannot read this; empty where they can."""
    if not hasattr(os, "memfd_create"):
        return "this system has no memfd_create"
    try:
        _Sender(io.BytesIO()).dump(reading)
    except Exception as error:
        return f"a codec or an op cannot be sent to another process ({error})"
    return ""
