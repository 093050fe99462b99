"""Keras's deprecated `ImageDataGenerator.flow_from_directory`, read in threads as `fit` reads a `PyDataset` with workers.

Every image once an epoch, in a global permutation; it has no raw form, and Pillow is its only decoder. Processor time of an
image, uint8 with two threads: 0.60 ms. Tried and slower: two processes, which copy the batches through pipes: 1.41 ms.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from common import CROP, forever


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    """Batches of the generator. The last batch of an epoch is smaller and is skipped."""
    from tfprep.cli.quiet import start_tensorflow

    start_tensorflow()
    from keras.src.legacy.preprocessing.image import ImageDataGenerator

    with contextlib.redirect_stdout(io.StringIO()):
        batches = ImageDataGenerator(dtype="uint8").flow_from_directory(
            str(out), target_size=(CROP, CROP), batch_size=batch_size, class_mode="sparse"
        )
    return forever(lambda: _epoch(batches, batch_size, workers))


def _epoch(batches: Any, batch_size: int, workers: int) -> Iterator[Any]:
    """The batches of an epoch through the queue that `fit` uses."""
    from keras.src.trainers.data_adapters.py_dataset_adapter import OrderedEnqueuer

    queue = OrderedEnqueuer(batches, workers=workers)
    queue.start()
    try:
        for _, batch in zip(range(len(batches)), queue.get(), strict=False):
            if len(batch[0]) == batch_size:
                yield batch
    finally:
        queue.stop()
    batches.on_epoch_end()
