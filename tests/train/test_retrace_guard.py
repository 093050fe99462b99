"""Every cause of a new trace is named with the argument that changed."""

import logging

import numpy as np
import pytest

from tfprep import train
from tfprep.errors import RetraceError

ONE = ([8, 3], "float32", 1)
CASES = {
    "partial_batch": (
        ([3, 3], "float32", 1),
        "x: float32 of shape (8, 3) before, float32 of shape (3, 3) now; "
        "the partial last batch: use batch(..., drop_remainder=True)",
    ),
    "shape": (([8, 5], "float32", 1), "float32 of shape (8, 5) now; pad or resize to one shape"),
    "dtype": (([8, 3], "float64", 1), "float64 of shape (8, 3) now; cast it in the dataset"),
    "python_value": (
        ([8, 3], "float32", 2),
        "n: Python value 1 before, Python value 2 now; each new Python value is a new trace, so pass it as a tensor",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_argument_that_changed_is_named(tf, case):
    @tf.function
    def step(x, n):
        return tf.reduce_sum(tf.cast(x, tf.float32)) * n

    def call(shape, dtype, n):
        return guarded(tf.ones(shape, dtype), n)

    second, expected = CASES[case]
    guarded = train.RetraceGuard().watch(step)
    for _ in range(3):
        call(*ONE)
    with pytest.raises(RetraceError) as caught:
        call(*second)
    assert str(caught.value).startswith("step was traced again at call 4: ")
    assert expected in str(caught.value)
    call(*ONE)
    call(*second)  # Known by now.


def test_traces_in_the_warm_up_are_allowed(tf):
    @tf.function
    def step(x):
        return x + 1

    guarded = train.RetraceGuard(warmup_steps=2).watch(step)
    guarded(tf.ones([8]))
    guarded(tf.ones([3]))
    for size in (8, 3, 8, 3):
        guarded(tf.ones([size]))


def test_functions_of_one_name_are_not_compared(tf):
    guard = train.RetraceGuard(warmup_steps=1)
    one, other = (guard.watch(tf.function(lambda x: x + 1)) for _ in range(2))
    one(tf.ones([8]))
    other(tf.ones([2, 2]))
    with pytest.raises(RetraceError, match=r"float32 of shape \(8,\) before, float32 of shape \(1, 2\) now"):
        one(tf.ones([1, 2]))


def _images(tf, size, count=14):
    return tf.data.Dataset.from_tensor_slices((np.zeros([count, size, size, 3], "f"), np.zeros([count, 4], "f"))).batch(
        4
    )


@pytest.fixture
def model(tf):
    model = tf.keras.Sequential([tf.keras.layers.GlobalAveragePooling2D(), tf.keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    return model


def test_keras_another_image_size_is_named(tf, model, caplog):
    guard = train.RetraceGuard(action="warn")
    model.fit(_images(tf, 8), epochs=2, verbose=0, shuffle=False, callbacks=[guard])
    with caplog.at_level(logging.WARNING, "tfprep.train"):
        model.fit(_images(tf, 16), verbose=0, shuffle=False, callbacks=[guard])
    (message,) = guard.retraces
    assert "the train step was traced again at call 9: data[0]: float32 of shape (None, 8, 8, 3) before" in message
    assert "(None, 16, 16, 3) now" in message
    assert message in caplog.text


def test_keras_a_model_compiled_again_is_named(tf, model):
    """`compile` builds a new train function, so the same data is traced a second time."""
    guard = train.RetraceGuard()
    model.fit(_images(tf, 8), verbose=0, shuffle=False, callbacks=[guard])
    model.compile("sgd", "mse")
    with pytest.raises(RetraceError, match="no argument changed: the model was compiled again"):
        model.fit(_images(tf, 8), verbose=0, shuffle=False, callbacks=[guard])


def test_the_steps_are_in_the_profile(tf, dense, pairs, tmp_path, caplog):
    """A profile of another run is in the folder."""
    other = tmp_path / "plugins/profile/1999_01_01_00_00_00/host.xplane.pb"
    other.parent.mkdir(parents=True)
    other.touch()
    callback = train.profile(tmp_path, steps=(5, 9))
    with caplog.at_level(logging.WARNING, "tfprep.train"):
        dense.fit(pairs(48).batch(4).prefetch(1), verbose=0, shuffle=False, callbacks=[callback])
    assert callback.folder is not None
    assert f"profile: wrote {callback.folder}" in caplog.text
    (written,) = callback.folder.glob("*.xplane.pb")
    content = written.read_bytes()
    assert b"train" in content
    assert b"IteratorGetNext" in content
    tf.profiler.experimental.start(str(tmp_path))  # AlreadyExistsError if a profiler still runs
    tf.profiler.experimental.stop(save=False)
    with caplog.at_level(logging.WARNING, "tfprep.train"):
        dense.fit(pairs(4).batch(4), verbose=0, shuffle=False, callbacks=[callback])
    assert callback.folder is None, "that of the fit before is not the folder of this one"
    assert "nothing was profiled" in caplog.text


def test_a_profile_within_the_second_of_another_one_is_found(tf, dense, pairs, tmp_path, monkeypatch):
    """TensorFlow names the folder by the second."""
    (tmp_path / "plugins/profile/now").mkdir(parents=True)
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: None)
    monkeypatch.setattr(tf.profiler.experimental, "stop", (tmp_path / "plugins/profile/now/a.xplane.pb").touch)
    for _ in range(2):
        callback = train.profile(tmp_path, steps=(1, 1))
        dense.fit(pairs(4).batch(4), verbose=0, shuffle=False, callbacks=[callback])
        assert callback.folder == tmp_path / "plugins/profile/now"


def test_a_training_that_ends_too_early_is_reported(dense, pairs, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "tfprep.train"):
        dense.fit(pairs(8).batch(4), verbose=0, shuffle=False, callbacks=[train.profile(tmp_path)])
    assert "the training ended before step 10; nothing was profiled" in caplog.text
