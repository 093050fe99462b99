"""Reading and decoding rows of a batch: what reading threads and worker processes have in common.

`Rows` says where the records lie, as one array of numbers, so that it can be sent to another process as it is. `RecordReader`
reads and decodes them into the arrays of a batch, and returns the rows that cannot be read. What happens to those is decided
by `tfprep.load.reader.assembler`, in the process that trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from tfprep.augment.transform import GeometryOp
from tfprep.augment.warp import warp_sample
from tfprep.codecs import InPlace
from tfprep.errors import RecordError, SampleError
from tfprep.fields import RASTER_KINDS, Array, Kind, raster_size
from tfprep.load.order.schedule import Numbers
from tfprep.load.outputs import transform_of
from tfprep.load.reader.cache import EncodedCache
from tfprep.load.reader.files import FieldSpan, Files, Record, read_at, read_fields
from tfprep.load.reader.parts import FieldPart
from tfprep.load.reader.thread_state import ThreadState
from tfprep.storage.local import FileIdentity

COLUMNS = ("row", "position", "record", "label", "file", "offset", "size", "payload_crc", "verify", "slot", "cached")
"""The columns of `Rows` before those of the fields."""

GROUP_BYTES = 256 << 10
"""Bytes that are read before they are decoded: they stay in the processor's cache, and the clock is read twice a group."""

NO_BYTES: Array = np.empty(0, np.uint8)

