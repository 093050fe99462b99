"""A reader that never returns is named by its stage, and the run ends."""

import logging
import subprocess
import sys
import threading
import time

import pytest

from tfprep import train


@pytest.fixture
def stalls():
    """The reports of a watchdog that only reports; each one lets those go on that `stuck_at` holds."""

    class Stalls(logging.Handler):
        def __init__(self):
            super().__init__()
            self.texts, self.go_on = [], threading.Event()

        def emit(self, record):
            if record.levelno == logging.CRITICAL:
                self.texts.append(record.getMessage())
                self.go_on.set()

        def stuck_at(self, number):
            def delay(now):
                if now == number:
                    assert self.go_on.wait(60)
                return 0.0

            return delay

    handler = Stalls()
    logging.getLogger("tfprep.train").addHandler(handler)
    yield handler
    logging.getLogger("tfprep.train").removeHandler(handler)


def watchdog(timeout_s, **options):
    return train.Watchdog(timeout_s, exit_code=None, **options)


def test_fit_is_reported_with_the_stage_and_the_stacks(dense, pairs, stalls, capfd):
    dataset = pairs(100, stalls.stuck_at(23)).shuffle(2).batch(4).prefetch(1)
    dense.fit(dataset, verbose=0, shuffle=False, callbacks=[watchdog(3.0)])
    (text,) = stalls.texts
    assert "(timeout_s=3): stopped in stage 4/Map, which has handed on 23 elements" in text
    assert "stage 3/Shuffle: " in text
    stacks = capfd.readouterr().err
    assert "in delay" in stacks
    assert "in fit" in stacks


def test_counters_that_fail_do_not_hide_a_stall(pairs, stalls, monkeypatch):
    monkeypatch.setattr("tfprep.train.monitor.pipeline.stages", lambda source: {}["gone"])
    list(watchdog(1.0).watch(pairs(20, stalls.stuck_at(9)).batch(4)))
    assert any("timeout_s=1" in text for text in stalls.texts)


def test_a_custom_training_loop_gets_every_batch_and_one_report(pairs, stalls):
    batches = watchdog(1.0).watch(pairs(100, stalls.stuck_at(23)).shuffle(2).batch(4))
    assert sum(len(x) for x, _ in batches) == 100
    assert [text for text in stalls.texts if "stopped in stage" in text] == stalls.texts
    assert len(stalls.texts) == 1


def test_a_process_that_was_suspended_has_not_stalled(monkeypatch, stalls):
    """All clocks are an hour later at the next look: looks count, not seconds."""
    real, offset_s = time.perf_counter, [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: real() + offset_s[0])

    def batches():
        time.sleep(0.5)
        offset_s[0] += 3600
        time.sleep(0.5)
        yield 1
        assert stalls.go_on.wait(60)

    watched = watchdog(2.0).watch(batches())
    assert next(watched) == 1
    assert stalls.texts == []
    assert list(watched) == []
    assert len(stalls.texts) == 1


def test_an_error_of_the_pipeline_is_raised_unchanged(tf):
    dataset = tf.data.Dataset.range(3).map(
        lambda x: tf.debugging.check_numerics(1.0 / tf.cast(x - 1, tf.float32), "here")
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="here"):
        list(watchdog(5).watch(dataset))


def test_a_buffer_that_is_filling_is_reported(pairs, stalls):
    dataset = pairs(3000, lambda number: 0.0 if stalls.texts else 0.005).shuffle(2500).batch(4)
    next(watchdog(1.0).watch(dataset))
    assert "it fills for the first time: " in stalls.texts[0]


def test_a_slow_step_and_a_long_validation_are_not_stalls(dense, pairs, slow_step, stalls):
    dense.compile("sgd", "mse", steps_per_execution=3)
    slow = pairs(4, lambda number: 0.2).batch(4)
    dense.fit(
        pairs(8).batch(4), validation_data=slow, epochs=2, verbose=0, shuffle=False,
        callbacks=[watchdog(3.0), slow_step(0.7, 0.0)],
    )  # fmt: skip
    assert stalls.texts == []


def test_batches_that_are_ready_after_a_stuck_map(tf, photos, stalls):
    import tfprep

    def wait(label):
        assert stalls.go_on.wait(60)
        return label

    loader = tfprep.open(photos.path).loader("train", batch_size=8, seed=0, inputs="image", targets="label")
    stuck = loader.map(lambda image, label: tf.numpy_function(wait, [label], label.dtype))
    next(watchdog(1.0).watch(stuck))
    assert "stopped after the loader: " in stalls.texts[0]
    assert " batches are ready in its reader" in stalls.texts[0]


def test_the_process_ends(tmp_path):
    """Nothing can end the wait; a thread that blocks in the source must not keep the process alive."""
    script = """
import threading, tensorflow as tf
from tfprep.train import Watchdog
def stuck(x):
    threading.Event().wait()
    return x
data = tf.data.Dataset.range(9).map(lambda x: tf.numpy_function(stuck, [x], tf.int64)).prefetch(1)
for _ in Watchdog(0.5).watch(data): pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 70
    assert "Watchdog: no batch for" in done.stderr
    assert "stopped in stage" in done.stderr
    assert "in stuck" in done.stderr
