"""The state of a loader is saved beside each checkpoint of Keras, and says at which step a run goes on.

Runs that are killed and started again are those of docs/loader.md, in tests/docs and tests/backends.
"""

import json
import sys
from functools import partial
from unittest.mock import MagicMock

import pytest

from tfprep.errors import LoaderError

keras = pytest.importorskip("keras")

from tfprep.load.callbacks import SaveLoaderState, restore_seeds, saved_step  # noqa: E402 - it imports Keras

# Keras, when it saves weights with NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((24, 32, 3), dtype="uint8"), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", LOSS, steps_per_execution=2)
    return model


def loader_of(data, batch_size=8, **options):
    return data.loader("train", batch_size, inputs="image", targets="label", **options)


@pytest.fixture
def train(data):
    return loader_of(data, start_step=5)


def steps_in(folder):
    return {path.name: json.loads(path.read_text())["step"] for path in folder.rglob("*.json") if "loader" in path.name}


def fit(model, train, *callbacks, epochs=2, **options):
    model.fit(train, epochs=epochs, verbose=0, shuffle=False, callbacks=list(callbacks), **options)


@pytest.fixture
def saving(tmp_path):
    """`saving(name)`: the path of weights, and Keras's callback that saves them there."""

    def make(name="{epoch}", **options):
        path = str(tmp_path / f"{name}.weights.h5")
        return path, keras.callbacks.ModelCheckpoint(path, save_weights_only=True, **options)

    return make


def saved_steps(train, path, epochs):
    return [saved_step(train, path.format(epoch=epoch)) for epoch in range(1, epochs + 1)]


def test_states_are_saved_with_checkpoints(train, model, tmp_path, saving):
    fit(model, train, SaveLoaderState(train), saving("{epoch:02d}")[1])
    assert steps_in(tmp_path) == {"01.weights.h5.loader.json": 6, "02.weights.h5.loader.json": 12}
    assert {path.name for path in tmp_path.glob("*.h5")} == {"01.weights.h5", "02.weights.h5"}
    assert "save_weights" not in vars(model)


def test_save_best_only(train, model, saving):
    """The first epoch is the best, so its state is kept with its checkpoint."""
    path, best = saving("best", monitor="n", mode="min", save_best_only=True)
    number = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(n=float(epoch)))
    fit(model, train, SaveLoaderState(train), number, best, epochs=3)
    assert saved_step(train, path) == 6


def test_backup_and_restore(train, model, tmp_path):
    backup = keras.callbacks.BackupAndRestore(str(tmp_path), save_freq=6, delete_checkpoint=False)
    fit(model, train, SaveLoaderState(train), backup)
    model.load_weights(tmp_path / "latest.weights.h5")  # With the optimizer's count of steps.
    step = saved_step(train, tmp_path / "latest.weights.h5")
    assert step == train.start_step + int(model.optimizer.iterations)


def test_a_second_fit_goes_on_where_the_first_one_ended(train, model, saving):
    (path, save), saves = saving("last"), SaveLoaderState(train)
    for step in (6, 12):
        iter(train)  # nothing is read of it
        fit(model, train, saves, save, epochs=1)
        assert saved_step(train, path) == step == train.next_step


@pytest.mark.parametrize("steps_per_execution", [1, 2, 4])
@pytest.mark.parametrize("way", [lambda train: train, lambda train: train.map(lambda x, y: (x, y))])
def test_executions_that_find_fewer_steps(data, model, saving, steps_per_execution, way):
    """50 samples are 5 batches of 10."""
    train, (path, save) = loader_of(data, 10), saving()
    model.compile("sgd", LOSS, steps_per_execution=steps_per_execution)
    fit(model, way(train), SaveLoaderState(train), save, epochs=3)
    assert saved_steps(train, path, 3) == [5, 10, 15]
    assert int(model.optimizer.iterations) == 15


@pytest.mark.parametrize("rest", [1, 2, 5])
@pytest.mark.parametrize("way", [lambda train: train, lambda train: train.map(lambda x, y: (x, y)).prefetch(12)])
@pytest.mark.filterwarnings("error")
def test_the_rest_of_an_epoch(data, model, saving, rest, way):
    """Keras's first epoch ends where the interrupted one would have ended, also behind a map, for which TensorFlow counts."""
    train, (path, save) = loader_of(data, start_step=12 - rest), saving()
    model.compile("sgd", LOSS)
    seen, stop = [], keras.callbacks.EarlyStopping("loss", patience=0, start_from_epoch=2)
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch),
        on_epoch_end=lambda epoch, logs: logs.update(loss=1.0),
    )
    fit(model, way(train), SaveLoaderState(train), note, save, stop, epochs=9)
    assert saved_steps(train, path, 4) == [12, 18, 24, 30]
    assert seen == [*range(rest), *range(6), *range(6), *range(6)], "another callback's stop_training holds"


