"""A plain `pytest` collects every test file of the tree; it would not report a folder that it skips."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LISTING = """
import sys, pytest

class Empty(pytest.File):
    def collect(self):
        return []

class Files:
    '''Files are collected and not imported, which takes as long as importing TensorFlow, Ray and all others.'''

    def pytest_pycollect_makemodule(self, module_path, parent):
        print("collected", module_path, flush=True)
        return Empty.from_parent(parent, path=module_path)

sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[Files()]))
"""


def test_every_test_file_is_collected():
    pytest.importorskip("keras")  # tests/backends is collected where there is Keras
    command = [sys.executable, "-c", LISTING]
    listing = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert listing.returncode == 5, listing.stdout[-2000:]  # no test was collected: they are in the files
    collected = {
        line.removeprefix("collected ") for line in listing.stdout.splitlines() if line.startswith("collected ")
    }
    assert {str(path) for path in TESTS.rglob("test_*.py")} - collected == set()
    assert len(collected) > 80  # The search above finds the tests.
