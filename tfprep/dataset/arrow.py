"""Columns of Arrow as arrays of NumPy.

Arrow's own `to_numpy` imports pandas where it is installed, and `fill_null` and `is_valid` import `pyarrow.compute`: 0.3 s
together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.fields import Array


def numpy_column(column: pa.Array | pa.ChunkedArray, missing: Any = None) -> Array:
    """Return a column of numbers or truth values; a single chunk of numbers is not copied.

    Args:
        column: The column.
        missing: What stands in the place of missing values.

    Returns:
        [N], of the column's type.

    Raises:
        ValueError: A value is missing, and `missing` is None.
    """
    if isinstance(column, pa.ChunkedArray):
        return _joined([numpy_column(chunk, missing) for chunk in column.chunks], column.type.to_pandas_dtype())
    values = _values(column)
    if not column.null_count:
        return values
    if missing is None:
        raise ValueError(f"{column.null_count} values are missing")
    return np.where(present(column), values, values.dtype.type(missing))


def present(column: pa.Array | pa.ChunkedArray) -> Array:
    """Return which values of a column are not missing: bool [N]."""
    if isinstance(column, pa.ChunkedArray):
        return _joined([present(chunk) for chunk in column.chunks], bool)
    if not column.null_count:
        return np.ones(len(column), bool)
    if pa.types.is_null(column.type):
        return np.zeros(len(column), bool)
    return _bits(column.buffers()[0], column)


def _joined(chunks: list[Array], dtype: Any) -> Array:
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, dtype), *chunks])


def _values(column: pa.Array) -> Array:
    """Return what stands in the column's memory, also where a value is missing."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.empty(0, dtype)
    data = column.buffers()[1]
    if pa.types.is_boolean(column.type):
        return _bits(data, column)
    return np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)


def _bits(data: pa.Buffer, column: pa.Array) -> Array:
    """Return the bits of a column, of which Arrow packs the first of eight into the lowest bit of a byte: bool [N]."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=column.offset + len(column), bitorder="little")
    return bits[column.offset :].astype(bool)
