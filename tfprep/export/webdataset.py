"""WebDataset: a tar file for each shard, in which the files of one sample follow each other.

A sample's files are `KEY.FIELD.SUFFIX`. WebDataset ends the key at the first dot of the file name, so dots there are written as
`%2E` (and `%` as `%25`); `KEY.key.txt` holds the key as it is.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.dataset import Dataset
from tfprep.export.stored import StoredSample, checked_key, npy, stored_samples
from tfprep.fields import FieldSpec
from tfprep.storage.local import whole_file


def write_webdataset(data: Dataset, split: str, variant: int, out: Path) -> None:
    """Write one split."""
    for shard, samples in groupby(stored_samples(data, split, variant), key=lambda sample: sample.shard):
        with (
            whole_file(out / f"{data.name}-{split}-{shard:05d}.tar") as file,
            tarfile.open(fileobj=file, mode="w") as tar,
        ):
            for sample in samples:
                for name, content in _members(data, sample):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


def _members(data: Dataset, sample: StoredSample) -> Iterator[tuple[str, bytes]]:
    folder, slash, name = checked_key(sample.key).rpartition("/")
    base = folder + slash + name.replace("%", "%25").replace(".", "%2E")
    yield f"{base}.key.txt", sample.key.encode()
    for field, spec in data.fields.items():
        suffix, content = _content(spec, sample.values[field])
        if field in sample.files:
            content, suffix = sample.files[field]
        yield f"{base}.{field}.{suffix}", content


def _content(spec: FieldSpec, value: Any) -> tuple[str, bytes]:
    if spec.kind == "text" and isinstance(value, str):
        return "txt", value.encode()
    if spec.kind == "label" and spec.shape == ():
        return "cls", str(int(value)).encode()
    if spec.shape == () and spec.kind == "scalar":
        return "json", json.dumps(np.asarray(value).item()).encode()
    if spec.kind == "text":
        return "json", json.dumps(list(value)).encode()
    return "npy", npy(value)
