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
        "n: Python value 1 before, Python value 2 now; each new Python value is a new trace: pass numbers as tensors",
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


def test_the_first_trace_of_each_model_is_allowed(tf):
    """As in a cross-validation, which makes a model for each fold."""
    guard, data = train.RetraceGuard(), tf.data.Dataset.from_tensors((tf.ones([4, 8]), tf.ones([4, 1]))).repeat(4)
    for _ in range(2):
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(data, verbose=0, shuffle=False, callbacks=[guard])
    assert not guard.retraces
    model.compile("sgd", "mse")
    with pytest.raises(RetraceError, match="compiled again"):
        model.fit(data, verbose=0, shuffle=False, callbacks=[guard])


def test_functions_of_one_name_are_not_compared(tf):
    guard = train.RetraceGuard(warmup_steps=1)
    one, other = (guard.watch(tf.function(lambda x: x + 1)) for _ in range(2))
    one(tf.ones([8]))
    other(tf.ones([2, 2]))
    with pytest.raises(RetraceError, match=r"float32 of shape \(8,\) before, float32 of shape \(1, 2\) now"):
        one(tf.ones([1, 2]))


def test_another_model_is_named(tf):
    def model(name):
        return tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(1)], name=name)

    step = train.RetraceGuard(warmup_steps=1).watch(tf.function(lambda network, x: network(x)))
    step(model("generator"), tf.ones([2, 3]))
    with pytest.raises(RetraceError, match=r"network: Python value <.*generator.* before, .*critic"):
        step(model("critic"), tf.ones([2, 3]))


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
