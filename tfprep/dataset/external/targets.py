"""What `tfprep index` is asked for: the shards of each split, what is known of their features, and where the index goes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfprep.dataset.external.declared import FEATURES_JSON, INFO_JSON, Declared, read_declared, tfds_splits
from tfprep.dataset.external.opened import BESIDE
from tfprep.dataset.external.shards import Place, Shard, common_root, list_shards, shards_at
from tfprep.dataset.manifest import MANIFEST
from tfprep.dataset.names import check_name
from tfprep.errors import DatasetError
from tfprep.storage.store import open_store
from tfprep.storage.urls import folder_at, is_remote


@dataclass(frozen=True)
class Targets:
    """What the source names: shards by split, where the records' numbers are known, and what is declared of features."""

    name: str
    folder: Place
    splits: Mapping[str, Sequence[Shard]]
    lengths: Mapping[str, Sequence[int]]
    declared: Mapping[str, Declared]


def find_targets(source: str, split: str | None, features: str | os.PathLike[str] | None) -> Targets:
    folder = _tfds_folder(source)
    if folder is not None:
        return _tfds_targets(folder, split, features)
    shards = list_shards(source)
    if split is None:
        raise DatasetError(f"which split are the shards {source} of? Name it with --split, for example --split train")
    check_name("the name of a split", split)
    folder = common_root([shard.path for shard in shards])
    return Targets(_dataset_name(folder.name), folder, {split: shards}, {}, _declared(folder, features))


def _tfds_folder(source: str) -> Place | None:
    """The directory of TensorFlow Datasets that the source names; None where it names files."""
    if "://" in source and not source.startswith("file://"):
        if any(mark in source for mark in "*?["):
            return None
        place: Any = folder_at(source)
        return place if any(info.name == INFO_JSON for info in open_store(place).list(recursive=False)) else None
    path = Path(os.path.abspath(source.removeprefix("file://")))
    if not path.is_dir():
        return None
    if (path / MANIFEST).is_file():
        raise DatasetError(f"{path} was built by tfprep; open it as it is, it needs no other index")
    if not (path / INFO_JSON).is_file():
        raise DatasetError(
            f"{path} has no {INFO_JSON}, so it is no directory of TensorFlow Datasets; name the shards of one split with a "
            f"pattern: '{path}/train-*' --split train"
        )
    return path


def _tfds_targets(folder: Place, split: str | None, features: str | os.PathLike[str] | None) -> Targets:
    name, splits = tfds_splits(folder)
    if split is not None and split not in splits:
        raise DatasetError(f"{folder} has no split {split!r}; it has {', '.join(splits) or 'none'}")
    chosen = {key: value for key, value in splits.items() if split in (None, key) and value.files}
    shards = {key: shards_at(folder, value.files) for key, value in chosen.items()}
    if not shards:
        raise DatasetError(f"{folder / INFO_JSON} names no shards")
    for key in shards:
        check_name("the name of a split", key)
    lengths = {key: value.lengths for key, value in chosen.items()}
    return Targets(_dataset_name(name), folder, shards, lengths, _declared(folder, features))


def _declared(folder: Place, features: str | os.PathLike[str] | None) -> dict[str, Declared]:
    """What the file of `features`, or else a `features.json` beside the shards, says."""
    if features is not None:
        return read_declared(Path(features))
    beside = folder / FEATURES_JSON
    if is_remote(beside):
        listed = {info.name for info in open_store(folder).list(recursive=False)}
        return read_declared(beside) if FEATURES_JSON in listed else {}
    return read_declared(beside) if beside.is_file() else {}


def _dataset_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)[:90].strip("_")
    return re.sub(r"_v[0-9]+\Z", "", name if name[:1].isalpha() else f"tfrecords_{name}".strip("_")) or "tfrecords"


def out_folder(targets: Targets, out: str | os.PathLike[str] | None) -> Path:
    if out is not None and "://" in os.fspath(out):
        raise DatasetError(f"an index is written to a local folder, not to {os.fspath(out)}")
    if out is None and is_remote(targets.folder):
        raise DatasetError(f"the shards are at {targets.folder}; name a local folder for the index with --out")
    folder = Path(os.path.abspath(out)) if out is not None else targets.folder / BESIDE
    if (folder / MANIFEST).is_file():
        raise DatasetError(f"{folder} holds a dataset that tfprep built; choose another folder for the index")
    return folder
