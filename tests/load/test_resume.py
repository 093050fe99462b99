"""A trainer that is killed with -9 in its second epoch and started again ends with the weights of one that ran without a
break.
"""

import json
import signal
import sys
import textwrap
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

import tfprep
from tests.waiting import wait_until
from tests.warm_python import WarmPython
from tfprep.errors import LoaderError

keras = pytest.importorskip("keras")

from tfprep.load.callbacks import SaveLoaderState, saved_step  # noqa: E402 - it imports Keras

TRAINER = """
import json, os, sys, time
from pathlib import Path
import numpy as np
import keras, tensorflow as tf
import tfprep
from tfprep.load.callbacks import SaveLoaderState, saved_step

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
    train = loader(saved_step(train, str(states[-1]).removesuffix(".loader.json")))
    model.train_on_batch(*next(iter(loader(0))))  # builds the optimizer, whose state is loaded next
    model.load_weights(str(states[-1]).removesuffix(".loader.json"))
name = str(run / "{epoch:03d}-{batch:03d}.weights.h5")


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        (run / "progress").write_text(str(int(model.optimizer.iterations)))
        time.sleep(slow)


done = train.start_step
callbacks = [
    SaveLoaderState(train),
    keras.callbacks.ModelCheckpoint(name, save_freq=3, save_weights_only=True),
    Slow(),
]
if done % 6:  # the rest of an epoch
    model.fit(
        train.repeat(), initial_epoch=done // 6, epochs=done // 6 + 1, steps_per_epoch=6 - done % 6, verbose=0, shuffle=False,
        callbacks=callbacks,
    )
    done += 6 - done % 6
    train = loader(done)
    callbacks[0] = SaveLoaderState(train)
model.fit(train, initial_epoch=done // 6, epochs=4, verbose=0, shuffle=False, callbacks=callbacks)
np.savez(run / "final.npz", *model.get_weights())
"""


@pytest.fixture
def trainer(tmp_path):
    path = tmp_path / "trainer.py"
    path.write_text(textwrap.dedent(TRAINER))
    return path


def start(trainer: Path, dataset: Path, run: Path, slow: float = 0.0) -> WarmPython:
    run.mkdir(exist_ok=True)
    return WarmPython([str(trainer), str(dataset), str(run), str(slow)])


def finish(process: WarmPython) -> None:
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors


def weights(run: Path) -> list[np.ndarray]:
    with np.load(run / "final.npz") as arrays:
        return [arrays[name] for name in arrays.files]


def test_killed_and_started_again(photos, trainer, tmp_path):
    through, killed = tmp_path / "through", tmp_path / "killed"
    finish(start(trainer, photos.path, through))
    process = start(trainer, photos.path, killed, slow=0.2)
    progress = killed / "progress"
    # Step 10 is in the second epoch.
    wait_until(lambda: progress.exists() and int(progress.read_text() or 0) >= 10, process, seconds=120)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "final.npz").exists()
    assert list(killed.glob("*.loader.json"))
    finish(start(trainer, photos.path, killed))
    for one, other in zip(weights(through), weights(killed), strict=True):
        assert np.array_equal(one, other)


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((24, 32, 3), dtype="uint8"), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=2)
    return model


def steps_in(folder):
    return {path.name: json.loads(path.read_text())["step"] for path in folder.rglob("*.json") if "loader" in path.name}


def fit(model, train, *callbacks, epochs=2):
    model.fit(train, epochs=epochs, verbose=0, shuffle=False, callbacks=list(callbacks))


