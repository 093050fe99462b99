"""What is known of features before any record is read: `features.json` of TensorFlow Datasets, or a file of the user's own.

The user's own file is a JSON object, by name of the feature:

    {"image/depth": {"kind": "mask"}, "embedding": {"dtype": "float32", "shape": [512]}, "label": {"classes": ["cat", "dog"]}}
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.dataset.plain_json import WrongJsonError, from_json
from tfprep.errors import DatasetError
from tfprep.fields import BOX_FORMATS, BoxFormat, Kind
from tfprep.storage.urls import names_in, read_file

FEATURES_JSON, INFO_JSON = "features.json", "dataset_info.json"
_MOST_JSON = 64 << 20
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Declared:
    """Declaration of one feature in a file; None where the file says nothing.

    Attributes:
        kind: The kind of field.
        shape: The shape of a value; None for an axis whose length differs.
        dtype: The dtype of a string that holds an array's bytes, or of an image's pixels.
        classes: The names of a label's classes.
        format: The form of boxes (`tfprep.convert_boxes`).
        rows: The features with a row per box, of boxes.
        reason: Why the feature cannot be read; "" if it can.
    """

    kind: Kind | None = None
    shape: Shape | None = None
    dtype: str | None = None
    classes: tuple[str, ...] = ()
    format: BoxFormat | None = None
    rows: tuple[str, ...] | None = None
    reason: str = ""


def read_declared(place: Path, features: str | os.PathLike[str] | None) -> dict[str, Declared]:
    """Read what is declared of the features of the shards in a folder.

    Args:
        place: The folder. A `features.json` there counts if TensorFlow Datasets wrote it, or if there is no other file.
        features: The user's own file, or a `features.json` of TensorFlow Datasets; it takes the place of what is declared there.

    Raises:
        DatasetError: A file cannot be read, or an entry is not one that is known.
    """
    beside, files = place / FEATURES_JSON, [] if features is None else [Path(features)]
    if FEATURES_JSON in names_in(place) and (not files or b'"pythonClassName"' in read_file(beside, _MOST_JSON)):
        files = [beside, *files]
    declared: dict[str, Declared] = {}
    for path in files:
        raw = _json_object(path)
        if "pythonClassName" not in raw:
            declared |= {name: _declared(f"{path}: {name!r}", entry) for name, entry in raw.items()}
            continue
        try:
            declared |= _tfds_features(raw, path.parent, "", ())
        except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise DatasetError(f"{path}: an entry is damaged ({error!r})") from error
    return declared


def _declared(where: str, entry: Any) -> Declared:
    """Return an entry of a user's own file."""
    try:
        known = from_json(Declared, {"classes": [], **entry} if isinstance(entry, dict) else entry)
        dtype = None if known.dtype is None else np.dtype(known.dtype).name
    except (WrongJsonError, TypeError) as error:
        raise DatasetError(f"{where}: {error}") from None
    if (known.kind == "boxes") != (known.format is not None):
        rule = "'kind': 'boxes' and a 'format' are declared together"
        raise DatasetError(f"{where}: {rule}; formats are {', '.join(BOX_FORMATS)}")
    if known.kind != "boxes" and known.rows is not None:
        raise DatasetError(f"{where}: 'rows' are the features with a row per box, of kind 'boxes'")
    return replace(known, dtype=None if dtype in ("str", "object") else dtype)  # strings are texts by themselves


def _json_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(read_file(path, _MOST_JSON))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} cannot be read as JSON ({error})") from error
    if not isinstance(raw, dict):
        raise DatasetError(f"{path} is a JSON object, not {str(raw)[:60]!r}")
    return raw


# --- the files of TensorFlow Datasets ----------------------------------------------------------------------------------


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
    options: Mapping[str, Any] = next((value for value in raw.values() if isinstance(value, dict)), {})
    encoding, dtype = str(options.get("encoding") or "none").lower(), str(options.get("dtype", "uint8"))
    shape = tuple(None if int(size) < 0 else int(size) for size in (options.get("shape") or {}).get("dimensions", []))
    is_image, reason = kind in ("Image", "LabeledImage"), ""
    box_form = str(options.get("bboxFormat") or "REL_YXYX")  # earlier versions had no other
    if outer.count(None) > 1:
        reason = "a sequence of sequences, which TensorFlow Datasets stores as several features"
    elif is_image and (outer or dtype not in ("uint8", "uint16")):
        reason = "images in a sequence, or of numbers that TensorFlow Datasets packs into four channels"
    elif not is_image and kind not in ("ClassLabel", "Text", "Scalar", "Tensor", "BBoxFeature"):
        reason = f"a {kind} of TensorFlow Datasets"
    elif kind == "BBoxFeature" and box_form not in ("REL_YXYX", "YXYX"):  # of others it stores x or y first
        reason = f"boxes of the form {box_form}, whose order is not known; declare it with --features"
    elif not is_image and encoding != "none" and (encoding != "bytes" or outer):
        reason = f"a tensor in TensorFlow Datasets' encoding {encoding!r}"
    if reason:
        return Declared(reason=reason)
    classes = _class_names(folder, name) if kind in ("ClassLabel", "LabeledImage") else ()
    if is_image:
        is_mask = kind == "LabeledImage" or options.get("useColormap") is True
        return Declared("mask" if is_mask else None, shape, classes=classes)  # an Image may hold class numbers
    if kind == "ClassLabel":
        return Declared(None if outer else "label", outer, classes=classes)
    if kind == "BBoxFeature":
        return Declared("boxes", (*outer, 4), format="yxyx" if box_form == "YXYX" else "rel_yxyx")
    return Declared("scalar", shape, dtype) if encoding == "bytes" else Declared(None, (*outer, *shape))


def _class_names(folder: Path, name: str) -> tuple[str, ...]:
    """The names in `FEATURE.labels.txt`, none without it; a nested feature's file has '-' for '/'.

    Lines end as in a text file of Python: a name may hold what `str.splitlines` takes for another end.
    """
    path = folder / f"{name.replace('/', '-')}.labels.txt"
    if path.name not in names_in(folder):
        return ()
    try:
        lines = list(io.StringIO(read_file(path, _MOST_JSON).decode(), newline=None))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 ({error})") from error
    return tuple(line.strip() for line in lines if line.strip())


def tfds_splits(folder: Path) -> tuple[str, dict[str, dict[str, int]]]:
    """Return the name of the dataset in a directory of TensorFlow Datasets, and by split its shards with their records.

    Raises:
        DatasetError: The directory cannot be read, or its files are not TFRecords of the usual names.
    """
    path = folder / INFO_JSON
    raw = _json_object(path)
    if (form := str(raw.get("fileFormat", "tfrecord"))) != "tfrecord":
        raise DatasetError(f"{path}: the files are of the format {form!r}; an index is of TFRecord files")
    name, splits = str(raw.get("name", folder.name)), {}
    try:
        for entry in raw.get("splits", []):
            template = entry.get("filepathTemplate") or _TEMPLATE
            if template != _TEMPLATE:
                raise DatasetError(
                    f"{path}: the files have names of their own, {template}; index each split by a pattern"
                )
            split, lengths = str(entry["name"]), [int(length) for length in entry.get("shardLengths", [])]
            splits[split] = {
                f"{name}-{split}.tfrecord-{number:05d}-of-{len(lengths):05d}": length
                for number, length in enumerate(lengths)
            }
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DatasetError(f"{path}: an entry of its splits is damaged ({error!r})") from error
    return name, splits


_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
