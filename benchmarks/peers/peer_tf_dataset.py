"""tfprep's `tf_dataset`: the dataset of peer_tfprep.py in plain tf.data. `tf_guide` is its limit: the same, tuned by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tfprep


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    from tfprep.cli.quiet import start_tensorflow

    start_tensorflow()
    return tfprep.open(out).tf_dataset("train", batch_size, inputs="image", targets="label").repeat()
