"""The three files by which TensorFlow Datasets reads a dataset: `builder_from_directory(folder)`."""

from __future__ import annotations

import json
from typing import Any

from tfprep.codecs import from_description
from tfprep.dataset.manifest import Manifest
from tfprep.dataset.names import variant_split

TFDS_FILES = ("dataset_info.json", "features.json")


def tfds_files(manifest: Manifest) -> dict[str, str]:
    """File name to content: `dataset_info.json`, `features.json`, and `FIELD.labels.txt` for a label with class names.

    A field `dataset_info.json` does not know is a ParseError to TensorFlow Datasets, so it holds the least there is.
    """
    files = {"dataset_info.json": _json(_info(manifest)), "features.json": _json(_features(manifest))}
    for name, classes in manifest.classes.items():
        if name in manifest.fields and manifest.fields[name].spec.kind == "label":
            files[f"{name}.labels.txt"] = "".join(f"{label}\n" for label in classes)
    return files


def _info(manifest: Manifest) -> dict[str, Any]:
    splits = [
        {
            "name": variant_split(split, variant),
            "shardLengths": [str(file.records) for file in files],
            "numBytes": str(sum(file.bytes for file in files)),
        }
        for split, info in manifest.splits.items()
        for variant, files in enumerate(info.files)
    ]
    return {"name": manifest.name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}


def _features(manifest: Manifest) -> dict[str, Any]:
    features: dict[str, Any] = {}
    for name, info in manifest.fields.items():
        classes = manifest.classes.get(name)
        codec = from_description(info.codec)
        features |= codec.tfds_feature(name, info.spec, len(classes) if classes else None)
    kind = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    return {"pythonClassName": kind, "featuresDict": {"features": features}}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1) + "\n"
