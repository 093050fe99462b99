"""`tf.train.Example` to and from bytes, without TensorFlow.

The wire format is protocol buffers' (https://protobuf.dev/programming-guides/encoding):

    Example  = 1: Features          Feature = 1: BytesList | 2: FloatList | 3: Int64List
    Features = 1: map entry, each   BytesList = 1: bytes, each
    entry    = 1: name, 2: Feature  FloatList = 1: packed little-endian floats; Int64List = 1: packed varints

`encode` writes features in the order of their names' UTF-8 bytes, so that equal features are equal bytes, and says where in
the payload each feature's own bytes lie, so that a reader can go straight there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tfprep.errors import SampleError
from tfprep.fields import Array

FeatureValue: TypeAlias = "bytes | Sequence[bytes] | npt.NDArray[Any]"
"""bytes or a sequence of bytes (BytesList), a float32 array [N] (FloatList) or an int64 array [N] (Int64List)."""
Decoded: TypeAlias = "list[bytes] | npt.NDArray[Any]"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


class FeatureSpan(NamedTuple):
    """The position of a feature's bytes in a payload: the content of a single bytes value, or the packed numbers."""

    offset: int
    size: int


def encode(features: Mapping[str, FeatureValue]) -> tuple[bytes, dict[str, FeatureSpan]]:
    """Serialise an Example.

    Args:
        features: The value of each feature by name.

    Returns:
        The serialised Example, and the span of every feature in it. A feature of several byte strings has the span of the first;
        an empty list has a span of size 0.

    Raises:
        TypeError: No feature can hold a value.
    """
    chunks: list[bytes] = []
    ends: dict[str, tuple[int, int]] = {}
    position = 0
    for name in sorted(features, key=lambda name: name.encode()):
        head, content, tail = _entry(name, features[name])
        chunks += (head, content, tail)
        ends[name] = (position + len(head), len(content))
        position += len(head) + len(content) + len(tail)
    prefix = b"\x0a" + _varint(position)
    spans = {name: FeatureSpan(len(prefix) + start, size) for name, (start, size) in ends.items()}
    return b"".join((prefix, *chunks)), spans


def decode(payload: bytes) -> dict[str, Decoded]:
    """Parse a serialised Example.

    Packed and unpacked numbers are both read and unknown protobuf fields skipped, as the protobuf specification asks.

    Args:
        payload: The serialised Example.

    Returns:
        By name of the feature a list of bytes, a float32 array [N] or an int64 array [N]; a feature without a value is an empty
        list.

    Raises:
        ValueError: The bytes are no Example.
    """
    features: dict[str, Decoded] = {}
    view = memoryview(payload)
    for number, body in _fields(view):
        if number == 1:
            for inner, entry in _fields(_expect_bytes(body)):
                if inner == 1:
                    name, value = _decode_entry(_expect_bytes(entry))
                    features[name] = value
    return features


# --- writing --------------------------------------------------------------------------------------------------------


def _entry(name: str, value: FeatureValue) -> tuple[bytes, bytes, bytes]:
    """Encode one map entry, divided at the bytes that its span points to."""
    kind, head, content, tail = _list(value)
    body = len(head) + len(content) + len(tail)
    feature = bytes((kind << 3 | _BYTES,)) + _varint(body)
    label = name.encode()
    key = b"\x0a" + _varint(len(label)) + label
    inner = key + b"\x12" + _varint(len(feature) + body) + feature
    return b"\x0a" + _varint(len(inner) + body) + inner + head, content, tail


def _list(value: FeatureValue) -> tuple[int, bytes, bytes, bytes]:
    """Return which list it is, and the bytes before the content, of the content and after it."""
    if isinstance(value, bytes):
        return _BYTES_LIST, b"\x0a" + _varint(len(value)), value, b""
    if isinstance(value, np.ndarray):
        return _packed(value)
    rest = b"".join(b"\x0a" + _varint(len(item)) + item for item in value[1:])
    if not value:
        return _BYTES_LIST, b"", b"", b""
    return _BYTES_LIST, b"\x0a" + _varint(len(value[0])), bytes(value[0]), rest


def _packed(value: npt.NDArray[Any]) -> tuple[int, bytes, bytes, bytes]:
    if value.ndim != 1 or value.dtype not in (np.float32, np.int64):
        raise TypeError(f"a feature is float32 or int64 [N], not {value.dtype} of shape {value.shape}")
    if value.dtype == np.float32:
        kind, content = _FLOAT_LIST, value.astype("<f4", copy=False).tobytes()
    else:
        kind, content = _INT64_LIST, b"".join(map(_varint, value.tolist()))
    return kind, (b"\x0a" + _varint(len(content))) if content else b"", content, b""


def _varint(value: int) -> bytes:
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


# --- reading --------------------------------------------------------------------------------------------------------


def _fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of one message as (number, varint or bytes)."""
    position = 0
    while position < len(view):
        tag, position = _read_varint(view, position)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _read_varint(view, position)
            yield number, value
            continue
        if wire == _BYTES:
            size, position = _read_varint(view, position)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"not a tf.train.Example: wire type {wire} at byte {position}")
        if position + size > len(view):
            raise ValueError(f"not a tf.train.Example: a field of {size} bytes ends behind its message")
        yield number, view[position : position + size]
        position += size


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(view) and shift < 70:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError(f"not a tf.train.Example: a number without an end at byte {position}")


def _expect_bytes(body: int | memoryview) -> memoryview:
    if isinstance(body, int):
        raise ValueError("not a tf.train.Example: a number where a message belongs")
    return body


def _decode_entry(entry: memoryview) -> tuple[str, Decoded]:
    name = ""
    value: Decoded = []
    for number, body in _fields(entry):
        if number == 1:
            name = bytes(_expect_bytes(body)).decode()
        elif number == 2:
            value = _decode_feature(_expect_bytes(body))
    return name, value


def _decode_feature(feature: memoryview) -> Decoded:
    value: Decoded = []
    for kind, body in _fields(feature):
        values = [item for number, item in _fields(_expect_bytes(body)) if number == 1]
        if kind == _BYTES_LIST:
            value = [bytes(_expect_bytes(item)) for item in values]
        elif kind == _FLOAT_LIST:
            value = np.frombuffer(b"".join(bytes(_expect_bytes(item)) for item in values), "<f4").astype(np.float32)
        elif kind == _INT64_LIST:
            value = np.concatenate([np.empty(0, np.int64), *map(_numbers, values)])
    return value


def _numbers(item: int | memoryview) -> Array:
    """Decode the numbers of a packed list, or the single number of an unpacked field."""
    if isinstance(item, int):
        return np.array([item & 0xFFFF_FFFF_FFFF_FFFF], np.uint64).astype(np.int64)
    return _varints(np.frombuffer(item, np.uint8))


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
            raise SampleError(f"{content.nbytes} bytes are no list of float32")
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
