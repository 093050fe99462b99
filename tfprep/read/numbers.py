"""An Example's packed numbers, as an index's span gives them, to arrays."""

from __future__ import annotations

import numpy as np

from tfprep.errors import SampleError
from tfprep.fields import Array


def unpack(content: Array, dtype: str) -> Array:
    """uint8 [N] of packed little-endian floats ("float32") or varints ("int64") to their numbers; SampleError if cut short."""
    if dtype == "float32":
        if content.nbytes % 4:
            raise SampleError(f"{content.nbytes} bytes are no list of float32")
        return np.frombuffer(content.tobytes(), "<f4").astype(np.float32, copy=False)
    if content.nbytes == 1 and content[0] < 0x80:
        return content.astype(np.int64)
    return _varints(content)


def _varints(content: Array) -> Array:
    """Groups of 7 bits, least significant first; a byte below 128 ends a number."""
    last = np.flatnonzero(content < 0x80)
    if content.nbytes and (not len(last) or last[-1] != content.nbytes - 1):
        raise SampleError("a number without an end")
    starts = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    if len(last) and (last - starts).max() > 9:
        raise SampleError("a number of more than ten bytes")
    place = np.arange(content.nbytes) - np.repeat(starts, last - starts + 1)
    groups = (content & 0x7F).astype(np.uint64) << (place * 7).astype(np.uint64)
    return np.add.reduceat(groups, starts).astype(np.int64) if len(last) else np.empty(0, np.int64)