Piece = tuple[Any, int, int]
"""Place of the bytes of a row's field: an open file, the offset in it, the number of bytes."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a batch and where their records lie: int64 [columns, rows].

    The columns are those of `COLUMNS`, then the offset and the size of each field. `position` is that of the sample in the run;
    `label` is the one that the index holds, 0 if it is not wanted; `verify` is 1 where checksums are to be compared; `slot` is
    the row of the decoded cache or -1; `cached` is 1 where that row is to be copied, 0 where it is to be written.
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


def _mapped_bytes(file: Any, offset: int, size: int) -> Array:
    """These bytes of a file, in its memory map; none where the file ended before them when it was mapped."""
    content: Array | None = file.content
    return NO_BYTES if content is None or offset + size > len(content) else content[offset : offset + size]


def _contents_of(pieces: Sequence[Piece], state: ThreadState) -> list[Array]:
    """Read the bytes of each piece, which are valid until the next call; no bytes where they cannot be read."""
    state.scratch.reset(sum(size for *_, size in pieces))
    contents = [state.scratch.take(size) for *_, size in pieces]
    return [
        content if read_at(file.fd, content, offset) else NO_BYTES
        for (file, offset, _), content in zip(pieces, contents, strict=True)
    ]


def _decode_all(part: FieldPart, contents: Iterable[Array], targets: Sequence[Array]) -> list[int]:
    """Decode each of the contents into its target; the numbers of those that failed.

    A decoder leaves little of Python in the processor's cache: each line in this loop costs many times what it does elsewhere.
    """
    decode, spec, failed = cast(InPlace, part.codec).decode_into, part.spec, []
    for number, (content, target) in enumerate(zip(contents, targets, strict=True)):
        try:
            if len(content):
                decode(content, spec, target)
                continue
        except SampleError:
            pass
        failed.append(number)
    return failed


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


class RecordReader:
    """Reads and decodes records into rows. Called by many threads at once, each with a state of its own.

    Rows whose checksums need no comparing are read field by field, many at a time with little Python between them, where
    every field is decoded in place.

    Files are read, and only with `mapped` mapped into memory, which saves a copy: a map of a file that is cut short, or on a
    disk that fails, ends the process. Records whose checksums are compared are always read.
    """

    def __init__(
        self,
        paths: Sequence[Any],
        identities: Sequence[FileIdentity | None],
        parts: Sequence[FieldPart],
        geometry: Sequence[GeometryOp] = (),
        encoded: EncodedCache | None = None,
        *,
        announce: bool = False,
        mapped: bool = False,
        damaged: Callable[[int], None] | None = None,
    ) -> None:
        """`identities`: see `Files`. `announce`: the page cache cannot hold all files, so the system is told which bytes come
        next. `mapped`: this process may die of a file that is cut short. `damaged`: see `Files`."""
        self.paths, self.parts, self.geometry, self.announced = paths, parts, tuple(geometry), announce
        self._mapped = mapped and not announce
        self.identities = identities
        self._files, self._encoded = Files(paths, identities, damaged=damaged), encoded
        self.fields = field_names(parts)
        self._numbers = {name: number for number, name in enumerate(self.fields)}
        self._whole = any(part.whole_example for part in parts)
        self._direct = {part.field: part for part in parts if part.direct and not self._whole}
        self._kinds: dict[str, Kind] = {part.field: part.spec.kind for part in parts}
        self._in_place = not geometry and encoded is None and all(part.in_place for part in parts)

    @property
    def in_place(self) -> bool:
        """Return whether all fields are decoded straight into the rows, from local files."""
        return self._in_place and not self._files.remote.any()

    @property
    def files(self) -> Files:
        """The files that it reads."""
        return self._files

    def byte_ranges(self, rows: Rows) -> tuple[Numbers, Numbers, Numbers]:
        """Return the bytes that reading these rows takes: for each range the row's number, its start and its stop in the file."""
        every = (rows["verify"] != 0) | self._whole
        whole, some = np.flatnonzero(every), np.flatnonzero(~every)
        numbers, starts = [whole], [rows["offset"][whole]]
        stops = [starts[0] + rows["size"][whole]]
        for field in range(len(self.fields)):
            offsets, sizes = rows.field(field)
            numbers.append(some)
            starts.append(offsets[some])
            stops.append(offsets[some] + sizes[some])
        return np.concatenate(numbers), np.concatenate(starts), np.concatenate(stops)

    def close(self) -> None:
        """Close the files and let go of the cache."""
        self._files.close()
        self._encoded = None

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """Fill the rows of the arrays in `values`; return those that cannot be read."""
        verify = rows["verify"] != 0
        compares = bool(verify.any())
        if self.announced or compares:
            self._announce(rows)
        if not self.in_place:
            return self._one_by_one(values, rows, range(len(rows)), state)
        if not compares:  # as a rule, from the second epoch on
            return self._one_by_one(values, rows, self._many(values, rows, state), state)
        unread = self._one_by_one(values, rows, np.flatnonzero(verify).tolist(), state)
        together = np.flatnonzero(~verify)
        if len(together):
            failed = together[self._many(values, rows.take(together), state)]
            unread += self._one_by_one(values, rows, failed.tolist(), state)  # once more, for the reason
        return unread

    def _announce(self, rows: Rows) -> None:
        """Let the system begin to read these records, all at once: a thread that waits for one after the other would not."""
        for file, offset, size in zip(*(rows[name].tolist() for name in ("file", "offset", "size")), strict=True):
            self._files.will_need(file, offset, size)

    # --- many rows ----------------------------------------------------------------------------------------------------

    def _many(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[int]:
        """Fill rows whose checksums were compared before, field by field; the numbers of those that failed."""
        numbers = rows["file"].tolist()
        state.path, state.offset = self._files.paths[numbers[0]], int(rows["offset"][0])
        files = {number: self._files.get(number) for number in set(numbers)}
        opened = [files[number] for number in numbers]
        failed: set[int] = set()
        if (changed := self._files.changed[numbers]).any():
            failed = set(np.flatnonzero(changed).tolist())  # their checksums are compared, one by one
        for part in self.parts:
            offsets, sizes = (column.tolist() for column in rows.field(self._numbers[part.field]))
            state.bytes += sum(sizes)
            pieces = list(zip(opened, offsets, sizes, strict=True))
            fill = self._read_rows if part.direct else self._decode_rows
            failed.update(fill(part, pieces, values[part.output.name], rows["row"].tolist(), state))
        return sorted(failed)

    def _read_rows(
        self, part: FieldPart, pieces: Sequence[Piece], values: Array, places: Sequence[int], state: ThreadState
    ) -> list[int]:
        """Read bytes that are the rows at these places; the numbers of the pieces that failed."""
        state.enter("read")
        target = values.reshape(len(values), -1).view(np.uint8)
        row_bytes = target.shape[1]
        numbered = enumerate(zip(places, pieces, strict=True))
        if not self._mapped:
            return [
                number
                for number, (row, (file, offset, size)) in numbered
                if size != row_bytes or not read_at(file.fd, target[row], offset)
            ]
        failed = []
        for number, (row, piece) in numbered:
            content = _mapped_bytes(*piece)
            if len(content) == row_bytes:
                target[row] = content
            else:
                failed.append(number)
        return failed

    def _decode_rows(
        self, part: FieldPart, pieces: Sequence[Piece], values: Array, places: Sequence[int], state: ThreadState
    ) -> list[int]:
        """Read and decode straight into the rows at these places; the numbers of the pieces that failed."""
        targets = [values[row] for row in places]
        if self._mapped:
            state.enter("decode")
            return _decode_all(part, starmap(_mapped_bytes, pieces), targets)
        failed = []
        for first, last in _groups([size for *_, size in pieces]):
            state.enter("read")
            contents = _contents_of(pieces[first:last], state)
            state.enter("decode")
            failed += [first + number for number in _decode_all(part, contents, targets[first:last])]
        return failed

    # --- one row ------------------------------------------------------------------------------------------------------

    def _one_by_one(
        self, values: Mapping[str, Any], rows: Rows, numbers: Sequence[int], state: ThreadState
    ) -> list[UnreadRow]:
        unread = []
        for number in numbers:
            try:
                self._fill(values, rows, number, state)
            except (RecordError, SampleError) as error:
                reason = self._once_more(values, rows, number, state, error.reason)
                if reason:
                    unread.append(UnreadRow(number, reason))
        return unread

    def _once_more(self, values: Mapping[str, Any], rows: Rows, number: int, state: ThreadState, reason: str) -> str:
        """Read a row from its store where the local copy of its file is damaged; return why it cannot be read, "" if it was."""
        if not self._files.recover(int(rows["file"][number])):
            return reason
        try:
            self._fill(values, rows, number, state)
        except (RecordError, SampleError) as error:
            return error.reason
        return ""

    def _fill(self, values: Mapping[str, Any], rows: Rows, number: int, state: ThreadState) -> None:
        file, offset, size, crc = (int(rows[name][number]) for name in ("file", "offset", "size", "payload_crc"))
        state.path, state.offset = self._files.paths[file], offset
        state.enter("read")
        contents = self._contents(values, rows, number, Record(file, offset, size, crc), state)
        state.enter("decode")
        row = int(rows["row"][number])
        if self.geometry:
            self._store_warped(contents, values, row, state)
            return
        for part in self.parts:
            if part.field not in self._direct:
                part.store(contents["" if part.whole_example else part.field], values, row, state)

    def _contents(
        self, values: Mapping[str, Any], rows: Rows, number: int, frame: Record, state: ThreadState
    ) -> Mapping[str, Array]:
        row, record = int(rows["row"][number]), int(rows["record"][number])
        if self._encoded is not None and (cached := self._encoded.fetch(record)) is not None:
            state.cached += 1
            for name, part in self._direct.items():
                part.store(cached[name], values, row, state)
            return cached
        spans = []
        for position, name in enumerate(self.fields):
            offsets, sizes = rows.field(position)
            size = int(sizes[number])
            target = self._target(name, values, row, size) if name in self._direct else None
            spans.append(FieldSpan(name, int(offsets[number]), size, target))
        spans.sort(key=lambda span: span.offset)  # other writers than tfprep's store fields in any order
        if not self._files.remote[frame.file]:
            self._files.get(frame.file)
        verify = bool(rows["verify"][number] or self._files.changed[frame.file])
        contents = read_fields(self._files, frame, spans, state.scratch, verify=verify, whole=self._whole)
        state.bytes += frame.size if verify or self._whole else sum(span.size for span in spans)
        if self._encoded is not None:
            self._encoded.store(record, contents)
        return contents

    def _target(self, name: str, values: Mapping[str, Any], row: int, size: int) -> Array:
        """The row itself, as bytes."""
        target: Array = values[self._direct[name].output.name][row : row + 1].reshape(-1).view(np.uint8)
        if len(target) != size:
            raise SampleError(f"'{name}' holds {size} bytes, expected {len(target)}")
        return target

    def _store_warped(
        self, contents: Mapping[str, Array], values: Mapping[str, Any], row: int, state: ThreadState
    ) -> None:
        sample = {
            part.field: part.decode(contents["" if part.whole_example else part.field], state) for part in self.parts
        }
        size = raster_size(sample, self._kinds)
        if size is not None:
            transform = transform_of(self.geometry, size)
            kinds = {name: kind for name, kind in self._kinds.items() if kind in RASTER_KINDS | {"boxes", "points"}}
            sample = warp_sample(sample, kinds, transform, size=size)
        for part in self.parts:
            part.place(sample[part.field], values, row)
