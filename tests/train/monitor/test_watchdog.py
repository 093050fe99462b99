"""A reader that never returns is named by its stage, and the training raises."""

import subprocess
import sys
import threading
import time

import pytest

from tfprep import train
from tfprep.errors import StalledPipelineError

STUCK = threading.Event()


def _stuck_at(number):
    """Blocks until the end of the tests."""

    def delay(now):
        if now == number:
            STUCK.wait(60)
        return 0.0

    return delay


@pytest.fixture(autouse=True, scope="module")
def _let_go():
    yield
    STUCK.set()


def test_fit_raises_with_the_stage_and_the_stacks_and_trains_again(dense, pairs):
    dataset = pairs(100, _stuck_at(23)).shuffle(2).batch(4).prefetch(1)
    began = time.monotonic()
    with pytest.raises(StalledPipelineError) as caught:
        dense.fit(dataset, verbose=0, shuffle=False, callbacks=[train.Watchdog(1.0)])
    assert 1.0 < time.monotonic() - began < 30.0
    text = str(caught.value)
    assert "(timeout_s=1): stopped in stage 4/Map, which has handed on 23 elements" in text
    assert "3/Shuffle: " in text
    assert "STUCK.wait(60)" in text
    assert "thread MainThread" in text
    history = dense.fit(pairs(20).batch(4), epochs=2, verbose=0, shuffle=False, callbacks=[train.Watchdog(5)])
    assert len(history.history["loss"]) == 2


def test_a_reader_whose_counters_fail_does_not_hide_a_stall(dense, pairs):
    watchdog = train.Watchdog(1.0, reader=lambda: {}["gone"])
    with pytest.raises(StalledPipelineError, match="timeout_s=1"):
        dense.fit(pairs(20, _stuck_at(9)).batch(4), verbose=0, shuffle=False, callbacks=[watchdog])


def test_a_custom_training_loop_raises(pairs):
    batches = train.Watchdog(0.5).watch(pairs(100, _stuck_at(23)).shuffle(2).batch(4))
    for _ in range(5):
        next(batches)
    with pytest.raises(StalledPipelineError, match="stopped in stage"):
        next(batches)


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_the_clock_of_the_machine_may_be_set_during_a_wait(monkeypatch, jump_s):
    """One batch comes late, the next one never."""
    real, offset_s = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + offset_s[0])

    def batches():
        for wait_s in (1.2, 60):
            STUCK.wait(0.3)
            offset_s[0] += jump_s
            STUCK.wait(wait_s)
            yield wait_s

    watched = train.Watchdog(4.0).watch(batches())
    assert next(watched) == 1.2
    with pytest.raises(StalledPipelineError, match=r"no batch for [4-9]\.\d s"):
        next(watched)


def test_a_custom_training_loop_gets_every_batch(tf, pairs):
    seen = [int(number) for batch in train.Watchdog(5).watch(tf.data.Dataset.range(10).batch(4)) for number in batch]
    assert seen == list(range(10))


def test_an_error_of_the_pipeline_is_raised_unchanged(tf):
    dataset = tf.data.Dataset.range(3).map(
        lambda x: tf.debugging.check_numerics(1.0 / tf.cast(x - 1, tf.float32), "here")
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="here"):
        list(train.Watchdog(5).watch(dataset))


def test_a_buffer_that_is_filling_is_reported(pairs):
    dataset = pairs(3000, lambda number: 0.005).shuffle(2500).batch(4)
    with pytest.raises(
        StalledPipelineError, match=r"it has not stopped, the shuffle buffer \(stage \d/Shuffle\) still fills"
    ):
        next(train.Watchdog(1.0).watch(dataset))


def test_a_slow_step_is_not_a_stall(dense, pairs, slow_step):
    watchdog = train.Watchdog(0.4)
    dense.fit(pairs(8).batch(4), verbose=0, shuffle=False, callbacks=[watchdog, slow_step(0.7, 0.0)])


def test_a_process_with_a_stalled_reader_ends():
    """The thread that blocks in the source must not keep the interpreter alive."""
    script = """
import threading, tensorflow as tf
from tfprep.train import Watchdog
def stuck(x):
    threading.Event().wait()
    return x
data = tf.data.Dataset.range(9).map(lambda x: tf.numpy_function(stuck, [x], tf.int64)).prefetch(1)
for _ in Watchdog(0.5).watch(data): pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "StalledPipelineError: no batch for" in done.stderr


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"steps_per_execution": 4}, {"jit_compile": True}], ids=str)
def test_every_kind_of_step_is_called_back(tf, pairs, options):
    model = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(4)])
    model.compile("sgd", "mse", **options)
    dataset = pairs(100, _stuck_at(23)).batch(4, drop_remainder=True).prefetch(1)
    with pytest.raises(StalledPipelineError, match="stopped in stage 2/MapAndBatch, which has handed on 5"):
        model.fit(dataset, verbose=0, shuffle=False, callbacks=[train.Watchdog(0.5)])


def test_a_long_validation_is_not_a_stall(dense, pairs):
    """The end of the training data has been delivered, so nothing waits for training data."""
    dense.compile("sgd", "mse", steps_per_execution=3)
    slow = pairs(4, lambda number: 0.2).batch(4)
    dense.fit(
        pairs(8).batch(4), validation_data=slow, epochs=2, verbose=0, shuffle=False, callbacks=[train.Watchdog(0.5)]
    )
