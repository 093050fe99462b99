"""Records at URLs are fetched ahead of their use, in few large requests, as far ahead as the memory allows.

The plan follows the order of the run. It takes the rows of some steps together, and fetches byte ranges that are close together
in one file with one request. A range is kept until the last step that needs it
has been delivered. What is not planned, such as a substitute of a bad record, is a request of its own.

Memory: the ranges that are kept, and twice those on their way, take at most `budget` bytes; beyond it each reading thread may
fetch one range that a batch waits for.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial

import numpy as np

from tfprep.load.order.permutation import Numbers
from tfprep.load.order.schedule import BatchSchedule
from tfprep.load.reader.batch import BatchAssembler
from tfprep.load.reader.files import ByteRange
from tfprep.load.reader.rows import Rows
from tfprep.load.threads import Threads, ThreadState

GAP_BYTES = 64 << 10
"""A gap of at most this between two ranges is fetched along with them, which takes a connection of 100 MB/s less than 1 ms."""
REQUEST_BYTES = 8 << 20
"""The largest request: AWS recommends 8 to 16 MB for ranges of large objects (S3's performance guidelines)."""
REQUESTS = 64
"""Requests in flight: at 30 ms, 2,000 per second."""
PLAN_ROWS, PLAN_BYTES = 8192, 64 << 20
"""The most rows, and bytes, that are planned together."""
MOST_ROWS_AHEAD = 1 << 18
"""Rows by which the plan may be ahead of the trainer: at 1,000 images/s four minutes."""
_FILE_SHIFT = 44  # offsets stay below 16 TiB, S3's largest object has 48.8


class ReadAhead:
    """Fetches what the steps from `start` on need, with threads of its own. `stop` takes no lock: a finalizer may call it."""

    def __init__(self, source: BatchAssembler, schedule: BatchSchedule, budget: int, *, start: int = 0) -> None:
        self._source, self._schedule, self._budget = source, schedule, budget
        self._fetched = source.reader.files.fetched
        self._planned_step = self._delivered_step = start

        def steps() -> Iterator[int]:
            for step in itertools.count(start):
                self._planned_step = step
                yield step

        self._plan = plan_ranges(source, schedule, steps(), max(budget // 4, 1))
        self._threads = Threads(fewer="")
        self._lock = threading.Lock()
        self._planned: deque[ByteRange] = deque()
        self._kept: list[tuple[int, int, ByteRange]] = []  # a heap by the last step
        self._numbers = itertools.count()
        self._used = 0
        self._planning = True
        self._stopped = False

    def start(self) -> None:
        """Begin to fetch.

        The first part is planned before this returns: reading threads that begin before there is a plan would make requests of
        their own, for records that the plan then fetches once more.
        """
        self._threads.grow(min(REQUESTS, max(2, self._budget // GAP_BYTES)))
        self._extend_plan()

    def delivered(self, step: int) -> None:
        """Let go of what no later step needs."""
        gone = []
        with self._lock:
            self._delivered_step = step
            while self._kept and self._kept[0][0] <= step:
                gone.append(heapq.heappop(self._kept)[2])
            self._used -= sum(part.nbytes for part in gone)
            self._submit()
        self._fetched.remove(gone)

    def stop(self) -> None:
        """Make no more requests, and let go of all ranges, in a thread; requests in flight end by themselves."""
        self._stopped = True
        self._threads.submit(lambda state: self._let_go())
        self._threads.stop()

    def join(self) -> None:
        """Wait for the requests in flight, but not for ones that hang, and let go of all ranges."""
        self.stop()
        self._threads.join()
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            gone = [part for *_, part in self._kept] + list(self._planned)
            self._kept, self._used = [], 0
            self._planned.clear()
        self._fetched.remove(gone)

    def _submit(self) -> None:
        """Submit the ranges that the budget allows, and then the next part of the plan. Runs under the lock."""
        while self._planned and (not self._used or self._used + 2 * self._planned[0].nbytes <= self._budget):
            part = self._planned.popleft()
            self._used += 2 * part.nbytes
            heapq.heappush(self._kept, (part.last_step, next(self._numbers), part))
            self._threads.submit(partial(self._fetch, part))
        # The plan is an epoch ahead of the trainer at most, so that no record is fetched for the next one while it may still
        # come into a cache, or the run may end.
        rows = (self._planned_step - self._delivered_step) * self._schedule.batch_size
        if not self._planned and not self._planning and rows <= min(MOST_ROWS_AHEAD, self._schedule.size):
            self._planning = True
            self._threads.submit(lambda state: self._extend_plan())

    def _fetch(self, part: ByteRange, state: ThreadState) -> None:
        if self._stopped:
            return
        try:
            if self._source.to_fetch(part.records, np.full(len(part.records), part.file)).any():
                self._fetched.fetch(part)
            else:
                self._fetched.remove([part])
        except BaseException:  # The reading threads get the same error, in a batch that names it.
            self.stop()
        with self._lock:
            self._used -= part.nbytes  # one of the two that it counts for on its way
            self._submit()

    def _extend_plan(self) -> None:
        """Plan some more steps, outside of the lock: the consumer must not wait for it."""
        try:
            ranges = None if self._stopped else next(self._plan, None)
        except Exception:  # as in `_fetch`; Ctrl-C in the consumer's thread is the consumer's
            self.stop()
            return
        if ranges is None:
            return  # The plan has ended, and `_planning` stays True.
        self._fetched.add(ranges)
        with self._lock:
            stopped = self._stopped
            self._planned.extend(ranges)
            self._planning = False
            self._submit()
        if stopped:
            self._let_go()


def plan_ranges(
    source: BatchAssembler, schedule: BatchSchedule, steps: Iterator[int], most_bytes: int
) -> Iterator[list[ByteRange]]:
    """Yield the ranges of consecutive parts of the run, each in the order of first use; none where nothing is to be fetched.

    Args:
        source: Where the records are.
        schedule: The order of the run.
        steps: The steps, without an end.
        most_bytes: The most bytes of records that are planned together.
    """
    most_rows = PLAN_ROWS // 4  # the first ones soon
    while True:
        count = math.ceil(min(most_rows, schedule.size) / schedule.batch_size)
        numbers = list(itertools.islice(steps, count))
        numbers = [number for number in numbers if schedule.steps is None or number < schedule.steps]
        if not numbers:
            return
        most_rows, batches = PLAN_ROWS, source.locate(schedule.batch_indices(numbers))
        step = np.repeat(numbers, [len(rows) for rows in batches])
        rows = Rows(np.concatenate([rows.table for rows in batches], axis=1))
        kept = source.to_fetch(rows["record"], rows.place[0])
        rows, step = rows.take(kept), step[kept]
        if not len(rows):
            yield []
        while len(rows):
            fit = np.searchsorted(np.cumsum(rows.place[2]), min(most_bytes, PLAN_BYTES), "right")
            cut = max(1, int(fit))
            yield _ranges(source, rows.take(slice(0, cut)), step[:cut])
            rows, step = rows.take(slice(cut, None)), step[cut:]


def _ranges(source: BatchAssembler, rows: Rows, step: Numbers) -> list[ByteRange]:
    """Join bytes that are close together in one file, to ranges of about `REQUEST_BYTES` at most."""
    row, file, frame, start, stop = source.reader.byte_ranges(rows)
    if not len(row):
        return []
    first, last = (file << _FILE_SHIFT) + start, (file << _FILE_SHIFT) + stop
    order = np.lexsort((row, first))
    row, frame, first, last = row[order], frame[order], first[order], last[order]
    ends = np.maximum.accumulate(last)
    breaks = np.concatenate([[True], first[1:] > ends[:-1] + GAP_BYTES])
    begins = np.maximum.accumulate(np.where(breaks, first, 0))
    number = (first - begins) // REQUEST_BYTES
    breaks[1:] |= (number[1:] != number[:-1]) & (row[1:] != row[:-1]) & (first[1:] >= ends[:-1])
    at = np.flatnonzero(breaks)
    uses, last_steps = np.minimum.reduceat(row, at), np.maximum.reduceat(step[row], at)
    bounds = [*at.tolist(), len(row)]
    records = rows["record"]
    ranges = []
    for which in np.argsort(uses, kind="stable").tolist():
        span = slice(bounds[which], bounds[which + 1])
        begin, end = int(first[span.start]), int(last[span].max())
        number_of_file = begin >> _FILE_SHIFT
        base = number_of_file << _FILE_SHIFT
        frames = tuple(dict.fromkeys(frame[span].tolist()))
        last_step = int(last_steps[which])
        ranges.append(ByteRange(number_of_file, begin - base, end - base, last_step, records[row[span]], frames))
    return ranges
