"""The position of every feature against TensorFlow's own parser, in usual and in unusual bytes."""

import io
import struct

import numpy as np
import pytest

from tests.examples import example, serialized, write
from tfprep.records import masked_crc
from tfprep.records.example import BYTES, FLOAT, INT64, NO_LIST, ExampleError, decode, find_features
from tfprep.records.framing import find_records

tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(5)
LISTS = {"bytes_list": BYTES, "float_list": FLOAT, "int64_list": INT64, None: NO_LIST}


def random_example(number):
    """Features of all kinds, some missing, some empty, names of several lengths."""
    features = {
        "image/encoded": RNG.bytes(int(RNG.integers(0, 400))), "label": int(RNG.integers(0, 300)),
        "negative": -number, "ints": RNG.integers(-(2**62), 2**62, number % 4), "floats": RNG.random(number % 3),
        "texts": [b"x" * (size * 60) for size in range(number % 5)],
        "many": [b"y"] * (200 if number % 50 == 7 else 1), "long list": RNG.integers(0, 1000, 70),
        "no list": tf.train.Feature(), "n" * (number % 120 + 1): 1,
    }  # fmt: skip
    if number % 3 == 0:
        del features["floats"]
    return serialized(features)


def values_at(payload, kind, offset, size):
    """The values, by TensorFlow's parser: the bytes as the only list of an Example."""
    content = payload[offset : offset + size]
    if kind in (NO_LIST, BYTES):
        return list(tf.train.BytesList.FromString(content).value)
    packed = b"\x0a" + varint(len(content)) + content
    return list((tf.train.FloatList if kind == FLOAT else tf.train.Int64List).FromString(packed).value)


def varint(value):
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def check_against_tensorflow(payload):
    found, decoded = find_features(payload), decode(payload)
    features = tf.train.Example.FromString(payload).features.feature
    assert found.keys() == {name.encode() for name in features}
    for name, expected in features.items():
        kind = expected.WhichOneof("kind")
        values = list(getattr(expected, kind).value) if kind else []
        span = found[name.encode()]
        assert (span.kind, span.values) == (LISTS[kind], len(values))
        assert values_at(payload, *span[:3]) == list(decoded[name]) == values
        if span.kind == BYTES and values:
            assert payload[span.offset + span.size - span.last : span.offset + span.size] == values[-1]


def test_random_examples():
    for payload in [*map(random_example, range(300)), b""]:
        check_against_tensorflow(payload)


ENTRY = example({"a": 7}).features.SerializeToString()


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a" + varint(len(ENTRY) * 2) + ENTRY * 2,  # a name twice: the last value counts
        (b"\x0a" + varint(len(ENTRY)) + ENTRY) * 2,  # the message in two parts
        b"\x0a\x0b\x0a\x09\x12\x04\x1a\x02\x08\x07\x0a\x01b",  # the value before the key, its number not packed
        b"\x0a\x0b\x0a\x09\x0a\x01b\x12\x04\x1a\x02\x08\x07",
        b"\x0a\x0e\x0a\x0c\x0a\x01b\x12\x07\x12\x05\x0d\x00\x00\x80\x3f",  # a float that is not packed
        b"\x0a\x0a\x0a\x08\x0a\x01b\x12\x03\x28\x01\x0a"[:-1] + b"\x00",
    ],
)
def test_unusual_bytes_are_read_as_tensorflow_reads_them(payload):
    try:
        tf.train.Example.FromString(payload)
    except Exception:  # protobuf's DecodeError
        with pytest.raises(ExampleError):
            find_features(payload)
        return
    check_against_tensorflow(payload)


SEQUENCE = tf.train.SequenceExample()
SEQUENCE.context.feature["id"].int64_list.value.append(3)
SEQUENCE.feature_lists.feature_list["frames"].feature.add().bytes_list.value.append(b"frame")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (SEQUENCE.SerializeToString(), "SequenceExample"),
        (b"\xff" * 20, "not a tf.train.Example"),
        (b"\x0a\xff\xff\xff\x7f" + b"\0" * 20, "not a tf.train.Example"),
        (b"\x0a\x0d\x0a\x0b\x0a\x01b\x12\x06\x1a\x04\x08\x07\x08\x07", "not packed into one piece"),
        (b"\x0a\x10\x0a\x0e\x0a\x01b\x12\x09\x0a\x02\x0a\x00\x0a\x03\x0a\x01v", "two lists"),
        (b"\x0a\x0c\x0a\x0a\x0a\x01b\x12\x05\x12\x03\x0a\x01\x00", "not a list of float32"),
        (b"\x0a\x0c\x0a\x0a\x0a\x01b\x12\x05\x1a\x03\x0a\x01\x80", "has no end"),
    ],
)
def test_what_cannot_be_read_has_a_reason(payload, reason):
    with pytest.raises(ExampleError, match=reason):
        find_features(payload)


