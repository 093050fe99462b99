"""A process ends while an iterator is alive."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")

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
