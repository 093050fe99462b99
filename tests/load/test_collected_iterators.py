"""Iterators that the garbage collector finalises leave nothing behind: benchmarks/soak_iterators.py with a smaller count."""

import json
from pathlib import Path

import pytest

from benchmarks import loader_data
from tests.warm_python import run_python
from tfprep import codecs

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak_iterators.py"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return loader_data.write(tmp_path_factory.mktemp("soak") / "raw", codecs.Raw(), 64)


@pytest.mark.parametrize("kind", ["eager", "tf.data"])
def test_iterators_in_reference_cycles(images, kind):
    """Those of NumPy's loader are in reader/test_reader.py. The batches of 45 iterators that stayed would take over 200 MB."""
    done = run_python([str(SOAK), "--kinds", kind, "--count", "50", "--data", str(images)])
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["iterators"] == 50
    for name in ("threads", "descriptors"):
        assert result["after"][name] <= result["before"][name]
    assert result["after"]["resident_mb"] < result["before"]["resident_mb"] + 100
