"""Errors of wrong calls state the rule, the value received, and the way out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfprep.errors import TrainError


def _watch_a_list(folder: Path) -> None:
    from tfprep.train import InputMonitor

    with InputMonitor(folder, every_s=60) as monitor:
        monitor.watch([1, 2, 3])


def _guard_an_array(folder: Path) -> None:
    from tfprep.train import Watchdog

    list(Watchdog(5).watch(np.ones([4, 8])))


def _seconds_in_words(folder: Path) -> None:
    from tfprep.train import InputMonitor

    InputMonitor(folder, every_s="5")  # type: ignore[arg-type]


def _no_timeout(folder: Path) -> None:
    from tfprep.train import Watchdog

    Watchdog(None)  # type: ignore[arg-type]


def _reader_without_counters(folder: Path) -> None:
    from tfprep.train import InputMonitor

    InputMonitor(folder, reader=object())  # type: ignore[arg-type]


def _one_fold(folder: Path) -> None:
    from tfprep.train import cross_validate

    cross_validate(dict, None, k=1)


def _folds_of_a_dataset(folder: Path) -> None:
    import tensorflow as tf

    from tfprep.train import cross_validate

    cross_validate(dict, tf.data.Dataset.range(3))


def _folds_of_one_model(folder: Path) -> None:
    import keras

    from tfprep.train import cross_validate

    class Data:
        folds = None

    cross_validate(keras.Sequential(), Data())


def _search_with_a_lambda(folder: Path) -> None:
    from tfprep.train import find_batch_size

    find_batch_size(lambda: 1, dict)


def _search_for_nothing(folder: Path) -> None:
    from tfprep.train import find_batch_size

    find_batch_size(dict, dict, largest=0)


def _report_on_no_batch(folder: Path) -> None:
    from tfprep.train import memory_report

    memory_report(None, 0)


def _report_on_an_array(folder: Path) -> None:
    from tfprep.train import memory_report

    memory_report(None, 8, data=np.ones([3]))


def _check_no_batch(folder: Path) -> None:
    from tfprep.train import check_batches

    check_batches([], 0)


def _check_a_number(folder: Path) -> None:
    from tfprep.train import check_batches

    check_batches(3)


def _profile_one_number(folder: Path) -> None:
    from tfprep.train import profile

    profile(folder, steps=5)  # type: ignore[arg-type]


def _unknown_policy(folder: Path) -> None:
    from tfprep.train import mixed_precision

    mixed_precision("float17")


def _limit_in_words(folder: Path) -> None:
    from tfprep.train import configure_gpu

    configure_gpu(memory_limit_mb="8000")  # type: ignore[arg-type]


def _one_gpu(folder: Path) -> None:
    from tfprep.train import configure_gpu

    configure_gpu(0)  # type: ignore[arg-type]


def _gpus_in_words(folder: Path) -> None:
    from tfprep.train import configure_gpu

    configure_gpu("0,1")  # type: ignore[arg-type]


USES = {
    _watch_a_list: r"watch\(\) takes a loader, a tf.data.Dataset or an iterator of batches, got list",
    _guard_an_array: r"watch\(\) takes a loader, a tf.data.Dataset or an iterator of batches, got ndarray",
    _seconds_in_words: r"every_s is a number of seconds above 0, got '5'; for example 5",
    _no_timeout: r"timeout_s is a number of seconds above 0, got None; for example 300",
    _reader_without_counters: r"reader is an object with `stats` or a function that returns a dict of numbers, got <object",
    _one_fold: r"at least 2, got 1; k=5 is usual",
    _folds_of_a_dataset: r"as tfprep.open\(folder\) gives it, got _RangeDataset; folds of anything else: a loop",
    _folds_of_one_model: r"build_model is a function that returns a new compiled model for each fold, got Sequential",
    _search_with_a_lambda: r"find_batch_size\(\) sends its functions .* define each function at the top of a module",
    _search_for_nothing: r"largest and steps are at least 1, got largest=0",
    _report_on_no_batch: r"batch_size is at least 1, got 0",
    _report_on_an_array: r"data is a tf.data.Dataset, its iterator, or tfprep.s keras_loader, got ndarray; leave it out",
    _check_no_batch: r"batches is how many to look at, at least 1, got 0",
    _check_a_number: r"dataset is a tf.data.Dataset or an iterable of batches, got int",
    _profile_one_number: r"steps are \(first, last\) with 1 <= first <= last, got 5; for example \(10, 20\)",
    _unknown_policy: r'policy is "auto", "mixed_bfloat16", "mixed_float16" or "float32", got \'float17\'',
    _limit_in_words: r"memory_limit_mb is a number of MB, at least 1, got '8000'",
    _one_gpu: r"visible is a list of GPU numbers, got 0; \[0\] for this one alone",
    _gpus_in_words: r"visible is a list of GPU numbers, such as \[0, 2\], got \['0', ',', '1'\]",
}


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__[1:])
def test_a_wrong_use_says_what_to_do(use: Any, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=USES[use]):
        use(tmp_path)
