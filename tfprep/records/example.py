"""`tf.train.Example` to and from bytes, and where its features are in them, without TensorFlow.

The wire format is protocol buffers' (https://protobuf.dev/programming-guides/encoding):

    Example  = 1: Features          Feature = 1: BytesList | 2: FloatList | 3: Int64List
    Features = 1: map entry, each   BytesList = 1: bytes, each
    entry    = 1: name, 2: Feature  FloatList = 1: packed little-endian floats; Int64List = 1: packed varints

`encode` writes features in the order of their names' UTF-8 bytes, so that equal features are equal bytes, and says where each
feature's own bytes are in the payload, so that a reader can go straight to them. `find_features` finds them in an Example of any
writer whose numbers are packed, as all known writers pack them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tfprep.errors import SampleError
from tfprep.fields import Array

FeatureValue: TypeAlias = "bytes | Sequence[bytes] | npt.NDArray[Any]"
"""bytes or a sequence of bytes (BytesList), a float32 array [N] (FloatList) or an int64 array [N] (Int64List)."""
Decoded: TypeAlias = "list[bytes] | npt.NDArray[Any]"

NO_LIST, BYTES, FLOAT, INT64 = 0, 1, 2, 3
"""The kinds of a feature, by the number of its list in `tf.train.Feature`; 0 for a feature without a list."""
_VARINT, _FIXED64, _MESSAGE, _FIXED32 = 0, 1, 2, 5
"""Wire types; bytes have that of messages."""
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_KINDS = {kind << 3 | _MESSAGE: kind for kind in (BYTES, FLOAT, INT64)}
"""The kinds of lists, by their tag."""
_WIRES = {BYTES: (_MESSAGE,), FLOAT: (_MESSAGE, _FIXED32), INT64: (_MESSAGE, _VARINT)}
"""The wire types of a list's values: numbers are packed or single. Parsers skip any other, which only damage writes."""
_MOST_FEATURES = 10_000


class ExampleError(ValueError):
    """The bytes are not a `tf.train.Example`, or are one that cannot be read by offset; the text says why."""


class Span(NamedTuple):
    """The place of a feature in an Example.

    Attributes:
        kind: `BYTES`, `FLOAT`, `INT64`, or `NO_LIST` for a feature without a list.
        offset, size: Where its packed numbers, or the items of its list of bytes with their tags and lengths, begin, and how many
            bytes they are.
        values: The number of its numbers or items.
        last: The size of its last item without tag and length; of numbers, their size.
    """

    kind: int
    offset: int
    size: int
    values: int
    last: int


