"""Memory reports, compared with sums over the tensors; the largest batch size, compared with the sizes that fit."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from tfprep import train
from tfprep.errors import TrainError


def _wide_model():
    import keras

    model = keras.Sequential([keras.Input([1000]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def _rows(size):
    """Takes 600 MB of float64 for each sample, in addition to the memory of TensorFlow."""
    ballast = np.ones([size, 75_000_000])
    return ballast[:, :1000].astype("f"), np.zeros([size, 1], "f")


def _wrong_rows(size):
    return np.zeros([size, 7], "f"), np.zeros([size, 1], "f")


def _no_process(size):
    os._exit(3)


def _killed_rows(size):
    if size > 1:
        os.kill(os.getpid(), 9)
    return np.zeros([size, 1000], "f"), np.zeros([size, 1], "f")


def test_the_memory_of_a_process_that_was_not_seen_is_not_known():
    one, two = train.find_batch_size(_wide_model, _killed_rows, memory_limit_mb=4000, largest=2).trials
    assert (one.fits, two.fits, two.reason) == (True, False, "its process was killed by SIGKILL (out of memory?)")
    assert two.peak_mb is None or two.peak_mb > 100


def test_find_batch_size_on_a_cpu_with_a_limit():
    """The process takes about 600 MB. With 600 MB per sample, one sample fits into 1,500 MB and two do not."""
    result = train.find_batch_size(_wide_model, _rows, memory_limit_mb=1500, largest=64, steps=1)
    assert result.size == 1
    one, two = result.trials
    assert 600 < one.peak_mb < 1500
    assert (one.size, one.fits, two.size, two.fits) == (1, True, 2, False)
    assert two.reason == "more than 1,500 MB"


def test_find_batch_size_if_nothing_fits():
    with pytest.raises(
        TrainError, match=r"not even a batch of 1 fits into 100 MB: more than 100 MB\. The limit covers"
    ):
        train.find_batch_size(_wide_model, _rows, memory_limit_mb=100)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (_wrong_rows, "a batch of 1 failed, and not for memory: "),
        (_no_process, "a batch of 1 ended with exit status 3, and not for memory"),
    ],
)
def test_find_batch_size_raises_other_errors(rows, error):
    with pytest.raises(TrainError, match=error):
        train.find_batch_size(_wide_model, rows, memory_limit_mb=4000, largest=1)


def test_doubling_and_quarters(monkeypatch):
    """Compared with a simulated machine in which exactly 45 fit."""
    from tfprep.train import memory

    def try_all(_, __, sizes, *rest):
        trials = []
        for size in sizes:
            trials.append(memory.BatchTrial(size, size <= 45, 10.0 * size))
            if size > 45:
                break
        return trials

    monkeypatch.setattr(memory, "_try_all", try_all)
    result = memory.find_batch_size(_wide_model, _rows, memory_limit_mb=1)
    assert [trial.size for trial in result.trials] == [1, 2, 4, 8, 16, 32, 64, 40, 48]
    assert result.size == 40
    assert memory.find_batch_size(_wide_model, _rows, memory_limit_mb=1, largest=32).size == 32
    assert memory.find_batch_size(_wide_model, _rows, memory_limit_mb=1, largest=41).size == 41
    assert memory.find_batch_size(_wide_model, _rows, memory_limit_mb=1, largest=1).size == 1


def test_a_models_parts_equal_a_direct_count(tf):
    """Dense 8 -> 16 (relu) -> 4 with Adam, batch 32."""
    model = tf.keras.Sequential(
        [tf.keras.Input([8]), tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(4)]
    )
    model.compile(tf.keras.optimizers.Adam(), "mse")
    report = train.memory_report(model, 32)
    parameters = 4 * (8 * 16 + 16 + 16 * 4 + 4)
    assert report.parameters == parameters
    assert report.gradients == parameters
    assert 2 * parameters <= report.optimizer <= 2 * parameters + 16  # Two slots, the step and the learning rate.
    assert report.input_buffers == 32 * 8 * 4
    assert report.measured_peak is None or report.measured_peak > 0
    assert report.counted == report.parameters + report.gradients + report.optimizer + report.input_buffers
    assert ("without activations" in str(report)) == (report.measured_peak is None)


def test_the_input_can_come_from_the_data(tf):
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    with pytest.raises(TrainError, match="pass data="):
        train.memory_report(model, 8)
    dataset = tf.data.Dataset.from_tensors((tf.zeros([6, 6, 3], tf.uint8), tf.zeros([4]))).repeat().batch(8)
    report = train.memory_report(model, 8, data=dataset)
    assert report.input_buffers == 2 * 8 * 6 * 6 * 3
    assert report.parameters == 4 * (108 * 4 + 4)
    assert "batch of 8" in str(report)


def test_a_class_with_a_call_of_its_own_is_built_by_the_data(tf):
    class Named(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(4)

        def call(self, batch):
            return self.dense(batch["x"])

    model = Named()
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors(({"x": tf.ones([8, 3])}, tf.ones([8, 4]))).repeat(2)
    assert train.memory_report(model, 8, data=data).parameters == 4 * (3 * 4 + 4)
    model.fit(data, verbose=0, shuffle=False)


def test_a_step_on_a_gpu_takes_the_targets_of_the_data_and_leaves_the_weights(tf, monkeypatch):
    """A loss of class numbers refuses the outputs themselves. The GPU is said to be there."""
    model = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(4)])
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = [weight.copy() for weight in model.get_weights()]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [SimpleNamespace(name="/device:GPU:0")])
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", lambda name: None)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda name: {"current": 3, "peak": 7})
    with pytest.raises(TrainError, match="give data=, whose targets fit the loss"):
        train.memory_report(model, 2)
    data = tf.data.Dataset.from_tensors((tf.zeros([8]), tf.zeros([], tf.int32))).batch(2)
    assert train.memory_report(model, 2, data=data).measured_peak == 4
    for weight, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_an_input_of_any_size_has_no_memory(tf):
    model = tf.keras.Sequential([tf.keras.Input([None, None, 3]), tf.keras.layers.Conv2D(4, 3)])
    model.compile("sgd", "mse")
    with pytest.raises(
        TrainError, match=r"\(None, None, None, 3\) has no known size; give data= with batches of one size"
    ):
        train.memory_report(model, 2)
