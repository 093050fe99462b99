"""tfprep with `workers="processes"`: the dataset of peer_tfprep.py, read by worker processes instead of threads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peer_tfprep import batches


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    return batches(out, batch_size, workers, "processes")
