"""The largest batch size, compared with the sizes that fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfprep.errors import TrainError


def _wide_model() -> Any:
    import keras

    model = keras.Sequential([keras.Input([1000]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def _rows(size: int) -> Any:
    """Takes 600 MB of float64 for each sample, in addition to the memory of TensorFlow."""
    ballast = np.ones([size, 75_000_000])
    return ballast[:, :1000].astype("f"), np.zeros([size, 1], "f")


def _wrong_rows(size: int) -> Any:
    return np.zeros([size, 7], "f"), np.zeros([size, 1], "f")


def test_find_batch_size_on_a_cpu_with_a_limit() -> None:
    """The process takes about 600 MB. With 600 MB per sample, one sample fits into 1,500 MB and two do not."""
    from tfprep.train import find_batch_size

    result = find_batch_size(_wide_model, _rows, memory_limit_mb=1500, largest=64, steps=1)
    assert result.size == 1
    one, two = result.trials
    assert 600 < one.peak_mb < 1500
    assert (one.size, one.fits, two.size, two.fits) == (1, True, 2, False)
    assert two.reason == "more than 1,500 MB"


def test_find_batch_size_if_nothing_fits() -> None:
    from tfprep.train import find_batch_size

    with pytest.raises(
        TrainError, match=r"not even a batch of 1 fits into 100 MB: more than 100 MB\. The limit covers"
    ):
        find_batch_size(_wide_model, _rows, memory_limit_mb=100)


def test_find_batch_size_raises_other_errors() -> None:
    from tfprep.train import find_batch_size

    with pytest.raises(TrainError, match="failed, and not for memory"):
        find_batch_size(_wide_model, _wrong_rows, memory_limit_mb=4000, largest=1)


def test_doubling_and_quarters(monkeypatch: Any) -> None:
    """Compared with a simulated machine in which exactly 45 fit."""
    from tfprep.train.memory import batch_size

    def try_all(_: Any, __: Any, sizes: list[int], *rest: Any) -> list[batch_size.BatchTrial]:
        trials = []
        for size in sizes:
            trials.append(batch_size.BatchTrial(size, size <= 45, 10.0 * size))
            if size > 45:
                break
        return trials

    monkeypatch.setattr(batch_size, "_try_all", try_all)
    result = batch_size.find_batch_size(_wide_model, _rows, memory_limit_mb=1)
    assert [trial.size for trial in result.trials] == [1, 2, 4, 8, 16, 32, 64, 40, 48]
    assert result.size == 40
    assert batch_size.find_batch_size(_wide_model, _rows, memory_limit_mb=1, largest=32).size == 32
