"""The choice between threads of this process and worker processes to fill batches, and its reason."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from tfprep.errors import LoaderError
from tfprep.limits import usable_cpus
from tfprep.load.options import WorkersChoice
from tfprep.load.reader.parts import FieldPart
from tfprep.storage.urls import is_remote

MANY_CPUS = 8
"""From this many on, "auto" takes processes. The threads of one interpreter deliver at most some 20,000 images a second, which is
what five cores decode, and training shares that interpreter."""
MANY_RECORDS = 10_000
"""On fewer CPUs, "auto" takes processes where every epoch reads this many records. Starting two of them takes about a second of
processor time, and they save some 15 us a record."""
THREADS_EACH = 4
"""Threads of a process: 16 processes of 4 delivered more than 64 of one, and take a quarter of the memory."""
LEAST_PROCESSES = 2
"""One process would have one interpreter again."""
PROCESS_BYTES = 40 << 20
"""Memory of a worker process beside batches and cache: Python, NumPy, OpenCV and scratch memory. 24 to 35 MB were measured."""
SPARE_TASKS = 1
"""Tasks that wait in a process for a thread: the next rows are there when one has finished."""
JOB_ROWS = 64
"""The most rows that are sent to a worker process at a time, which costs both sides some 100 µs of Python."""
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


def plan_workers(
    choice: WorkersChoice,
    workers: int,
    *,
    parts: Sequence[FieldPart],
    ops: Any,
    files: Sequence[Any],
    records: int,
    budget: int,
    needed: int = 0,
    other: str = "",
) -> WorkersPlan:
    """Return what fills batches: `workers` threads in all. LoaderError where processes were asked for and cannot be had.

    Args:
        choice: What the user asked for.
        workers: Reading threads, over all processes together.
        parts: What is read.
        ops: The ops on the way in and at load, and casts.
        files: The shards.
        records: How many records every epoch reads; 0 where a cache holds them.
        budget: The loader's memory budget, in bytes; fewer processes of more threads start where it is small.
        needed: What batches and decoding take of it at least, in bytes.
        other: Another reason against processes, in words.
    """
    if choice == "threads":
        return WorkersPlan(0, workers, "workers='threads'")
    most = max(0, min(int(budget * PROCESSES_SHARE), budget - needed)) // PROCESS_BYTES
    obstacle = other or _obstacle(parts, ops, files)
    if not obstacle and most < LEAST_PROCESSES:
        obstacle = (
            f"memory_budget={budget:,} bytes has no room for {LEAST_PROCESSES} processes of {PROCESS_BYTES:,} bytes"
            " beside the batches"
        )
    if obstacle and choice == "processes":
        raise LoaderError(
            f"workers='processes' is not possible here: {obstacle}; use workers='auto', with which threads read it"
        )
    if obstacle:
        return WorkersPlan(0, workers, obstacle)
    takes, because = (True, "workers='processes'") if choice == "processes" else _automatic(workers, records)
    if not takes:
        return WorkersPlan(0, workers, because)
    processes = min(workers, max(LEAST_PROCESSES, workers // THREADS_EACH), most)
    return WorkersPlan(processes, -(-workers // processes), because)


def _automatic(workers: int, records: int) -> tuple[bool, str]:
    """Return whether "auto" takes processes where they are possible, and why."""
    cpus = usable_cpus()
    if cpus >= MANY_CPUS:
        return True, f"{cpus} CPUs are more than one interpreter keeps busy"
    if min(cpus, workers) < LEAST_PROCESSES:
        return False, "one thread reads, for which the interpreter of this process is enough"
    if not records:
        return False, f"the cache holds all records after the first epoch, and {cpus} CPUs are fewer than {MANY_CPUS}"
    if records < MANY_RECORDS:
        few = f"{cpus} CPUs are fewer than {MANY_CPUS}"
        return False, f"{few}, and an epoch of {records:,} records does not repay the start of processes"
    return True, f"every epoch reads {records:,} records, which repays the start of processes"


def _obstacle(parts: Sequence[FieldPart], ops: Any, files: Sequence[Any]) -> str:
    """Why worker processes cannot read this; empty where they can."""
    if not hasattr(os, "memfd_create"):
        return "this system has no memfd_create"
    if not parts:
        return "the index holds all that is read"
    if any(is_remote(path) for path in files):
        return "records at a URL are fetched by threads"
    try:
        check_sendable((parts, ops))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return f"a codec or an op cannot be sent to another process ({error})"
    return ""


def most_prefetch(plan: WorkersPlan, batch_rows: int) -> int:
    """Half as many batches again as have rows for every job: the first of them may be the last to be full."""
    rows = plan.processes * (plan.threads + SPARE_TASKS) * JOB_ROWS
    return -(-3 * rows // (2 * max(batch_rows, 1)))


class _Sender(pickle.Pickler):
    """Refuses what another process cannot import."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in the script that runs; move it into a module"
            )
        return NotImplemented


def check_sendable(value: Any) -> None:
    """Raise an error where a value holds what another process cannot load."""
    _Sender(io.BytesIO()).dump(value)
