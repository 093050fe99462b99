"""A batch while its rows are filled, the decoded rows that are kept, and the records that cannot be read."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError, RecordError
from tfprep.fields import Array
from tfprep.load.budget import row_bytes
from tfprep.load.options import OnBad
from tfprep.load.order.samplers import Numbers
from tfprep.load.outputs import Output
from tfprep.load.reader.files import Fetched
from tfprep.load.reader.rows import Rows
from tfprep.load.slots import private_block


class Batch:
    """One step's arrays by output: [B, ...] where all samples have one shape, else a list of B arrays.

    Attributes:
        step: The step.
        future: Done when the batch is complete.
        rows: What fills it; empty before that is planned.
        values: The arrays; empty before filling begins.
        lost: Rows that stay empty.
        attempts: How many samples were tried in place of a row's own, by row.
        fetched: What was fetched from URLs for its rows.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.future = Future[None]()
        self.rows = Rows(np.empty((0, 0), np.int64))
        self.values: dict[str, Any] = {}
        self.lost: list[int] = []
        self.attempts: dict[int, int] = {}
        self.fetched: Fetched | None = None
        self._empty, self._waits = 0, 2
        self._lock = threading.Lock()

    def may_begin(self) -> bool:
        """Note that the window has room for it, or that its bytes are there; return True when both have been noted."""
        with self._lock:
            self._waits -= 1
            return not self._waits

    def begin(self, rows: Rows, values: dict[str, Any]) -> None:
        """These rows of these arrays are filled from now on."""
        self.rows, self.values, self._empty = rows, values, len(rows)

    def fill(self, rows: int) -> bool:
        """Note that `rows` more rows are filled, or stay empty; return True if these were the last ones."""
        with self._lock:
            self._empty -= rows
            return not self._empty

    def fail(self, error: BaseException) -> None:
        """End the wait for this batch with an error, unless it is complete."""
        if isinstance(error, StopIteration):  # it would end the pass
            error = LoaderError(f"a geometry op or a codec raised StopIteration: {error}")
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def drop_lost(self) -> None:
        """Drop lost rows; the arrays are new ones."""
        kept = np.setdiff1d(np.arange(len(self.rows)), self.lost)
        for name, value in self.values.items():
            self.values[name] = [value[row] for row in kept] if isinstance(value, list) else value[kept]


class Chunk(NamedTuple):
    """Some rows of a batch."""

    batch: Batch
    rows: Rows


# --- decoded records --------------------------------------------------------------------------------------------------


class DecodedCache:
    """Rows of every output, for the records that fit, so that later epochs read and decode nothing: a hit is one copy.

    It keeps the records that come first and never drops one: under a permutation every record is read equally often, so no other
    choice is better. It takes memory from the system bit by bit, and in large pages. Two threads that read the same record write
    the same bytes.
    """

    def __init__(self, outputs: Sequence[Output], records: int, budget: int) -> None:
        self.record_bytes = row_bytes(outputs)
        self.capacity = min(records, budget // max(self.record_bytes, 1))
        self._slots = np.full(records, -1, np.int64)  # by record
        self._assigned = 0
        self._written = np.zeros(self.capacity, bool)  # by slot
        self._arrays: dict[str, Array] = {}
        for output in outputs:
            shape = (self.capacity, *output.fixed_shape)
            block = None if output.dtype == "string" else private_block(self.capacity * output.row_bytes)
            dtype = object if block is None else output.dtype
            self._arrays[output.name] = np.ndarray(shape, dtype, buffer=block)
        self._lock = threading.Lock()
        self._full = False

    @property
    def records(self) -> int:
        """The number of records that it holds by now."""
        return int(np.count_nonzero(self._written))

    @property
    def nbytes(self) -> int:
        return self.records * self.record_bytes

    @property
    def full(self) -> bool:
        """Return True if every record is held, so that nothing is read or decoded any more."""
        self._full = self._full or (self._assigned == len(self._slots) and bool(self._written.all()))
        return self._full

    def holds(self, records: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of the records it holds."""
        slots = self._slots[records]
        held = slots >= 0
        held[held] = self._written[slots[held]]
        return held

    def copy(self, rows: Rows, values: Mapping[str, Any]) -> None:
        """Fill rows of the arrays in `values` whose records it holds."""
        _copy_rows(self._arrays, values, self._slots[rows["record"]], rows["row"])

    def keep(self, rows: Rows, values: Mapping[str, Any]) -> None:
        """Keep rows that have been filled, as far as there is room."""
        records = rows["record"]
        if self._assigned < self.capacity:
            with self._lock:
                new = np.unique(records[self._slots[records] < 0])[: self.capacity - self._assigned]
                self._slots[new] = self._assigned + np.arange(len(new))
                self._assigned += len(new)
        slots = self._slots[records]
        kept = slots >= 0
        _copy_rows(values, self._arrays, rows["row"][kept], slots[kept])
        self._written[slots[kept]] = True


def _copy_rows(source: Mapping[str, Any], target: Mapping[str, Any], rows_from: Numbers, rows_to: Numbers) -> None:
    """Copy rows of the cache's arrays to rows of a batch's, or back."""
    if not len(rows_to):
        return
    first, stop = int(rows_to[0]), int(rows_to[0]) + len(rows_to)
    together = bool((rows_to == np.arange(first, stop)).all())
    for name in source.keys() & target.keys():
        if together:
            np.take(source[name], rows_from, axis=0, out=target[name][first:stop], mode="clip")
            continue
        for row_from, row_to in zip(rows_from.tolist(), rows_to.tolist(), strict=True):
            target[name][row_to] = source[name][row_from]


# --- bad records ------------------------------------------------------------------------------------------------------

LISTED = 1_000
"""All bad records are counted, and up to this number are named."""


class BadRecords:
    """The policy, and the records that were left out under it. Safe to use from any thread."""

    def __init__(self, on_bad: OnBad) -> None:
        self.on_bad = on_bad
        self._lock = threading.Lock()
        self._listed: list[dict[str, Any]] = []
        self._known: set[int] = set()
        self.rows_lost = 0

    @property
    def count(self) -> int:
        """Return how many different records were bad."""
        return len(self._known)

    def report(self) -> list[dict[str, Any]]:
        """Return the file of each record, its number there, the sample's key, and the reason."""
        return [dict(bad) for bad in self._listed]

    def known(self, record: int) -> bool:
        return record in self._known

    def note(self, record: int, key: str, error: RecordError, *, is_first: bool) -> None:
        """Note a record; `is_first`: it is the row's own, and not a substitute."""
        with self._lock:
            self.rows_lost += is_first
            if record in self._known:
                return
            self._known.add(record)
            if len(self._listed) < LISTED:
                place = {"path": error.path, "record": error.record or 0}
                self._listed.append({**place, "key": key, "reason": error.reason})
