"""The program of a worker process: it reads and decodes rows into memory that it shares with the process that trains.

Arguments: SETUP JOBS REPLIES LOG PARENT (four file descriptors and a process id).

SETUP is a file with a pickled `Setup`. Messages in JOBS are a length (int64) and as many bytes, an array of int64:

    number of the job, rows of the batch, rows of the job, offset of each output's array in the shared memory, the table of `Rows`

A reply is one `REPLY`, then a pickled `Outcome` where it says that one follows. The threads of this process share the rows of a
job, so that there is one message for many rows, and a job is done soon.

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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfprep.augment.transform import GeometryOp
from tfprep.child_process import end_with_parent, sendable_error
from tfprep.fields import Array
from tfprep.load.reader.parts import FieldPart
from tfprep.load.reader.rows import COLUMNS, RowFiller, Rows, UnreadRow
from tfprep.load.reader.shared import MappedMemory
from tfprep.load.reader.worker import Worker

REPLY = struct.Struct("<qqddq")
"""Number of the job, bytes read, seconds of reading, seconds of decoding, bytes of the `Outcome` that follows."""
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
    """What a worker process needs beside the jobs. `memory` is a file descriptor."""

    paths: Sequence[Any]
    parts: Sequence[FieldPart]
    geometry: Sequence[GeometryOp]
    announce: bool
    memory: int
    outputs: Sequence[SharedArray]
    cache: Sequence[SharedArray]
    threads: int


@dataclass(frozen=True)
class Outcome:
    """What a job, or the start, had beside success: rows that cannot be read, an error, why it cannot work at all."""

    unread: Sequence[UnreadRow] = ()
    error: BaseException | None = None
    refusal: str = ""

    @property
    def is_success(self) -> bool:
        return not self.unread and self.error is None and not self.refusal


@dataclass(eq=False)
class _Job:
    """Rows whose parts are filled by several threads; what these have done, together."""

    number: int
    batch_rows: int
    offsets: Array
    rows: Rows
    begun: int = 0
    filled: int = 0
    bytes: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    unread: list[UnreadRow] = field(default_factory=list)
    error: BaseException | None = None


class _Program:
    def __init__(self, setup: int, jobs: int, replies: int) -> None:
        self._setup_file, self._jobs, self._replies = setup, jobs, replies
        self._lock = threading.Lock()
        self._receiving = threading.Lock()
        self._received = bytearray()
        self._job: _Job | None = None  # the one of which threads take parts

    def run(self) -> None:
        try:
            size = os.fstat(self._setup_file).st_size
            self._prepare(pickle.loads(os.pread(self._setup_file, size, 0)))
        except Exception as error:
            self._reply(READY, Outcome(refusal=f"{type(error).__name__}: {error}"))
            return
        self._reply(READY, Outcome())
        for number in range(1, self._setup.threads):
            threading.Thread(target=self._fill_parts, name=f"fill-{number}", daemon=True).start()
        self._fill_parts()

    def _prepare(self, setup: Setup) -> None:
        self._setup = setup
        self._memory = MappedMemory(setup.memory)
        self._filler = RowFiller(setup.paths, setup.parts, setup.geometry, announce=setup.announce, mapped=True)
        self._cache = {array.output: self._array(array, array.offset, array.rows) for array in setup.cache}
        self._outputs = len(setup.outputs)
        self._columns = len(COLUMNS) + 2 * len(self._filler.fields)
        if "tensorflow" in sys.modules:
            raise ImportError("a codec or an op of this dataset imports TensorFlow, which worker processes do without")

    def _array(self, array: SharedArray, offset: int, rows: int) -> Array:
        return self._memory.array(offset, (rows, *array.shape), array.dtype)

    def _fill_parts(self) -> None:
        """What each thread does."""
        worker = Worker()
        while True:
            job, start, stop = self._next_part()
            worker.bytes, worker.read_s, worker.decode_s = 0, 0.0, 0.0
            unread: list[UnreadRow] = []
            error: BaseException | None = None
            try:
                unread = self._fill(job, job.rows.take(slice(start, stop)), worker)
            except BaseException as caught:
                error = sendable_error(caught, RuntimeError)
            worker.enter("waiting for work")
            self._note(job, start, stop, unread, error, worker)

    def _next_part(self) -> tuple[_Job, int, int]:
        """Some rows of a job; of the next one as soon as all rows of this one are taken.

        The thread that waits for a job reads the pipe itself: another one would have to be woken twice.
        """
        with self._receiving:
            job = self._job or self._receive()
            start, size = job.begun, -(-len(job.rows) // self._setup.threads)
            job.begun = min(start + size, len(job.rows))
            self._job = job if job.begun < len(job.rows) else None
            return job, start, job.begun

    def _note(
        self, job: _Job, start: int, stop: int, unread: list[UnreadRow], error: BaseException | None, worker: Worker
    ) -> None:
        """Note that a part of a job is done, and reply when all parts are."""
        with self._lock:
            job.filled += stop - start
            job.bytes += worker.bytes
            job.read_s += worker.read_s
            job.decode_s += worker.decode_s
            job.unread += [UnreadRow(start + failure.number, failure.reason) for failure in unread]
            job.error = job.error or error
            if job.filled == len(job.rows):
                outcome = Outcome(error=job.error) if job.error else Outcome(job.unread)
                self._reply(job.number, outcome, job.bytes, job.read_s, job.decode_s)

    def _fill(self, job: _Job, rows: Rows, worker: Worker) -> list[UnreadRow]:
        values = {
            array.output: self._array(array, offset, job.batch_rows)
            for array, offset in zip(self._setup.outputs, job.offsets.tolist(), strict=True)
        }
        cached = rows["cached"] != 0
        self._copy(self._cache, values, rows["slot"][cached], rows["row"][cached], worker)
        others = np.flatnonzero(~cached)
        if not len(others):
            return []
        part = rows.take(others)
        unread = self._filler.fill(values, part, worker)
        kept = part["slot"] >= 0
        kept[[failure.number for failure in unread]] = False
        self._copy(values, self._cache, part["row"][kept], part["slot"][kept], worker)
        return [UnreadRow(int(others[failure.number]), failure.reason) for failure in unread]

    def _copy(self, source: Any, target: Any, rows_from: Array, rows_to: Array, worker: Worker) -> None:
        if not len(rows_from):
            return
        worker.enter("read")
        for name in self._cache:
            for row_from, row_to in zip(rows_from.tolist(), rows_to.tolist(), strict=True):
                target[name][row_to] = source[name][row_from]

    def _receive(self) -> _Job:
        while len(self._received) < 8 or len(self._received) < 8 + struct.unpack_from("<q", self._received)[0]:
            piece = os.read(self._jobs, PIPE_BYTES)
            if not piece:
                os._exit(0)  # the process that trains has ended, or wants this one to
            self._received += piece
        end = 8 + struct.unpack_from("<q", self._received)[0]
        message = np.frombuffer(bytes(self._received[8:end]), np.int64)
        del self._received[:end]
        (number, batch_rows, rows), (offsets, table) = message[:3].tolist(), np.split(message[3:], [self._outputs])
        return _Job(number, batch_rows, offsets, Rows(table.reshape(self._columns, rows)))

    def _reply(self, job: int, outcome: Outcome, nbytes: int = 0, read_s: float = 0.0, decode_s: float = 0.0) -> None:
        extra = b"" if outcome.is_success else pickle.dumps(outcome)
        reply = REPLY.pack(job, nbytes, read_s, decode_s, len(extra)) + extra
        while reply:
            reply = reply[os.write(self._replies, reply) :]


def main() -> None:
    setup, jobs, replies, log, parent = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    end_with_parent(parent)
    faulthandler.enable(log)
    faulthandler.register(signal.SIGUSR1, log)
    _Program(setup, jobs, replies).run()
