"""Arrays against those of `pyarrow.array`, and that pandas is not imported for them."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from tfprep.builder.publication.contents import _ends, array_of

CASES = {
    "numbers": ([1, 2**62, -3], pa.int64()),
    "missing numbers": ([1, None, 3, *[None] * 9, 4], pa.int32()),
    "unsigned": ([2**64 - 1, None], pa.uint64()),
    "texts": (["", "número", "a\0b", None], pa.string()),
    "bytes": ([bytes(range(16)), None, bytes(16)], pa.binary(16)),
    "lists": ([[1, 2], [], [2**40]], pa.list_(pa.int64())),
    "lists, one of them missing": ([(1,), None, [None, 2]], pa.list_(pa.int64())),
    "nothing": ([], pa.list_(pa.int64())),
    "only missing": ([None, None], pa.int32()),
}


@pytest.mark.parametrize("case", CASES)
def test_arrays(case):
    values, dtype = CASES[case]
    array = array_of(values, dtype)
    array.validate(full=True)
    assert array.equals(pa.array(values, dtype))


UNFIT = {
    "too large": ([2**31], pa.int32()),
    "larger than any": ([2**64], pa.uint64()),
    "negative": ([-1], pa.uint64()),
    "too few bytes": ([b"short"], pa.binary(16)),
    "NaN": ([float("nan")], pa.int64()),
    "texts for numbers": (["12"], pa.int64()),
    "truth values": ([True, 2], pa.int64()),
    "lists for numbers": ([[1, 2], [3, 4]], pa.int64()),
    "lists of lists": ([[[1, 2]], [[3, 4]]], pa.list_(pa.int64())),
    "numbers for lists": ([1, 2], pa.list_(pa.int64())),
    "texts for lists": (["12"], pa.list_(pa.int64())),
    "objects for lists": ([{1: 2}], pa.list_(pa.int64())),
    "truth values in lists": ([[True], [2]], pa.list_(pa.int64())),
    "numbers for texts": ([1], pa.string()),
    "half a surrogate pair": (["\ud800"], pa.string()),
}


@pytest.mark.parametrize(("values", "dtype"), [(["0123456789abcdef"], pa.binary(16)), ([1.5, 2], pa.int64())])
def test_what_pyarrow_would_change(values, dtype):
    assert pa.array(values, dtype).to_pylist() != values
    with pytest.raises(TypeError):
        array_of(values, dtype)


@pytest.mark.parametrize("case", UNFIT)
def test_values_that_do_not_fit(case):
    values, dtype = UNFIT[case]
    with pytest.raises((OverflowError, TypeError, ValueError)):
        pa.array(values, dtype)
    with pytest.raises((OverflowError, TypeError, ValueError)):
        array_of(values, dtype)


def test_more_items_than_offsets_can_count():
    _ends([range(2**31 - 2), None, "a"])
    with pytest.raises(OverflowError, match="2,147,483,648 bytes or items"):
        _ends([range(2**31 - 2), None, "ab"])


@pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 18, reason="pyarrow 17 imports pandas for other arrays too")
def test_pandas_is_not_imported():
    pytest.importorskip("pandas")
    code = "import sys, pyarrow as pa; from tfprep.builder.publication.contents import array_of as a; a([1, None], pa.int32())"
    command = [sys.executable, "-c", f"{code}; print('pandas' in sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
