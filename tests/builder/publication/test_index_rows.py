"""Arrays against those of `pyarrow.array`, and that pandas is not imported for them."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from tfprep.builder.publication.index_rows import array_of

CASES = {
    "numbers": ([1, 2**62, -3], pa.int64()),
    "missing numbers": ([1, None, 3, *[None] * 9, 4], pa.int32()),
    "unsigned": ([2**64 - 1, None], pa.uint64()),
    "floats": ([0.5, 1, None], pa.float32()),
    "texts": (["", "número", "a\0b", None], pa.string()),
    "bytes": ([bytes(range(16)), None, bytes(16)], pa.binary(16)),
    "lists": ([[1, 2], [], [2**40]], pa.list_(pa.int64())),
    "nothing": ([], pa.list_(pa.int64())),
    "only missing": ([None, None], pa.int32()),
}


@pytest.mark.parametrize("case", CASES)
def test_arrays(case):
    values, dtype = CASES[case]
    array = array_of(values, dtype)
    array.validate(full=True)
    assert array.equals(pa.array(values, dtype))


@pytest.mark.parametrize(("values", "dtype"), [([2**31], pa.int32()), ([-1], pa.uint64()), ([b"short"], pa.binary(16))])
def test_values_that_do_not_fit(values, dtype):
    with pytest.raises((OverflowError, ValueError)):
        array_of(values, dtype)


@pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 18, reason="pyarrow 17 imports pandas for other arrays too")
def test_pandas_is_not_imported():
    pytest.importorskip("pandas")
    code = "import sys, pyarrow as pa; from tfprep.builder.publication.index_rows import array_of as a; a([1, None], pa.int32())"
    command = [sys.executable, "-c", f"{code}; print('pandas' in sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
