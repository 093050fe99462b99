"""`tf.train.Example` bytes, compared with TensorFlow's message class and parser in both directions."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.examples import example
from tfprep.errors import SampleError
from tfprep.records import decode, encode, unpack

tf = pytest.importorskip("tensorflow")

NAMES = st.text(min_size=0, max_size=12).filter(lambda name: not any("\ud800" <= c <= "\udfff" for c in name))
VALUES = st.one_of(
    st.binary(max_size=300),
    st.lists(st.binary(max_size=20), max_size=4),
    hnp.arrays(np.int64, st.integers(0, 30), elements=st.integers(-(2**63), 2**63 - 1)),
    hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32)),
)
FEATURES = st.dictionaries(NAMES, VALUES, max_size=5)


def assert_same(ours, theirs):
    if isinstance(theirs, bytes):
        theirs = [theirs]
    if isinstance(theirs, list):
        assert list(ours) == theirs
    elif len(theirs) == 0:
        assert len(ours) == 0
    else:
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes()  # Bit for bit: NaN equals itself.


@settings(max_examples=150)
@given(FEATURES)
def test_tensorflow_reads_what_we_write(features):
    message = tf.train.Example.FromString(encode(features)[0])
    assert set(message.features.feature) == set(features)
    for name, value in features.items():
        feature = message.features.feature[name]
        if isinstance(value, bytes | list):
            assert list(feature.bytes_list.value) == ([value] if isinstance(value, bytes) else value)
        elif value.dtype == np.float32:
            assert np.array(feature.float_list.value, np.float32).tobytes() == value.tobytes()
        else:
            assert list(feature.int64_list.value) == value.tolist()


@settings(max_examples=150)
@given(FEATURES)
def test_we_read_what_tensorflow_writes(features):
    decoded = decode(example(features).SerializeToString())
    assert set(decoded) == set(features)
    for name, value in features.items():
        assert_same(decoded[name], value)


@settings(max_examples=100)
@given(FEATURES)
def test_bytes_are_those_of_a_deterministic_protobuf(features):
    """The bytes equal protobuf's, except that its Python runtime sorts a name after names that begin with it."""
    names = sorted(features)
    assume(not any(after.startswith(before) for before, after in pairwise(names)) and "" not in features)
    message = example(features)
    assert encode(features)[0] == message.SerializeToString(deterministic=True)


@settings(max_examples=100)
@given(FEATURES)
def test_a_span_covers_the_features_bytes(features):
    payload, spans = encode(features)
    for name, value in features.items():
        offset, size = spans[name]
        content = payload[offset : offset + size]
        if isinstance(value, bytes):
            assert content == value
        elif isinstance(value, list):
            assert content == (value[0] if value else b"")
        else:
            assert_same(unpack(np.frombuffer(content, np.uint8), value.dtype.name), value)


@pytest.mark.parametrize(
    "value",
    [
        np.array([], np.int64),
        np.array([], np.float32),
        [],
        b"",
        np.array([2**63 - 1, -(2**63), -1, 0, 127, 128], np.int64),
        np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32),
    ],
    ids=["no ints", "no floats", "no bytes", "empty bytes", "extreme ints", "extreme floats"],
)
def test_edges_survive_parse_single_example(value):
    name = "größe/π"
    payload, _ = encode({name: value})
    dtype = tf.string if isinstance(value, bytes | list) else tf.as_dtype(value.dtype)
    parsed = tf.io.parse_single_example(payload, {name: tf.io.VarLenFeature(dtype)})
    got = parsed[name].values.numpy()
    assert_same(list(got) if dtype == tf.string else got, value)


@pytest.mark.parametrize(
    "value", [np.zeros(2, np.float64), np.zeros((2, 2), np.float32), np.zeros(2, np.int32)], ids=["f8", "2-D", "i4"]
)
def test_values_that_no_feature_can_store_raise_type_error(value):
    with pytest.raises(TypeError, match="float32 or int64"):
        encode({"x": value})


def test_a_truncated_example_is_never_read_as_the_whole():
    payload, _ = encode({"a": b"0123456789", "b": np.arange(5)})
    whole = decode(payload)
    for end in range(1, len(payload)):
        try:
            cut = decode(payload[:end])
        except ValueError:
            continue
        assert set(cut) != set(whole)


@pytest.mark.parametrize(
    ("data", "dtype"), [([0x80], "int64"), ([1, 0xFF], "int64"), ([0xFF] * 10 + [1], "int64"), ([1, 2, 3], "float32")]
)
def test_bytes_that_are_not_numbers(data, dtype):
    with pytest.raises(SampleError):
        unpack(np.array(data, np.uint8), dtype)
