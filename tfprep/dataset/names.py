"""The names of a dataset's files, as TensorFlow Datasets expects them: `camvid-train_v1.tfrecord-00000-of-00004`."""

from __future__ import annotations

import re

from tfprep.errors import DatasetError

POINTER = "tfprep.json"
"""The pointer of a dataset, which names its current version."""
MANIFEST = "manifest.json"
"""What a version is."""
SHARDS = "shards"
"""The folder of a dataset at a store that holds the shards of all its versions."""
BESIDE = "tfprep-index"
"""The folder of an imported dataset beside its shards."""
INDEX = "index.parquet"
LOCATIONS = "locations.bin"
REJECTS = "rejects.jsonl"
REPORT = "report.html"
PRIVATE = ".tfprep"
"""Receipts and the lock of a build; readers do not look into it."""

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,99}\Z")
_MOST_FILE_NAME_BYTES = 255  # of ext4, XFS, NTFS and APFS
_VARIANT = re.compile(r"_v[0-9]+\Z")


def check_name(what: str, name: str) -> None:
    """Raise DatasetError if `name` cannot be part of a file name that TensorFlow Datasets parses."""
    if not _NAME.match(name):
        raise DatasetError(f"{what} is a letter followed by letters, digits and '_', at most 100, not {name[:120]!r}")
    if _VARIANT.search(name):
        raise DatasetError(f"{what} {name!r} ends like a variant ('_v1'); tfprep adds that ending itself")


def check_file_name(name: str) -> None:
    """Raise DatasetError unless this is the plain name of a file in the dataset's folder."""
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise DatasetError(f"a file of the dataset has to be in its folder, its name cannot be {name[:120]!r}")
    if len(name.encode()) > _MOST_FILE_NAME_BYTES:
        raise DatasetError(f"the name of a file has at most {_MOST_FILE_NAME_BYTES} bytes, not {name[:120]!r}...")


def is_training_split(name: str) -> bool:
    """Return True if a split is for training by its name: `train`, `train2017`, `Training`, `trainval`."""
    return name.lower().startswith("train")


def variant_split(split: str, variant: int) -> str:
    """Return the split's name in TensorFlow Datasets: `train`, `train_v1`, `train_v2`, ..."""
    return split if variant == 0 else f"{split}_v{variant}"


def stored_name(name: str, sha256: str) -> str:
    """Return the name of a file of this content at an object store, where all versions share the shards.

    A name belongs to one content, so builds never write over one another's objects. It begins with the digest because stores
    spread their load by the beginnings of names.
    """
    return f"{sha256[:16]}-{name}"


def fields_receipts(name: str) -> str:
    """Return where the receipts of added fields are, below the dataset's folder; `name` is that of the fields."""
    return f"{PRIVATE}/fields/{name}"


def shard_name(name: str, split: str, variant: int, shard: int, shards: int) -> str:
    return f"{name}-{variant_split(split, variant)}.tfrecord-{shard:05d}-of-{shards:05d}"
