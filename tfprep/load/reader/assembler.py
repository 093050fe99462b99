"""Filling the rows of a batch: which records they take, what the index and the cache know, and what happens to bad ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfprep.augment.transform import GeometryOp
from tfprep.errors import LoaderError, RecordError
from tfprep.fields import Array
from tfprep.load.at_load.mixing import Mixing
from tfprep.load.options import OnBad, Verify
from tfprep.load.order.schedule import BatchIndices, Numbers
from tfprep.load.reader.batch import Batch
from tfprep.load.reader.cache import DecodedCache, EncodedCache
from tfprep.load.reader.files import Fetched
from tfprep.load.reader.parts import Cast, FieldPart
from tfprep.load.reader.rows import COLUMNS, RecordReader, Rows, UnreadRow
from tfprep.load.reader.stages import Cuts, with_stages
from tfprep.load.reader.table import RecordTable
from tfprep.load.reader.thread_state import ThreadState
from tfprep.storage.local import FileIdentity

LISTED = 1_000
"""Bad records are counted without end, and named up to this number."""
ATTEMPTS = 100


@dataclass(frozen=True)
class BadRecord:
    """One record that was left out: its file, its number there, the sample's key, and why."""

    path: str
    record: int
    key: str
    reason: str


class BadRecords:
    """The policy, and what was left out under it. Safe to use from any thread."""

    def __init__(self, on_bad: OnBad) -> None:
        self.on_bad = on_bad
        self._lock = threading.Lock()
        self._listed: list[BadRecord] = []
        self._known: set[int] = set()
        self.rows_lost = 0

    @property
    def count(self) -> int:
        """Return how many different records were bad."""
        return len(self._known)

    @property
    def listed(self) -> Sequence[BadRecord]:
        return tuple(self._listed)

    def report(self) -> list[dict[str, Any]]:
        return [asdict(bad) for bad in self.listed]

    def known(self, record: int) -> bool:
        return record in self._known

    def note(self, record: int, key: str, error: RecordError) -> None:
        with self._lock:
            if record in self._known:
                return
            self._known.add(record)
            if len(self._listed) < LISTED:
                self._listed.append(BadRecord(error.path, error.record or 0, key, error.reason))

    def lost(self) -> None:
        with self._lock:
            self.rows_lost += 1


Substitute = Callable[[int, int], int]
"""(position in the run, attempt) to the row that replaces one that cannot be read."""


@dataclass(frozen=True)
class ReadPolicy:
    """Rules of reading records: which checksums are compared, what happens to bad ones, and the geometry on the way in."""

    verify: Verify
    bad: BadRecords
    substitute: Substitute | None
    geometry: Sequence[GeometryOp] = ()


