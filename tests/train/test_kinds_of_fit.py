"""The callbacks with every way in which Keras runs a step: they count the steps that were trained, and give no false alarm."""

import time

import numpy as np
import pytest

from tests.warm_python import run_python
from tfprep import train

WAYS = {
    "plain": {}, "eager": {"run_eagerly": True}, "xla": {"jit_compile": True},
    "many_steps_a_call": {"steps_per_execution": 4}, "accumulated_gradients": {"gradient_accumulation_steps": 2},
}  # fmt: skip


def _model(way):
    import keras

    options = dict(WAYS[way])
    optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=options.pop("gradient_accumulation_steps", None))
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    model.compile(optimizer, "mse", **options)
    return model


def _callbacks(folder):
    monitor, guard = train.InputMonitor(folder, every_s=0.1), train.RetraceGuard()
    return monitor, guard, [monitor, guard]


@pytest.mark.parametrize("way", WAYS)
def test_counts_and_waits_are_those_of_the_training(tf, pairs, tmp_path, way):
    """10 batches per epoch take 20 ms each; the batches of the validation take 80 ms and do not count."""
    model = _model(way)
    monitor, guard, callbacks = _callbacks(tmp_path)
    options = tf.data.Options()
    # Both prepare batches during a slow step.
    options.experimental_optimization.map_and_batch_fusion = False
    options.experimental_optimization.inject_prefetch = False
    slow = pairs(40, lambda number: 0.005).batch(4, drop_remainder=True).with_options(options)
    slower = pairs(8, lambda number: 0.02).batch(4, drop_remainder=True)
    began = time.monotonic()
    model.fit(slow, validation_data=slower, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
    took_s = time.monotonic() - began
    waits = [sample.waits for sample in monitor.samples if sample.waits]
    assert monitor.samples[-1].step == sum(window.batches for window in waits) == 20
    assert sum(window.images for window in waits) == 80
    assert sum(window.window_s for window in waits) < took_s - 2 * 8 * 0.02
    each_ms = sorted(1e3 * wait for window in waits for wait in window.each_s)[-20:]
    assert each_ms[10] > 12
    assert 1e3 * sum(window.waited_s for window in waits) > 12 * 20
    assert sum(window.waited_s for window in waits) == pytest.approx(sum(each_ms) / 1e3)  # of training batches only
    assert guard.retraces == []
    model.fit(slow, verbose=0, shuffle=False, callbacks=callbacks)
    assert monitor.samples[-1].step == 30
    assert guard.retraces == []


def test_a_batch_that_is_fetched_during_a_step_is_not_waited_for(tf, pairs, tmp_path):
    """In a call of several steps, TensorFlow fetches the next batch while a step runs. Only the first one is waited for."""

    class Slow(tf.keras.layers.Layer):
        def call(self, x):
            done = tf.numpy_function(lambda: time.sleep(0.1) or np.float32(0), [], tf.float32)
            return x + tf.ensure_shape(done, [])

    model = tf.keras.Sequential([tf.keras.Input([8]), Slow(), tf.keras.layers.Dense(4)])
    model.compile("sgd", "mse", steps_per_execution=8, jit_compile=False)
    options = tf.data.Options()
    options.experimental_optimization.map_and_batch_fusion = False
    options.experimental_optimization.inject_prefetch = False
    monitor = train.InputMonitor(tmp_path)
    data = pairs(24, lambda number: 0.03).batch(1).with_options(options)
    model.fit(data, verbose=0, shuffle=False, callbacks=[monitor])
    waits = monitor.total().waits
    assert waits.batches == 16
    assert np.median(waits.each_s) < 0.02
    assert waits.each_s.max() > 0.02


@pytest.mark.parametrize("way", ["plain", "many_steps_a_call"])
def test_an_epoch_that_no_call_divides(tf, pairs, tmp_path, way):
    """10 steps in calls of 4, with a partial last batch: 2.5 calls."""
    model = _model(way)
    monitor, guard, callbacks = _callbacks(tmp_path)
    model.fit(pairs(38).batch(4), epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
    assert monitor.samples[-1].step == 20
    assert sum(sample.waits.images for sample in monitor.samples if sample.waits) == 76
    assert guard.retraces == []


def test_evaluate_and_predict_take_the_callbacks(tf, dense, pairs, tmp_path):
    monitor, guard, callbacks = _callbacks(tmp_path)
    dense.evaluate(pairs(8).batch(4), verbose=0, callbacks=callbacks)
    dense.predict(pairs(8).batch(4), verbose=0, callbacks=callbacks)
    assert monitor.samples == []
    dense.fit(pairs(8).batch(4), verbose=0, shuffle=False, callbacks=callbacks)
    dense.evaluate(pairs(8).batch(4), verbose=0, callbacks=callbacks)
    assert monitor.samples[-1].step == 2
    assert guard.retraces == []


def test_a_fit_that_breaks_off_leaves_a_model_that_trains(tf, dense, pairs, tmp_path):
    """The pipeline raises inside the step."""
    monitor, _, callbacks = _callbacks(tmp_path)

    def fail(number):
        if number == 9:
            raise LookupError("sample 9 is missing")
        return 0.0

    with pytest.raises(tf.errors.UnknownError, match="sample 9 is missing"):
        dense.fit(pairs(20, fail).batch(4), verbose=0, shuffle=False, callbacks=callbacks)
    assert monitor.samples[-1].step == 2
    dense.fit(pairs(20).batch(4), verbose=0, shuffle=False)
    dense.fit(pairs(20).batch(4), verbose=0, shuffle=False, callbacks=callbacks)
    # Whether the optimizer counts the step that failed is a race inside TensorFlow.
    assert monitor.samples[-1].step - 10 in (2, 3)


def test_fit_prints_what_limits_in_two_lines(dense, pairs, slow_step, tmp_path, capsys):
    monitor, _, _ = _callbacks(tmp_path)
    slow = pairs(40, lambda number: 0.005).batch(4)
    dense.fit(slow, epochs=2, verbose=2, shuffle=False, callbacks=[monitor])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("InputMonitor")]
    assert lines == monitor.summary.splitlines()
    assert "InputMonitor: 19 batches in " in lines[0]  # Without the step that is traced.
    assert "the input limits, most of all its stage " in lines[1]
    assert "/MapAndBatch (" in lines[1]  # Four samples of 5 ms.
    dense.fit(slow, verbose=0, shuffle=False, callbacks=[monitor])
    assert "InputMonitor" not in capsys.readouterr().out

    dense.fit(pairs(40).batch(4).prefetch(2), verbose=0, shuffle=False, callbacks=[monitor, slow_step(0.02)])
    assert "the step limits; a faster input would save at most" in monitor.summary


DETERMINISTIC = """
import sys, time
import keras, tensorflow as tf
from tfprep.train import InputMonitor

keras.utils.set_random_seed(0)
tf.config.experimental.enable_op_determinism()

def delay(number):
    time.sleep(0.02)
    return number

def pair(number):
    number = tf.ensure_shape(tf.numpy_function(delay, [number], tf.int64), [])
    return tf.ones([4, 8]), tf.ones([4, 4]) * tf.cast(number, "float32")

model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
model.compile("sgd", "mse")
monitor = InputMonitor(sys.argv[1], every_s=0.2)
options = tf.data.Options()
options.experimental_optimization.inject_prefetch = False
data = tf.data.Dataset.range(10).map(pair).with_options(options)
model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[monitor])
waits = [wait for sample in monitor.samples if sample.waits for wait in sample.waits.each_s]
print("batches", len(waits), "median", sorted(waits)[len(waits) // 2] if waits else 0)
"""


def test_waits_among_deterministic_ops(tmp_path):
    done = run_python(["-c", DETERMINISTIC, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[-1].startswith("batches 20 median ")
    assert float(printed[-1].split()[-1]) > 0.018
