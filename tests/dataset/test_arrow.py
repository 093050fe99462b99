"""Columns of Arrow as NumPy, against Arrow's own conversion."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from tfprep.dataset.arrow import _ends, array_of, numpy_column, present

COLUMNS = [
    pa.array([3, 1, 2], pa.int64()), pa.array([3, 1, 2], pa.uint32())[1:], pa.array([0.5, -1.0], pa.float32()),
    pa.array([True, False, True] * 5)[2:13], pa.array([], pa.int16()), pa.array([], pa.bool_()),
    pa.chunked_array([[1, 2], [], [3]], pa.int32()), pa.chunked_array([], pa.uint64()),
    pa.array([b"ab", b"ab", b"c"]).dictionary_encode().indices, pa.array([[1, 2], [3]]).flatten(),
]  # fmt: skip
WITH_MISSING = [
    pa.array([3, None, 2], pa.int64()),
    pa.array([None] * 9 + [7, None, 8], pa.uint64())[3:],
    pa.chunked_array([[1, None], [None], [3]], pa.int32()),
    pa.array([True, None, False]),
    pa.nulls(3, pa.uint64()),
]


@pytest.mark.parametrize("column", COLUMNS)
def test_numbers_are_those_of_arrow(column):
    expected = column.to_numpy(**({} if isinstance(column, pa.ChunkedArray) else {"zero_copy_only": False}))
    values = numpy_column(column)
    assert values.dtype == expected.dtype
    np.testing.assert_array_equal(values, expected)
    assert present(column).tolist() == [True] * len(column)


@pytest.mark.parametrize("column", WITH_MISSING)
def test_missing_values(column):
    zero = False if pa.types.is_boolean(column.type) else 0
    assert numpy_column(column, 0).tolist() == column.fill_null(zero).to_pylist()
    assert present(column).tolist() == column.is_valid().to_pylist()
    with pytest.raises(ValueError, match="missing"):
        numpy_column(column)


def test_a_column_of_nothing():
    assert present(pa.nulls(2)).tolist() == [False, False]


def test_pandas_is_not_imported():
    code = (
        "import sys, pyarrow as pa, numpy as np\n"
        "from tfprep.dataset.arrow import numpy_column\n"
        "column = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(np.arange(3))])\n"
        "assert numpy_column(column, 0).tolist() == [0, 1, 2]\n"
        "assert not {'pandas', 'pyarrow.compute'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- to Arrow: against `pyarrow.array` ---------------------------------------------------------------------------------

CASES = [
    ([1, 2**62, -3], pa.int64()), ([1, None, 3, *[None] * 9, 4], pa.int32()), ([2**64 - 1, None], pa.uint64()),
    (["", "número", "a\0b", None], pa.string()), ([bytes(range(16)), None, bytes(16)], pa.binary(16)),
    ([[1, 2], [], [2**40]], pa.list_(pa.int64())), ([(1,), None, [None, 2]], pa.list_(pa.int64())),
    ([], pa.list_(pa.int64())), ([None, None], pa.int32()),
]  # fmt: skip


@pytest.mark.parametrize(("values", "dtype"), CASES)
def test_arrays(values, dtype):
    array = array_of(values, dtype)
    array.validate(full=True)
    assert array.equals(pa.array(values, dtype))


UNFIT = [
    ([2**31], pa.int32()), ([2**64], pa.uint64()), ([-1], pa.uint64()), ([b"short"], pa.binary(16)),
    ([float("nan")], pa.int64()), (["12"], pa.int64()), ([True, 2], pa.int64()), ([[1, 2], [3, 4]], pa.int64()),
    ([[[1, 2]], [[3, 4]]], pa.list_(pa.int64())), ([1, 2], pa.list_(pa.int64())), (["12"], pa.list_(pa.int64())),
    ([{1: 2}], pa.list_(pa.int64())), ([[True], [2]], pa.list_(pa.int64())), ([1], pa.string()),
    (["\ud800"], pa.string()),
]  # fmt: skip


@pytest.mark.parametrize(("values", "dtype"), UNFIT)
def test_values_that_do_not_fit(values, dtype):
    for function in (pa.array, array_of):
        with pytest.raises((OverflowError, TypeError, ValueError)):
            function(values, dtype)


@pytest.mark.parametrize(("values", "dtype"), [(["0123456789abcdef"], pa.binary(16)), ([1.5, 2], pa.int64())])
def test_what_pyarrow_would_change(values, dtype):
    assert pa.array(values, dtype).to_pylist() != values
    with pytest.raises(TypeError):
        array_of(values, dtype)


def test_more_items_than_offsets_can_count():
    _ends([range(2**31 - 2), None, "a"])
    with pytest.raises(OverflowError, match="2,147,483,648 bytes or items"):
        _ends([range(2**31 - 2), None, "ab"])
