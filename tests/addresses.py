"""Arrays at other memory addresses, and OpenCV with other numbers of threads: equal inputs must give equal bytes."""

import cv2
import numpy as np


def check_equal_bytes(make, arrays):
    """Compares what `make` returns for the arrays with what it returns where they lie elsewhere, aligned only to their items."""
    expected = {name: np.asarray(value).tobytes() for name, value in make(dict(arrays)).items()}
    threads = cv2.getNumThreads()
    try:
        for number, offset in ((1, 1), (2, 7), (4, 32), (3, 50), (1, 13)):
            cv2.setNumThreads(number)
            moved = {name: elsewhere(value, offset) for name, value in arrays.items()}
            assert {name: np.asarray(value).tobytes() for name, value in make(moved).items()} == expected
            for name, value in arrays.items():
                np.testing.assert_array_equal(moved[name], value, err_msg=f"{name} was changed")
    finally:
        cv2.setNumThreads(threads)


def elsewhere(array, offset):
    buffer = np.empty(array.nbytes + 512, np.uint8)
    start = (-buffer.ctypes.data) % 64 + offset * array.itemsize
    moved = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved
