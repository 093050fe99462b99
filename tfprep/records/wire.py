"""The wire format of protocol buffers (https://protobuf.dev/programming-guides/encoding): numbers and the fields of a message."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}


def varint(value: int) -> bytes:
    """Encode a number in base 128, least significant group first; a negative number as its 64-bit two's complement."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= 0xFFFF_FFFF_FFFF_FFFF
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def read_varint(view: memoryview, at: int, stop: int) -> tuple[int, int]:
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


def fields(view: memoryview, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of the message in [at, stop): (number, wire type, start, stop), where the field's own content lies.

    Raises:
        ValueError: The bytes are no message.
    """
    while at < stop:
        tag, at = read_varint(view, at, stop)
        wire = tag & 7
        if wire == VARINT:
            end = read_varint(view, at, stop)[1]
        elif wire == BYTES:
            size, at = read_varint(view, at, stop)
            end = at + size
        elif wire in _SIZES:
            end = at + _SIZES[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if end > stop:
            raise ValueError(f"a field of {end - at} bytes ends behind its message")
        yield tag >> 3, wire, at, end
        at = end


def messages(view: memoryview, at: int, stop: int, known: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of the message in [at, stop) that are messages or bytes: (number, start, stop).

    Args:
        view: The bytes.
        at, stop: The place of the message in them.
        known: The greatest number of a field of this message, which are all messages or bytes.

    Raises:
        ValueError: The bytes are no message, or a known field is no message and no bytes.
    """
    for number, wire, start, end in fields(view, at, stop):
        if wire == BYTES:
            yield number, start, end
        elif number <= known:
            raise ValueError("a number where a message belongs")
