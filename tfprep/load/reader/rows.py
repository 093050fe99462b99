"""The row function: read the bytes of a sample, check them, decode, transform, write into the row of a batch.

`Rows` says where the records are, as one array of numbers, so that it can be sent to another process as it is. `RowReader`
fills rows, in a reading thread or a worker process, and returns those that cannot be read. What happens to those is decided by
`tfprep.load.reader.assembler`, in the process that trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tfprep.errors import RecordError, SampleError
from tfprep.fields import Array
from tfprep.load.augmentation import Augmentation
from tfprep.load.order.permutation import Numbers
from tfprep.load.reader.augmenter import Augmenter
from tfprep.load.reader.files import Files
from tfprep.load.reader.parts import FieldPart
from tfprep.load.threads import ThreadState
from tfprep.records import Frame, check_frame
from tfprep.records.framing import FOOTER_BYTES, HEADER_BYTES

PLACE = ("file", "offset", "size", "payload_crc")
"""The columns that say where a record is, before the spans of its fields."""
COLUMNS = ("row", "position", "form", "record", "label", "verify", "slot", "cached", *PLACE)
"""The columns of `Rows` before those of the fields."""
ROW, POSITION, FORM, VERIFY = (COLUMNS.index(name) for name in ("row", "position", "form", "verify"))

GAP_BYTES = 4096
"""Bytes between two fields of a record that are read along with them: a page, which the kernel copies faster than it is
called."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a batch and where their records are: int64 [columns, rows].

    The columns are those of `COLUMNS`, then the offset and the size of each field, then for each further place those of `PLACE`
    and of its fields. `position` is that of the sample in the run,
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

    def take(self, which: Any) -> Rows:
        """Some of the rows."""
        return Rows(self.table[:, which])


class UnreadRow(NamedTuple):
    """A row that cannot be read: its number among `Rows`, and why."""

    number: int
    reason: str


def field_names(parts: Sequence[FieldPart]) -> list[str]:
    """The fields of the parts, once each, in the order of an Example's bytes."""
    return sorted({part.field for part in parts}, key=lambda name: name.encode())


@dataclass(frozen=True)
class Reading:
    """The files, the fields that are read, and the stages of each sample.

    `imported`: whether each file is a local one of another tool, which may write to it: the checksum of a record is compared at
    each reading. `placed`: with an `augmentation`, the parts that fill outputs. `announce`: the page cache cannot
    hold all files, so the system is told which bytes come next. `added`: the parts that are read in each further place.
    """

    paths: Sequence[Any]
    imported: Sequence[bool]
    parts: Sequence[FieldPart]
    placed: Sequence[FieldPart] = ()
    augmentation: Augmentation | None = None
    announce: bool = False
    added: Sequence[Sequence[FieldPart]] = ()


class ByteSpans(NamedTuple):
    """Bytes of records: for each span the row's number, the file, where its frame begins there, and the span [start, stop)."""

    row: Numbers
    file: Numbers
    frame: Numbers
    start: Numbers
    stop: Numbers


class Place:
    """A kind of records that rows are read from: those of the dataset, or of fields that a model added, with their columns."""

    def __init__(self, reading: Reading, parts: Sequence[FieldPart], number: int, first: int) -> None:
        """`first`: its first column."""
        self.parts, self.number, self.file = parts, number, first
        self.fields = field_names(parts)
        self.columns = [f"{name} {number}" if number else name for name in PLACE]
        self.columns += [f"{name}_{what}" for name in self.fields for what in ("offset", "size")]
        self.whole = any(part.whole_example for part in parts)
        self.spans = [(name, first + len(PLACE) + 2 * at) for at, name in enumerate(self.fields)]
        """Each field, and the column of its offset; that of its size is the next one."""
        self.augmenter: Augmenter | None = None
        # Of further places, the plan refuses fields that geometry would move.
        if reading.augmentation is not None and not number:
            self.augmenter = Augmenter(parts, reading.placed, reading.augmentation)
        self.contents = [("" if part.whole_example else part.field, part) for part in parts]
        """The parts, each with the name of its bytes: that of its field, or "" for the whole Example."""
        plain = [] if self.whole or self.augmenter else [part for part in parts if part.direct]
        self.direct = {part.field: part.output.name for part in plain}
        """Raw fields whose bytes are their rows, into which they are read, and the outputs of these."""


