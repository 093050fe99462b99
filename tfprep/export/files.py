"""Files in folders, and WebDataset.

A folder holds `SPLIT/FIELD/KEY.SUFFIX`, and a table `SPLIT/metadata.csv` of the key, numbers, texts and files of samples. The
table is that of Hugging Face's `imagefolder`: images of the first image field are in the column `file_name`, those of other
fields, such as masks, in `FIELD_file_name`.

WebDataset is a tar file for each shard, in which the files of one sample follow each other, as `KEY.FIELD.SUFFIX`. It ends the
key at the first dot of the file name, so dots there are written as `%2E` (and `%` as `%25`); `KEY.key.txt` holds the key as it
is.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
from itertools import groupby
from pathlib import Path

import numpy as np

from tfprep.dataset import Dataset
from tfprep.export.stored import StoredSample, checked_key, image_fields, npy, stored_samples
from tfprep.storage.local import whole_file


def write_folder(data: Dataset, split: str, variant: int, out: Path) -> None:
    """Write one split as files in folders."""
    files = image_fields(data)
    main = next((name for name in data.fields if name in files and data.fields[name].kind == "image"), None)
    columns = ["file_name" if n == main else f"{n}_file_name" if n in files else n for n in data.fields]
    (out / split).mkdir(parents=True, exist_ok=True)
    with whole_file(out / split / "metadata.csv") as table:
        text = io.TextIOWrapper(table, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["key", *columns])
        for sample in stored_samples(data, split, variant):
            writer.writerow([sample.key, *(_cell(data, sample, name, out / split) for name in data.fields)])
        text.detach()


def _cell(data: Dataset, sample: StoredSample, name: str, out: Path) -> str:
    """Return a value as text; one that is no number and no text is written to a file, whose path is returned."""
    spec, value = data.fields[name], sample.values[name]
    if spec.kind == "text":
        return value if isinstance(value, str) else json.dumps(list(value))
    if spec.kind == "label" and spec.shape == ():
        classes = data.manifest.classes.get(name, ())
        return classes[int(value)] if 0 <= int(value) < len(classes) else str(int(value))
    if spec.shape == () and name not in sample.files:
        return str(np.asarray(value).item())
    content, suffix = sample.files.get(name, (None, "npy"))
    path = f"{name}/{checked_key(sample.key)}.{suffix}"
    (out / path).parent.mkdir(parents=True, exist_ok=True)
    (out / path).write_bytes(content if content is not None else npy(value))
    return path


def write_webdataset(data: Dataset, split: str, variant: int, out: Path) -> None:
    """Write one split as tar files."""
    for shard, samples in groupby(stored_samples(data, split, variant), key=lambda sample: sample.shard):
        with (
            whole_file(out / f"{data.name}-{split}-{shard:05d}.tar") as file,
            tarfile.open(fileobj=file, mode="w") as tar,
        ):
            for sample in samples:
                folder, slash, name = checked_key(sample.key).rpartition("/")
                base = folder + slash + name.replace("%", "%25").replace(".", "%2E")
                members = {"key.txt": sample.key.encode()}
                for field in data.fields:
                    suffix, content = _member(data, sample, field)
                    members[f"{field}.{suffix}"] = content
                for ending, content in members.items():
                    info = tarfile.TarInfo(f"{base}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


def _member(data: Dataset, sample: StoredSample, field: str) -> tuple[str, bytes]:
    """Return the suffix and the content of the file of a field."""
    spec, value = data.fields[field], sample.values[field]
    if field in sample.files:
        content, suffix = sample.files[field]
        return suffix, content
    if spec.kind == "text":
        return ("txt", value.encode()) if isinstance(value, str) else ("json", json.dumps(list(value)).encode())
    if spec.kind == "label" and spec.shape == ():
        return "cls", str(int(value)).encode()
    if spec.shape == () and spec.kind == "scalar":
        return "json", json.dumps(np.asarray(value).item()).encode()
    return "npy", npy(value)
