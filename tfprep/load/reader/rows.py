"""Reading and decoding rows of a batch: what reading threads and worker processes have in common.

`Rows` says where the records lie, as one array of numbers, so that it can be sent to another process as it is. `RecordReader`
reads and decodes them into the arrays of a batch, and returns the rows that cannot be read. What happens to those is decided
by `tfprep.load.reader.assembler`, in the process that trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from tfprep.augment.transform import GeometryOp
from tfprep.codecs import InPlace
from tfprep.errors import RecordError, SampleError
from tfprep.fields import Array
from tfprep.load.at_load.plan import AtLoad
from tfprep.load.order.schedule import Numbers
from tfprep.load.reader.files import Files, Record, mapped_bytes, read_at, read_fields
from tfprep.load.reader.parts import FieldPart
from tfprep.load.reader.thread_state import ThreadState
from tfprep.load.reader.warping import Draws, Warping
from tfprep.storage.local import FileIdentity

COLUMNS = (
    "row",
    "position",
    "form",
    "record",
    "label",
    "file",
    "offset",
    "size",
    "payload_crc",
    "verify",
    "slot",
    "cached",
)
"""The columns of `Rows` before those of the fields."""

GROUP_BYTES = 256 << 10
"""Bytes that are read before they are decoded: they stay in the processor's cache, and the clock is read twice a group."""

Piece = tuple[Any, int, int]
"""Place of the bytes of a row's field: an open file, the offset in it, the number of bytes."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a batch and where their records lie: int64 [columns, rows].

    The columns are those of `COLUMNS`, then the offset and the size of each field. `position` is that of the sample in the run,
    `form` the number of the batch's size; `label` is the one that the index holds, 0 if it is not wanted; `verify` is 1 where
    checksums are to be compared; `slot` is the row of the decoded cache or -1; `cached` is 1 where that row is to be copied, 0
    where it is to be written.
    """

    table: Numbers

    def __len__(self) -> int:
        return int(self.table.shape[1])

    def __getitem__(self, name: str) -> Numbers:
        column: Numbers = self.table[COLUMNS.index(name)]
        return column

    def field(self, number: int) -> tuple[Numbers, Numbers]:
        """The offsets in the file and the sizes of a field's bytes; fields are numbered as `field_names` does."""
        first = len(COLUMNS) + 2 * number
        return self.table[first], self.table[first + 1]

    def take(self, which: Any) -> Rows:
        """Some of the rows."""
        return Rows(self.table[:, which])

    def moved(self, by: int) -> Rows:
        """The same records in rows of other numbers."""
        table = self.table.copy()
        table[COLUMNS.index("row")] += by
        return Rows(table)


class UnreadRow(NamedTuple):
    """A row that cannot be read: its number among `Rows`, and why."""

    number: int
    reason: str


class Stage(Protocol):
    """Reading, and each stage around it (see `tfprep.load.reader.stages`)."""

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """Fill the rows of the arrays in `values`; return those that cannot be read."""


def _read_all(pieces: Sequence[Piece], state: ThreadState) -> list[Array | None]:
    """Read the bytes of each piece, which are valid until the next call; None where they cannot be read."""
    state.scratch.reset(sum(size for *_, size in pieces))
    contents = [state.scratch.take(size) for *_, size in pieces]
    return [
        content if read_at(file.fd, content, offset) else None
        for (file, offset, _), content in zip(pieces, contents, strict=True)
    ]


