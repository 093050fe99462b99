"""Where the features of many Examples lie, found for all of them at the same time.

A parser that goes through one Example after another spends some ten microseconds a feature in Python. Examples of one writer are
alike, so here all of them advance together, one map entry a round, and each step is one operation of NumPy on all records. What
departs from the form that protobuf's own writers give (a map entry is its key, then its value; numbers are packed) is read by
`find_in_one`, record by record.

The position of a feature is that of its packed numbers, or of the items of its list of bytes, each with its tag and length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tfprep.fields import Array
from tfprep.records.example import fields, messages, varint

NO_LIST, BYTES, FLOAT, INT64 = 0, 1, 2, 3
"""The kinds of a feature, by the number of its list in `tf.train.Feature`; 0 for a feature without a list."""
PADDING = 16
"""Bytes behind the last payload that may be read: a number has at most ten."""

_FEATURES, _ENTRY_KEY, _ENTRY_VALUE, _ITEM = 0x0A, 0x0A, 0x12, 0x0A
_LIST_TAGS = (0x0A, 0x12, 0x1A)
_MOST_KEY = 255
_MOST_ITEMS = 64
"""Records with longer lists of bytes are read one by one: every item of the longest list costs all records a round."""


class ExampleError(ValueError):
    """The bytes are no `tf.train.Example`, or are one that cannot be read by offset; the text says why."""


@dataclass(frozen=True)
class Feature:
    """One feature of some records, one element a record: int64 [N] each.

    Attributes:
        name: The feature's name.
        record: The numbers of the records, ascending.
        kind: `BYTES`, `FLOAT`, `INT64`, or `NO_LIST` for a feature that is there without a list.
        offset: Where its numbers or items begin in the buffer.
        size: How many bytes they are.
        count: How many numbers or items they are.
    """

    name: bytes
    record: Array
    kind: Array
    offset: Array
    size: Array
    count: Array

    @property
    def columns(self) -> tuple[Array, ...]:
        """All that there is of each record."""
        return self.record, self.kind, self.offset, self.size, self.count


class _Span(NamedTuple):
    """A feature of one record, as `Feature` describes it."""

    kind: int
    offset: int
    size: int
    items: int


def find_features(buffer: Array, start: Array, stop: Array) -> tuple[dict[bytes, Feature], dict[int, str]]:
    """Find the features of all Examples in a buffer.

    Args:
        buffer: uint8 [bytes], with `PADDING` bytes behind the last payload.
        start: Where each payload begins, int64 [N].
        stop: Where each ends, int64 [N].

    Returns:
        The features by name, and by number of the record why its bytes are no Example that can be read by offset.
    """
    finder = _Finder(buffer, start, stop)
    features = list(finder.run())
    odd, faults = np.flatnonzero(finder.odd), dict[int, str]()
    if len(odd):  # what was found of a record before it turned out to be odd is found again
        for number, one in enumerate(features):
            kept = ~finder.odd[one.record]
            features[number] = Feature(one.name, *(column[kept] for column in one.columns))
        features += _one_by_one(buffer, start, stop, odd, faults)
    by_name: dict[bytes, list[Feature]] = {}
    for one in features:
        by_name.setdefault(one.name, []).append(one)
    return {name: _joined(name, parts) for name, parts in by_name.items()}, faults


def find_in_one(payload: bytes | memoryview) -> dict[bytes, _Span]:
    """Find the features of one Example, in any form that protocol buffers allow; ExampleError where there is none."""
    spans: dict[bytes, _Span] = {}
    view = memoryview(payload)
    try:
        for number, start, stop in messages(view, 0, len(view), 2):
            if number == 2:
                raise ExampleError(
                    "it is a tf.train.SequenceExample (it has feature_lists), which has no one value a feature; "
                    "write each step as a tf.train.Example (tf.io.parse_single_sequence_example reads the steps)"
                )
            for inner, first, last in messages(view, start, stop, 1) if number == 1 else ():
                if inner == 1:
                    name, span = _entry(view, first, last)
                    spans[name] = span
    except ExampleError:
        raise
    except ValueError as error:
        raise ExampleError("its bytes are no tf.train.Example") from error
    return spans


# --- all records together -------------------------------------------------------------------------------------------


class _Finder:
    """The state of all records on their way through their entries. A record that departs from the usual form becomes odd."""

    def __init__(self, buffer: Array, start: Array, stop: Array) -> None:
        self.buffer = buffer
        self.odd = np.zeros(len(start), bool)
        self._record = np.flatnonzero(stop > start)
        self._at, self._stop = start[self._record], stop[self._record]

    def run(self) -> Iterator[Feature]:
        at, ok = self._tag(self._at, _FEATURES)
        size, at, fits = self._number(at)
        self._at = at
        self._drop(ok & fits & (at + size == self._stop))
        while len(self._record):
            yield from self._one_entry()
            self._drop(self._at < self._stop, odd=False)

    def _drop(self, kept: Array, *, odd: bool = True) -> None:
        """Leave out the records that are at their end, or are odd."""
        if kept.all():
            return
        if odd:
            self.odd[self._record[~kept]] = True
        self._record, self._at, self._stop = self._record[kept], self._at[kept], self._stop[kept]

    def _tag(self, at: Array, *tags: int) -> tuple[Array, Array]:
        """The position behind a byte, and whether it is one of these."""
        byte = self.buffer.take(at)
        ok = byte == tags[0]
        for tag in tags[1:]:
            ok |= byte == tag
        return at + 1, ok

    def _number(self, at: Array) -> tuple[Array, Array, Array]:
        """A varint, the position behind it, and whether it is of at most six bytes: no size in a file is larger."""
        byte = self.buffer.take(at)
        if not (byte >= 0x80).any():
            return byte.astype(np.int64), at + 1, np.ones(len(at), bool)
        value, more, end = (byte & 0x7F).astype(np.int64), np.flatnonzero(byte >= 0x80), at + 1
        ok = np.ones(len(at), bool)
        for shift in range(7, 42, 7):
            byte = self.buffer.take(at[more] + shift // 7)
            value[more] |= (byte & 0x7F).astype(np.int64) << shift
            end[more] += 1
            ok[more[byte == 0]] = False  # longer than it needs to be
            more = more[byte >= 0x80]
            if not len(more):
                break
        ok[more] = False
        return value, end, ok

    def _one_entry(self) -> Iterator[Feature]:
        """Read the next map entry of every record."""
        at, ok = self._tag(self._at, _FEATURES)
        size, at, fits = self._number(at)
        end = at + size
        ok &= fits & (end <= self._stop)
        at, is_key = self._tag(at, _ENTRY_KEY)
        length, key, fits = self._number(at)
        value = key + length
        ok &= is_key & fits & (length <= _MOST_KEY) & (value < end)
        at, is_value = self._tag(np.where(ok, value, self._at), _ENTRY_VALUE)
        size, at, fits = self._number(at)
        ok &= is_value & fits & (at + size == end)
        kind, offset, size, count, readable = self._feature(np.where(ok, at, self._at), np.where(ok, end, self._at))
        ok &= readable
        columns = [column[ok] for column in (self._record, kind, offset, size, count)]
        yield from self._by_name(key[ok], length[ok], columns)
        self._at = np.where(ok, end, self._at)
        self._drop(ok)

    def _by_name(self, key: Array, length: Array, columns: list[Array]) -> Iterator[Feature]:
        """Divide the entries by their names. As a rule all records have the same name in the same round."""
        left = np.arange(len(key))
        while len(left):
            first = int(left[0])
            name = self.buffer[key[first] : key[first] + length[first]]
            same = length[left] == len(name)
            for number, byte in enumerate(name.tolist()):
                same &= self.buffer.take(key[left] + number, mode="clip") == byte
            here = left[same]
            record, kind, offset, size, count = (column[here] for column in columns)
            yield Feature(name.tobytes(), record, kind, offset, size, count)
            left = left[~same]

    def _feature(self, at: Array, end: Array) -> tuple[Array, Array, Array, Array, Array]:
        """(kind, offset, size, count, whether it can be read so) of the features that lie in [at, end)."""
        kind, offset, size, count = np.zeros(len(at), np.int64), at.copy(), np.zeros(len(at), np.int64), end * 0
        ok = end >= at
        some = np.flatnonzero(end > at)
        if not len(some):
            return kind, offset, size, count, ok
        inside, is_list = self._tag(at[some], *_LIST_TAGS)
        kind[some] = np.where(is_list, self.buffer.take(at[some]) >> 3, 0)
        length, inside, fits = self._number(inside)
        ok[some] &= is_list & fits & (inside + length == end[some])
        full = ok[some] & (length > 0)
        some, inside = some[full], inside[full]
        for number in (FLOAT, INT64):
            mine = kind[some] == number
            if mine.any():
                self._packed(number, some[mine], inside[mine], end, (offset, size, count, ok))
        mine = kind[some] == BYTES
        if mine.any():
            self._items(some[mine], inside[mine], end, (offset, size, count, ok))
        return kind, offset, size, count, ok

    def _packed(self, kind: int, some: Array, at: Array, end: Array, out: tuple[Array, ...]) -> None:
        """Packed numbers; a list of several chunks, or of unpacked numbers, is odd."""
        offset, size, count, ok = out
        at, packed = self._tag(at, _ITEM)
        length, at, fits = self._number(at)
        fits &= packed & (at + length == end[some])
        offset[some], size[some] = at, np.where(fits, length, 0)
        if kind == FLOAT:
            fits &= length % 4 == 0
            count[some] = length // 4
        else:
            count[some], whole = self._numbers_in(np.where(fits, at, 0), np.where(fits, length, 0))
            fits &= whole
        ok[some] &= fits

    def _numbers_in(self, at: Array, size: Array) -> tuple[Array, Array]:
        """Count the varints in these bytes, and say whether the last of them ends with the bytes."""
        if (size == 1).all():
            return np.ones(len(at), np.int64), self.buffer.take(at) < 0x80
        bytes_ = gather(self.buffer, at, size) < 0x80
        ends = np.concatenate([[0], np.cumsum(bytes_)])
        last = np.cumsum(size)
        whole = np.ones(len(at), bool)
        full = size > 0
        whole[full] = bytes_[last[full] - 1]
        return ends[last] - ends[last - size], whole

    def _items(self, some: Array, at: Array, end: Array, out: tuple[Array, ...]) -> None:
        """The items of lists of bytes, one of each list a round."""
        offset, size, count, ok = out
        offset[some], size[some] = at, end[some] - at
        for _ in range(_MOST_ITEMS):
            at, is_item = self._tag(at, _ITEM)
            length, at, fits = self._number(at)
            at = at + length
            fits &= is_item & (at <= end[some])
            ok[some[~fits]] = False
            count[some] += 1
            more = fits & (at < end[some])
            some, at = some[more], at[more]
            if not len(some):
                return
        ok[some] = False


def gather(buffer: Array, at: Array, size: Array) -> Array:
    """Return the bytes of many pieces of a buffer, one after another: uint8 [sum of size]."""
    first = np.cumsum(size) - size
    return buffer.take(np.repeat(at - first, size) + np.arange(int(size.sum())))


def _joined(name: bytes, parts: list[Feature]) -> Feature:
    """Join what several rounds found of one feature, in the order of the records. A name that comes twice has its last value."""
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)]
    order = np.argsort(columns[0], kind="stable")
    last = order[np.flatnonzero(np.diff(columns[0][order], append=-1))]
    return Feature(name, *(column[last] for column in columns))


# --- one record -------------------------------------------------------------------------------------------------------


def _one_by_one(buffer: Array, start: Array, stop: Array, records: Array, faults: dict[int, str]) -> Iterator[Feature]:
    columns: dict[bytes, list[tuple[int, ...]]] = {}
    for record in records.tolist():
        first = int(start[record])
        try:
            spans = find_in_one(memoryview(buffer[first : int(stop[record])]))  # type: ignore[arg-type] # a buffer
        except ValueError as error:
            faults[record] = str(error)
            continue
        for name, span in spans.items():
            columns.setdefault(name, []).append((record, span.kind, first + span.offset, span.size, span.items))
    for name, rows in columns.items():
        yield Feature(name, *np.array(rows, np.int64).T)


def _entry(view: memoryview, start: int, stop: int) -> tuple[bytes, _Span]:
    name, span = b"", _Span(NO_LIST, start, 0, 0)
    for number, first, last in messages(view, start, stop, 2):
        if number == 1:
            name = bytes(view[first:last])
        elif number == 2:
            span = _Span(NO_LIST, first, 0, 0)
            for kind, at, end in messages(view, first, last, 3):
                if kind in (BYTES, FLOAT, INT64):
                    items = [item for item in fields(view, at, end) if item[0] == 1]
                    span = _one_list(view, kind, items, at, end)
    return name, span


def _one_list(view: memoryview, kind: int, items: list[tuple[int, int, int, int]], start: int, stop: int) -> _Span:
    """Return the place of strings, one after another, or of numbers that lie in one piece: packed, or a single unpacked one."""
    if kind == BYTES:
        content = 0
        for _, _, at, end in items:
            content += 1 + len(varint(end - at)) + end - at
        if content != stop - start:
            raise ExampleError("a number in it is longer than it needs to be; no writer of Examples does that")
        return _Span(kind, start, stop - start, len(items))
    full = [(at, end) for _, _, at, end in items if end > at]
    if not full:
        return _Span(kind, start, 0, 0)
    if len(full) > 1:
        raise ExampleError("a list of numbers is not packed into one piece; write it with TensorFlow or protobuf anew")
    at, end = full[0]
    if kind == FLOAT:
        if (end - at) % 4:
            raise ExampleError(f"{end - at} bytes are no list of float32")
        return _Span(kind, at, end - at, (end - at) // 4)
    if view[end - 1] >= 0x80:
        raise ExampleError("the last number of a list has no end")
    return _Span(kind, at, end - at, sum(byte < 0x80 for byte in view[at:end]))
