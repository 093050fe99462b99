"""The work of a loader's worker process: it reads and decodes rows into memory that it shares with the process that trains."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfprep.codecs.raw import require_bfloat16
from tfprep.load.outputs import Output
from tfprep.load.reader.rows import Reading, RowReader, Rows, UnreadRow
from tfprep.load.reader.thread_state import ThreadState
from tfprep.load.slots import MappedMemory
from tfprep.pool import Mark, Work, sendable_error


@dataclass(frozen=True)
class Setup:
    """What a worker process needs besides the jobs.

    `memory` is a file descriptor; `outputs` are the arrays that it fills, `sent` the outputs whose values it sends back: text,
    and fields of N rows; `cache` has the offset, shape and dtype of each array of the decoded cache by output; `threads` of its
    threads work at a time.
    """

    reading: Reading
    memory: int
    outputs: Sequence[Output]
    sent: Sequence[str]
    cache: Mapping[str, tuple[int, tuple[int, ...], str]] | None
    threads: int


class Job(NamedTuple):
    """Rows to be filled, as `Rows.table`, of a batch of `batch_rows` whose arrays are at these offsets in the shared memory."""

    batch_rows: int
    offsets: Sequence[int]
    table: Any


class Outcome(NamedTuple):
    """Rows that cannot be read, the values that are sent by output and row, an error, and counts.

    The counts are the bytes that were read, and the seconds of reading, decoding and waiting.
    """

    unread: Sequence[UnreadRow] = ()
    values: Mapping[str, Mapping[int, Any]] = {}  # can be sent, unlike a MappingProxyType
    error: BaseException | None = None
    counts: tuple[int, float, float, float] = (0, 0.0, 0.0, 0.0)


def open_worker(setup: Setup) -> Work:
    """Return the work of a process: a task is a `Job`, its items are the rows."""
    if hasattr(os, "SCHED_BATCH"):
        # A thread that has read or waited does not take the processor from the thread that trains (sched(7)).
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    parts = [part for parts in (setup.reading.parts, *setup.reading.added) for part in parts]
    if "bfloat16" in {
        one.dtype for one in (*setup.outputs, *(one for part in parts for one in (part.output, part.spec)))
    }:
        require_bfloat16()
    memory = MappedMemory(setup.memory)
    cache = None if setup.cache is None else {name: memory.array(*place) for name, place in setup.cache.items()}
    reader = RowReader(setup.reading, cache)
    if "tensorflow" in sys.modules:
        raise ImportError("a codec or an op of this dataset imports TensorFlow, which worker processes do without")
    began, own = time.monotonic(), threading.local()

    def fill(values: Mapping[str, Any], rows: Rows, state: ThreadState, mark: Mark) -> list[UnreadRow]:
        """Fill rows; one by one after one of them may have ended a process.

        Checksums are compared then, so that a damaged record is found before it is decoded, and files are not mapped: one that
        was cut short is an error.
        """
        if not mark.careful:
            return reader.fill(values, rows, state)
        unread = [
            UnreadRow(number, f"each process that read it ended: {reason}") for number, reason in mark.lost.items()
        ]
        for number in sorted(set(range(len(rows))) - mark.lost.keys()):
            mark(number)
            row = rows.take([number])
            row["verify"][:] = 1
            unread += [UnreadRow(number, bad.reason) for bad in reader.fill(values, row, state)]
        return sorted(unread)

    def work(job: Job, mark: Mark) -> Outcome:
        state: ThreadState = own.__dict__.setdefault("state", ThreadState(since=began))
        state.enter("work")
        values: dict[str, Any] = {}
        rows = Rows(job.table)
        for output, offset in zip(setup.outputs, job.offsets, strict=True):
            shape = output.of_form(int(rows["form"][0])).fixed_shape
            values[output.name] = memory.array(offset, (job.batch_rows, *shape), output.dtype)
        sent: dict[str, dict[int, Any]] = {name: {} for name in setup.sent}
        try:
            unread = fill(values | sent, rows, state, mark)
        except BaseException as error:
            return Outcome(error=sendable_error(error, RuntimeError))
        state.enter("waiting for work")
        counts = state.bytes, state.read_s, state.decode_s, state.idle_s
        state.bytes, state.read_s, state.decode_s, state.idle_s = 0, 0.0, 0.0, 0.0
        return Outcome(unread, sent, counts=counts)

    return work
