"""The names of a dataset's files, as TensorFlow Datasets wants them: `camvid-train_v1.tfrecord-00000-of-00004`."""

from __future__ import annotations

import re

from tfprep.errors import DatasetError

INDEX = "index.parquet"
REJECTS = "rejects.jsonl"
PRIVATE = ".tfprep"
"""Receipts and the lock of a build; readers do not look into it."""

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*\Z")
_VARIANT = re.compile(r"_v[0-9]+\Z")


def check_name(what: str, name: str) -> None:
    """DatasetError where `name` cannot stand in a file name that TensorFlow Datasets parses."""
    if not _NAME.match(name):
        raise DatasetError(f"{what} is a letter followed by letters, digits and '_', not {name!r}")
    if _VARIANT.search(name):
        raise DatasetError(f"{what} {name!r} ends like a variant ('_v1'); tfprep adds that ending itself")


def variant_split(split: str, variant: int) -> str:
    """The split's name to TensorFlow Datasets: `train`, `train_v1`, `train_v2`, ..."""
    return split if variant == 0 else f"{split}_v{variant}"


def shard_name(name: str, split: str, variant: int, shard: int, shards: int) -> str:
    return f"{name}-{variant_split(split, variant)}.tfrecord-{shard:05d}-of-{shards:05d}"
