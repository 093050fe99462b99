"""A trainer killed with -9 in its second epoch and started again ends with the weights of one that ran through."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import tfprep
from tfprep.errors import LoaderError

keras = pytest.importorskip("keras")

TRAINER = """
import json, os, sys, time
from pathlib import Path
import numpy as np
import keras, tensorflow as tf
import tfprep
from tfprep.load.callbacks import SaveLoaderState

folder, run, slow = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
keras.utils.set_random_seed(0)
tf.config.experimental.enable_op_determinism()
data = tfprep.open(folder)
model = keras.Sequential(
    [
        keras.Input((24, 32, 3), dtype="uint8"),
        data.normalization("image"),
        keras.layers.Conv2D(4, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
)
model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def loader(step):
    return data.loader("train", 8, seed=11, start_step=step, inputs="image", targets="label")


train = loader(0)
states = sorted(run.glob("*.loader.json"))
if states:
    step = train.step_of(json.loads(states[-1].read_text()))
    train = loader(step)
    model.train_on_batch(*next(iter(loader(0))))  # builds the optimizer, whose state is loaded next
    model.load_weights(str(states[-1]).removesuffix(".loader.json"))
name = str(run / "{epoch:03d}-{batch:03d}.weights.h5")


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        (run / "progress").write_text(str(int(model.optimizer.iterations)))
        time.sleep(slow)


done = train.start_step
callbacks = [
    keras.callbacks.ModelCheckpoint(name, save_freq=3, save_weights_only=True),
    SaveLoaderState(train, name, save_freq=3),
    Slow(),
]
while done < 24:  # an epoch has 6.25 batches: 24 steps are almost four
    steps = min(6 - done % 6, 24 - done)
    model.fit(
        train, initial_epoch=done // 6, epochs=done // 6 + 1, steps_per_epoch=steps, verbose=0, shuffle=False,
        callbacks=callbacks,
    )
    done += steps
    train = loader(done)
    callbacks[1] = SaveLoaderState(train, name, save_freq=3)
np.savez(run / "final.npz", *model.get_weights())
"""


@pytest.fixture
def trainer(tmp_path):
    path = tmp_path / "trainer.py"
    path.write_text(textwrap.dedent(TRAINER))
    return path


def start(trainer: Path, dataset: Path, run: Path, slow: float = 0.0) -> subprocess.Popen[str]:
    run.mkdir(exist_ok=True)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(trainer), str(dataset), str(run), str(slow)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, told = process.communicate(timeout=200)
    assert process.returncode == 0, told


def weights(run: Path) -> list[np.ndarray]:
    with np.load(run / "final.npz") as arrays:
        return [arrays[name] for name in arrays.files]


def test_killed_and_started_again(photos, trainer, tmp_path):
    through, killed = tmp_path / "through", tmp_path / "killed"
    finish(start(trainer, photos.path, through))
    process = start(trainer, photos.path, killed, slow=0.2)
    progress, end = killed / "progress", time.monotonic() + 120
    while not (progress.exists() and int(progress.read_text() or 0) >= 10):  # step 10 is in the second epoch
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "final.npz").exists()
    assert list(killed.glob("*.loader.json"))
    finish(start(trainer, photos.path, killed))
    for one, other in zip(weights(through), weights(killed), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras saving weights, with NumPy 2
def test_states_beside_checkpoints(photos, tmp_path):
    from tfprep.load.callbacks import SaveLoaderState

    train = tfprep.open(photos.path).loader("train", 8, inputs="image", targets="label", start_step=5)
    model = keras.Sequential([keras.Input((24, 32, 3), dtype="uint8"), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=2)
    name = str(tmp_path / "{epoch:02d}.weights.h5")
    saves = [keras.callbacks.ModelCheckpoint(name, save_weights_only=True), SaveLoaderState(train, name)]
    model.fit(train, steps_per_epoch=4, epochs=2, verbose=0, shuffle=False, callbacks=saves)
    files = {path.name: json.loads(path.read_text())["step"] for path in tmp_path.glob("*.json")}
    assert files == {"01.weights.h5.loader.json": 9, "02.weights.h5.loader.json": 13}
    assert {path.name for path in tmp_path.glob("*.h5")} == {"01.weights.h5", "02.weights.h5"}
    with pytest.raises(LoaderError, match="'epoch' or a number of steps"):
        SaveLoaderState(train, name, save_freq=0)
