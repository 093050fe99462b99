"""A newcomer's first hour on the backend that Keras runs on, in processes of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

keras = pytest.importorskip("keras")
BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(
    BACKEND == "tensorflow", reason="tests/docs/test_tutorials.py follows docs/start.md there"
)
SCRIPT = Path(__file__).parents[1] / "first_hour" / "hour.py"


def test_the_first_hour(tmp_path):
    """`scripts/test_backends` replays that of JAX without OpenCV, too."""
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    for part in ("prepare", "train"):
        command = [sys.executable, "-W", "error::UserWarning", str(SCRIPT), part, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "InputMonitor: " in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["backend"] == BACKEND
