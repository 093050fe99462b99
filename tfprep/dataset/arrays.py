"""Arrow arrays made of Python values without `pyarrow.array`, which imports pandas if it is installed: that takes 0.3 s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def array_of(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Return an Arrow array.

    Args:
        values: Numbers, texts, bytes, or lists of numbers; None where a value is missing.
        dtype: A type of numbers, `string`, `binary(N)`, or a list of numbers.

    Raises:
        OverflowError: A number is too large for the type.
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
        texts = [b"" if value is None else value.encode() for value in values]
        return [_ends(texts), pa.py_buffer(b"".join(texts))]
    if pa.types.is_fixed_size_binary(dtype):
        items = [bytes(dtype.byte_width) if value is None else value for value in values]
        if any(len(item) != dtype.byte_width for item in items):
            raise ValueError(f"values have {dtype.byte_width} bytes each")
        return [pa.py_buffer(b"".join(items))]
    numbers = [0 if value is None else value for value in values]
    return [pa.py_buffer(np.array(numbers, dtype.to_pandas_dtype()))]


def _ends(values: Sequence[Any]) -> pa.Buffer:
    """Return where the items of each value end, from 0 on."""
    sizes = [0, *(0 if value is None else len(value) for value in values)]
    return pa.py_buffer(np.cumsum(sizes, dtype=np.int64).astype(np.int32))


def _items(values: Sequence[Any], dtype: pa.DataType) -> list[pa.Array] | None:
    if not pa.types.is_list(dtype):
        return None
    return [array_of([item for value in values for item in value or ()], dtype.value_type)]
