"""A profile of the loader under a step, for TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tfprep.bench.measure.loaders import Iteration, opened
from tfprep.load import Data
from tfprep.load.options import LoaderOptions


def profile(
    data: Data | str, split: str, batch_size: int, out: Path, *, step_s: float = 0.01, steps: int = 50, **options: Any
) -> Path:
    """Profile a loader under a consumer that sleeps in each step.

    Batches come through tf.data, as in `fit`, so that TensorBoard's input pipeline analyzer sees them.

    Args:
        data: The dataset, or the folder or URL of one.
        split: Name of the split to read.
        batch_size: Samples in a batch.
        out: Folder for the profile.
        step_s: Seconds that a step sleeps.
        steps: Number of steps.
        **options: Further options of the loader.

    Returns:
        The folder of the profile.
    """
    import tensorflow as tf

    from tfprep.load.tensorflow.loader import make_loader

    options = {"training": True, **options}
    pipeline = opened(data).subset(split).pipeline(LoaderOptions(batch_size=batch_size, **options))
    loader = make_loader(pipeline, epochs=None)
    iteration = Iteration(loader, iter(loader.with_options(tf.data.Options())))
    try:
        next(iteration)
        tf.profiler.experimental.start(str(out))
        try:
            for number in range(steps):
                with tf.profiler.experimental.Trace(
                    "train", step_num=number, _r=1
                ):  # TensorBoard takes `_r=1` for a step
                    next(iteration)
                    time.sleep(step_s)
        finally:
            tf.profiler.experimental.stop()
    finally:
        iteration.close()
    return max(out.glob("plugins/profile/*"))