def _groups(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive pieces of `GROUP_BYTES` together, at least one each."""
    first, total = 0, 0
    for number, size in enumerate(sizes):
        if total and total + size > GROUP_BYTES:
            yield first, number
            first, total = number, 0
        total += size
    yield first, len(sizes)


def field_names(parts: Sequence[FieldPart]) -> list[str]:
    """The fields of the parts, once each, in the order of an Example's bytes."""
    return sorted({part.field for part in parts}, key=lambda name: name.encode())


@dataclass(frozen=True)
class Reading:
    """The files, what is read of them, and the geometry and the ops at load on the way in.

    `identities`: see `Files`. `rules`: options of `warp_sample` for `geometry`. `announce`: the page cache cannot hold all
    files, so the system is told which bytes come next. `added`: the parts that are read in each further place.
    """

    paths: Sequence[Any]
    identities: Sequence[FileIdentity | None]
    parts: Sequence[FieldPart]
    geometry: Sequence[GeometryOp] = ()
    rules: Mapping[str, Any] | None = None
    at_load: AtLoad | None = None
    announce: bool = False
    added: Sequence[Sequence[FieldPart]] = ()


class ByteSpans(NamedTuple):
    """Bytes of records: for each span the row's number, the file, where its frame begins there, and the span [start, stop)."""

    row: Numbers
    file: Numbers
    frame: Numbers
    start: Numbers
    stop: Numbers


class RecordReader:
    """Reads and decodes records into rows. Called by many threads at once, each with a state of its own.

    Rows whose checksums need no comparing, as a rule from the second epoch on, are read field by field: many at a time with
    little Python between them. What cannot be read in this way is read once more by itself, for the reason.

    Files are read, and only with `mapped` mapped into memory, which saves a copy: a map of a file that is cut short, or on a
    disk that fails, ends the process. Records whose checksums are compared are always read.
    """

    def __init__(self, reading: Reading, files: Files, *, mapped: bool = False) -> None:
        """`mapped`: this process may die of a file that is cut short."""
        self._mapped = mapped and not reading.announce
        self.parts, self._announce = reading.parts, reading.announce
        warps = reading.geometry or reading.at_load
        self._warping = Warping(reading.parts, reading.geometry, reading.rules, reading.at_load) if warps else None
        self.files = files
        self.fields = field_names(reading.parts)
        self._numbers = {name: number for number, name in enumerate(self.fields)}
        self._whole = any(part.whole_example for part in reading.parts)

    @property
    def by_field(self) -> bool:
        """Return whether rows are read field by field: from local files, each field by itself."""
        return not (self._whole or self.files.remote.any())

    def byte_ranges(self, rows: Rows) -> ByteSpans:
        """Return the bytes that reading these rows takes."""
        every = (rows["verify"] != 0) | self._whole
        whole, some = np.flatnonzero(every), np.flatnonzero(~every)
        numbers, starts = [whole], [rows["offset"][whole]]
        stops = [starts[0] + rows["size"][whole]]
        for field in range(len(self.fields)):
            offsets, sizes = rows.field(field)
            numbers.append(some)
            starts.append(offsets[some])
            stops.append(offsets[some] + sizes[some])
        row = np.concatenate(numbers)
        return ByteSpans(row, rows["file"][row], rows["offset"][row], np.concatenate(starts), np.concatenate(stops))

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """Fill the rows of the arrays in `values`; return those that cannot be read."""
        alone = rows["verify"].nonzero()[0].tolist()
        if self._announce or alone:  # all at once: a thread that waits for one after the other would be slower
            for file, offset, size in zip(*(rows[name].tolist() for name in ("file", "offset", "size")), strict=True):
                self.files.will_need(file, offset, size)
        if not self.by_field:
            alone = list(range(len(rows)))
        elif not alone:
            alone = self._fill_by_field(values, rows, state)
        elif len(alone) < len(rows):
            together = np.flatnonzero(rows["verify"] == 0)
            failed = self._fill_by_field(values, rows.take(together), state)
            alone = sorted([*alone, *together[failed].tolist()])
        unread = []
        draws = self._warping.draws(rows["position"][alone]) if self._warping else [()] * len(alone)
        for number, own in zip(alone, draws, strict=True):
            reason = self._fill_row(values, rows, number, own, state)
            if reason and self.files.recover(int(rows["file"][number])):  # from its store: the local copy is damaged
                reason = self._fill_row(values, rows, number, own, state)
            if reason:
                unread.append(UnreadRow(number, reason))
        return unread

    # --- many rows ----------------------------------------------------------------------------------------------------

    def _fill_by_field(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[int]:
        """Fill rows whose checksums were compared before; the numbers of those that failed."""
        numbers = rows["file"].tolist()
        state.path, state.offset = self.files.paths[numbers[0]], int(rows["offset"][0])
        files = {number: self.files.get(number) for number in set(numbers)}
        opened = [files[number] for number in numbers]
        # Of a file that was written to since, checksums are compared, one by one.
        changed = self.files.changed
        failed = {at for at, number in enumerate(numbers) if number in changed} if changed else set()
        if self._warping:
            return sorted(failed.union(self._warp_rows(self._warping, opened, values, rows, state)))
        for part in self.parts:
            offsets, sizes = (column.tolist() for column in rows.field(self._numbers[part.field]))
            state.bytes += sum(sizes)
            pieces = list(zip(opened, offsets, sizes, strict=True))
            fill = self._read_rows if part.direct else self._decode_rows
            failed.update(fill(part, pieces, values, rows["row"].tolist(), state))
        return sorted(failed)

    def _read_rows(
        self,
        part: FieldPart,
        pieces: Sequence[Piece],
        values: Mapping[str, Any],
        places: Sequence[int],
        state: ThreadState,
    ) -> list[int]:
        """Read bytes that are the rows at these places; the numbers of the pieces that failed."""
        state.enter("read")
        array = values[part.output.name]
        target = array.reshape(len(array), -1).view(np.uint8)
        row_bytes = target.shape[1]
        failed = []
        for number, (row, (file, offset, size)) in enumerate(zip(places, pieces, strict=True)):
            if size != row_bytes:
                failed.append(number)
            elif not self._mapped:
                if not read_at(file.fd, target[row], offset):
                    failed.append(number)
            elif (content := mapped_bytes(file, offset, size)) is not None:
                target[row] = content
            else:
                failed.append(number)
        return failed

    def _decode_rows(
        self,
        part: FieldPart,
        pieces: Sequence[Piece],
        values: Mapping[str, Any],
        places: Sequence[int],
        state: ThreadState,
    ) -> list[int]:
        """Read and decode the rows at these places; the numbers of the pieces that failed.

        A decoder leaves little of Python in the processor's cache: each line of the loop costs many times what it does elsewhere.
        """
        decode = cast(InPlace, part.codec).decode_into if part.in_place else None
        targets = [values[part.output.name][row] for row in places] if decode else []
        spec, failed = part.spec, []
        for first, last in _groups([size for *_, size in pieces]):
            group = pieces[first:last]
            state.enter("read")
            contents = [mapped_bytes(*piece) for piece in group] if self._mapped else _read_all(group, state)
            state.enter("decode")
            for number, content in enumerate(contents, first):
                try:
                    if content is None:
                        failed.append(number)
                    elif decode:
                        decode(content, spec, targets[number])
                    else:
                        part.store(content, values, places[number], state)
                except SampleError:
                    failed.append(number)
        return failed

    def _warp_rows(
        self, warping: Warping, opened: Sequence[Any], values: Mapping[str, Any], rows: Rows, state: ThreadState
    ) -> list[int]:
        """Read, decode and warp rows; the numbers of those that failed."""
        spans = [rows.field(number) for number in range(len(self.fields))]
        draws, places, failed = warping.draws(rows["position"]), rows["row"].tolist(), []
        form = int(rows["form"][0])
        totals = np.sum([sizes for _, sizes in spans], axis=0).tolist()
        state.bytes += sum(totals)
        columns = [list(zip(opened, *(column.tolist() for column in span), strict=True)) for span in spans]
        for first, last in _groups(totals):
            state.enter("read")
            group = [column[number] for number in range(first, last) for column in columns]
            read = [mapped_bytes(*piece) for piece in group] if self._mapped else _read_all(group, state)
            state.enter("decode")
            for number in range(first, last):
                contents = read[(number - first) * len(columns) :][: len(columns)]
                try:
                    if any(content is None for content in contents):
                        failed.append(number)
                    else:
                        of_fields = dict(zip(self.fields, contents, strict=True))
                        warping.store(of_fields, values, places[number], form, draws[number], state)
                except SampleError:
                    failed.append(number)
        return failed

    # --- one row ------------------------------------------------------------------------------------------------------

    def _fill_row(self, values: Mapping[str, Any], rows: Rows, number: int, draws: Draws, state: ThreadState) -> str:
        """Fill a row; return why it cannot be read, "" if it was."""
        state.path, state.offset = self.files.paths[int(rows["file"][number])], int(rows["offset"][number])
        row = int(rows["row"][number])
        try:
            state.enter("read")
            contents = self._contents(rows, number, state)
            state.enter("decode")
            if self._warping:
                self._warping.store(contents, values, row, int(rows["form"][number]), draws, state)
            else:
                for part in self.parts:
                    part.store(contents["" if part.whole_example else part.field], values, row, state)
        except (RecordError, SampleError) as error:
            return error.reason
        return ""

    def _contents(self, rows: Rows, number: int, state: ThreadState) -> Mapping[str, Array]:
        frame = Record(*(int(rows[name][number]) for name in ("file", "offset", "size", "payload_crc")))
        columns = [rows.field(position) for position in range(len(self.fields))]
        places = {
            name: (int(offsets[number]), int(sizes[number]))
            for name, (offsets, sizes) in zip(self.fields, columns, strict=True)
        }
        if not self.files.remote[frame.file]:
            self.files.get(frame.file)  # notes whether it has changed
        verify = bool(rows["verify"][number] or frame.file in self.files.changed)
        contents = read_fields(self.files, frame, places, state.scratch, verify=verify, whole=self._whole)
        state.bytes += frame.size if verify or self._whole else sum(size for _, size in places.values())
        return contents


# --- records in several places ---------------------------------------------------------------------------------------------

PLACE = ("file", "offset", "size", "payload_crc")
"""The columns that say where a record lies. Behind the spans of all fields, rows have them once more for each further place."""


class JoinedReader:
    """Reads each row in several places: the records of a dataset, and beside them those of fields that models added, in shards of
    their own. Each place has a reader; their fields come one after the other, in the same order."""

    def __init__(self, readers: Sequence[RecordReader | None], files: Files) -> None:
        """`readers`: that of the records, None where nothing of them is wanted, then those of added fields."""
        self._readers, self.files = readers, files
        self.fields = [name for reader in readers if reader for name in reader.fields]
        self._spans: list[slice] = []
        first = len(COLUMNS)
        for reader in readers:
            last = first + 2 * len(reader.fields if reader else ())
            self._spans.append(slice(first, last))
            first = last
        self._first_place = first

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """Fill the rows of the arrays in `values`; return those that cannot be read in one of the places."""
        unread: dict[int, UnreadRow] = {}
        for number, reader in enumerate(self._readers):
            if reader is None:
                continue
            mine = self._of(rows, number)
            for one in reader.fill(values, mine, state):
                where = f" ({self.files.paths[int(mine['file'][one.number])]}, added fields)" if number else ""
                unread.setdefault(one.number, UnreadRow(one.number, f"{one.reason}{where}"))
        return [unread[number] for number in sorted(unread)]

    def byte_ranges(self, rows: Rows) -> ByteSpans:
        """Return the bytes at URLs that reading these rows takes (see `RecordReader.byte_ranges`)."""
        parts = [reader.byte_ranges(self._of(rows, n)) for n, reader in enumerate(self._readers) if reader]
        joined = ByteSpans(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        remote = self.files.remote[joined.file]
        return ByteSpans(*(column[remote] for column in joined))

    def _of(self, rows: Rows, number: int) -> Rows:
        """The rows as the reader of this number knows them."""
        table: Numbers = np.concatenate([rows.table[: len(COLUMNS)], rows.table[self._spans[number]]])
        if number:
            first = self._first_place + len(PLACE) * (number - 1)
            table[[COLUMNS.index(name) for name in PLACE]] = rows.table[first : first + len(PLACE)]
        return Rows(table)


AnyReader: TypeAlias = "RecordReader | JoinedReader"


def open_reader(
    reading: Reading, damaged: Callable[[int], None] | None = None, *, mapped: bool = False
) -> RecordReader | JoinedReader:
    """Return the reader of records, and of added fields where some are wanted; the arguments are those of `RecordReader`."""
    files = Files(reading.paths, reading.identities, damaged=damaged)
    if not reading.added:
        return RecordReader(reading, files, mapped=mapped)
    parts = [reading.parts, *reading.added]
    readers = [RecordReader(replace(reading, parts=some), files, mapped=mapped) if some else None for some in parts]
    return JoinedReader(readers, files)


def row_columns(reader: AnyReader, places: int) -> tuple[str, ...]:
    """Return the names of the columns of `Rows` for a reader: those of further places are named `file 1`, and so on."""
    spans = [f"{name}_{what}" for name in reader.fields for what in ("offset", "size")]
    return (*COLUMNS, *spans, *(f"{name} {number}" for number in range(1, places) for name in PLACE))
