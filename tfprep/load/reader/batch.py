"""Filling the rows of a batch: which records they take, what the index and the cache know, and what happens to bad records."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError, RecordError
from tfprep.fields import Array
from tfprep.load.budget import PREFETCH_FROM_MEMORY, row_bytes
from tfprep.load.mixing import mix_batch
from tfprep.load.options import OnBad
from tfprep.load.order.samplers import Numbers
from tfprep.load.order.schedule import Samples
from tfprep.load.outputs import Output
from tfprep.load.plan import LoaderPlan
from tfprep.load.reader.files import ByteSpans, Fetched
from tfprep.load.reader.rows import RowReader, Rows, UnreadRow
from tfprep.load.reader.workers import Part, Unread, WorkerPool
from tfprep.load.slots import private_block
from tfprep.load.threads import ThreadState


@dataclass
class Batch:
    """One step's arrays by output: [B, ...] where all samples have one shape, else a list of B arrays.

    `rows` says what fills them. Rows in `lost` stay empty; `attempts` counts the samples that were tried in place of a row's own.
    """

    step: int
    rows: Rows
    values: dict[str, Any]
    lost: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    fetched: Fetched | None = None
    """What was fetched from URLs for its rows."""

    def drop_lost(self) -> None:
        """Drop lost rows; the arrays are new ones."""
        kept = np.setdiff1d(np.arange(len(self.rows)), self.lost)
        for name, value in self.values.items():
            self.values[name] = [value[row] for row in kept] if isinstance(value, list) else value[kept]


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
ATTEMPTS = 100


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


# --- batches ----------------------------------------------------------------------------------------------------------


class BatchAssembler:
    """Fills batches by a plan. Called by many threads at once, each with a state of its own.

    The first time that a record is read its checksums are compared, unless the option `verify` says otherwise.
    """

    def __init__(self, plan: LoaderPlan, bad: BadRecords, cache: DecodedCache | None) -> None:
        self._plan, self._table, self._indexed, self._bad, self._cache = plan, plan.table, plan.indexed, bad, cache
        self.reader = RowReader(plan.reading)
        self._verified = np.full(plan.table.records, plan.options.verify == "never", np.uint8)

    @property
    def prefetch(self) -> int:
        """The number of batches that may be filled beyond the one delivered last."""
        planned, cache = self._plan.memory.prefetch, self._cache  # `close` may take it away at any time
        if cache is not None and cache.full and self._plan.mixing is None:  # all rows are copied as they are
            return min(planned, PREFETCH_FROM_MEMORY)
        return planned

    def byte_spans(self, rows: Rows) -> ByteSpans:
        """The bytes at URLs that reading these rows takes; not those of rows that the cache holds."""
        cache = self._cache
        return self.reader.byte_spans(rows if cache is None else rows.take(~cache.holds(rows["record"])))

    def close(self) -> None:
        """Close the files and let go of the cache."""
        self.reader.files.close()
        self._cache = None

    # --- where the records are ----------------------------------------------------------------------------------------

    def rows_of(self, steps: Sequence[int]) -> list[Rows]:
        """The rows of the batch of each step. Many steps at once cost hardly more than one."""
        schedule = self._plan.schedule
        positions = schedule.positions(steps)
        sizes = [len(position) for position in positions]
        rows = self.located(schedule.at(np.concatenate(positions)), np.concatenate([np.arange(size) for size in sizes]))
        return [Rows(table) for table in np.split(rows.table, np.cumsum(sizes)[:-1], axis=1)]

    def located(self, samples: Samples, numbers: Numbers) -> Rows:
        """These samples as rows of a batch, of these numbers, with the places of their records."""
        records = self._table.record(samples.row, samples.variant)
        has_label = "label" in self._indexed.values()
        rows = Rows(np.zeros((self.reader.columns, len(records)), np.int64))
        rows.table[: len(samples) + 1] = numbers, *samples  # row, sample, variant, position
        rows["record"][:], rows["form"][:] = records, self._plan.schedule.forms_at(samples.position)
        rows["verify"][:] = 1 if self._plan.options.verify == "always" else 1 - self._verified[records]
        first_file = 0
        for place, table in zip(self.reader.places, self._plan.tables.values(), strict=True):
            wants_label = has_label and table is self._table
            columns = table.locate(records, [*place.columns, *(["label"] if wants_label else [])])
            rows.table[place.first] = table.file_of(records) + first_file
            for number, name in enumerate(place.columns, place.first + 1):
                rows.table[number] = columns[name]
            if wants_label:
                rows["label"][:] = columns["label"]
            first_file += len(table.files)
        return rows

    # --- filling ------------------------------------------------------------------------------------------------------

    def fill(self, chunks: list[Part], state: ThreadState, pool: WorkerPool | None = None) -> None:
        """Fill chunks, in this thread or together by a worker process, then the rows that replace bad ones. Empties the list."""
        parts: list[Part] = []
        state.is_linked = pool is not None  # the processes count the time
        while chunks:
            chunk = chunks.pop(0)
            try:
                parts += self._parts(chunk, self._not_cached(chunk.batch, chunk.rows, state), state, pool)
            except BaseException as error:
                chunk.then(error)
        self._read(parts, state, pool)

    def finish(self, batch: Batch) -> None:
        """Complete a batch whose rows are filled: drop lost rows, mix samples, and put channels first."""
        if batch.lost:
            batch.drop_lost()
        mixing = self._plan.mixing
        if mixing is not None:
            start, stop = self._plan.schedule.span(batch.step)  # of all rows but a partner after them
            mix_batch(batch.values, mixing, start, stop)
            if mixing.ops:  # the partner goes
                batch.values = {name: value[: stop - start] for name, value in batch.values.items()}
        for name in self._plan.channels_first:
            batch.values[name] = _channels_first(batch.values[name])

    def _not_cached(self, batch: Batch, rows: Rows, state: ThreadState) -> Rows:
        """Fill what the index knows of these rows, and rows that the cache holds; return the others, which are to be read."""
        if self._plan.options.verify != "always":
            rows["verify"][:] = 1 - self._verified[rows["record"]]
        self._look_up(batch, rows)
        cache = self._cache  # `close` may take it away at any time
        if not self.reader.read_places:  # the index has it all
            state.records_read += len(rows)
            return rows.take(slice(0))
        if cache is None or not (held := cache.holds(rows["record"])).any():
            return rows
        state.enter("read")
        cache.copy(rows.take(held), batch.values)
        state.records_cached += int(np.count_nonzero(held))
        return rows.take(~held)

    def _parts(self, chunk: Part, rows: Rows, state: ThreadState, pool: WorkerPool | None) -> list[Part]:
        """What is to be read of a chunk; nothing where these rows are none."""

        def completed(unread: Unread) -> None:
            if isinstance(unread, StopIteration):  # it would end the pass
                unread = LoaderError(f"a geometry op or a codec raised StopIteration: {unread}")
            if isinstance(unread, BaseException):
                chunk.then(unread)  # not raised: its traceback would hold the batch
                return
            try:
                replacements = self._completed(chunk.batch, rows, unread, state if pool is None else pool.state)
            except BaseException as error:
                chunk.then(error)
            else:
                self._read(self._parts(chunk, replacements, state, pool), state, pool)

        if len(rows):
            return [Part(chunk.batch, rows, completed)]
        chunk.then(())
        return []

    def _read(self, parts: list[Part], state: ThreadState, pool: WorkerPool | None) -> None:
        """Read these parts. Each is let go with its `then`: its memory may be used again before the next one is full."""
        if pool is not None and parts:
            pool.fill(parts)
        while parts and pool is None:
            batch, rows, then = parts.pop(0)
            state.fetched = batch.fetched
            try:
                unread: Unread = self.reader.fill(batch.values, rows, state)
            except BaseException as error:
                unread = error
            state.fetched = None
            then(unread)

    def _completed(self, batch: Batch, rows: Rows, unread: Sequence[UnreadRow], state: ThreadState) -> Rows:
        """Take over rows that were filled, all but the `unread` ones; return what to read instead of those."""
        state.records_read += len(rows) - len(unread)
        filled = rows.take(np.delete(np.arange(len(rows)), [failure.number for failure in unread])) if unread else rows
        cache = self._cache
        self._verified[filled["record"]] = 1
        if cache is not None:
            cache.keep(filled, batch.values)
        replacements = [rows.table[:, :0]]
        for failure in unread:
            replacement = self._replacement(batch, rows.take([failure.number]), failure.reason)
            replacements += [] if replacement is None else [replacement.table]
        return Rows(np.concatenate(replacements, axis=1))

    def _look_up(self, batch: Batch, rows: Rows) -> None:
        """Fill in what the index knows of these rows."""
        places = rows["row"]
        for name, what in self._indexed.items():
            if what == "variant":
                batch.values[name][places] = rows["variant"]
            elif what == "label":
                batch.values[name][places] = rows["label"]
            else:
                batch.values[name][places] = self._table.column("key").take(rows["sample"]).to_pylist()

    def _replacement(self, batch: Batch, unread: Rows, reason: str) -> Rows | None:
        """Return another sample for a row that cannot be read; None if the policy drops the row.

        Raises:
            RecordError: By the policy, bad records are errors.
            LoaderError: `ATTEMPTS` other samples, one after another, cannot be read either.
        """
        bad, table = self._bad, self._table
        row, sample, position, record = (int(unread[name][0]) for name in ("row", "sample", "position", "record"))
        (file,), (offset,), _ = unread.place
        key, path, number = table.key(sample), str(table.files[file]), table.number_in_file(record)
        error = RecordError(f"{reason} (key {key!r})", path=path, record=number, offset=int(offset))
        if bad.on_bad == "raise":
            raise error
        bad.note(record, key, error, is_first=row not in batch.attempts)
        if not self._plan.training:
            batch.lost.append(row)
            return None
        while (attempt := batch.attempts.get(row, 0)) < ATTEMPTS:
            batch.attempts[row] = attempt + 1
            other = np.array([self._plan.schedule.substitute(position, attempt)])
            rows = self.located(Samples(other, unread["variant"], unread["position"]), unread["row"])
            if not bad.known(int(rows["record"][0])):
                self._look_up(batch, rows)
                return rows
        raise LoaderError(
            f"{ATTEMPTS} records in a row could not be read for place {position} of the run, the last one because: {reason}. "
            "report() names them; where files are damaged, build the dataset again"
        )


def _channels_first(images: Any) -> Any:
    """Return an array [B, H, W, C] as [B, C, H, W], or a list of arrays [H, W, C] as [C, H, W]: contiguous copies."""
    if isinstance(images, list):
        return [_channels_first(image) for image in images]
    return np.ascontiguousarray(np.moveaxis(images, -1, -3))
