"""Keras's deprecated `ImageDataGenerator.flow_from_directory`, which runs in one thread and has no raw form."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from common import CROP, main
from peer_keras_directory import build


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    """Batches of the generator. The last batch of an epoch is smaller and is skipped."""
    from tfprep.cli.quiet import start_tensorflow

    start_tensorflow()
    from keras.src.legacy.preprocessing.image import ImageDataGenerator

    with contextlib.redirect_stdout(io.StringIO()):
        batches = ImageDataGenerator().flow_from_directory(str(out), target_size=(CROP, CROP), batch_size=batch_size)
    return _full(batches, batch_size)


def _full(batches: Iterable[Any], batch_size: int) -> Iterator[Any]:
    return (batch for batch in batches if len(batch[0]) == batch_size)


if __name__ == "__main__":
    main(build, load)
