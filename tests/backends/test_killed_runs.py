"""The blocks of docs/loader.md that resume a run: a trainer is killed in the middle of it and started again, on each backend."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.warm_python import run_python

keras = pytest.importorskip("keras")
BACKEND = keras.backend.backend()
ROOT = Path(__file__).parents[2]
BLOCKS = [
    block
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "loader.md").read_text(), re.S)
    if "model.fit" in block and "checkpoint" in block.lower()
]
STEPS = 6
"""Steps of an epoch: 50 samples in batches of 8."""
_SCRIPT = """
import os, signal, sys
import keras, numpy as np
import tfprep

dataset, killed_at = sys.argv[1], int(sys.argv[2])
keras.utils.set_random_seed(0)
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    tf.config.experimental.enable_op_determinism()
data = tfprep.open(dataset)
options = {"batch_size": 8, "seed": 0, "inputs": "image", "targets": "label"}
layers = [keras.layers.Flatten(), keras.layers.Dense(3)]
model = keras.Sequential([keras.Input((24, 32, 3)), *layers])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
count_step, ended = keras.callbacks.ModelCheckpoint.on_train_batch_end, []
os.makedirs("run", exist_ok=True)


def count_or_die(callback, batch, logs=None):
    ended.append(batch)
    if len(ended) == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)
    count_step(callback, batch, logs)


keras.callbacks.ModelCheckpoint.on_train_batch_end = count_or_die
#BLOCK
np.savez("final.npz", *[np.asarray(value) for value in model.get_weights()], steps=len(ended))
"""


def run(number, folder, dataset, killed_at):
    """Run a block in a folder, perhaps that of the run before; kill it at the end of a step, or return what it ends with."""
    folder.mkdir(exist_ok=True)
    block = BLOCKS[number]
    if BACKEND != "tensorflow":
        block = block.replace("data.loader(", "data.keras_loader(")
    (folder / "trainer.py").write_text(_SCRIPT.replace("#BLOCK", block))
    arguments = [str(folder / "trainer.py"), str(dataset), str(killed_at)]
    if BACKEND == "tensorflow":
        done = run_python(arguments, cwd=folder)
    else:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 280}
        done = subprocess.run([sys.executable, *arguments], check=False, **process)
    assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr[-3000:]
    if killed_at:
        return {}
    with np.load(folder / "final.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    """The weights of a run that was not killed."""
    return run(0, tmp_path_factory.mktemp("whole"), photos.path.absolute(), 0)


@pytest.mark.parametrize("number", range(2))
def test_it_ends_with_the_weights_of_a_run_that_was_not_killed(number, whole, photos, tmp_path):
    """Ten epochs of six steps, killed in the fourth one, in step 22."""
    assert len(BLOCKS) == 2
    for killed_at in (22, 0):
        ended = run(number, tmp_path / "run", photos.path.absolute(), killed_at)
    assert int(whole["steps"]) == 10 * STEPS
    assert int(ended["steps"]) == 7 * STEPS
    for name in ended.keys() - {"steps"}:
        np.testing.assert_array_equal(ended[name], whole[name])
