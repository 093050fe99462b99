"""The program of a worker process: it reads and decodes rows into memory that it shares with the process that trains.

Arguments: SETUP JOBS REPLIES LOG PARENT (four file descriptors and a process id).

SETUP is a file with a pickled `Setup`. Messages in JOBS are a length (int64) and as many bytes, an array of int64:

    number of the job, rows of the batch, rows of the job, offset of each output's array in the shared memory,
    of the job's part of the batch's `Space`: its offset in the shared memory, its offset in the space, its length;
    the table of `Rows`; of a job without rows, which mixes the samples of a full batch, the first of their positions
    in the run and the one behind them

A reply is one `REPLY`, then a pickled `Outcome` where it says that one follows. Each thread of this process takes a whole job:
what a job costs beside its rows is some 100 us where many processes share a core and its caches.

It ends when its pipe does, so when the process that trains is gone, however it ended; on Linux the kernel ends it then too.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tfprep.augment.transform import GeometryOp
from tfprep.child_process import end_with_parent, sendable_error
from tfprep.fields import Array
from tfprep.load.at_load.mixing import mix_rasters
from tfprep.load.at_load.ops import AtLoad
from tfprep.load.order.schedule import Numbers
from tfprep.load.outputs import require_bfloat16
from tfprep.load.reader.batch import Packer, Values
from tfprep.load.reader.buffers import MappedMemory
from tfprep.load.reader.parts import Cast, FieldPart
from tfprep.load.reader.rows import COLUMNS, RecordReader, Rows, UnreadRow
from tfprep.load.reader.stages import Cuts, with_stages
from tfprep.load.reader.thread_state import ThreadState
from tfprep.python_file import add_folders_of_parent
from tfprep.storage.local import FileIdentity

REPLY = struct.Struct("<qqdddq")
"""Number of the job, bytes read, seconds of reading, of decoding and without work, bytes of the `Outcome` that follows."""
PIPE_BYTES = 1 << 16
READY = -1
"""The number of the job in a worker's first reply."""


@dataclass(frozen=True)
class SharedArray:
    """An array in the shared memory: its output, the shape of a row, the dtype; `offset` and `rows` where they are fixed."""

    output: str
    shape: tuple[int, ...]
    dtype: str
    offset: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Setup:
    """All that a worker process needs beside the jobs.

    `memory` is a file descriptor; `packed` are the outputs that are text, or arrays that differ in size.
    """

    paths: Sequence[Any]
    identities: Sequence[FileIdentity | None]
    parts: Sequence[FieldPart]
    geometry: Sequence[GeometryOp]
    announce: bool
    memory: int
    outputs: Sequence[SharedArray]
    packed: Sequence[str]
    cache: Sequence[SharedArray] | None
    casts: Sequence[Cast]
    cuts: Cuts | None
    mixes: AtLoad | None
    threads: int


@dataclass(frozen=True)
class Outcome:
    """Result of a job, or of the start, beside success: rows that cannot be read, values that are not in the arrays of the batch,
    an error, why it cannot work at all."""

    unread: Sequence[UnreadRow] = ()
    values: Values = field(default_factory=dict)
    error: BaseException | None = None
    refusal: str = ""

    @property
    def is_success(self) -> bool:
        return not self.unread and not self.values and self.error is None and not self.refusal


class _Job(NamedTuple):
    number: int
    values: Mapping[str, Any]
    rows: Rows | None
    table: Numbers
    packer: Packer


