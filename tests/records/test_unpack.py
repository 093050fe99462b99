"""Packed numbers, compared with the Example decoder of `tfprep.records`, which is compared with protobuf's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfprep import records
from tfprep.errors import SampleError
from tfprep.records import unpack


def content(array):
    payload, spans = records.encode({"x": array})
    return np.frombuffer(payload, np.uint8)[spans["x"].offset : spans["x"].offset + spans["x"].size]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_integers(values):
    array = np.array(values, np.int64)
    assert unpack(content(array), "int64").tolist() == values


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=20))
def test_floats(values):
    array = np.array(values, np.float32)
    assert unpack(content(array), "float32").tolist() == array.tolist()


@pytest.mark.parametrize(
    ("data", "dtype"), [([0x80], "int64"), ([1, 0xFF], "int64"), ([0xFF] * 10 + [1], "int64"), ([1, 2, 3], "float32")]
)
def test_bytes_that_are_no_numbers(data, dtype):
    with pytest.raises(SampleError):
        unpack(np.array(data, np.uint8), dtype)
