"""The position of every feature against TensorFlow's own parser, in usual and in unusual bytes."""

import numpy as np
import pytest

from tests.examples import example, serialized, write
from tfprep.records.find import BYTES, FLOAT, INT64, NO_LIST, PADDING, find_features, find_in_one
from tfprep.records.framing import walk

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


def joined(payloads):
    stop = np.cumsum([len(payload) for payload in payloads])
    buffer = np.frombuffer(b"".join(payloads) + bytes(PADDING), np.uint8)
    return buffer, stop - [len(payload) for payload in payloads], stop


def values_at(buffer, kind, offset, size):
    """The values, by TensorFlow's parser: the bytes as the only list of an Example."""
    content = buffer[offset : offset + size].tobytes()
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


def check_against_tensorflow(payloads):
    buffer, start, stop = joined(payloads)
    found, faults = find_features(buffer, start, stop)
    assert not faults
    seen = 0
    for number, payload in enumerate(payloads):
        for name, expected in tf.train.Example.FromString(payload).features.feature.items():
            one = found[name.encode()]
            row = int(np.searchsorted(one.record, number))
            assert one.record[row] == number
            kind = expected.WhichOneof("kind")
            values = list(getattr(expected, kind).value) if kind else []
            assert one.kind[row] == LISTS[kind]
            assert one.count[row] == len(values)
            assert values_at(buffer, one.kind[row], one.offset[row], one.size[row]) == values
            seen += 1
    assert seen == sum(len(one.record) for one in found.values())


def test_random_examples():
    check_against_tensorflow([random_example(number) for number in range(300)] + [b""])


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
        buffer, start, stop = joined([payload])
        assert find_features(buffer, start, stop)[1]
        return
    check_against_tensorflow([random_example(1), payload, random_example(2)])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff" * 20, "no tf.train.Example"),
        (b"\x0a\xff\xff\xff\x7f" + b"\0" * 20, "no tf.train.Example"),
        (b"\x0a\x0d\x0a\x0b\x0a\x01b\x12\x06\x1a\x04\x08\x07\x08\x07", "not packed into one piece"),
        (b"\x0a\x0c\x0a\x0a\x0a\x01b\x12\x05\x12\x03\x0a\x01\x00", "no list of float32"),
        (b"\x0a\x0c\x0a\x0a\x0a\x01b\x12\x05\x1a\x03\x0a\x01\x80", "has no end"),
    ],
)
def test_what_cannot_be_read_has_a_reason_and_its_neighbors_are_read(payload, reason):
    payloads = [random_example(1), payload, random_example(2)]
    found, faults = find_features(*joined(payloads))
    assert list(faults) == [1]
    assert reason in faults[1]
    assert found[b"label"].record.tolist() == [0, 2]


def test_a_sequence_example_is_named():
    sequence = tf.train.SequenceExample()
    sequence.context.feature["id"].int64_list.value.append(3)
    sequence.feature_lists.feature_list["frames"].feature.add().bytes_list.value.append(b"frame")
    assert "SequenceExample" in find_features(*joined([sequence.SerializeToString()]))[1][0]


def test_damaged_bytes_never_point_outside():
    """Of 3,000 damaged Examples, both ways of reading find the same features, inside the record."""
    payloads = []
    for number in range(3000):
        payload = bytearray(random_example(number % 20))
        for _ in range(int(RNG.integers(1, 4))):
            payload[int(RNG.integers(len(payload)))] = int(RNG.integers(256))
        payloads.append(bytes(payload[: int(RNG.integers(1, len(payload) + 1))] if number % 2 else payload))
    buffer, start, stop = joined(payloads)
    found, faults = find_features(buffer, start, stop)
    by_record = {number: {} for number in range(len(payloads))}
    for name, one in found.items():
        for record, *rest in zip(one.record, one.kind, one.offset, one.size, one.count, strict=True):
            kind, offset, size, count = map(int, rest)
            assert size == 0 or start[record] <= offset <= offset + size <= stop[record]
            by_record[int(record)][name] = (kind, offset - start[record] if size else 0, size, count)
    for number, payload in enumerate(payloads):
        if number in faults:
            with pytest.raises(ValueError, match=r"."):
                find_in_one(payload)
            continue
        spans = {name: (s.kind, s.offset if s.size else 0, s.size, s.items) for name, s in find_in_one(payload).items()}
        assert by_record[number] == spans, number


def test_frames_are_those_that_tensorflow_reads(tmp_path):
    payloads = [RNG.bytes(int(size)) for size in RNG.integers(0, 500, 200)]
    path = write(tmp_path / "shard.tfrecord", payloads)
    block = np.frombuffer(path.read_bytes(), np.uint8)
    found = walk(block)
    assert [block[a:b].tobytes() for a, b in zip(found.start, found.stop, strict=True)] == payloads
    assert (found.end, found.needed, found.fault) == (len(block), 0, "")
    for size in (len(block) - 1, int(found.start[100]) - 5, int(found.start[100]) - 12):
        cut = walk(block[:size])
        whole = int((found.stop + 4 <= size).sum())
        assert len(cut.start) == whole
        assert cut.fault == ""
        assert (cut.needed > 0) == (size != cut.end)
    damaged = block.copy()
    damaged[int(found.start[50]) - 12] ^= 1
    cut = walk(damaged)
    assert len(cut.start) == 50
    assert "checksum of the length" in cut.fault
