"""Samples of a dataset as an export takes them: decoded values, and the bytes of image files as they are stored."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from tfprep.dataset import Dataset
from tfprep.errors import DatasetError
from tfprep.fields import RASTER_KINDS
from tfprep.images import encode_png
from tfprep.storage.urls import open_file

IMAGE_FILES = ("jpeg", "png", "original", "encoded")
"""The codecs of image files."""
_PNG_LEVEL = 3


@dataclass(frozen=True)
class StoredSample:
    """One sample of one variant.

    Attributes:
        key: Its key.
        shard: The number of its shard.
        values: NumPy values and texts by field.
        files: Bytes and suffix of the fields that become image files.
    """

    key: str
    shard: int
    values: dict[str, Any]
    files: dict[str, tuple[bytes, str]]


def image_fields(data: Dataset) -> set[str]:
    """Return the fields that become image files: JPEG and PNG as stored, and masks and images of `Zstd` that a PNG can hold."""
    names = set()
    for name, info in data.manifest.fields.items():
        spec, codec = info.spec, info.codec["codec"]
        if codec == "zstd" and spec.kind in ("image", "mask") and spec.dtype in ("uint8", "uint16"):
            fits = len(spec.shape) == 2 or (len(spec.shape) == 3 and spec.shape[2] in (1, 3, 4))
        else:
            fits = spec.kind in RASTER_KINDS and codec in IMAGE_FILES
        if fits:
            names.add(name)
    return names


def stored_samples(data: Dataset, split: str, variant: int) -> Iterator[StoredSample]:
    """Yield the samples of a split in their order, with checksums compared. One is in memory at a time."""
    images = image_fields(data)
    columns = [f"{name}_{what}" for name in images for what in ("offset", "size")]
    rows = data.index(split, variant, ["key", "shard", *columns])
    with ExitStack() as stack:
        number, file = -1, None
        for row, values in enumerate(data.samples(split, variant)):
            place = {name: rows[name][row].as_py() for name in rows.column_names}
            if place["shard"] != number:
                number = place["shard"]
                stack.close()
                file = stack.enter_context(open_file(data.shard_path(data.file(split, variant, number))))
            files = {}
            for name in images:
                assert file is not None
                if data.manifest.fields[name].codec["codec"] == "zstd":
                    files[name] = encode_png(values[name], _PNG_LEVEL), "png"
                    continue
                file.seek(place[f"{name}_offset"])
                content = file.read(place[f"{name}_size"])
                files[name] = content, "png" if content.startswith(b"\x89PNG") else "jpg"
            yield StoredSample(place["key"], number, values, files)


def npy(value: Any) -> bytes:
    """Return an array as the bytes of a NumPy file."""
    file = io.BytesIO()
    np.save(file, np.asarray(value), allow_pickle=False)
    return file.getvalue()


def checked_key(key: str) -> str:
    """Return a key that becomes part of a path. Raises DatasetError if it would lead out of the folder."""
    if key.startswith("/") or "\0" in key or "\\" in key or ".." in PurePosixPath(key).parts or not key:
        raise DatasetError(f"the key {key!r} cannot be the name of a file below the folder of the export")
    return key
