"""Trainers of docs/loader.md that are killed in the middle of a run and started again, for each backend of Keras."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.warm_python import run_python

ROOT = Path(__file__).parents[1]
BLOCKS = [
    block
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "loader.md").read_text(), re.S)
    if "model.fit" in block and "checkpoint" in block.lower()
]
"""The blocks of the page that resume a run."""
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


def run(block, folder, dataset, killed_at, environment=None):
    """Run a block in a folder, which the run before it may have left, and kill it at the end of a step; 0: not at all."""
    folder.mkdir(exist_ok=True)
    script = folder / "trainer.py"
    script.write_text(_SCRIPT.replace("#BLOCK", block))
    arguments = [str(script), str(dataset), str(killed_at)]
    if environment is None:
        done = run_python(arguments, cwd=folder)
    else:  # another backend of Keras, which is chosen when Keras is imported
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=280
        )
    assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr[-3000:]


def final(folder):
    """The weights at the end of a run, and its number of steps."""
    with np.load(folder / "final.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}
