"""Exports of a dataset to WebDataset and Parquet; samples are streamed, keys are kept.

WebDataset is a tar file for each shard, in which the files of one sample follow each other, as `KEY.FIELD.SUFFIX`. It ends the
key at the first dot of the file name, so dots there are written as `%2E` (and `%` as `%25`). It passes over folders such as
`__name__` and some names with line ends, which are escaped in the same way; `KEY.key.txt` holds the key as it is.

Parquet is a file for each shard, with a row for each sample. An image file is a struct `{bytes, path}`. The schema's metadata
declare it as an `Image` of Hugging Face's datasets, and labels with class names as a `ClassLabel`. Any other array is a list of
its numbers in row-major order, with its shape in the column `FIELD_shape`; where a field has this name, the column gets a '_'.

Bytes of texts and class names that are not UTF-8, such as those of old file names, are written as `\\xe9`, as they are in keys.
Numbers of bfloat16, which neither format has, are written as float32, in which they are exact.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfprep.dataset import Dataset, SplitInfo
from tfprep.errors import DatasetError
from tfprep.fields import RASTER_KINDS, Array, FieldSpec
from tfprep.images import encode_png, file_orientation
from tfprep.storage.local import whole_file, whole_folder
from tfprep.storage.urls import open_file
from tfprep.units import number

__all__ = ["ExportSummary", "export"]

Format = Literal["webdataset", "parquet"]

_IMAGE_FILES = ("jpeg", "png", "original", "encoded")
"""The codecs of image files."""
_PNG_LEVEL = 3
_ROW_GROUP = 100
"""Rows of Parquet in memory at a time: the number that Hugging Face writes of images."""
_FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@dataclass(frozen=True)
class ExportSummary:
    """Result of an export: samples by split, and one text for each thing that the format does not hold."""

    samples: dict[str, int]
    left_out: tuple[str, ...]


def export(
    data: Dataset, out: Path, to: Format, *, variant: int = 0, splits: Sequence[str] | None = None
) -> ExportSummary:
    """Write a dataset in another format.

    Args:
        data: The dataset.
        out: A folder, which is missing or empty. It appears whole, or not at all.
        to: The format.
        variant: The variant to export. Splits that do not have it are left out.
        splits: The splits to export; None for all.

    Raises:
        DatasetError: A record cannot be read, the folder is not empty, or the format cannot hold such a dataset at all.
    """
    if out.is_file():
        raise DatasetError(f"{out} is a file; export into a new folder")
    if out.exists() and any(out.iterdir()):
        raise DatasetError(f"{out} is not empty; export into a new folder")
    chosen = {name: data.split(name) for name in (data.splits if splits is None else splits)}
    splits = [name for name, info in chosen.items() if variant < info.variants]
    if not splits:
        raise DatasetError(f"{data.path}: no split of {', '.join(chosen) or 'none'} has a variant {variant}")
    with whole_folder(out) as folder:
        for split in splits:
            _WRITERS[to](data, split, variant, folder)
    samples = {split: chosen[split].samples for split in splits}
    return ExportSummary(samples, tuple(_left_out(data, to, variant, chosen)))


def _left_out(data: Dataset, to: Format, variant: int, chosen: Mapping[str, SplitInfo]) -> Iterator[str]:
    for split, info in chosen.items():
        if variant >= info.variants:
            yield f"split {split}: it has no variant {variant}"
            continue
        if info.variants > 1:
            yield f"split {split}: {number(info.variants - 1, 'other variant')}; --variant N exports another"
        for group, entry in data.manifest.groups.items():
            if variant >= entry.variants.get(split, 0):
                yield f"added fields {group}: variant {variant} of split {split} has none"
    for name in data.manifest.classes:
        spec = data.fields.get(name)
        if spec is not None and not (to == "parquet" and (spec.kind, spec.dtype) == ("label", "int64")):
            yield f"class names of {name}: labels are numbers there"


# --- samples ---


class StoredSample(NamedTuple):
    """One sample of one variant: NumPy values and texts by field, and bytes and suffix of those that become image files."""

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
            fits = spec.kind in RASTER_KINDS and codec in _IMAGE_FILES
        if fits:
            names.add(name)
    return names


def stored_samples(data: Dataset, split: str, variant: int) -> Iterator[StoredSample]:
    """Yield the samples of a split in their order, with checksums compared. One is in memory at a time."""
    images = image_fields(data)
    columns = [f"{name}_{what}" for name in images for what in ("offset", "size")]
    rows = data.index(split, variant, ["key", "shard", *columns])
    fields = data.fields_of(split, variant)
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
                # Of another tool; readers would turn it away from its boxes and masks.
                if file_orientation(content) > 1:
                    content = encode_png(values[name], _PNG_LEVEL)
                files[name] = content, "png" if content.startswith(b"\x89PNG") else "jpg"
            for name, spec in fields.items():
                value = values[name]
                if spec.kind == "text":
                    values[name] = _utf8(value) if isinstance(value, str) else [_utf8(item) for item in value]
                elif spec.dtype == "bfloat16":
                    values[name] = value.astype(np.float32)
            yield StoredSample(place["key"], number, values, files)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def checked_key(key: str) -> str:
    """Return a key that becomes part of a path. Raises DatasetError if it would lead out of the folder."""
    if key.startswith("/") or "\0" in key or "\\" in key or ".." in PurePosixPath(key).parts or not key:
        raise DatasetError(
            f"the key {key!r} cannot be the name of a file below the folder of the export: give the raw file a name of UTF-8 "
            "without backslashes and '..' and build again, or export to parquet"
        )
    return key


# --- tar files ---


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
                base = re.sub(r"\A_(?=_[^/]*__/)|\n", lambda found: f"%{ord(found[0]):02X}", base)
                members = {"key.txt": sample.key.encode()}
                for field in data.fields_of(split, variant):
                    suffix, content = _member(data, sample, field)
                    members[f"{field}.{suffix}"] = content
                if len({ending.lower() for ending in members}) < len(members):
                    raise DatasetError(
                        f"of {', '.join(members)} some differ in case only, which WebDataset ignores; export to parquet"
                    )
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
    if spec.kind == "label" and spec.shape == () and "float" not in spec.dtype:
        return "cls", str(int(value)).encode()
    if spec.shape == () and spec.kind == "scalar":
        return "json", json.dumps(np.asarray(value).item()).encode()
    file = io.BytesIO()
    np.save(file, np.asarray(value), allow_pickle=False)
    return "npy", file.getvalue()


# --- Parquet ---


def write_parquet(data: Dataset, split: str, variant: int, out: Path) -> None:
    """Write one split as Parquet."""
    encoded, fields = image_fields(data), data.fields_of(split, variant)
    columns, names_in_use, shapes = [pa.field("key", pa.string())], set(fields), dict[str, str]()
    for name, spec in fields.items():
        dtype = "float32" if spec.dtype == "bfloat16" else spec.dtype
        kind = pa.string() if dtype == "string" else pa.from_numpy_dtype(np.dtype(dtype))
        if name in encoded:
            columns.append(pa.field(name, _FILE))
        elif spec.shape == ():
            columns.append(pa.field(name, kind))
        else:
            shapes[name] = f"{name}_shape"
            while shapes[name] in names_in_use:  # a field may have this name
                shapes[name] += "_"
            names_in_use.add(shapes[name])
            columns += [pa.field(name, pa.list_(kind)), pa.field(shapes[name], pa.list_(pa.int64()))]
    columns = pa.schema(columns, {"huggingface": json.dumps({"info": {"features": _features(data, fields, encoded)}})})
    for shard, samples in groupby(stored_samples(data, split, variant), key=lambda sample: sample.shard):
        with (
            whole_file(out / f"{data.name}-{split}-{shard:05d}.parquet") as file,
            pq.ParquetWriter(file, columns) as writer,
        ):
            while rows := [_row(fields, shapes, sample) for sample in islice(samples, _ROW_GROUP)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=columns))


def _features(data: Dataset, fields: Mapping[str, FieldSpec], encoded: set[str]) -> dict[str, Any]:
    """Columns that are more than their Arrow type says, as Hugging Face's datasets writes them."""
    features: dict[str, Any] = {name: {"_type": "Image"} for name in fields if name in encoded}
    for name, spec in fields.items():
        if spec.kind == "label" and spec.dtype == "int64" and (names := data.manifest.classes.get(name)):
            classes = {"names": [_utf8(name) for name in names], "_type": "ClassLabel"}
            features[name] = classes if spec.shape == () else {"feature": classes, "_type": "Sequence"}
    return features


def _row(fields: Mapping[str, FieldSpec], shapes: Mapping[str, str], sample: StoredSample) -> dict[str, Any]:
    """The columns of a sample; `shapes` names those of the shapes of arrays."""
    row: dict[str, Any] = {"key": sample.key}
    for name, spec in fields.items():
        value = sample.values[name]
        if name in sample.files:
            content, suffix = sample.files[name]
            row[name] = {"bytes": content, "path": f"{sample.key}.{suffix}"}
        elif spec.shape == ():
            row[name] = value if isinstance(value, str) else _items(np.asarray(value))[0]
        else:
            array = np.asarray(value)
            row[name], row[shapes[name]] = _items(array), list(array.shape)
    return row


def _items(array: Array) -> list[Any]:
    # Arrow 17 makes its float16 of NumPy's only, and not of Python's float.
    return list(array.ravel()) if array.dtype == np.float16 else array.ravel().tolist()


_WRITERS: dict[str, Callable[[Dataset, str, int, Path], None]] = {
    "webdataset": write_webdataset,
    "parquet": write_parquet,
}
