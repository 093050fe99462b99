"""Parquet: a file for each shard, a row for each sample.

An image file is a struct `{bytes, path}`. The schema's metadata declare it as an `Image` of Hugging Face's datasets, and labels
with class names as a `ClassLabel`. Any other array is a list of its numbers in row-major order, with its shape in the column
`FIELD_shape`.
"""

from __future__ import annotations

import json
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfprep.dataset import Dataset
from tfprep.export.stored import StoredSample, image_fields, stored_samples
from tfprep.storage.local import whole_file

_ROW_GROUP = 100
"""Rows in memory at a time, as many as Hugging Face writes of images."""
_FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_parquet(data: Dataset, split: str, variant: int, out: Path) -> None:
    """Write one split."""
    encoded = image_fields(data)
    columns = [pa.field("key", pa.string())]
    for name, spec in data.fields.items():
        kind = pa.string() if spec.dtype == "string" else pa.from_numpy_dtype(np.dtype(spec.dtype))
        if name in encoded:
            columns.append(pa.field(name, _FILE))
        elif spec.shape == ():
            columns.append(pa.field(name, kind))
        else:
            columns += [pa.field(name, pa.list_(kind)), pa.field(f"{name}_shape", pa.list_(pa.int64()))]
    columns = pa.schema(columns, {"huggingface": json.dumps({"info": {"features": _features(data, encoded)}})})
    for shard, samples in groupby(stored_samples(data, split, variant), key=lambda sample: sample.shard):
        with (
            whole_file(out / f"{data.name}-{split}-{shard:05d}.parquet") as file,
            pq.ParquetWriter(file, columns) as writer,
        ):
            while rows := [_row(data, sample, encoded) for sample in islice(samples, _ROW_GROUP)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=columns))


def _features(data: Dataset, encoded: set[str]) -> dict[str, Any]:
    """Columns that are more than their Arrow type says, as Hugging Face's datasets writes them."""
    features: dict[str, Any] = {name: {"_type": "Image"} for name in data.fields if name in encoded}
    for name, spec in data.fields.items():
        if spec.kind == "label" and spec.dtype == "int64" and (names := data.manifest.classes.get(name)):
            classes = {"names": list(names), "_type": "ClassLabel"}
            features[name] = classes if spec.shape == () else {"feature": classes, "_type": "Sequence"}
    return features


def _row(data: Dataset, sample: StoredSample, encoded: set[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"key": sample.key}
    for name, spec in data.fields.items():
        value = sample.values[name]
        if name in encoded:
            content, suffix = sample.files[name]
            row[name] = {"bytes": content, "path": f"{sample.key}.{suffix}"}
        elif spec.shape == ():
            row[name] = value if isinstance(value, str) else np.asarray(value).item()
        else:
            array = np.asarray(value)
            row[name], row[f"{name}_shape"] = array.ravel().tolist(), list(array.shape)
    return row