@pytest.fixture
def train(photos):
    return tfprep.open(photos.path).loader("train", 8, inputs="image", targets="label", start_step=5)


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)  # Keras, when it saves weights with NumPy 2.
class TestSaveLoaderState:
    def test_states_are_saved_with_checkpoints(self, train, model, tmp_path):
        name = str(tmp_path / "{epoch:02d}.weights.h5")
        fit(model, train, SaveLoaderState(train), keras.callbacks.ModelCheckpoint(name, save_weights_only=True))
        assert steps_in(tmp_path) == {"01.weights.h5.loader.json": 6, "02.weights.h5.loader.json": 12}
        assert {path.name for path in tmp_path.glob("*.h5")} == {"01.weights.h5", "02.weights.h5"}
        assert "save_weights" not in vars(model)

    def test_save_best_only(self, train, model, tmp_path):
        """The first epoch is the best, so its state is kept with its checkpoint."""
        name = str(tmp_path / "best.weights.h5")
        best = keras.callbacks.ModelCheckpoint(
            name, monitor="n", mode="min", save_best_only=True, save_weights_only=True
        )
        number = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(n=float(epoch)))
        fit(model, train, SaveLoaderState(train), number, best, epochs=3)
        assert saved_step(train, name) == 6

    def test_backup_and_restore(self, train, model, tmp_path):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path), save_freq=6, delete_checkpoint=False)
        fit(model, train, SaveLoaderState(train), backup)
        step = saved_step(train, tmp_path / "latest.weights.h5")
        model.load_weights(tmp_path / "latest.weights.h5")  # With the optimizer's count of steps.
        assert step == train.start_step + int(model.optimizer.iterations)

    def test_a_second_fit_goes_on_where_the_first_one_ended(self, train, model, tmp_path):
        name, saves = str(tmp_path / "last.weights.h5"), SaveLoaderState(train)
        for step in (6, 12):
            iter(train)  # nothing is read of it
            fit(model, train, saves, keras.callbacks.ModelCheckpoint(name, save_weights_only=True), epochs=1)
            assert saved_step(train, name) == step == train.next_step

    @pytest.mark.parametrize("steps_per_execution", [1, 2, 4])
    @pytest.mark.parametrize("way", [lambda train: train, lambda train: train.map(lambda x, y: (x, y))])
    def test_executions_that_find_fewer_steps(self, photos, model, tmp_path, steps_per_execution, way):
        """50 samples are 5 batches of 10."""
        train = tfprep.open(photos.path).loader("train", 10, inputs="image", targets="label")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, steps_per_execution=steps_per_execution)
        name = str(tmp_path / "{epoch}.weights.h5")
        save = keras.callbacks.ModelCheckpoint(name, save_weights_only=True)
        fit(model, way(train), SaveLoaderState(train), save, epochs=3)
        assert [saved_step(train, name.format(epoch=epoch)) for epoch in (1, 2, 3)] == [5, 10, 15]
        assert int(model.optimizer.iterations) == 15

    @pytest.mark.parametrize("rest", [1, 2, 5])
    @pytest.mark.parametrize("way", [lambda train: train, lambda train: train.map(lambda x, y: (x, y)).prefetch(12)])
    @pytest.mark.filterwarnings("error")
    def test_the_rest_of_an_epoch(self, photos, model, tmp_path, rest, way):
        """Keras's first epoch ends where the interrupted one would have ended, also behind a map, for which TensorFlow counts."""
        train = tfprep.open(photos.path).loader("train", 8, inputs="image", targets="label", start_step=12 - rest)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        name = str(tmp_path / "{epoch}.weights.h5")
        save = keras.callbacks.ModelCheckpoint(name, save_weights_only=True)
        seen, stop = [], keras.callbacks.EarlyStopping("loss", patience=0, start_from_epoch=2)
        note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
        logs = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(loss=1.0))
        fit(model, way(train), SaveLoaderState(train), note, logs, save, stop, epochs=9)
        assert [saved_step(train, name.format(epoch=epoch)) for epoch in (1, 2, 3, 4)] == [12, 18, 24, 30]
        assert seen == [*range(rest), *range(6), *range(6), *range(6)], "another callback's stop_training holds"

    def test_the_stream_without_an_end(self, photos, model, tmp_path):
        train = tfprep.open(photos.path).loader("train", 8, inputs="image", targets="label", start_step=4)
        name = str(tmp_path / "{epoch}.weights.h5")
        callbacks = [SaveLoaderState(train), keras.callbacks.ModelCheckpoint(name, save_weights_only=True)]
        model.fit(train.repeat(), steps_per_epoch=8, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
        assert [saved_step(train, name.format(epoch=epoch)) for epoch in (1, 2)] == [8, 16]

    def test_a_part_of_each_epoch_has_no_state(self, photos, model, tmp_path):
        """The second pass begins with the next epoch, which a count of steps does not know."""
        train = tfprep.open(photos.path).loader("train", 4, inputs="image", targets="label")
        save = keras.callbacks.ModelCheckpoint(str(tmp_path / "a.weights.h5"), save_weights_only=True)
        with pytest.raises(LoaderError, match="fit does not read its epochs one after another"):
            fit(model, train.take(6), SaveLoaderState(train), save)

    def test_evaluation_on_the_same_loader_has_no_state(self, train, model, tmp_path):
        save = keras.callbacks.ModelCheckpoint(str(tmp_path / "a.weights.h5"), save_weights_only=True)
        callbacks = [SaveLoaderState(train), save]
        with pytest.raises(LoaderError, match="fit does not read its epochs one after another"):
            model.fit(train, validation_data=train, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)

    def test_a_loader_that_ends_begins_again_in_each_epoch(self, photos, model, tmp_path):
        """50 samples are 7 batches; the last execution of two steps finds one."""
        loader = tfprep.open(photos.path).loader(
            "train", 8, inputs="image", targets="label", training=False, start_step=2
        )
        name, seen = str(tmp_path / "{epoch}.weights.h5"), str(tmp_path / "within.weights.h5")
        saves = [keras.callbacks.ModelCheckpoint(name, save_weights_only=True)]
        saves += [keras.callbacks.ModelCheckpoint(seen, save_freq=4, save_weights_only=True)]
        model.fit(loader, epochs=3, verbose=0, shuffle=False, callbacks=[SaveLoaderState(loader), *saves])
        assert {saved_step(loader, name.format(epoch=epoch)) for epoch in (1, 2, 3)} == {2}
        assert 2 < saved_step(loader, seen) < 7

    @pytest.fixture
    def make_orbax(self, monkeypatch, tmp_path):
        """Keras's own callback, with a stand-in for Orbax that finishes each checkpoint at once, apart from the last ones.

        A test that kills a run with Orbax itself is that of docs/loader.md.
        """

        def make(unfinished=0, directory=tmp_path, **options):
            orbax = keras.callbacks.OrbaxCheckpoint(str(directory), **options)
            saved = []

            def save(step, payload):
                saved.append(step)
                for finished in saved[: len(saved) - unfinished]:
                    (tmp_path / str(finished)).mkdir(exist_ok=True)

            orbax.checkpointer.save_checkpointables_async = save
            return orbax

        monkeypatch.setattr(sys.modules[keras.callbacks.OrbaxCheckpoint.__module__], "ocp", MagicMock())
        return make

    def test_orbax(self, train, model, make_orbax, tmp_path):
        fit(model, train, SaveLoaderState(train), make_orbax(save_freq=4))
        assert steps_in(tmp_path) == {
            "4.loader.json": 8,
            "8.loader.json": 12,
        }  # Keras counts two for one step of the rest
        assert saved_step(train, tmp_path) == 12
        assert saved_step(train, tmp_path / "4") == 8
        assert model.get_state_tree().keys()  # for all others it is as before

    def test_orbax_that_was_killed_while_it_saved(self, train, model, make_orbax, tmp_path):
        """The state of the checkpoint before counts; states of deleted checkpoints are removed."""
        fit(model, train, SaveLoaderState(train), make_orbax(unfinished=1), epochs=3)
        assert saved_step(train, tmp_path) == 12
        (tmp_path / "0").rmdir()
        fit(model, train, SaveLoaderState(train), make_orbax(save_freq=6), epochs=1)
        assert "0.loader.json" not in steps_in(tmp_path)

    def test_orbax_at_a_url_is_refused(self, train, model, make_orbax):
        with pytest.raises(LoaderError, match="OrbaxCheckpoint saves to gs://bucket/run"):
            fit(model, train, SaveLoaderState(train), make_orbax(directory="gs://bucket/run"))

    def test_a_callback_after_the_one_that_saves_is_refused(self, train, model, tmp_path):
        save = keras.callbacks.ModelCheckpoint(str(tmp_path / "a.weights.h5"), save_freq=2, save_weights_only=True)
        with pytest.raises(LoaderError, match="move it to the front"):
            fit(model, train, save, SaveLoaderState(train))

    def test_after_control_c_within_a_step(self, train, model, tmp_path):
        """The model can be saved, without a state; and another fit knows nothing of the callback."""
        name = str(tmp_path / "a.weights.h5")
        save = keras.callbacks.ModelCheckpoint(name, save_freq=2, save_weights_only=True)

        def stop(batch, logs=None):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(model, train, SaveLoaderState(train), save, keras.callbacks.LambdaCallback(on_train_batch_begin=stop))
        model.save_weights(name)
        with pytest.raises(LoaderError, match="killed while it was saved"):
            saved_step(train, name)
        with pytest.warns(
            UserWarning, match="ran out of data"
        ):  # Keras says so where no callback ends the rest of an epoch
            fit(model, train, save)
        assert not list(tmp_path.glob("*.json"))

    def test_a_checkpoint_without_a_state_is_refused(self, train, tmp_path):
        assert saved_step(train, tmp_path / "a.weights.h5") == 0
        (tmp_path / "a.weights.h5").write_bytes(b"half of it")
        with pytest.raises(LoaderError, match="killed while it was saved"):
            saved_step(train, tmp_path / "a.weights.h5")
