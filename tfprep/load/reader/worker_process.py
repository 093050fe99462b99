"""The work of a worker process of `tfprep.child_process`: it reads and decodes rows into memory that it shares with the process
that trains. Each of its threads takes a whole job: what a job costs beside its rows is some 100 us where many processes share a
core and its caches.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tfprep.augment.transform import GeometryOp
from tfprep.child_process import Mark, Work, sendable_error
from tfprep.load.at_load.mixing import mix_rasters
from tfprep.load.at_load.ops import AtLoad
from tfprep.load.order.schedule import Numbers
from tfprep.load.outputs import Output, fixed_shape, require_bfloat16
from tfprep.load.reader.batch import Packer, Values
from tfprep.load.reader.buffers import MappedMemory
from tfprep.load.reader.parts import Cast, FieldPart
from tfprep.load.reader.rows import RecordReader, Rows, UnreadRow
from tfprep.load.reader.stages import Cuts, with_stages
from tfprep.load.reader.thread_state import ThreadState
from tfprep.storage.local import FileIdentity


@dataclass(frozen=True)
class Setup:
    """All that a worker process needs beside the jobs.

    `memory` is a file descriptor; `outputs` are the arrays that it fills, `packed` the outputs that are text, or arrays that
    differ in size; `cache` has the offset, shape and dtype of each array of the decoded cache by output.
    """

    paths: Sequence[Any]
    identities: Sequence[FileIdentity | None]
    parts: Sequence[FieldPart]
    geometry: Sequence[GeometryOp]
    announce: bool
    memory: int
    outputs: Sequence[Output]
    packed: Sequence[str]
    cache: Mapping[str, tuple[int, tuple[int, ...], str]] | None
    casts: Sequence[Cast]
    cuts: Cuts | None
    mixes: AtLoad | None
    threads: int


class Job(NamedTuple):
    """Rows of a batch to be filled, or with `span`, positions [first, stop) of the run, a full batch to be mixed.

    `offsets` are those of each output's array in the shared memory; `room` is the job's part of the batch's `Space`: its offset
    in the shared memory, its offset in the space, its length.
    """

    batch_rows: int
    offsets: Sequence[int]
    table: Numbers | None = None
    room: tuple[int, int, int] = (0, 0, 0)
    span: tuple[int, int] = (0, 0)


class Outcome(NamedTuple):
    """Result of a job: rows that cannot be read, values that are not in the arrays of the batch, an error; and what it took."""

    unread: Sequence[UnreadRow] = ()
    values: Values | None = None
    error: BaseException | None = None
    nbytes: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    idle_s: float = 0.0


def open_worker(setup: Setup) -> Work:
    """Return the work of a process; a task None does nothing, and shows that the process has started."""
    if hasattr(os, "SCHED_BATCH"):
        # A thread that has read or waited does not take the processor from the thread that trains (sched(7)).
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    faulthandler.register(signal.SIGUSR1, 2)
    if "bfloat16" in {output.dtype for output in (*setup.outputs, *(part.output for part in setup.parts))}:
        require_bfloat16()
    memory = MappedMemory(setup.memory)
    reading = RecordReader(
        setup.paths, setup.identities, setup.parts, setup.geometry, announce=setup.announce, mapped=True
    )
    cache = None if setup.cache is None else {name: memory.array(*place) for name, place in setup.cache.items()}
    stages = with_stages(reading, cache, setup.casts, setup.cuts)
    if "tensorflow" in sys.modules:
        raise ImportError("a codec or an op of this dataset imports TensorFlow, which worker processes do without")
    own, began = threading.local(), time.monotonic()

    def fill_or_mix(job: Job, state: ThreadState) -> Outcome:
        values: dict[str, Any] = {}
        for output, offset in zip(setup.outputs, job.offsets, strict=True):
            values[output.name] = memory.array(offset, (job.batch_rows, *fixed_shape(output)), output.dtype)
        if job.table is None:
            assert setup.mixes is not None
            state.enter("decode")
            mix_rasters(setup.mixes, values, np.arange(*job.span))
            return Outcome()
        place, begin, nbytes = job.room
        packer = Packer(
            setup.packed, memory.array(place, (nbytes,), np.uint8) if nbytes else np.empty(0, np.uint8), begin
        )
        return Outcome(stages.fill(values | packer.values, Rows(job.table), state), packer.values)

    def work(job: Job | None, mark: Mark) -> Outcome:
        if job is None:
            return Outcome()
        if not hasattr(own, "state"):
            own.state = ThreadState(since=began)
        state: ThreadState = own.state
        try:
            outcome = fill_or_mix(job, state)
        except BaseException as error:
            outcome = Outcome(error=sendable_error(error, RuntimeError))
        state.enter("waiting for work")
        outcome = outcome._replace(
            nbytes=state.bytes, read_s=state.read_s, decode_s=state.decode_s, idle_s=state.idle_s
        )
        state.bytes, state.read_s, state.decode_s, state.idle_s = 0, 0.0, 0.0, 0.0
        return outcome

    return work
