"""Filling the rows of a batch: which records they take, what the index and the cache know, and what happens to bad ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError, RecordError
from tfprep.fields import Array
from tfprep.load.mixing import mix_batch
from tfprep.load.options import OnBad
from tfprep.load.order.permutation import Numbers
from tfprep.load.order.schedule import BatchIndices
from tfprep.load.plan import LoaderPlan
from tfprep.load.reader.batch import Batch, DecodedCache
from tfprep.load.reader.files import Fetched
from tfprep.load.reader.parts import FieldPart
from tfprep.load.reader.rows import Reading, RowReader, Rows, UnreadRow, field_names
from tfprep.load.reader.workers import WorkerPool
from tfprep.load.threads import ThreadState

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

    def note(self, record: int, key: str, error: RecordError) -> None:
        with self._lock:
            if record in self._known:
                return
            self._known.add(record)
            if len(self._listed) < LISTED:
                place = {"path": error.path, "record": error.record or 0}
                self._listed.append({**place, "key": key, "reason": error.reason})

    def lost(self) -> None:
        with self._lock:
            self.rows_lost += 1


class BatchAssembler:
    """Fills batches by a plan. Called by many threads at once, each with a state of its own.

    The first time that a record is read its checksums are compared, unless the option `verify` says otherwise.
    """

    def __init__(
        self,
        plan: LoaderPlan,
        imported: Sequence[bool],
        bad: BadRecords,
        cache: DecodedCache | None,
        *,
        cold: bool = False,
    ) -> None:
        """`imported`: see `Reading`. `cold`: the page cache cannot hold all files, so the system is told in every epoch
        what comes next."""
        self._plan, self._table, self._indexed, self._bad, self._cache = plan, plan.table, plan.indexed, bad, cache
        own, *added = plan.parts_in.values()
        self.reading = Reading(plan.files, imported, own, plan.placed, plan.augmentation, cold, added)
        self.reader = RowReader(self.reading, self.cached_arrays)
        first = np.cumsum([len(table.files) for table in plan.tables.values()]).tolist()
        self._added = list(zip(list(plan.tables.values())[1:], first, map(_spans, added), strict=False))
        self._places = ["offset", "size", "payload_crc", *({"label"} & set(plan.indexed.values())), *_spans(own)]
        self._verified = np.full(plan.table.records, plan.options.verify == "never", np.uint8)

    @property
    def all_cached(self) -> bool:
        """Return True if all rows are copied from the cache as they are."""
        cache = self._cache  # `close` may take it away at any time
        return cache is not None and cache.full and self._plan.mixing is None

    @property
    def fetched(self) -> Fetched:
        """Return what is fetched from URLs."""
        return self.reader.files.fetched

    def to_fetch(self, records: Numbers, files: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of these records, in these files, are at a URL and not in the cache."""
        if not self.reader.fields:  # the index has it all
            return np.zeros(len(records), bool)
        remote: npt.NDArray[np.bool_] = self.reader.files.remote[files]
        return remote if self._cache is None else remote & ~self._cache.holds(records)

    @property
    def cached_arrays(self) -> Mapping[str, Array] | None:
        """The cache's rows by output, but for text; None without a cache."""
        if self._cache is None:
            return None
        return {name: rows for name, rows in self._cache.rows.items() if rows.dtype != object}

    def close(self) -> None:
        """Close the files and let go of the cache."""
        self.reader.files.close()
        self._cache = self.reader.cache = None

    def fill(self, batch: Batch, start: int, stop: int, state: ThreadState) -> None:
        """Fill the rows [start, stop) in this thread."""
        if not self.reader.fields:  # the index has it all
            self._look_up(batch, batch.located.take(slice(start, stop)))
            state.records += stop - start
            return
        waiting = [self._prepared(batch, start, stop)]
        while waiting:
            rows = waiting.pop()
            try:
                unread = self.reader.fill(batch.values, rows, state)
            except BaseException as error:
                raise _as_delivered(error) from error
            waiting += self._completed(batch, rows, unread, state)

    def fill_by(
        self, pool: WorkerPool, batch: Batch, start: int, stop: int, then: Callable[[BaseException | None], None]
    ) -> None:
        """Let worker processes fill the rows [start, stop), then those that replace bad ones; `then` gets an error or None."""
        self._fill_next(pool, batch, [self._prepared(batch, start, stop)], then)

    def _fill_next(
        self, pool: WorkerPool, batch: Batch, waiting: list[Rows], then: Callable[[BaseException | None], None]
    ) -> None:
        if not waiting:
            then(None)
            return
        rows = waiting.pop()

        def completed(unread: Sequence[UnreadRow] | BaseException) -> None:
            if isinstance(unread, BaseException):
                then(_as_delivered(unread))  # not raised: its traceback would hold the batch
                return
            try:
                more = self._completed(batch, rows, unread, pool.state)
            except BaseException as error:
                then(error)
            else:
                self._fill_next(pool, batch, [*waiting, *more], then)

        pool.fill(batch.values, rows, completed)

    def locate(self, batches: Sequence[BatchIndices]) -> list[Rows]:
        """Return where all records of these batches are. Many batches at once cost hardly more than one."""
        sizes = [len(indices.row) for indices in batches]
        whole = BatchIndices(*(np.concatenate(column) for column in zip(*batches, strict=True)))
        located = self.located(whole, np.concatenate([np.arange(size) for size in sizes]))
        ends = np.cumsum(sizes).tolist()
        return [located.take(slice(start, end)) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def located(self, indices: BatchIndices, numbers: Numbers) -> Rows:
        """Return where the records of these rows of a batch are; `numbers` are those of the rows."""
        records = self._table.record(indices.row, indices.variant)
        verify = 1 if self._plan.options.verify == "always" else 1 - self._verified[records]
        columns = {
            "row": numbers, "position": indices.position, "form": self._plan.schedule.forms_at(indices.position),
            "record": records, "file": self._table.file_of(records), "verify": verify, "slot": -1,
            **self._table.locate(records, self._places),
        }  # fmt: skip
        for number, (added, first_file, spans) in enumerate(self._added, 1):  # the places beyond the first
            places = added.locate(records, ["offset", "size", "payload_crc", *spans])
            places["file"] = added.file_of(records) + first_file
            columns |= {name if name in spans else f"{name} {number}": values for name, values in places.items()}
        table = np.zeros((len(self.reader.columns), len(records)), np.int64)
        for number, name in enumerate(self.reader.columns):
            if name in columns:
                table[number] = columns[name]
        return Rows(table)

    def _prepared(self, batch: Batch, start: int, stop: int) -> Rows:
        """Return what is to be read for the rows [start, stop), and fill what is known of them: by the index, and cached text."""
        rows = batch.located.take(slice(start, stop))
        if self._plan.options.verify != "always":
            rows["verify"][:] = 1 - self._verified[rows["record"]]
        self._look_up(batch, rows)
        cache = self._cache  # `close` may take it away at any time
        if cache is not None:
            rows["cached"][:], rows["slot"][:] = cache.holds(rows["record"]), cache.slots(rows["record"])
            known = rows["cached"] != 0
            for name, text in self._cached_text(cache):
                batch.values[name][rows["row"][known]] = text[rows["slot"][known]]
        return rows

    def _completed(self, batch: Batch, rows: Rows, unread: Sequence[UnreadRow], state: ThreadState) -> list[Rows]:
        """Take over rows that were filled, all but the `unread` ones; return what to read instead of those."""
        state.records += len(rows) - len(unread)
        failed = [failure.number for failure in unread]
        cache = self._cache
        if cache is not None:
            state.cached += int(np.count_nonzero(rows["cached"]))
            written = (rows["slot"] >= 0) & (rows["cached"] == 0)
            written[failed] = False
            for name, text in self._cached_text(cache):
                text[rows["slot"][written]] = batch.values[name][rows["row"][written]]
            cache.commit(rows["slot"][written])
        self._verified[np.delete(rows["record"], failed) if failed else rows["record"]] = 1
        replacements = []
        for failure in unread:
            row, record = int(rows["row"][failure.number]), int(rows["record"][failure.number])
            replacement = self._replacement(batch, row, record, failure.reason)
            replacements += [] if replacement is None else [replacement]
        return replacements

    def finish(self, batch: Batch) -> None:
        """Complete a batch whose rows are filled: drop lost rows, and mix samples."""
        if batch.lost:
            batch.drop_lost()
        if self._plan.mixing is not None:
            mix_batch(batch, self._plan.mixing, self._plan.schedule)

    def _cached_text(self, cache: DecodedCache) -> list[tuple[str, Array]]:
        """The cache's outputs that are Python objects, which have no place in shared memory."""
        return [(name, rows) for name, rows in cache.rows.items() if rows.dtype == object]

    def _look_up(self, batch: Batch, rows: Rows) -> None:
        """Fill in what the index knows of these rows."""
        places = rows["row"]
        for name, what in self._indexed.items():
            if what == "variant":
                batch.values[name][places] = batch.indices.variant[places]
            elif what == "label":
                batch.values[name][places] = rows["label"]
            else:
                keys = self._table.column("key").take(batch.indices.row[places]).to_pylist()
                batch.values[name][places] = [key.encode("utf-8", "surrogateescape") for key in keys]

    # --- rows that cannot be read ---------------------------------------------------------------------------------------

    def _replacement(self, batch: Batch, row: int, record: int, reason: str) -> Rows | None:
        """Return another sample for a row whose record cannot be read; None if the policy drops the row.

        Raises:
            RecordError: By the policy, bad records are errors.
            LoaderError: `ATTEMPTS` other samples, one after another, cannot be read either.
        """
        bad, sample = self._bad, int(batch.indices.row[row])
        table, key = self._table, self._table.key(sample)
        offset = int(table.locate(np.array([record]), ["offset"])["offset"][0])
        path, number = str(table.files[int(table.file_of(record))]), table.number_in_file(record)
        error = RecordError(f"{reason} (key {key!r})", path=path, record=number, offset=offset)
        if bad.on_bad == "raise":
            raise error
        bad.note(record, key, error)
        if row not in batch.attempts:
            bad.lost()
        if not self._plan.training:
            batch.lost.append(row)
            return None
        position = int(batch.indices.position[row])
        while (attempt := batch.attempts.get(row, 0)) < ATTEMPTS:
            batch.attempts[row] = attempt + 1
            batch.indices.row[row] = self._plan.schedule.substitute(position, attempt)
            rows = self.located(BatchIndices(*(column[row : row + 1] for column in batch.indices)), np.array([row]))
            if not bad.known(int(rows["record"][0])):
                self._look_up(batch, rows)
                return rows
        raise LoaderError(
            f"{ATTEMPTS} records in a row could not be read for place {position} of the run, the last one because: {reason}. "
            "report() names them; where files are damaged, build the dataset again"
        )


def _as_delivered(error: BaseException) -> BaseException:
    """Return an error of filling rows as the consumer gets it."""
    if isinstance(error, StopIteration):  # it would end the pass
        return LoaderError(f"a geometry op or a codec raised StopIteration: {error}")
    return error


def _spans(parts: Sequence[FieldPart]) -> list[str]:
    """Return the names of the columns that say where the bytes of fields are."""
    return [f"{name}_{what}" for name in field_names(parts) for what in ("offset", "size")]
