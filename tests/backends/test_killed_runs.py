"""The blocks of docs/loader.md that resume a run, with `keras_loader`: the run is killed, and started again."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(BACKEND == "tensorflow", reason="tests/docs/test_loader.py has these for TensorFlow")

ROOT = Path(__file__).parents[2]
BLOCKS = [
    block.replace("data.loader(", "data.keras_loader(")
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "loader.md").read_text(), re.S)
    if "model.fit" in block and "saved_step" in block
]
RUN = """
import os, signal, sys
import keras, numpy as np
import tfprep
from tfprep.load.callbacks import SaveLoaderState, saved_step

dataset, killed_at = sys.argv[1], int(sys.argv[2])
keras.utils.set_random_seed(0)
data = tfprep.open(dataset)
options = {"batch_size": 8, "seed": 0, "inputs": "image", "targets": "label"}
model = keras.Sequential([keras.Input((24, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
count_step, ended = SaveLoaderState.on_train_batch_end, []


def count_or_die(callback, batch, logs=None):
    ended.append(batch)
    if len(ended) == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)
    count_step(callback, batch, logs)


SaveLoaderState.on_train_batch_end = count_or_die
#BLOCK
np.savez("final.npz", *[np.asarray(value) for value in model.get_weights()], steps=len(ended))
"""
STEPS = 6
"""Steps of an epoch: 50 samples in batches of 8."""


def _run(number: int, folder: Path, dataset: Path, killed_at: int) -> None:
    folder.mkdir(exist_ok=True)
    script = folder / "trainer.py"
    script.write_text(RUN.replace("#BLOCK", BLOCKS[number]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(dataset), str(killed_at)]
    done = subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr[-3000:]


def _final(folder: Path) -> dict[str, Any]:
    with np.load(folder / "final.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture(scope="module")
def whole(photos: Any, tmp_path_factory: Any) -> dict[str, Any]:
    """The weights of a run that was not killed."""
    folder: Path = tmp_path_factory.mktemp("whole")
    _run(0, folder, photos.path.absolute(), 0)
    return _final(folder)


@pytest.mark.parametrize("number", range(3))
def test_it_ends_with_the_weights_of_a_run_that_was_not_killed(
    number: int, whole: dict[str, Any], photos: Any, tmp_path: Path
) -> None:
    """Ten epochs of six steps, killed in the fourth one, in step 21."""
    with_orbax = "Orbax" in BLOCKS[number]
    if with_orbax and importlib.util.find_spec("orbax") is None:
        pytest.skip("Orbax is not installed")
    for killed_at in (21, 0):
        _run(number, tmp_path / "run", photos.path.absolute(), killed_at)
    final = _final(tmp_path / "run")
    assert int(whole["steps"]) == 10 * STEPS
    # Orbax saves in the background, so that the kill may lose one checkpoint more.
    assert int(final["steps"]) in ([7 * STEPS, 8 * STEPS] if with_orbax else [7 * STEPS])
    for name in final.keys() - {"steps"}:
        np.testing.assert_array_equal(final[name], whole[name])