def test_floats_are_not_joined_of_parts_of_two_packs():
    payload = b"\x0a\x11\x0a\x0f\x0a\x01b\x12\x0a\x12\x08\x0a\x03\x00\x00\x80\x0a\x01\x3f"
    for parse in (tf.train.Example.FromString, decode):
        with pytest.raises(Exception, match=r"(?i)error parsing|not a tf\.train\.Example|not packed into one piece"):
            parse(payload)


@pytest.mark.parametrize("place", [2, 4, 7, 9, 11], ids=["entry", "name", "feature", "list", "value"])
def test_a_field_of_number_0_is_an_error_as_of_tensorflow(place):
    """The name of a feature, or its value, would be lost without it."""
    payload = bytearray(b"\x0a\x0c\x0a\x0a\x0a\x01n\x12\x05\x0a\x03\x0a\x01v")
    assert decode(bytes(payload))["n"] == [b"v"]
    payload[place] = 2
    for parse in (tf.train.Example.FromString, decode):
        with pytest.raises(Exception, match=r"(?i)wire format was corrupt|field number 0|not a tf\.train\.Example"):
            parse(bytes(payload))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (BYTES, b"\x0a\x01y" + b"\x09\x01y\x0a\x01y\x0a\x01y"),  # 64 bits where a string belongs
        (BYTES, b"\x08\x00" + b"\x0a\x01y"),
        (FLOAT, b"\x09" + bytes(8)),
        (INT64, b"\x0d\x01\x02\x03\x04"),
    ],
)
def test_a_value_of_another_type_than_its_list_is_an_error(kind, content):
    """TensorFlow's parser skips it; ours does not take it for a value."""
    assert not (tf.train.BytesList, tf.train.FloatList, tf.train.Int64List)[kind - 1].FromString(content).value[1:]
    size = len(content)
    head = [0x0A, size + 9, 0x0A, size + 7, 0x0A, 1, ord("n"), 0x12, size + 2, kind << 3 | 2, size]
    payload = bytes(head) + content
    assert tf.train.Example.FromString(payload).features.feature["n"].WhichOneof("kind") is not None
    with pytest.raises(ExampleError, match="another type"):
        decode(payload)


def test_damaged_bytes_never_point_outside():
    """Of 3,000 damaged Examples: what is found is inside, and is what TensorFlow's parser finds, if it finds anything."""
    read = 0
    for number in range(3000):
        payload = bytearray(random_example(number % 20))
        for _ in range(int(RNG.integers(1, 4))):
            payload[int(RNG.integers(len(payload)))] = int(RNG.integers(256))
        damaged = bytes(payload[: int(RNG.integers(1, len(payload) + 1))] if number % 2 else payload)
        try:
            found = find_features(damaged)
        except ExampleError:
            continue
        assert all(0 <= one.offset <= one.offset + one.size <= len(damaged) for one in found.values())
        try:
            expected = tf.train.Example.FromString(damaged).features.feature
        except Exception:  # a name that is not UTF-8, or a number of more than ten bytes
            continue
        read += 1
        for name, feature in expected.items():  # TensorFlow leaves out entries with fields that it does not know
            kind = feature.WhichOneof("kind")
            assert found[name.encode()].values == (len(getattr(feature, kind).value) if kind else 0)
    assert read > 300


def test_an_example_of_too_many_features_is_refused():
    entry = b"\x0a\x07\x0a\x05%05d"
    features = b"".join(entry % number for number in range(10_001))
    with pytest.raises(ExampleError, match="more than 10,000 features"):
        find_features(b"\x0a" + varint(len(features)) + features)


def test_records_are_those_that_tensorflow_reads(tmp_path):
    payloads = [RNG.bytes(int(size)) for size in RNG.integers(0, 500, 200)]
    content = write(tmp_path / "shard.tfrecord", payloads).read_bytes()
    start = np.cumsum([0, *(len(payload) + 16 for payload in payloads)])

    def read(data):
        return list(find_records(io.BytesIO(data), len(data)))

    assert [(one.offset, one.payload, one.fault) for one in read(content)] == [
        (offset, payload, "") for offset, payload in zip(start[:-1].tolist(), payloads, strict=True)
    ]
    for size in (len(content) - 1, int(start[100]) + 5, int(start[100]) + 20):
        *whole, last = read(content[:size])
        assert [one.payload for one in whole] == payloads[: int((start[1:] <= size).sum())]
        assert last.payload is None
        assert last.fault.startswith("cut short")
    for offset, fault in ((0, "checksum of the length"), (12, "checksum of the payload")):
        damaged = bytearray(content)
        damaged[int(start[50]) + offset] ^= 1
        found = read(damaged)
        assert fault in found[50].fault
        assert len(found) == (51 if offset == 0 else 200)
    huge = struct.pack("<Q", 1 << 40)
    assert "more than protocol buffers allow" in read(huge + struct.pack("<I", masked_crc(huge)) + bytes(100))[0].fault
