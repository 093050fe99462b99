"""Iterators that the garbage collector finalises leave nothing behind: benchmarks/soak_iterators.py with a smaller count."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak_iterators.py"


def test_iterators_in_reference_cycles(tmp_path):
    """Those of NumPy's loader are in reader/test_reader.py. The batches of 45 iterators that stayed would take over 200 MB."""
    command = [
        sys.executable,
        str(SOAK),
        "--count",
        "50",
        "--kinds",
        "eager",
        "tf.data",
        "--json",
        str(tmp_path / "soak.json"),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for result in json.loads((tmp_path / "soak.json").read_text()).values():
        assert result["iterators"] == 50
        assert result["after"]["resident_mb"] < result["before"]["resident_mb"] + 100
