"""The work of a worker process of `tfprep.child_process`: it reads and decodes rows into memory that it shares with the process
that trains. Each of its threads serves one connection, over which it gets jobs.
"""

from __future__ import annotations

import os
import pickle
import select
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from tfprep.child_process import NO_ITEM, Mark, Work, sendable_error
from tfprep.codecs.raw import require_bfloat16
from tfprep.load.outputs import Output, fixed_shape
from tfprep.load.reader.buffers import MappedMemory
from tfprep.load.reader.parts import Cast
from tfprep.load.reader.rows import Reading, Rows, UnreadRow, open_reader, row_columns
from tfprep.load.reader.stages import Cuts, with_stages
from tfprep.load.reader.thread_state import ThreadState


@dataclass(frozen=True)
class Setup:
    """All that a worker process needs beside the jobs.

    `memory` is a file descriptor; `outputs` are the arrays that it fills, `sent` the outputs whose values it sends back: text,
    and fields of N rows; `cache` has the offset, shape and dtype of each array of the decoded cache by output; `threads` of its
    threads work at a time.
    """

    reading: Reading
    memory: int
    outputs: Sequence[Output]
    sent: Sequence[str]
    cache: Mapping[str, tuple[int, tuple[int, ...], str]] | None
    casts: Sequence[Cast]
    cuts: Cuts | None
    threads: int


def job_message(batch_rows: int, offsets: Sequence[int], rows: Rows) -> bytes:
    """A job: the rows to be filled, of a batch of so many, whose arrays lie at these offsets in the shared memory.

    The bytes of its numbers take a tenth of the time of a pickle.
    """
    return np.array([batch_rows, *offsets], np.int64).tobytes() + rows.table.tobytes()


class Outcome(NamedTuple):
    """Result of a job: rows that cannot be read, the values that are sent by output and row, an error; and what it took."""

    unread: Sequence[UnreadRow] = ()
    values: Mapping[str, Mapping[int, Any]] | None = None
    error: BaseException | None = None
    nbytes: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    idle_s: float = 0.0


def open_worker(setup: Setup) -> Work:
    """Return the work of a process: a task is the descriptors of the connections to serve; none show that it has started."""
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
    reader = open_reader(setup.reading, mapped=True)
    stages = with_stages(reader, cache, setup.casts, setup.cuts)
    if "tensorflow" in sys.modules:
        raise ImportError("a codec or an op of this dataset imports TensorFlow, which worker processes do without")
    first, columns = 1 + len(setup.outputs), len(row_columns(reader, 1 + len(setup.reading.added)))
    began, receiving = time.monotonic(), threading.Lock()
    connections: dict[int, Connection] = {}
    waiting = select.poll()

    def filled(job: bytes, state: ThreadState) -> Outcome:
        numbers = np.frombuffer(job, np.int64)
        batch_rows, *offsets = numbers[:first].tolist()
        values: dict[str, Any] = {}
        rows = Rows(numbers[first:].reshape(columns, -1))
        for output, offset in zip(setup.outputs, offsets, strict=True):
            shape = fixed_shape(output.of_form(int(rows["form"][0])))
            values[output.name] = memory.array(offset, (batch_rows, *shape), output.dtype)
        sent: dict[str, dict[int, Any]] = {name: {} for name in setup.sent}
        try:
            return Outcome(stages.fill(values | sent, rows, state), sent)
        except BaseException as error:
            return Outcome(error=sendable_error(error, RuntimeError))

    def serve(descriptors: Sequence[int], mark: Mark) -> None:
        """Fill the rows that come over the connections. One thread waits for all of them: to wake each for its own costs more."""
        with receiving:
            for descriptor in set(descriptors) - connections.keys():
                connections[descriptor] = Connection(descriptor)
                waiting.register(descriptor, select.POLLIN)
        state = ThreadState(since=began)
        while descriptors:
            with receiving:
                connection = connections[waiting.poll()[0][0]]
                try:
                    job = connection.recv_bytes()
                except EOFError:
                    return
            outcome = filled(job, state)
            mark(NO_ITEM)  # reports what native code has written
            state.enter("waiting for work")
            outcome = outcome._replace(
                nbytes=state.bytes, read_s=state.read_s, decode_s=state.decode_s, idle_s=state.idle_s
            )
            connection.send_bytes(pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL))
            state.bytes, state.read_s, state.decode_s, state.idle_s = 0, 0.0, 0.0, 0.0

    return serve
