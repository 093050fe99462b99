"""Errors of wrong calls state the rule, the value received, and the fix."""

import numpy as np
import pytest

from tfprep import train
from tfprep.errors import TrainError


def _watch_a_list(tf, folder):
    with train.InputMonitor(folder, every_s=60) as monitor:
        monitor.watch([1, 2, 3])


USES = {
    "a list": (_watch_a_list, r"watch\(\) takes a loader, a tf.data.Dataset or an iterator of batches, got list"),
    "outside of with": (lambda tf, folder: train.InputMonitor(folder).watch([]), "inside `with InputMonitor"),
    "no seconds": (
        lambda tf, folder: train.InputMonitor(folder, every_s=0),
        r"every_s is a number of seconds above 0, got 0; for example 5",
    ),
    "seconds in words": (
        lambda tf, folder: train.InputMonitor(folder, every_s="5"),
        r"every_s is a number of seconds above 0, got '5'; for example 5",
    ),
    "endless seconds": (
        lambda tf, folder: train.InputMonitor(folder, every_s=float("inf")), "every_s is a number of seconds above 0, got inf",
    ),
    "logs at a URL": (lambda tf, folder: train.InputMonitor("gs://bucket/logs"), "log_dir is a local folder, got 'gs://bucket"),
    "a share in percent": (
        lambda tf, folder: train.InputMonitor(folder, wait_share=10),
        r"wait_share is a share of the time, from 0 to 1, got 10; for example 0.1",
    ),
    "no warm-up": (lambda tf, folder: train.RetraceGuard(warmup_steps=0), "at least 1, got 0"),
    "unknown action": (lambda tf, folder: train.RetraceGuard(action="stop"), 'action is "raise" or "warn", got'),
    "no tf.function": (lambda tf, folder: train.RetraceGuard().watch(len), r"decorate it with @tf\.function"),
    "search with a lambda": (
        lambda tf, folder: train.find_batch_size(lambda: 1, dict),
        r"find_batch_size\(\) sends its functions .* define each function at the top of a module",
    ),
    "search for nothing": (
        lambda tf, folder: train.find_batch_size(dict, dict, largest=0),
        r"largest and steps are at least 1, got largest=0",
    ),
    "isolated lambda": (
        lambda tf, folder: train.isolated(lambda: 1), "isolated.* define each function at the top of a module",
    ),
    "report on no batch": (lambda tf, folder: train.memory_report(None, 0), r"batch_size is at least 1, got 0"),
    "report on an array": (
        lambda tf, folder: train.memory_report(None, 8, data=np.ones([3])),
        r"data is a tf.data.Dataset or tfprep.s keras_loader, got ndarray; leave it out",
    ),
    "report on a model that is not compiled": (
        lambda tf, folder: train.memory_report(tf.keras.Sequential([tf.keras.Input([8])]), 8), r"call model\.compile",
    ),
    "check an empty dataset": (lambda tf, folder: train.check_batches(tf.data.Dataset.range(0)), "gave no batch"),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_a_wrong_use_says_what_to_do(tf, use, tmp_path):
    call, message = USES[use]
    with pytest.raises(TrainError, match=message):
        call(tf, tmp_path)
