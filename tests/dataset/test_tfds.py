"""Class names in `label.labels.txt`, read by TensorFlow Datasets' ClassLabel."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from tfprep.dataset import read_manifest
from tfprep.dataset.tfds import tfds_files


def read_by_tfds(folder, count):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds

        feature = tfds.features.ClassLabel(num_classes=count)
        feature.load_metadata(str(folder), "label")
        return feature.names


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (("cat", "dog", "a b"), True),
        (("größe", "猫", "x"), True),
        (("cat ", "dog", "x"), False),
        ((" cat", "dog", "x"), False),
        (("c\nat", "dog", "x"), False),
        (("c\rat", "dog", "x"), False),
        (("", "dog", "x"), False),
        (("dog", "dog", "x"), False),
        (("caf\udce9", "dog", "x"), False),
    ],
)
def test_class_names_are_exact_or_left_out(photos, tmp_path, names, written):
    manifest = replace(read_manifest(photos.path), classes={"label": names})
    files = tfds_files(manifest)
    assert ("label.labels.txt" in files) == written
    if written:
        (tmp_path / "label.labels.txt").write_text(files["label.labels.txt"], encoding="utf-8")
    assert read_by_tfds(tmp_path, 3) == (list(names) if written else ["0", "1", "2"])