def encode(features: Mapping[str, FeatureValue]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Serialize an Example.

    Args:
        features: The value of each feature by name.

    Returns:
        The serialized Example, and the offset and size of every feature's bytes in it: of the content of a single bytes value, of
        the first of several, or of the packed numbers. An empty list has the size 0.

    Raises:
        TypeError: No feature can hold a value.
    """
    chunks: list[bytes] = []
    ends: dict[str, tuple[int, int]] = {}
    position = 0
    for name in sorted(features, key=str.encode):
        head, content, tail = _entry(name, features[name])
        chunks += (head, content, tail)
        ends[name] = (position + len(head), len(content))
        position += len(head) + len(content) + len(tail)
    prefix = b"\x0a" + varint(position)
    spans = {name: (len(prefix) + start, size) for name, (start, size) in ends.items()}
    return b"".join((prefix, *chunks)), spans


def decode(payload: bytes) -> dict[str, Decoded]:
    """Parse a serialized Example.

    Args:
        payload: The serialized Example.

    Returns:
        By name of the feature a list of bytes, a float32 array [N] or an int64 array [N]; a feature without a value is an empty
        list.

    Raises:
        ExampleError: As in `find_features`.
    """
    spans = find_features(payload)
    try:
        return {name.decode(): _values(payload, span) for name, span in spans.items()}
    except ValueError as error:
        raise ExampleError(f"its bytes are not a tf.train.Example: {error}") from error


def find_features(payload: bytes) -> dict[bytes, Span]:
    """Find the features of an Example, in any form that protocol buffers allow.

    Args:
        payload: The serialized Example.

    Returns:
        The place of each feature by name; of a name that comes twice the last one, as in protocol buffers.

    Raises:
        ExampleError: The bytes are not an Example, or one that cannot be read by offset.
    """
    spans: dict[bytes, Span] = {}
    try:
        for start, stop in _entries(payload):
            usual = _usual_entry(payload, start, stop)
            if usual is not None:
                spans[usual[0]] = usual[1]
            else:
                name, kind, first, last = _entry_of(payload, start, stop)
                spans[name] = _span(payload, kind, first, last)
            if len(spans) > _MOST_FEATURES:
                raise ExampleError(f"it has more than {_MOST_FEATURES:,} features")
    except ExampleError:
        raise
    except ValueError as error:
        raise ExampleError(f"its bytes are not a tf.train.Example: {error}") from error
    return spans


# --- writing --------------------------------------------------------------------------------------------------------


def _entry(name: str, value: FeatureValue) -> tuple[bytes, bytes, bytes]:
    """Encode one map entry, divided at the bytes that its span points to. Raises TypeError."""
    kind, tail = BYTES, b""
    if isinstance(value, bytes):
        content, head = value, b"\x0a" + varint(len(value))
    elif isinstance(value, np.ndarray):
        if value.ndim != 1 or value.dtype not in (np.float32, np.int64):
            raise TypeError(f"a feature is float32 or int64 [N], not {value.dtype} of shape {value.shape}")
        kind = FLOAT if value.dtype == np.float32 else INT64
        content = value.astype("<f4", copy=False).tobytes() if kind == FLOAT else b"".join(map(varint, value.tolist()))
        head = b"\x0a" + varint(len(content)) if content else b""
    else:
        content, head = (bytes(value[0]), b"\x0a" + varint(len(value[0]))) if value else (b"", b"")
        tail = b"".join(b"\x0a" + varint(len(item)) + item for item in value[1:])
    body = len(head) + len(content) + len(tail)
    feature = bytes((kind << 3 | _MESSAGE,)) + varint(body)
    label = name.encode()
    key = b"\x0a" + varint(len(label)) + label
    inner = key + b"\x12" + varint(len(feature) + body) + feature
    return b"\x0a" + varint(len(inner) + body) + inner + head, content, tail


# --- reading --------------------------------------------------------------------------------------------------------


def _entries(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the entry of each feature begins and ends."""
    for number, start, stop in messages(payload, 0, len(payload), 2):
        if number == 2:
            raise ExampleError(
                "it is a tf.train.SequenceExample (it has feature_lists), which has no one value per feature; "
                "write each step as a tf.train.Example (tf.io.parse_single_sequence_example reads the steps)"
            )
        for inner, wire, first, last in fields(payload, start, stop) if number == 1 else ():
            if inner == 1:
                if wire != _MESSAGE:
                    raise ValueError("a number where a message belongs")
                yield first, last


def _usual_entry(payload: bytes, start: int, stop: int) -> tuple[bytes, Span] | None:
    """Return the name and the place of a feature in the form that known writers give it: a short name, then one byte string or
    packed numbers. None for any other form, which `_entry_of` and `_span` read with several times the calls."""
    if stop - start < 2 or payload[start] != 0x0A or payload[start + 1] > 0x7F:  # the tag and the length of the name
        return None
    at = start + 2 + payload[start + 1]
    name, tags, first = payload[start + 2 : at], [0, 0, 0], at
    for level in range(3):  # the feature, its list, and the only item of this
        if at + 2 > stop:
            return None
        tags[level], size, first, at = payload[at], payload[at + 1], at, at + 2
        if size > 0x7F:
            size, at = read_varint(payload, at - 1, stop)
        if at + size != stop:
            return None
    kind = _KINDS.get(tags[1], NO_LIST) if (tags[0], tags[2]) == (0x12, 0x0A) and at < stop else NO_LIST
    if kind == BYTES:
        return name, Span(BYTES, first, stop - first, 1, stop - at)
    return (name, _span_of_packed(payload, kind, at, stop)) if kind else None


def _entry_of(payload: bytes, start: int, stop: int) -> tuple[bytes, int, int, int]:
    """Return the name of a feature, the kind of its list, and where the list's message begins and ends."""
    name, lists = b"", list[tuple[int, int, int]]()
    for number, first, last in messages(payload, start, stop, 2):
        if number == 1:
            name = payload[first:last]
        elif number == 2:
            lists += [found for found in messages(payload, first, last, INT64) if found[0] <= INT64]
    if len(lists) > 1:  # of one kind, protocol buffers join them
        raise ExampleError("a feature has two lists; write it with TensorFlow or protobuf again")
    return name, *(lists[0] if lists else (NO_LIST, start, start))


def _values(payload: bytes, span: Span) -> Decoded:
    stop = span.offset + span.size
    if span.kind == FLOAT:
        return np.frombuffer(payload, "<f4", span.values, span.offset).astype(np.float32)
    if span.kind == INT64:
        return _varints(np.frombuffer(payload, np.uint8, span.size, span.offset))
    if span.values == 1:
        return [payload[stop - span.last : stop]]
    return [payload[first:last] for *_, first, last in fields(payload, span.offset, stop)]


def _span(payload: bytes, kind: int, start: int, stop: int) -> Span:
    """Return the place of a list of strings, or of numbers that are in one piece: packed, or a single unpacked one."""
    items = list(fields(payload, start, stop)) if kind else []
    if any(number == 1 and wire not in _WIRES[kind] for number, wire, *_ in items):
        raise ValueError("a value of another type than its list")
    if kind == BYTES:
        if any(number != 1 for number, *_ in items):
            raise ExampleError("a list of strings holds something else")
        return Span(BYTES, start, stop - start, len(items), items[-1][3] - items[-1][2] if items else 0)
    pieces = [(first, last) for number, _, first, last in items if number == 1 and last > first]
    if len(pieces) > 1:
        raise ExampleError("a list of numbers is not packed into one piece; write it with TensorFlow or protobuf again")
    return _span_of_packed(payload, kind, *pieces[0]) if pieces else Span(kind, start, 0, 0, 0)


def _span_of_packed(payload: bytes, kind: int, at: int, end: int) -> Span:
    size = end - at
    if kind == FLOAT:
        if size % 4:
            raise ExampleError(f"{size} bytes are not a list of float32")
        return Span(kind, at, size, size // 4, size)
    values = 1 if size == 1 else sum(byte < 0x80 for byte in payload[at:end])
    if payload[end - 1] >= 0x80 or size > 10 * values:
        raise ExampleError("a number of a list has no end")
    return Span(kind, at, size, values, size)


def unpack(content: Array, dtype: str) -> Array:
    """Decode the packed numbers of one feature, such as an index's span of a `Scalar` gives them.

    Args:
        content: uint8 [N], the bytes of the feature's list.
        dtype: "float32" or "int64".

    Returns:
        The numbers, float32 or int64 [M].

    Raises:
        SampleError: The bytes end inside a number, or a number has more than ten bytes.
    """
    if dtype == "float32":
        if content.nbytes % 4:
            raise SampleError(f"{content.nbytes} bytes are not a list of float32")
        return np.frombuffer(content.tobytes(), "<f4").astype(np.float32, copy=False)
    if content.nbytes == 1 and content[0] < 0x80:  # most labels
        return content.astype(np.int64)
    try:
        return _varints(content)
    except ValueError as error:
        raise SampleError(str(error)) from error


def _varints(content: Array) -> Array:
    """Decode numbers of 7-bit groups, least significant first; a byte below 128 ends a number."""
    last = np.flatnonzero(content < 0x80)
    if content.nbytes and (not len(last) or last[-1] != content.nbytes - 1):
        raise ValueError("not packed numbers: the last one has no end")
    starts = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    if len(last) and (last - starts).max() > 9:
        raise ValueError("not packed numbers: one has more than ten bytes")
    group = np.arange(content.nbytes) - np.repeat(starts, last - starts + 1)
    shifted = (content & 0x7F).astype(np.uint64) << (group * 7).astype(np.uint64)
    return np.add.reduceat(shifted, starts).astype(np.int64) if len(last) else np.empty(0, np.int64)


# --- messages of protocol buffers ---------------------------------------------------------------------------------------


@lru_cache(4096)  # tags and most lengths
def varint(value: int) -> bytes:
    """Encode a number in base 128, least significant group first; a negative number as its 64-bit two's complement."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def read_varint(view: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where it ends. ValueError if it has no end, or more than ten bytes."""
    value = shift = 0
    while at < stop and shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a number without an end at byte {at}")


def fields(view: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of the message in [at, stop): (number, wire type, start, stop), with the place of the field's own content.

    Raises:
        ValueError: The bytes are not a message.
    """
    while at < stop:
        tag = view[at]
        at += 1
        if tag >= 0x80:
            tag, at = read_varint(view, at - 1, stop)
        wire = tag & 7
        if tag < 8:
            raise ValueError(f"field number 0 before byte {at}")
        if wire == _MESSAGE:
            if at < stop and view[at] < 0x80:  # most sizes, without a call
                size, at = view[at], at + 1
            else:
                size, at = read_varint(view, at, stop)
            end = at + size
        elif wire == _VARINT:
            end = read_varint(view, at, stop)[1]
        elif wire in _SIZES:
            end = at + _SIZES[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if end > stop:
            raise ValueError(f"a field of {end - at} bytes ends after its message")
        yield tag >> 3, wire, at, end
        at = end


def messages(view: bytes, at: int, stop: int, known: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of the message in [at, stop) that are messages or bytes: (number, start, stop).

    Args:
        view: The bytes.
        at, stop: The place of the message in them.
        known: The greatest number of a field of this message, which are all messages or bytes.

    Raises:
        ValueError: The bytes are not a message, or a known field is neither a message nor bytes.
    """
    for number, wire, start, end in fields(view, at, stop):
        if wire == _MESSAGE:
            yield number, start, end
        elif number <= known:
            raise ValueError("a number where a message belongs")
