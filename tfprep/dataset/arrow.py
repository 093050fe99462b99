"""Columns of Arrow as arrays of NumPy, and values of Python as columns of Arrow.

Arrow's own `to_numpy` and `array` import pandas where it is installed, and `fill_null` and `is_valid` import `pyarrow.compute`:
0.3 s together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.fields import Array


def numpy_column(column: pa.Array | pa.ChunkedArray, missing: Any = None) -> Array:
    """Return a column of numbers or truth values; a single chunk of numbers is not copied.

    Args:
        column: The column.
        missing: The value that replaces missing ones.

    Returns:
        [N], of the column's type.

    Raises:
        ValueError: A value is missing, and `missing` is None.
    """
    if isinstance(column, pa.ChunkedArray):
        return _joined([numpy_column(chunk, missing) for chunk in column.chunks], _dtype(column.type))
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
    """Return the column's memory, also where a value is missing."""
    dtype = _dtype(column.type)
    if not len(column):
        return np.empty(0, dtype)
    data = column.buffers()[1]
    if pa.types.is_boolean(column.type):
        return _bits(data, column)
    return np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)


def _dtype(kind: pa.DataType) -> Any:
    # `to_pandas_dtype` imports pandas, too, up to Arrow 25.
    return _DTYPES.get(str(kind)) or np.dtype(kind.to_pandas_dtype())


_DTYPES = {str(pa.from_numpy_dtype(code)): np.dtype(code) for code in "?bhilBHILefd"}


def _bits(data: pa.Buffer, column: pa.Array) -> Array:
    """Return the bits of a column, where Arrow packs the first of eight into the lowest bit of a byte: bool [N]."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=column.offset + len(column), bitorder="little")
    return bits[column.offset :].astype(bool)


# --- to Arrow ---------------------------------------------------------------------------------------------------------


_MOST_ITEMS = 2**31 - 1
"""Offsets of `string` and `list` are int32."""


def array_of(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Return an Arrow array.

    Args:
        values: Whole numbers, texts, bytes, or lists of whole numbers; None where a value is missing.
        dtype: A type of whole numbers, `string`, `binary(N)`, or a list of whole numbers.

    Raises:
        TypeError: A value is of another type; True and 1.0 are not whole numbers.
        OverflowError: A number, or the number of bytes or items, is too large for the type.
        ValueError: Bytes have another length than the type says.
    """
    present = np.array([value is not None for value in values], bool)
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(
        dtype, len(values), [validity, *_buffers(values, dtype)], children=_items(values, dtype)
    )


def _buffers(values: Sequence[Any], dtype: pa.DataType) -> list[pa.Buffer]:
    if pa.types.is_list(dtype):
        return [_ends(values)]
    if pa.types.is_string(dtype):
        texts = [b"" if value is None else str.encode(value) for value in values]
        return [_ends(texts), pa.py_buffer(b"".join(texts))]
    if pa.types.is_fixed_size_binary(dtype):
        items = [bytes(dtype.byte_width) if value is None else value for value in values]
        if any(len(item) != dtype.byte_width for item in items):
            raise ValueError(f"values have {dtype.byte_width} bytes each")
        return [pa.py_buffer(b"".join(items))]
    _check_types(values, int)
    numbers = [0 if value is None else value for value in values]
    return [pa.py_buffer(np.array(numbers, _dtype(dtype)))]


def _check_types(values: Sequence[Any], *allowed: type) -> None:
    """Raise TypeError if NumPy would have to fit a value."""
    if wrong := set(map(type, values)) - {*allowed, type(None)}:
        names = " or ".join(one.__name__ for one in allowed)
        raise TypeError(f"expected {names}, got {', '.join(sorted(one.__name__ for one in wrong))}")


def _ends(values: Sequence[Any]) -> pa.Buffer:
    """Return where the items of each value end, from 0 on."""
    ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)], dtype=np.int64)
    if ends[-1] > _MOST_ITEMS:
        raise OverflowError(f"{ends[-1]:,} bytes or items in one array; Arrow counts to {_MOST_ITEMS:,}")
    return pa.py_buffer(ends.astype(np.int32))


def _items(values: Sequence[Any], dtype: pa.DataType) -> list[pa.Array] | None:
    if not pa.types.is_list(dtype):
        return None
    _check_types(values, list, tuple)
    return [array_of([item for value in values for item in value or ()], dtype.value_type)]
