"""Where the features of an Example lie in its bytes: for readers that read a feature by its offset.

The position of a feature is that of its packed numbers, or of the items of its list of bytes, each with its tag and length.
"""

from __future__ import annotations

from typing import NamedTuple

from tfprep.records.example import fields, messages

NO_LIST, BYTES, FLOAT, INT64 = 0, 1, 2, 3
"""The kinds of a feature, by the number of its list in `tf.train.Feature`; 0 for a feature without a list."""
_MOST_FEATURES = 10_000
_MESSAGE = 2
"""The wire type of messages and of bytes."""


class ExampleError(ValueError):
    """The bytes are not a `tf.train.Example`, or are one that cannot be read by offset; the text says why."""


class Span(NamedTuple):
    """The place of a feature in an Example.

    Attributes:
        kind: `BYTES`, `FLOAT`, `INT64`, or `NO_LIST` for a feature that is there without a list.
        offset, size: Where its numbers or items begin, and how many bytes they are.
        values: How many numbers or items they are.
    """

    kind: int
    offset: int
    size: int
    values: int


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
        for number, start, stop in messages(payload, 0, len(payload), 2):
            if number == 2:
                raise ExampleError(
                    "it is a tf.train.SequenceExample (it has feature_lists), which has no one value per feature; "
                    "write each step as a tf.train.Example (tf.io.parse_single_sequence_example reads the steps)"
                )
            for inner, first, last in messages(payload, start, stop, 1) if number == 1 else ():
                if inner == 1:
                    name, span = _entry(payload, first, last)
                    spans[name] = span
                    if len(spans) > _MOST_FEATURES:
                        raise ExampleError(f"it has more than {_MOST_FEATURES:,} features")
    except ExampleError:
        raise
    except ValueError as error:
        raise ExampleError("its bytes are no tf.train.Example") from error
    return spans


def head_bytes(size: int) -> int:
    """Return how many of these bytes are the tag and the length of the single item that fills the rest."""
    return next(head for head in range(2, 8) if size - head < 1 << 7 * (head - 1))


def _entry(payload: bytes, start: int, stop: int) -> tuple[bytes, Span]:
    if 4 <= stop - start <= 0x7F:  # the usual form, a name and then its value: half of the time
        value = start + 2 + payload[start + 1]
        is_usual = payload[start] == 0x0A and value + 2 <= stop and payload[value] == 0x12
        if is_usual and payload[value + 1] == stop - value - 2:
            return payload[start + 2 : value], _feature(payload, value + 2, stop)
    name, span = b"", Span(NO_LIST, start, 0, 0)
    for number, first, last in messages(payload, start, stop, 2):
        if number == 1:
            name = payload[first:last]
        elif number == 2:
            span = _feature(payload, first, last)
    return name, span


def _feature(payload: bytes, start: int, stop: int) -> Span:
    span = Span(NO_LIST, start, 0, 0)
    for kind, wire, first, last in fields(payload, start, stop):
        if wire != _MESSAGE and kind <= INT64:
            raise ValueError("a number where a message belongs")
        if kind == BYTES:
            span = _strings(payload, first, last)
        elif kind in (FLOAT, INT64):
            span = _numbers(payload, kind, first, last)
    return span


def _strings(payload: bytes, start: int, stop: int) -> Span:
    count, content = 0, start
    for number, _, at, end in fields(payload, start, stop):
        if number != 1 or at - content != 2 + (end - at > 0x7F and (end - at).bit_length() - 1) // 7:
            raise ExampleError("a list of strings holds something else, or a number is longer than it needs to be")
        count, content = count + 1, end
    return Span(BYTES, start, stop - start, count)


def _numbers(payload: bytes, kind: int, start: int, stop: int) -> Span:
    """Return the place of numbers that are in one piece: packed, or a single unpacked one."""
    at = end = start
    for number, _, first, last in fields(payload, start, stop):
        if number == 1 and last > first:
            if end > at:
                raise ExampleError(
                    "a list of numbers is not packed into one piece; write it with TensorFlow or protobuf again"
                )
            at, end = first, last
    if end == at:
        return Span(kind, start, 0, 0)
    if kind == FLOAT:
        if (end - at) % 4:
            raise ExampleError(f"{end - at} bytes are no list of float32")
        return Span(kind, at, end - at, (end - at) // 4)
    values = 1 if end - at == 1 else sum(byte < 0x80 for byte in payload[at:end])
    if payload[end - 1] >= 0x80 or end - at > 10 * values:
        raise ExampleError("a number of a list has no end")
    return Span(kind, at, end - at, values)
