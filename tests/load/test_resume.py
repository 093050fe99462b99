"""The state of a run beside weights of Keras, and the step at which a run goes on.

Runs that are killed and started again are those of docs/loader.md, in tests/backends.
"""

import json

import pytest

from tfprep.errors import LoaderError

keras = pytest.importorskip("keras")

from tfprep.load.keras_loader import SaveLoaderState  # noqa: E402 - it imports Keras

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((24, 32, 3), dtype="uint8"), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", LOSS)
    return model


def loader_of(data, batch_size=8, **options):
    return data.loader("train", batch_size, inputs="image", targets="label", **options)


class Note(keras.callbacks.Callback):
    """The steps of the states that a file has had, at each event of a kind."""

    def __init__(self, path):
        super().__init__()
        self._path, self.epochs, self.batches = path, [], []

    def _step(self):
        return json.loads(self._path.read_text())["step"] if self._path.exists() else None

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self._step())

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(self._step())


def fit(model, data, path, loader, way=lambda train: train, save_freq=0, **options):
    note = Note(path)
    options = {"epochs": 3, "verbose": 0, "shuffle": False, **options}
    model.fit(way(loader), callbacks=[SaveLoaderState(loader, path, save_freq), note], **options)
    return note


@pytest.mark.parametrize("steps_per_execution", [1, 2, 4])
@pytest.mark.parametrize("way", [lambda train: train, lambda train: train.map(lambda x, y: (x, y)).prefetch(3)])
def test_the_state_at_the_end_of_each_epoch(data, model, tmp_path, way, steps_per_execution):
    """50 samples are 5 batches of 10; the last execution of some steps finds fewer."""
    model.compile("sgd", LOSS, steps_per_execution=steps_per_execution)
    assert fit(model, data, tmp_path / "s", loader_of(data, 10), way).epochs == [5, 10, 15]
    assert int(model.optimizer.iterations) == 15


def test_the_step_at_which_the_run_continues(data, model, tmp_path):
    """Also of a second fit, and of a loader that is given the state."""
    train, path = loader_of(data), tmp_path / "s"
    assert fit(model, data, path, train, epochs=2, save_freq=4).batches[:6] == [None] * 3 + [4] * 3
    assert fit(model, data, path, train, epochs=1).epochs == [18]
    again = loader_of(data, start_step=json.loads(path.read_text()))
    assert again.next_step == 18 == int(model.optimizer.iterations)
    assert fit(model, data, path, again, epochs=1).epochs == [24]
    with pytest.raises(LoaderError, match="its seed is 0, here it is 1"):
        loader_of(data, seed=1, start_step=json.loads(path.read_text()))


def test_states_within_epochs_are_those_of_the_weights_that_keras_saves(data, model, tmp_path):
    """Keras counts on over the ends of epochs, and writes nothing there."""
    note, loader, saved = Note(tmp_path / "s"), loader_of(data), []
    save = keras.callbacks.ModelCheckpoint(tmp_path / "w.weights.h5", save_weights_only=True, save_freq=4)
    save._save_model = lambda **_: saved.append(int(model.optimizer.iterations))
    callbacks = [save, SaveLoaderState(loader, tmp_path / "s", 4), note]
    model.fit(loader, epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    assert saved == [step for step in dict.fromkeys(note.batches) if step] == [4, 8, 12, 16]


def test_passes_from_within_an_epoch_have_the_steps_of_an_epoch(data, model, tmp_path):
    assert fit(model, data, tmp_path / "s", loader_of(data, start_step=4)).epochs == [10, 16, 22]


def test_a_part_of_each_epoch_is_refused(data, model, tmp_path):
    """The second pass begins with the next epoch, which a count of steps does not know."""
    for way, options in ((lambda train: train.take(4), {}), (lambda train: train, {"steps_per_epoch": 3})):
        with pytest.raises(LoaderError, match=r"use train.repeat\(\) with steps_per_epoch"):
            fit(model, data, tmp_path / "s", loader_of(data), way, **options)