class _Program:
    def __init__(self, setup: int, jobs: int, replies: int) -> None:
        self._setup_file, self._jobs, self._replies = setup, jobs, replies
        self._receiving, self._replying = threading.Lock(), threading.Lock()
        self._received = bytearray()

    def run(self) -> None:
        try:
            add_folders_of_parent()
            size = os.fstat(self._setup_file).st_size
            self._prepare(pickle.loads(os.pread(self._setup_file, size, 0)))
        except Exception as error:
            self._reply(READY, Outcome(refusal=f"{type(error).__name__}: {error}"), ThreadState())
            return
        self._reply(READY, Outcome(), ThreadState())
        for number in range(1, self._setup.threads):
            threading.Thread(target=self._do_jobs, name=f"fill-{number}", daemon=True).start()
        self._do_jobs()

    def _prepare(self, setup: Setup) -> None:
        self._setup = setup
        if "bfloat16" in {part.output.dtype for part in setup.parts} | {array.dtype for array in setup.outputs}:
            require_bfloat16()
        self._memory = MappedMemory(setup.memory)
        reading = RecordReader(
            setup.paths, setup.identities, setup.parts, setup.geometry, announce=setup.announce, mapped=True
        )
        cache = None
        if setup.cache is not None:
            cache = {array.output: self._array(array, array.offset, array.rows) for array in setup.cache}
        self._stages = with_stages(reading, cache, setup.casts, setup.cuts)
        self._columns = len(COLUMNS) + 2 * len(reading.fields)
        if "tensorflow" in sys.modules:
            raise ImportError("a codec or an op of this dataset imports TensorFlow, which worker processes do without")

    def _array(self, array: SharedArray, offset: int, rows: int) -> Array:
        return self._memory.array(offset, (rows, *array.shape), array.dtype)

    def _do_jobs(self) -> None:
        """Do the jobs of a thread. The one that waits for a job reads the pipe itself: another would have to be woken twice."""
        worker = ThreadState()
        while True:
            with self._receiving:
                job = self._receive()
            worker.bytes, worker.read_s, worker.decode_s, worker.idle_s = 0, 0.0, 0.0, 0.0
            try:
                outcome = self._do(job, worker)
            except BaseException as error:
                outcome = Outcome(error=sendable_error(error, RuntimeError))
            worker.enter("waiting for work")
            self._reply(job.number, outcome, worker)

    def _do(self, job: _Job, worker: ThreadState) -> Outcome:
        if job.rows is not None:
            return Outcome(self._stages.fill(job.values, job.rows, worker), job.packer.values)
        assert self._setup.mixes is not None
        worker.enter("decode")
        start, stop = job.table.tolist()
        mix_rasters(self._setup.mixes, job.values, np.arange(start, stop))
        return Outcome()

    def _receive(self) -> _Job:
        while len(self._received) < 8 or len(self._received) < 8 + struct.unpack_from("<q", self._received)[0]:
            piece = os.read(self._jobs, PIPE_BYTES)
            if not piece:
                os._exit(0)  # the process that trains has ended, or wants this one to
            self._received += piece
        end = 8 + struct.unpack_from("<q", self._received)[0]
        message = np.frombuffer(self._received[8:end], np.int64)
        del self._received[:end]
        number, batch_rows, rows, *offsets, place, begin, nbytes = message[: 6 + len(self._setup.outputs)].tolist()
        arrays = zip(self._setup.outputs, offsets, strict=True)
        values = {array.output: self._array(array, offset, batch_rows) for array, offset in arrays}
        room = self._memory.array(place, (nbytes,), np.uint8) if nbytes else np.empty(0, np.uint8)
        packer = Packer(self._setup.packed, room, begin)
        table = message[6 + len(offsets) :]
        filled = Rows(table.reshape(self._columns, rows)) if rows else None
        return _Job(number, values | packer.values, filled, table, packer)

    def _reply(self, job: int, outcome: Outcome, worker: ThreadState) -> None:
        extra = b"" if outcome.is_success else pickle.dumps(outcome, 5)
        reply = REPLY.pack(job, worker.bytes, worker.read_s, worker.decode_s, worker.idle_s, len(extra)) + extra
        with self._replying:
            while reply:
                reply = reply[os.write(self._replies, reply) :]


def main() -> None:
    setup, jobs, replies, log, parent = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    end_with_parent(parent)
    if hasattr(os, "SCHED_BATCH"):
        # A thread that has read or waited does not take the processor from the thread that trains (sched(7)).
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    faulthandler.enable(log)
    faulthandler.register(signal.SIGUSR1, log)
    _Program(setup, jobs, replies).run()
