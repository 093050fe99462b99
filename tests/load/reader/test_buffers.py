"""Memory is recycled as soon as nobody refers to it, and never before."""

import gc
import threading
import weakref

import numpy as np
import pytest

from tfprep.load.reader.buffers import Buffers


def address(array):
    return array.__array_interface__["data"][0]


def test_aligned_and_shaped():
    pool = Buffers(10_000, keep=2)
    array = pool.lease((10, 25, 10), np.float32)
    assert array.shape == (10, 25, 10)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert address(array) % 4096 == 0


def test_memory_is_recycled_when_it_is_released():
    pool = Buffers(4096, keep=2)
    array = pool.lease((4096,), np.uint8)
    place = address(array)
    assert address(pool.lease((10,), np.uint8)) != place
    del array
    gc.collect()
    assert place in {address(pool.lease((8,), np.uint8)) for _ in range(1)}


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array[3:5],
        lambda array: array.reshape(-1).view(np.uint16)[7:8],
        memoryview,
        lambda array: np.asarray(memoryview(array))[::2],
        lambda array: [array.T],
    ],
)
def test_any_view_keeps_the_memory(hold):
    pool = Buffers(64, keep=2)
    array = pool.lease((8, 8), np.uint8)
    kept = hold(array)
    del array
    gc.collect()
    assert pool.free == 0
    del kept
    gc.collect()
    assert pool.free == 1


def test_a_pool_keeps_at_most_its_limit():
    pool = Buffers(64, keep=2)
    held = [pool.lease((64,), np.uint8) for _ in range(5)]
    assert len({address(array) for array in held}) == 5
    held.clear()
    gc.collect()
    assert pool.free == 2


def test_closed_pools_free_memory():
    pool = Buffers(64, keep=2)
    held = pool.lease((64,), np.uint8)
    held[:] = 7
    lease = held.base
    while isinstance(lease, np.ndarray):
        lease = lease.base
    memory = weakref.ref(lease.memory)
    del lease
    pool.close()
    assert (held == 7).all()
    del held
    gc.collect()
    assert pool.free == 0
    assert memory() is None


def test_threads_never_share_memory():
    pool = Buffers(4096, keep=4)
    wrong = []

    def work(number):
        for _ in range(300):
            array = pool.lease((4096,), np.uint8)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
