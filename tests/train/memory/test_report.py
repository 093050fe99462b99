"""Memory reports, compared with sums over the tensors."""

from __future__ import annotations

from typing import Any

import pytest

from tfprep.errors import TrainError


def test_a_models_parts_equal_a_direct_count(tf: Any) -> None:
    """Dense 8 -> 16 (relu) -> 4 with Adam, batch 32."""
    import keras

    from tfprep.train import memory_report

    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)])
    model.compile(keras.optimizers.Adam(), "mse")
    report = memory_report(model, 32)
    parameters = 4 * (8 * 16 + 16 + 16 * 4 + 4)
    assert report.parameters == parameters
    assert report.gradients == parameters
    assert 2 * parameters <= report.optimizer <= 2 * parameters + 16  # Two slots, the step and the learning rate.
    assert report.input_buffers == 32 * 8 * 4
    assert report.measured_peak is None or report.measured_peak > 0
    assert report.counted == report.parameters + report.gradients + report.optimizer + report.input_buffers
    assert "activations" not in str(report)


def test_the_input_can_come_from_the_data(tf: Any) -> None:
    import keras

    from tfprep.train import memory_report

    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    with pytest.raises(TrainError, match="pass data="):
        memory_report(model, 8)
    dataset = tf.data.Dataset.from_tensors((tf.zeros([6, 6, 3], tf.uint8), tf.zeros([4]))).repeat().batch(8)
    report = memory_report(model, 8, data=dataset)
    assert report.input_buffers == 2 * 8 * 6 * 6 * 3
    assert report.parameters == 4 * (108 * 4 + 4)
    assert "batch of 8" in str(report)


def test_an_uncompiled_model_is_refused(tf: Any) -> None:
    import keras

    from tfprep.train import memory_report

    with pytest.raises(TrainError, match="compile"):
        memory_report(keras.Sequential([keras.Input([8]), keras.layers.Dense(4)]), 8)
