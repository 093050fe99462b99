"""Files in folders: `SPLIT/FIELD/KEY.SUFFIX`, and a table `SPLIT/metadata.csv` of the key, numbers, texts and files of samples.

The table is that of Hugging Face's `imagefolder`: images of the first image field are in the column `file_name`, those of other
fields, such as masks, in `FIELD_file_name`.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np

from tfprep.dataset import Dataset
from tfprep.export.stored import StoredSample, checked_key, image_fields, npy, stored_samples
from tfprep.storage.local import whole_file


def write_folder(data: Dataset, split: str, variant: int, out: Path) -> None:
    """Write one split."""
    (out / split).mkdir(parents=True, exist_ok=True)
    with whole_file(out / split / "metadata.csv") as table:
        text = io.TextIOWrapper(table, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["key", *_columns(data)])
        for sample in stored_samples(data, split, variant):
            writer.writerow([sample.key, *(_cell(data, sample, name, out / split) for name in data.fields)])
        text.detach()


def _columns(data: Dataset) -> list[str]:
    files = image_fields(data)
    main = next((name for name in data.fields if name in files and data.fields[name].kind == "image"), None)
    return ["file_name" if name == main else f"{name}_file_name" if name in files else name for name in data.fields]


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
