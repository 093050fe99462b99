"""A process ends while an iterator is alive."""

import os
import platform
import subprocess
import sys

import pytest

from tests.warm_python import run_python

tf = pytest.importorskip("tensorflow")

CODE = """
import tfprep
iterator = iter(tfprep.open({folder!r}).loader("train", 8, cache=False, verify="always"))
next(iterator)
print("done", flush=True)
"""


def test_with_batches_on_their_way(photos):
    command = [sys.executable, "-c", CODE.format(folder=str(photos.path))]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, env=environment)
    assert done.stdout == "done\n"


LAST = """
import builtins
import tfprep
loader = tfprep.open({folder!r}).numpy_loader("train", 8, cache=False, fields=["label", "clicks"], workers={workers!r})
builtins.kept_to_the_end = loader, iter(loader)
next(builtins.kept_to_the_end[1])
"""


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_an_iterator_that_outlives_all_modules(photos, workers):
    """The interpreter drops what `builtins` has after it has cleared the names of tfprep's modules."""
    code = LAST.format(folder=str(photos.path), workers=workers)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stderr == ""


BLOCKS = """
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
@pytest.mark.skipif(
    tf.__version__.startswith("2.18."), reason="it sets no threshold, and glibc keeps the blocks by itself"
)
def test_freed_blocks_are_kept(photos):
    done = run_python(["-c", BLOCKS, str(photos.path)], env=dict(os.environ))
    # Whether TensorFlow has set a threshold depends on what else it made; after a batch freed blocks are kept.
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["False"] * 2
