"""The thresholds of glibc's allocator, which TensorFlow changes for the whole process."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_USUAL_BYTES = 32 << 20
"""The largest threshold that glibc reaches by itself on 64 bits (mallopt(3)); that of trimming is twice as large."""
_MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def restore_allocator() -> None:
    """Let glibc keep freed blocks as it does by itself, unless the environment sets its thresholds.

    TensorFlow 2.21 sets one of them when it makes a dataset of a Python iterator, also in `from_generator`. glibc adjusts none of
    them from then on and gives most freed blocks back to the system: `tf.data` on raw images in the same process had a fifth of
    its rate.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc" not in tunables and not any(name in os.environ for name in _MALLOC_VARIABLES):
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_THRESHOLD, _USUAL_BYTES)
            libc.mallopt(_M_TRIM_THRESHOLD, 2 * _USUAL_BYTES)