def test_the_stream_without_an_end(data, model, saving):
    train, (path, save) = loader_of(data, start_step=4), saving()
    fit(model, train.repeat(), SaveLoaderState(train), save, steps_per_epoch=8)
    assert saved_steps(train, path, 2) == [8, 16]


@pytest.mark.parametrize(
    ("way", "options"),
    [
        (
            lambda train: train.take(6),
            {},
        ),  # the second pass begins with the next epoch, which a count of steps does not know
        (lambda train: train, {"validation_data": True}),
    ],
)
def test_epochs_that_do_not_follow_each_other_have_no_state(data, model, saving, way, options):
    train = loader_of(data, 4)
    options = dict.fromkeys(options, train)
    with pytest.raises(LoaderError, match="fit does not read its epochs one after another"):
        fit(model, way(train), SaveLoaderState(train), saving()[1], **options)


def test_a_loader_that_ends_begins_again_in_each_epoch(data, model, saving):
    """50 samples are 7 batches; the last execution of two steps finds one."""
    train = loader_of(data, training=False, start_step=2)
    (path, save), (within, save_within) = saving(), saving("within", save_freq=4)
    fit(model, train, SaveLoaderState(train), save, save_within, epochs=3)
    assert saved_steps(train, path, 3) == [2, 2, 2]
    assert 2 < saved_step(train, within) < 7


@pytest.fixture
def make_orbax(monkeypatch, tmp_path):
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


def test_orbax(train, model, make_orbax, tmp_path):
    fit(model, train, SaveLoaderState(train), make_orbax(save_freq=4))
    # Keras counts two for one step of the rest.
    assert steps_in(tmp_path) == {"4.loader.json": 8, "8.loader.json": 12}
    assert saved_step(train, tmp_path) == 12
    assert saved_step(train, tmp_path / "4") == 8
    assert model.get_state_tree().keys()  # for all others it is as before
    with pytest.raises(LoaderError, match="OrbaxCheckpoint saves to gs://bucket/run"):
        fit(model, train, SaveLoaderState(train), make_orbax(directory="gs://bucket/run"))


def test_orbax_that_was_killed_while_it_saved(train, model, make_orbax, tmp_path):
    """The state of the checkpoint before counts; states of deleted checkpoints are removed."""
    fit(model, train, SaveLoaderState(train), make_orbax(unfinished=1), epochs=3)
    assert saved_step(train, tmp_path) == 12
    (tmp_path / "0").rmdir()
    fit(model, train, SaveLoaderState(train), make_orbax(save_freq=6), epochs=1)
    assert "0.loader.json" not in steps_in(tmp_path)


def test_a_callback_after_the_one_that_saves_is_refused(train, model, saving):
    with pytest.raises(LoaderError, match="move it to the front"):
        fit(model, train, saving("a", save_freq=2)[1], SaveLoaderState(train))


def test_after_control_c_within_a_step(train, model, tmp_path, saving):
    """The model can be saved, without a state; and another fit knows nothing of the callback."""
    path, save = saving("a", save_freq=2)

    def stop(batch, logs=None):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, train, SaveLoaderState(train), save, keras.callbacks.LambdaCallback(on_train_batch_begin=stop))
    assert saved_step(train, path) == 0
    model.save_weights(path)
    with pytest.raises(LoaderError, match="killed while it was saved"):
        saved_step(train, path)
    with pytest.warns(UserWarning, match="ran out of data"):  # Keras, where no callback ends the rest of an epoch
        fit(model, train, save)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"step": 3, "vers', b"\xff", b"[" * 100_000])
def test_a_damaged_state_is_named(train, model, tmp_path, content):
    (tmp_path / "a.keras.loader.json").write_bytes(content)
    for read in (partial(saved_step, train), partial(restore_seeds, model)):
        with pytest.raises(LoaderError, match=r"a\.keras\.loader\.json is damaged .*older checkpoint"):
            read(tmp_path / "a.keras")