class RowReader:
    """Fills rows. Called by many threads at once, each with a state of its own."""

    def __init__(self, reading: Reading, cache: Mapping[str, Array] | None = None) -> None:
        """`cache`: the rows of the decoded cache by output, but for text; None without one."""
        self.cache = cache
        self.files, self._announce = Files(reading.paths), reading.announce
        self._imported = reading.imported
        self.columns = list(COLUMNS[: -len(PLACE)])
        """The names of the columns of `Rows`: those of further places are named `file 1`, and so on."""
        places = []
        for number, parts in enumerate([reading.parts, *reading.added]):
            places.append(Place(reading, parts, number, len(self.columns)))
            self.columns += places[-1].columns
        self._places = [place for place in places if place.parts]
        self.fields = [name for place in self._places for name in place.fields]

    def byte_ranges(self, rows: Rows) -> ByteSpans:
        """The bytes at URLs that reading these rows takes."""
        spans: list[list[Numbers]] = []
        for place in self._places:
            file, offset, size = rows.table[place.file : place.file + 3]
            every = (rows["verify"] != 0) | place.whole
            whole, some = np.flatnonzero(every), np.flatnonzero(~every)
            spans.append([whole, file[whole], offset[whole], offset[whole], offset[whole] + size[whole]])
            for _, column in place.spans:
                start, length = rows.table[column][some], rows.table[column + 1][some]
                spans.append([some, file[some], offset[some], start, start + length])
        joined = ByteSpans(*(np.concatenate(column) for column in zip(*spans, strict=True)))
        remote = self.files.remote[joined.file]
        return ByteSpans(*(column[remote] for column in joined))

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """Fill the rows of the arrays in `values`; return those that cannot be read.

        Rows that the cache holds are copied; others that have a slot are copied into it.
        """
        cache = self.cache
        if cache is None:
            return self._read_rows(values, rows, state)
        state.enter("read")
        cached = rows["cached"] != 0
        _copy_rows(cache, cache, values, rows["slot"][cached], rows["row"][cached])
        others = np.flatnonzero(~cached)
        if not len(others):
            return []
        part = rows.take(others)
        unread = self._read_rows(values, part, state)
        kept = part["slot"] >= 0
        kept[[failure.number for failure in unread]] = False
        _copy_rows(cache, values, cache, part["row"][kept], part["slot"][kept])
        return [UnreadRow(int(others[failure.number]), failure.reason) for failure in unread]

    def _read_rows(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        table, unread = rows.table.T.tolist(), []
        if self._announce or (len(table) > 1 and rows["verify"].any()):
            for cells in table:  # all at once: a thread that waits for one after the other would be slower
                for place in self._places:
                    self.files.will_need(*cells[place.file : place.file + 3])
        for number, cells in enumerate(table):
            reason = self._fill_row(values, cells, state, verify=bool(cells[VERIFY]))
            if reason:
                unread.append(UnreadRow(number, reason))
        return unread

    def _fill_row(
        self,
        values: Mapping[str, Any],
        cells: Sequence[int],
        state: ThreadState,
        *,
        verify: bool,
    ) -> str:
        """Fill a row; return why it cannot be read, "" if it was."""
        row = cells[ROW]
        for place in self._places:
            state.path, state.offset = self.files.paths[cells[place.file]], cells[place.file + 1]
            try:
                state.enter("read")
                contents = self._read(values, place, cells, state, verify)
                state.enter("decode")
                if place.augmenter is not None:
                    place.augmenter.store(contents, values, row, cells[FORM], cells[POSITION], state)
                    continue
                for name, part in place.contents:
                    content = contents.get(name)
                    if content is None:  # it was read into its row
                        continue
                    if part.in_place:
                        decode: Any = part.codec
                        decode.decode_into(content, part.spec, values[part.output.name][row, ...])
                    else:
                        part.place(part.decode(content, state), values, row)
            except (RecordError, SampleError) as error:
                where = f" ({state.path}, added fields)" if place.number else ""
                return f"{error.reason}{where}"
        return ""

    def _read(
        self, values: Mapping[str, Any], place: Place, cells: Sequence[int], state: ThreadState, verify: bool
    ) -> Mapping[str, Array]:
        """Return the bytes of each field, valid until the next call; raw fields are read into their rows instead."""
        number, offset, size, crc = cells[place.file : place.file + 4]
        verify = verify or self._imported[number]
        if verify or place.whole:
            state.bytes += size
            frame = self.files.read(number, offset, offset, state.room(size, "record"))
            if verify:
                check_frame(frame, self.files.paths[number], Frame(offset, size), payload_crc=crc)
            contents = {name: frame[cells[at] - offset :][: cells[at + 1]] for name, at in place.spans}
            return contents | {"": frame[HEADER_BYTES:-FOOTER_BYTES]} if place.whole else contents
        spans, first, last, wanted = [], offset + size, offset, 0
        for name, at in place.spans:
            start, length = cells[at], cells[at + 1]
            state.bytes += length
            if name in place.direct and not self.files.remote[number]:
                target = values[place.direct[name]][cells[ROW], ...]
                if length == target.nbytes:
                    self.files.read(number, offset, start, target.reshape(-1).view(np.uint8))
                    continue
            spans.append((name, start, length))
            first, last, wanted = min(first, start), max(last, start + length), wanted + length
        if not spans:
            return {}
        if last - first <= wanted + GAP_BYTES:  # they are together
            content = self.files.read(number, offset, first, state.room(last - first, "record"))
            return {name: content[start - first : start - first + length] for name, start, length in spans}
        return {
            name: self.files.read(number, offset, start, state.room(length, f"bytes of {name}"))
            for name, start, length in spans
        }


def _copy_rows(names: Iterable[str], source: Any, target: Any, rows_from: Numbers, rows_to: Numbers) -> None:
    """Copy rows of these arrays to rows of others."""
    if not len(rows_to):
        return
    first, stop = int(rows_to[0]), int(rows_to[0]) + len(rows_to)
    together = bool((rows_to == np.arange(first, stop)).all())
    for name in names:
        if together:
            np.take(source[name], rows_from, axis=0, out=target[name][first:stop], mode="clip")
            continue
        for row_from, row_to in zip(rows_from.tolist(), rows_to.tolist(), strict=True):
            target[name][row_to] = source[name][row_from]
