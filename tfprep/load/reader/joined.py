"""Records in two places: those of a dataset, and beside them those of fields that models added, in shards of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tfprep.load.order.schedule import Numbers
from tfprep.load.reader.files import Files
from tfprep.load.reader.rows import COLUMNS, ByteSpans, Reading, RecordReader, Rows, UnreadRow
from tfprep.load.reader.thread_state import ThreadState

PLACE = ("file", "offset", "size", "payload_crc")
"""The columns that say where a record lies. Behind the spans of all fields, rows have them once more for each further place."""


class JoinedReader:
    """Reads each row in several places, with a reader for each. Their fields come one after the other, in the same order."""

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

    def close(self) -> None:
        """Close the files."""
        self.files.close()

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
