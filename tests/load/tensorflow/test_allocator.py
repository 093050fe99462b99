"""A loader leaves the thresholds of glibc's allocator as they are without it, or as the environment sets them."""

import os
import platform
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")

CODE = """
import ctypes, sys
import tfprep

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def comes_from_system():
    # Bit 1 of the size before a block says so. By itself, glibc keeps blocks of up to 32 MiB of a size that was freed before.
    libc.free(libc.malloc(24 << 20))
    block = libc.malloc(20 << 20)
    flags = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
    libc.free(block)
    return bool(flags & 2)

loader = tfprep.open(sys.argv[1]).loader("train", 4, fields=["image"])
made = comes_from_system()
for batches in (loader, loader.map(lambda batch: batch["image"])):
    for batch in batches:
        print(made, comes_from_system())
        break
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is that of glibc")
@pytest.mark.parametrize(("variables", "kept"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "131072"}, False)])
def test_freed_blocks_are_kept(make_dataset, variables, kept):
    path = make_dataset(samples={"train": 8}, fields=["image"]).path
    command = [sys.executable, "-c", CODE, str(path)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    # True: TensorFlow has set a threshold.
    assert done.stdout.splitlines() == [f"True {not kept}"] * 2
