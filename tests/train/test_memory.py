"""Memory against sums by hand, and against the sizes that really fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfprep.errors import TrainError


def test_the_parts_of_a_model_counted_by_hand(tf: Any) -> None:
    """Dense 8 -> 16 (relu) -> 4 with Adam, batch 32. The backward pass reads the relu's output (for its own gradient
    and for the second kernel's): 32 x 16 floats; the first kernel's gradient reads the input, which is no
    activation."""
    import keras

    from tfprep.train import memory_report

    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)])
    model.compile(keras.optimizers.Adam(), "mse")
    report = memory_report(model, 32)
    parameters = 4 * (8 * 16 + 16 + 16 * 4 + 4)
    assert report.parameters == parameters
    assert report.gradients == parameters
    assert 2 * parameters <= report.optimizer <= 2 * parameters + 16  # two slots, the step and the learning rate
    assert report.activations == 32 * 16 * 4
    assert report.input_buffers == 32 * 8 * 4
    assert report.measured_peak is None or report.measured_peak > 0
    assert report.savings()["half the batch"] == 32 * 16 * 2
    assert report.savings()["2 steps of gradient accumulation, half the batch each"] == 32 * 16 * 2 - parameters


def test_activations_grow_with_the_batch_and_halve_in_half_precision(tf: Any) -> None:
    import keras

    from tfprep.train import memory_report

    def activations(batch: int, policy: str) -> int:
        keras.config.set_dtype_policy(policy)
        layers = [keras.Input([16, 16, 3]), keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.MaxPooling2D()]
        model = keras.Sequential([*layers, keras.layers.Conv2D(8, 3, activation="relu")])
        model.compile("sgd", "mse")
        return memory_report(model, batch).activations

    # relu 14 x 14 x 8, the pool's output 7 x 7 x 8, relu 5 x 5 x 8.
    by_hand = 4 * (14 * 14 * 8 + 7 * 7 * 8 + 5 * 5 * 8)
    assert activations(2, "float32") == 2 * by_hand
    assert activations(6, "float32") == 6 * by_hand
    # In half precision the casts of the input and of the two kernels are kept as well.
    casts = 2 * (2 * 16 * 16 * 3 + 3 * 3 * 3 * 8 + 3 * 3 * 8 * 8)
    assert activations(2, "mixed_bfloat16") == by_hand + casts


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


def _wide_model() -> Any:
    import keras

    model = keras.Sequential([keras.Input([1000]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def _rows(size: int) -> Any:
    """12.5 MB of float64 for each sample, on top of what TensorFlow takes."""
    ballast = np.ones([size, 1_562_500])
    return ballast[:, :1000].astype("f"), np.zeros([size, 1], "f")


def _wrong_rows(size: int) -> Any:
    return np.zeros([size, 7], "f"), np.zeros([size, 1], "f")


def test_find_batch_size_on_a_cpu_with_a_limit() -> None:
    """The process takes some 700 MB by itself, so a limit of 1,100 MB leaves room for about 32 samples of 12.5 MB."""
    from tfprep.train import find_batch_size

    found = find_batch_size(_wide_model, _rows, memory_limit_mb=1100, largest=64, steps=1)
    by_size = {trial.size: trial for trial in found.trials}
    assert by_size[found.size].fits
    assert 8 <= found.size < 64
    failed = [trial for trial in found.trials if not trial.fits]
    assert failed
    assert all(trial.size > found.size and "more than 1,100 MB" in trial.reason for trial in failed)


def test_find_batch_size_tells_other_errors_apart() -> None:
    from tfprep.train import find_batch_size

    with pytest.raises(TrainError, match="failed, and not for memory"):
        find_batch_size(_wide_model, _wrong_rows, memory_limit_mb=4000, largest=1)


def test_doubling_and_quarters(monkeypatch: Any) -> None:
    """Against a machine in which exactly 45 fit."""
    from tfprep.train import batch_size

    def try_all(_: Any, __: Any, sizes: list[int], *rest: Any) -> list[batch_size.Trial]:
        trials = []
        for size in sizes:
            trials.append(batch_size.Trial(size, size <= 45, 10.0 * size))
            if size > 45:
                break
        return trials

    monkeypatch.setattr(batch_size, "_try_all", try_all)
    found = batch_size.find_batch_size(lambda: None, lambda size: None, memory_limit_mb=1)
    assert [trial.size for trial in found.trials] == [1, 2, 4, 8, 16, 32, 64, 40, 48]
    assert found.size == 40
    assert batch_size.find_batch_size(lambda: None, lambda size: None, memory_limit_mb=1, largest=32).size == 32
