"""Iterators that the garbage collector finalises leave nothing behind: benchmarks/soak_iterators.py with a smaller count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak_iterators.py"


@pytest.mark.parametrize("kind", ["numpy", "eager", "tf.data"])
def test_iterators_in_reference_cycles(kind, tmp_path):
    """The batches of 90 iterators that stayed would take over 400 MB."""
    command = [sys.executable, str(SOAK), "--count", "100", "--kinds", kind, "--json", str(tmp_path / "soak.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "soak.json").read_text())[kind]
    assert result["iterators"] == 100
    assert result["after"]["resident_mb"] < result["before"]["resident_mb"] + 150
