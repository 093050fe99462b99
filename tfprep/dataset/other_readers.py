"""The files with which TensorFlow Datasets reads a dataset: `tfds.builder_from_directory(folder)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfprep.codecs import from_description
from tfprep.dataset.manifest import Manifest
from tfprep.dataset.names import variant_split
from tfprep.dataset.plain_json import indented
from tfprep.fields import Kind

_ENCODED = ("jpeg", "png", "original")
"""Codecs that TensorFlow Datasets decodes; it delivers the bytes of others."""


def tfds_files(manifest: Manifest) -> dict[str, str]:
    """Return the content of `dataset_info.json`, `features.json` and, for a label with class names, `FIELD.labels.txt`, by name.

    TensorFlow Datasets raises a ParseError for an entry of `dataset_info.json` that it does not know, so the file holds no more
    than it needs. The names of the classes are left out if TensorFlow Datasets would read others.
    """
    splits = [
        {
            "name": variant_split(split, variant),
            "shardLengths": [str(file.records) for file in files],
            "numBytes": str(sum(file.bytes for file in files)),
        }
        for split, info in manifest.splits.items()
        for variant, files in enumerate(info.files)
    ]
    described = {"name": manifest.name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}
    features: dict[str, Any] = {}
    for name, field in manifest.fields.items():
        count = len(manifest.classes.get(name) or ()) or None
        features |= from_description(field.codec).tfds_feature(name, field.spec, count)
    kind = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    documents = {
        "dataset_info.json": described | _supervised_keys(manifest),
        "features.json": {"pythonClassName": kind, "featuresDict": {"features": features}},
    }
    files = {name: indented(document) + "\n" for name, document in documents.items()}
    for name, classes in manifest.classes.items():
        if _is_label(manifest, name) and _survive(classes):
            files[f"{name}.labels.txt"] = "".join(f"{label}\n" for label in classes)
    return files


def tfds_limits(manifest: Manifest) -> dict[str, str]:
    """Return what TensorFlow Datasets cannot be told, as a sentence for each field that it concerns."""
    return {
        name: (
            f"{name}.labels.txt was not written: TensorFlow Datasets would misread the class names of {name!r}: "
            "one is empty, occurs twice, holds a line break, or begins or ends with a space. It shows numbers instead"
        )
        for name in manifest.fields
        if _is_label(manifest, name) and not _survive(manifest.classes.get(name, ()))
    }


def _is_label(manifest: Manifest, name: str) -> bool:
    return name in manifest.fields and manifest.fields[name].spec.kind == "label"


def _survive(classes: Sequence[str]) -> bool:
    """Return True if TensorFlow Datasets reads these names from lines: it strips each, drops empty ones, refuses repetitions."""
    text = "".join(f"{label}\n" for label in classes)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    is_utf8 = not any("\ud800" <= letter <= "\udfff" for letter in text)  # halves of UTF-16 pairs
    return lines == list(classes) and len(set(lines)) == len(lines) and is_utf8


def _supervised_keys(manifest: Manifest) -> dict[str, Any]:
    """The pair that `as_supervised=True` delivers: the image with the label, else with the mask, where there is one of each."""

    def named(kind: Kind) -> list[str]:
        return [name for name, info in manifest.fields.items() if info.spec.kind == kind]

    inputs = [name for name in named("image") if manifest.fields[name].codec["codec"] in _ENCODED]
    targets = named("label") or [name for name in named("mask") if manifest.fields[name].codec["codec"] in _ENCODED]
    if len(inputs) != 1 or len(targets) != 1:
        return {}
    return {"supervisedKeys": {"tuple": {"items": [{"featureKey": name} for name in (*inputs, *targets)]}}}
