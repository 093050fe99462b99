"""The scripts of a newcomer, as tests/first_hour has them, on the backend that Keras runs on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

keras = pytest.importorskip("keras")
BACKEND = keras.backend.backend()
SCRIPTS = Path(__file__).parents[1] / "first_hour"


def _run(script: str, *arguments: Path) -> list[str]:
    command = [sys.executable, "-W", "error::UserWarning", str(SCRIPTS / script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """20 training and 8 validation photos of two classes."""
    root: Path = tmp_path_factory.mktemp("first_hour")
    draws = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 8)):
        for number in range(count):
            path = root / "photos" / split / ("cat", "dog")[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draws.integers(0, 256, (20, 18, 3), np.uint8)).save(path)
    return root


def test_training_and_continuing(folder: Path) -> None:
    """Three epochs, the last one in another fit, with validation, without a warning, and without TensorFlow elsewhere."""
    lines = _run("any_backend.py", folder / "photos", folder)
    assert any(line.startswith("accuracy ") for line in lines)
    assert any(line.startswith("InputMonitor: 3 batches in ") for line in lines), (
        lines
    )  # 2 epochs of 2, less the first step
    assert lines[-1] == f"tensorflow imported: {BACKEND == 'tensorflow'}"
    assert (folder / "logs" / "input.jsonl").exists()


@pytest.mark.skipif(BACKEND != "jax", reason="a script for JAX")
def test_a_loop_in_jax(folder: Path) -> None:
    """Runs on the dataset of the test before."""
    lines = _run("jax_loop.py", folder / "dataset")
    assert [line.split(" ")[-1] for line in lines] == ["2", "2"]
