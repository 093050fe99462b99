"""What is known of features before any record is read: `features.json` of TensorFlow Datasets, or a file of the user's own.

The user's own file is a JSON object, by name of the feature:

    {"image/depth": {"kind": "mask"}, "embedding": {"dtype": "float32", "shape": [512]}, "label": {"classes": ["cat", "dog"]}}
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.dataset.plain_json import WrongJsonError, from_json
from tfprep.errors import DatasetError
from tfprep.fields import BOX_FORMATS, Kind
from tfprep.storage.urls import open_file

FEATURES_JSON, INFO_JSON = "features.json", "dataset_info.json"
_ENTRIES = {"kind", "dtype", "shape", "classes", "format"}
_MOST_JSON = 64 << 20
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Declared:
    """Declaration of one feature in a file; None where the file says nothing.

    Attributes:
        kind: The kind of field.
        shape: The shape of a value; None for an axis whose length differs.
        dtype: The dtype of a string that holds an array's bytes.
        classes: The names of a label's classes.
        format: The form of boxes (`tfprep.convert_boxes`); "" if it is not said.
        reason: Why the feature cannot be read; "" if it can.
    """

    kind: Kind | None = None
    shape: Shape | None = None
    dtype: str | None = None
    classes: tuple[str, ...] = ()
    format: str = ""
    reason: str = ""


def read_declared(path: Path) -> dict[str, Declared]:
    """Read a `features.json` of TensorFlow Datasets, with the class names beside it, or a user's own file.

    Raises:
        DatasetError: The file cannot be read, or an entry is not one that is known.
    """
    raw = _json_object(path)
    if "pythonClassName" in raw:
        try:
            return dict(_tfds_features(raw, path.parent, "", ()))
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise DatasetError(f"{path}: an entry is damaged ({error!r})") from error
    declared = {}
    for name, entry in raw.items():
        if not isinstance(entry, dict) or not entry.keys() <= _ENTRIES:
            raise DatasetError(f"{path}: {name!r} has {', '.join(sorted(_ENTRIES))}, not {str(entry)[:80]!r}")
        try:
            known = from_json(Declared, {"classes": [], **entry})
            known = replace(known, dtype=None if known.dtype is None else np.dtype(known.dtype).name)
        except WrongJsonError as error:
            raise DatasetError(f"{path}: {name!r}: {error}") from None
        except TypeError:
            raise DatasetError(f"{path}: the dtype of {name!r} is one of NumPy's, not {known.dtype!r}") from None
        if any(size is not None and size < 0 for size in known.shape or ()):
            raise DatasetError(f"{path}: the shape of {name!r} has whole numbers from 0 on and null, not {known.shape}")
        if ("format" in entry) != (known.kind == "boxes") or (
            known.kind == "boxes" and known.format not in BOX_FORMATS
        ):
            raise DatasetError(
                f"{path}: {name!r}: kind 'boxes' has a format, and no other kind: one of {', '.join(BOX_FORMATS)}, not "
                f"{known.format!r}"
            )
        declared[name] = known
    return declared


def _json_object(path: Path) -> dict[str, Any]:
    try:
        with open_file(path) as file:
            raw = json.loads(file.read(_MOST_JSON))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} cannot be read as JSON ({error})") from error
    if not isinstance(raw, dict):
        raise DatasetError(f"{path} is a JSON object, not {str(raw)[:60]!r}")
    return raw


# --- features.json of TensorFlow Datasets -----------------------------------------------------------------------------


def _tfds_features(raw: Any, folder: Path, name: str, outer: Shape) -> Iterator[tuple[str, Declared]]:
    """The leaves below one entry, by the name that the feature has in an Example: `objects/bbox`."""
    if not isinstance(raw, dict):
        return
    kind = str(raw.get("pythonClassName", "")).rpartition(".")[2]
    if isinstance(raw.get("featuresDict"), dict):
        for inner, entry in dict(raw["featuresDict"].get("features", {})).items():
            yield from _tfds_features(entry, folder, f"{name}/{inner}" if name else str(inner), outer)
    elif isinstance(raw.get("sequence"), dict) and kind in ("Sequence", "Dataset"):
        length = int(raw["sequence"].get("length", -1) or -1)
        axis = None if length < 0 else length
        yield from _tfds_features(raw["sequence"].get("feature"), folder, name, (*outer, axis))
    else:
        yield name, _leaf(kind, raw, folder, name, outer)


def _leaf(kind: str, raw: Mapping[str, Any], folder: Path, name: str, outer: Shape) -> Declared:
    is_image, reason = kind in ("Image", "LabeledImage"), ""
    image = raw.get("image") or raw.get("labeledImage") or {}
    tensor = next((value for key, value in raw.items() if key != "pythonClassName" and isinstance(value, dict)), {})
    encoding = str(tensor.get("encoding", "none")).lower()
    if outer.count(None) > 1:
        reason = "a sequence of sequences, which TensorFlow Datasets stores as several features"
    elif is_image and outer:
        reason = "a sequence of images"
    elif is_image and (dtype := str(image.get("dtype", "uint8"))) not in ("uint8", "uint16"):
        reason = f"an image of {dtype}, which TensorFlow Datasets packs into four channels"
    elif not is_image and kind not in ("ClassLabel", "Text", "Scalar", "Tensor", "BBoxFeature"):
        reason = f"a {kind} of TensorFlow Datasets"
    elif kind in ("Text", "Scalar", "Tensor", "BBoxFeature") and encoding not in ("none", ""):
        if encoding == "bytes" and not outer:
            return Declared("scalar", _dimensions(tensor), str(tensor.get("dtype")))
        reason = f"a tensor in TensorFlow Datasets' encoding {encoding!r}"
    if reason:
        return Declared(reason=reason)
    if is_image:
        is_mask = kind == "LabeledImage" or image.get("useColormap") is True
        classes = _class_names(folder, name) if kind == "LabeledImage" else ()
        return Declared("mask" if is_mask else "image", _dimensions(image), classes=classes)
    if kind == "ClassLabel":
        return Declared(None if outer else "label", outer, classes=_class_names(folder, name))
    if kind == "BBoxFeature":
        return Declared("boxes", (*outer, 4), format="rel_yxyx")
    return Declared(None, (*outer, *_dimensions(tensor)))


def _dimensions(raw: Mapping[str, Any]) -> Shape:
    shape = raw.get("shape") or {}
    sizes = [int(size) for size in shape.get("dimensions", [])]
    return tuple(None if size < 0 else size for size in sizes)


def _class_names(folder: Path, name: str) -> tuple[str, ...]:
    """The names in `FEATURE.labels.txt`, none without it; a nested feature's file has '-' for '/'.

    Lines end as in a text file of Python: a name may hold what `str.splitlines` takes for another end.
    """
    path = folder / f"{name.replace('/', '-')}.labels.txt"
    try:
        with open_file(path) as file:
            lines = list(io.StringIO(file.read(_MOST_JSON).decode(), newline=None))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 ({error})") from error
    except DatasetError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return ()
        raise
    return tuple(line.strip() for line in lines if line.strip())


# --- dataset_info.json of TensorFlow Datasets ---------------------------------------------------------------------------


def tfds_splits(folder: Path) -> tuple[str, dict[str, dict[str, int]]]:
    """Return the name of the dataset in a directory of TensorFlow Datasets, and by split its shards with their records.

    Raises:
        DatasetError: The directory cannot be read, or its files are not TFRecords.
    """
    path = folder / INFO_JSON
    raw = _json_object(path)
    form = str(raw.get("fileFormat", "tfrecord"))
    if form != "tfrecord":
        raise DatasetError(f"{path}: the files are of the format {form!r}; an index is of TFRecord files")
    name, splits = str(raw.get("name", folder.name)), {}
    try:
        for entry in raw.get("splits", []):
            lengths = [int(length) for length in entry.get("shardLengths", [])]
            template = entry.get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
            for key, value in (("DATASET", name), ("SPLIT", entry["name"]), ("FILEFORMAT", "tfrecord")):
                template = template.replace("{" + key + "}", value)
            files = {}
            for number, length in enumerate(lengths):
                file, index, count = template, f"{number:05d}", f"{len(lengths):05d}"
                numbers = (("SHARD_INDEX", index), ("NUM_SHARDS", count), ("SHARD_X_OF_Y", f"{index}-of-{count}"))
                for key, value in numbers:
                    file = file.replace("{" + key + "}", value)
                files[file] = length
            splits[str(entry["name"])] = files
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"{path}: an entry of its splits is damaged ({error!r})") from error
    return name, splits
