"""What steps need from URLs is fetched ahead of their use, in the order of the run, as far ahead as the memory allows.

Bytes of a batch that are close together in one file are fetched with one request. They are let go when the batch is filled. What
is not fetched ahead, such as a substitute of a bad record, is a request of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np

from tfprep.load.order.permutation import Numbers
from tfprep.load.reader.batch import BatchAssembler
from tfprep.load.reader.files import ByteRange, Fetched
from tfprep.load.reader.rows import Rows
from tfprep.load.threads import Threads, ThreadState

GAP_BYTES = 64 << 10
"""A gap of at most this between two ranges is fetched along with them, which takes a connection of 100 MB/s less than 1 ms."""
REQUEST_BYTES = 8 << 20
"""The largest request: AWS recommends 8 to 16 MB for ranges of large objects (S3's performance guidelines)."""
REQUESTS = 64
"""Requests in flight: at 30 ms, 2,000 per second."""
REQUESTS_OF_ONE = 16
"""Requests in flight for a single batch that the caller waits for."""
_FILE_SHIFT = 44  # offsets stay below 16 TiB, S3's largest object has 48.8


def fetch_now(source: BatchAssembler, rows: Rows) -> Fetched:
    """Fetch what these rows need from URLs."""
    ranges = ranges_of(source, rows)
    fetched = Fetched(source.reader.files.store, ranges)
    if len(ranges) == 1:
        fetched.fetch(ranges[0])
    elif ranges:
        with ThreadPoolExecutor(min(len(ranges), REQUESTS_OF_ONE)) as pool:
            list(pool.map(fetched.fetch, ranges))
    return fetched


class _Step:
    """A step whose bytes are fetched, or are to be."""

    def __init__(self) -> None:
        self.future: Future[Fetched] = Future()
        self.nbytes = self.pending = 0


class ReadAhead:
    """Fetches what the steps from `first` on need, with threads of its own. `stop` takes no lock: a finalizer may call it.

    A step is fetched if all bytes that were fetched and not let go, and its own, are at most `budget`, or no others are kept.
    """

    def __init__(
        self,
        source: BatchAssembler,
        rows_of: Callable[[int], Rows],
        *,
        first: int,
        stop: int | None,
        most_steps: int,
        budget: int,
    ) -> None:
        """`rows_of` says what a step reads. `most_steps`: not more steps than these are fetched ahead: those of an epoch, so that
        no record is fetched for the next one while it may still come into a cache, or the run may end."""
        self._source, self._rows_of, self._stop, self._budget = source, rows_of, stop, budget
        self._next, self._most_steps = first, most_steps
        self._due: list[ByteRange] | None = None
        """The ranges of the next step, which found no room yet."""
        self._steps: dict[int, _Step] = {}
        self._used = self._kept = 0
        self._lock, self._planning = threading.Lock(), threading.Lock()
        self._stopped = False
        self.threads = Threads(fewer="")

    def start(self) -> None:
        """Begin to fetch."""
        self.threads.grow(min(REQUESTS, max(2, self._budget // GAP_BYTES)))
        self.threads.submit(self._fetch_more)

    def fetched(self, step: int) -> Future[Fetched]:
        """The bytes of a step, when they are there."""
        with self._lock:
            return self._steps.setdefault(step, _Step()).future

    def release(self, step: int) -> None:
        """Let go of the bytes of a step."""
        with self._lock:
            gone = self._steps.pop(step, None)
            if gone is not None:
                self._used -= gone.nbytes
                self._kept -= 1
        self.threads.submit(self._fetch_more)

    def stop(self) -> None:
        """Make no more requests; those in flight end by themselves."""
        self._stopped, self._steps = True, {}
        self.threads.stop()

    def join(self) -> None:
        """Wait for the requests in flight, but not for ones that hang."""
        self.stop()
        self.threads.join()

    def _fetch_more(self, state: ThreadState) -> None:
        """Submit the requests of further steps, as far as the budget allows; the consumer does not wait for their plan."""
        with self._planning:
            while not self._stopped and (self._stop is None or self._next < self._stop):
                with self._lock:
                    step = self._steps.setdefault(self._next, _Step())
                try:
                    if self._due is None:
                        self._due = ranges_of(self._source, self._rows_of(self._next))
                except Exception as error:
                    self._stop = self._next
                    step.future.set_exception(error)
                    return
                nbytes = sum(part.stop - part.start for part in self._due)
                with self._lock:
                    if self._kept and (self._used + nbytes > self._budget or self._kept >= self._most_steps):
                        return
                    self._used, self._kept = self._used + nbytes, self._kept + 1
                ranges, self._due = self._due, None
                self._next += 1
                step.nbytes, step.pending = nbytes, len(ranges)
                fetched = Fetched(self._source.reader.files.store, ranges)
                if not ranges:
                    step.future.set_result(fetched)
                for part in ranges:
                    self.threads.submit(partial(self._fetch, step, fetched, part))

    def _fetch(self, step: _Step, fetched: Fetched, part: ByteRange, state: ThreadState) -> None:
        if self._stopped or step.future.done():  # it failed
            return
        state.path, state.offset = self._source.reader.files.paths[part.file], part.start
        state.enter("read")
        try:
            fetched.fetch(part)
        except BaseException as error:
            with self._lock:
                if not step.future.done():
                    step.future.set_exception(error)
            return
        with self._lock:
            step.pending -= 1
            is_last = not step.pending
        if is_last:
            step.future.set_result(fetched)


def ranges_of(source: BatchAssembler, rows: Rows) -> list[ByteRange]:
    """Return what rows need from URLs: bytes that are close together in one file as ranges of about `REQUEST_BYTES` at most.

    The ranges ascend and do not overlap.
    """
    row, file, start, stop = source.byte_spans(rows)
    if not len(row):
        return []
    first, last = (file << _FILE_SHIFT) + start, (file << _FILE_SHIFT) + stop
    order = np.argsort(first, kind="stable")
    row, first, last = row[order], first[order], last[order]
    ends: Numbers = np.maximum.accumulate(last)
    breaks = np.concatenate([[True], first[1:] > ends[:-1] + GAP_BYTES])
    begins = np.maximum.accumulate(np.where(breaks, first, 0))
    number = (first - begins) // REQUEST_BYTES
    breaks[1:] |= (number[1:] != number[:-1]) & (row[1:] != row[:-1]) & (first[1:] >= ends[:-1])
    at = np.flatnonzero(breaks)
    ranges = []
    for begin, end in zip(first[at].tolist(), np.maximum.reduceat(last, at).tolist(), strict=True):
        base = (begin >> _FILE_SHIFT) << _FILE_SHIFT
        ranges.append(ByteRange(begin >> _FILE_SHIFT, begin - base, end - base))
    return ranges