class BatchAssembler:
    """Fills batches from one table. Called by many threads at once, each with a state of its own.

    The first time that a record is read its checksums are compared, unless the policy says otherwise.
    """

    def __init__(
        self,
        table: RecordTable,
        identities: Sequence[FileIdentity | None],
        parts: Sequence[FieldPart],
        indexed: Mapping[str, str],
        policy: ReadPolicy,
        cache: DecodedCache | EncodedCache | None,
        *,
        casts: Sequence[Cast] = (),
        cuts: Cuts | None = None,
        mixing: Mixing | None = None,
        cold: bool = False,
        paths: Sequence[Any] | None = None,
        damaged: Callable[[int], None] | None = None,
    ) -> None:
        """`identities`: those of the table's files. `indexed` names the outputs that come from the index, and what they are:
        "key", "variant" or "label". `casts`: the outputs of which `parts` and the cache hold the stored form. `cuts`: flips and
        crops. `mixing`: the last step of a batch all of whose rows are filled. `cold`: the page cache cannot hold all files, so
        the system is told in every epoch what comes next. `paths`: where the table's files lie now, if some are copies on a
        local disk; `damaged`: see `Files`."""
        self._table, self._parts, self._indexed, self._policy = table, parts, indexed, policy
        self._cold = cold
        self.casts, self.cuts, self.mixing = tuple(casts), cuts, mixing
        self._decoded = cache if isinstance(cache, DecodedCache) else None
        self._encoded = cache if isinstance(cache, EncodedCache) else None
        self.reading = RecordReader(  # here or in a worker process
            table.files if paths is None else paths,
            identities,
            parts,
            policy.geometry,
            self._encoded,
            announce=cold,
            damaged=damaged,
        )
        self._stages = with_stages(self.reading, self.cached_arrays, self.casts, cuts)
        self._verified = np.full(table.records, policy.verify == "never", np.uint8)

    @property
    def all_cached(self) -> bool:
        """Return whether rows are copies of the decoded cache's: nothing will be read any more, or done to them."""
        cache = self._decoded  # `close` may take it away at any time
        return cache is not None and cache.full and not self._processes_rows

    @property
    def cheap(self) -> bool:
        """Return whether rows are copied from memory, the page cache's or ours, and nothing is decoded."""
        in_place = self.reading.by_field and self._policy.verify != "always" and not self.casts
        copied = in_place and not self._cold and all(part.direct for part in self._parts) and not self._processes_rows
        return self.all_cached or copied

    @property
    def _processes_rows(self) -> bool:
        """Return whether ops at load work on rows, also on those that come from memory."""
        return self.cuts is not None or self.mixing is not None

    @property
    def fetched(self) -> Fetched:
        """Return what is fetched from URLs."""
        return self.reading.files.fetched

    def to_fetch(self, records: Numbers, files: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of these records, in these files, lie at a URL and in no cache."""
        if not self.reading.fields:  # the index has it all
            return np.zeros(len(records), bool)
        remote: npt.NDArray[np.bool_] = self.reading.files.remote[files]
        for cache in (self._decoded, self._encoded):
            if cache is not None and remote.any():
                remote &= ~cache.holds(records)
        return remote

    def byte_ranges(self, rows: Rows) -> tuple[Numbers, Numbers, Numbers]:
        """Return the bytes that reading these rows takes (see `RecordReader.byte_ranges`)."""
        return self.reading.byte_ranges(rows)

    @property
    def cached_arrays(self) -> Mapping[str, Array] | None:
        """The decoded cache's rows by output, but for text; None without a cache."""
        if self._decoded is None:
            return None
        return {name: rows for name, rows in self._decoded.rows.items() if rows.dtype != object}

    def close(self) -> None:
        """Close the files and let go of the cache."""
        self.reading.close()
        self._decoded = self._encoded = None
        self._stages = with_stages(self.reading, None, self.casts, self.cuts)

    def fill(self, batch: Batch, start: int, stop: int, state: ThreadState) -> None:
        """Fill the rows [start, stop)."""
        if not self.reading.fields:  # the index has it all
            self._look_up(batch, start, self._records(batch, start, stop))
            state.records += stop - start
            return
        waiting = [self.prepare(batch, start, stop)]
        while waiting:
            rows = waiting.pop()
            try:
                unread = self._stages.fill(batch.values, rows, state)
            except BaseException:
                self.release(rows)
                raise
            waiting += self.complete(batch, rows, unread, state)

    def locate(self, batches: Sequence[BatchIndices]) -> list[Rows]:
        """Return where all records of these batches lie. Many batches at once cost hardly more than one."""
        sizes = [len(indices.row) for indices in batches]
        row, variant, position = (np.concatenate(column) for column in zip(*batches, strict=True))
        numbers = np.concatenate([np.arange(size) for size in sizes])
        whole = self._locate(numbers, position, self._table.record(row, variant))
        ends = np.cumsum(sizes).tolist()
        return [whole.take(slice(start, end)) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def prepare(self, batch: Batch, start: int, stop: int) -> Rows:
        """Return what a thread or a worker process needs to fill the rows [start, stop).

        Fills what is known of them here: from the index, and text from the cache.
        """
        decoded = self._decoded  # `close` may take it away at any time
        cached = False
        if batch.located is not None:
            rows = batch.located.take(slice(start, stop))
        else:
            records = self._records(batch, start, stop)
            cached = decoded is not None and bool(decoded.holds(records).all())
            rows = self._locate(np.arange(start, stop), batch.indices.position[start:stop], records, cached=cached)
        self._look_up(batch, start, rows["record"], None if cached else rows["label"])
        if decoded is not None:
            rows["slot"][:], rows["cached"][:] = decoded.reserve(rows["record"])
            known = rows["cached"] != 0
            for name, text in self._cached_text(decoded):
                batch.values[name][rows["row"][known]] = text[rows["slot"][known]]
        return rows

    def release(self, rows: Rows) -> None:
        """Give back what `prepare` reserved, for rows that will not be filled."""
        if self._decoded is not None:
            for number in np.flatnonzero((rows["slot"] >= 0) & (rows["cached"] == 0)).tolist():
                self._decoded.give_back(int(rows["record"][number]), int(rows["slot"][number]))

    def complete(self, batch: Batch, rows: Rows, unread: Sequence[UnreadRow], state: ThreadState) -> list[Rows]:
        """Take over rows that were filled, but for the `unread` ones; what is to be read instead of those."""
        state.records += len(rows) - len(unread)
        failed = [failure.number for failure in unread]
        decoded = self._decoded
        if decoded is not None and (fresh := rows["cached"] == 0).any():
            self.release(rows.take(failed))
            written = (rows["slot"] >= 0) & fresh
            written[failed] = False
            for name, text in self._cached_text(decoded):
                text[rows["slot"][written]] = batch.values[name][rows["row"][written]]
            decoded.commit(rows["record"][written], rows["slot"][written])
        if decoded is not None:
            state.cached += int(np.count_nonzero(rows["cached"]))
        self._verified[np.delete(rows["record"], failed) if failed else rows["record"]] = 1
        replacements = []
        for failure in unread:
            row, record = int(rows["row"][failure.number]), int(rows["record"][failure.number])
            replacement = self._replacement(batch, row, record, failure.reason)
            replacements += [] if replacement is None else [replacement]
        return replacements

    def finish(self, batch: Batch) -> None:
        """Complete a batch all of whose rows are filled: close the gaps of those that were lost, and mix samples."""
        for cast in self.casts:
            batch.values.pop(cast.stored.name, None)
        if batch.lost:
            batch.drop_lost()
        if self.mixing is not None:
            self.mixing.finish(batch)

    def _cached_text(self, cache: DecodedCache) -> list[tuple[str, Array]]:
        """The cache's outputs that are Python objects, which have no place in shared memory."""
        return [(name, rows) for name, rows in cache.rows.items() if rows.dtype == object]

    def _records(self, batch: Batch, start: int, stop: int) -> Numbers:
        return self._table.record(batch.indices.row[start:stop], batch.indices.variant[start:stop])

    def _locate(self, numbers: Numbers, position: Numbers, records: Numbers, *, cached: bool = False) -> Rows:
        """Return where the records of these rows of a batch lie; nothing of that where all are `cached`."""
        rows = Rows(np.zeros((len(COLUMNS) + 2 * len(self.reading.fields), len(records)), np.int64))
        rows["row"][:], rows["position"][:], rows["record"][:], rows["slot"][:] = numbers, position, records, -1
        if cached:
            return rows
        spans = [f"{name}_{what}" for name in self.reading.fields for what in ("offset", "size")]
        frame = ["offset", "size", "payload_crc", *(["label"] if "label" in self._indexed.values() else [])]
        places = self._table.locate(records, [*frame, *spans])
        rows["file"][:] = self._table.file_of(records)
        rows["verify"][:] = 1 if self._policy.verify == "always" else 1 - self._verified[records]
        for name in frame:
            rows[name][:] = places[name]
        for column, name in zip(rows.table[len(COLUMNS) :], spans, strict=True):
            column[:] = places[name]
        return rows

    def _look_up(self, batch: Batch, start: int, records: Numbers, labels: Numbers | None = None) -> None:
        """Fill in what the index knows of the rows from `start` on. `labels`: those of the rows, if they are known already."""
        rows = slice(start, start + len(records))
        for name, what in self._indexed.items():
            if what == "variant":
                batch.values[name][rows] = batch.indices.variant[rows]
            elif what == "label":
                known = self._table.locate(records, ["label"])["label"] if labels is None else labels
                batch.values[name][rows] = known
            else:
                keys = self._table.column("key").take(batch.indices.row[rows]).to_pylist()
                batch.values[name][rows] = [key.encode("utf-8", "surrogateescape") for key in keys]

    # --- rows that cannot be read ---------------------------------------------------------------------------------------

    def _replacement(self, batch: Batch, row: int, record: int, reason: str) -> Rows | None:
        """Another sample for a row whose record cannot be read; None where by the policy the row is lost.

        Raises:
            RecordError: By the policy, bad records are errors.
            DatasetReplacedError: The record is of another build.
            LoaderError: `ATTEMPTS` others in a row cannot be read either.
        """
        bad, substitute, sample = self._policy.bad, self._policy.substitute, int(batch.indices.row[row])
        if not bad.known(record):
            self._table.check_not_replaced(record)
        error = self._error(reason, record, sample)
        if bad.on_bad == "raise":
            raise error
        bad.note(record, self._table.key(sample), error)
        if row not in batch.attempts:
            bad.lost()
        if substitute is None:
            batch.lost.append(row)
            return None
        position = int(batch.indices.position[row])
        while (attempt := batch.attempts.get(row, 0)) < ATTEMPTS:
            batch.attempts[row] = attempt + 1
            batch.indices.row[row] = substitute(position, attempt)
            records = self._records(batch, row, row + 1)
            if not bad.known(int(records[0])):
                self._look_up(batch, row, records)
                return self._locate(np.array([row]), batch.indices.position[row : row + 1], records)
        raise LoaderError(
            f"{ATTEMPTS} records in a row could not be read for place {position} of the run, the last one because: {reason}. "
            "report() names them; where files are damaged, build the dataset again"
        )

    def _error(self, reason: str, record: int, sample: int) -> RecordError:
        """The error with the file, the record's number in it, and the sample's key."""
        place = self._table.locate(np.array([record]), ["offset"])
        return RecordError(
            f"{reason} (key {self._table.key(sample)!r})",
            path=str(self._table.files[int(self._table.file_of(record))]),
            record=self._table.number_in_file(record),
            offset=int(place["offset"][0]),
        )
