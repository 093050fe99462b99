"""Class names and arrays of every dtype, read by TensorFlow Datasets."""

import warnings
from dataclasses import replace

import numcodecs
import numpy as np
import pytest

from tests.photos import save
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, build
from tfprep.codecs.raw import DTYPES
from tfprep.dataset import open_dataset, read_manifest
from tfprep.dataset.other_readers import tfds_files


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (("cat", "dog", "a b"), True),
        (("größe", "猫", "x"), True),
        *(((name, "dog", "x"), False) for name in ("cat ", " cat", "c\nat", "c\rat", "", "dog", "caf\udce9")),
    ],
)
def test_class_names_are_exact_or_left_out(photos, tmp_path, names, written):
    manifest = replace(read_manifest(photos.path), classes={"label": names})
    files = tfds_files(manifest)
    assert ("label.labels.txt" in files) == written
    if written:
        (tmp_path / "label.labels.txt").write_text(files["label.labels.txt"], encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds

        feature = tfds.features.ClassLabel(num_classes=3)
        feature.load_metadata(str(tmp_path), "label")
    assert feature.names == (list(names) if written else ["0", "1", "2"])


class Extremes:
    """The least and the greatest value of a dtype, and numbers between, of the image's size."""

    def __init__(self, dtype):
        self.dtype = np.dtype(dtype)

    def __call__(self, sample, rng):
        size = sample["image"].shape[:2]
        if self.dtype.kind in "iu":
            most = np.iinfo(self.dtype)
            return np.resize(np.array([most.max, most.min, most.max // 2, 1], self.dtype), size)
        return np.arange(size[0] * size[1]).reshape(size).astype(self.dtype)


@pytest.mark.parametrize(
    ("sizes", "undecoded"),
    [([(2, 4), (2, 4)], {"uint32"}), ([(3, 4), (5, 4)], {"uint32"}), ([(3, 4), (5, 6)], {"image", *DTYPES})],
    ids=["one size", "one side", "two sides"],
)
def test_arrays_of_every_dtype_and_shape_are_read(tmp_path, sizes, undecoded):
    """One dataset holds them all: one field that TensorFlow Datasets cannot decode would hide all others."""
    pytest.importorskip("tensorflow")
    for number, size in enumerate(sizes):
        save(tmp_path / "raw" / "ab"[number % 2] / f"{number}.png", np.full((*size, 3), number, np.uint8))
    fields = {dtype: Extremes(dtype) for dtype in DTYPES}
    store = {"image": codecs.Raw(), "label": codecs.Scalar()} | {name: codecs.Raw() for name in fields}
    fields["packed"], store["packed"] = Extremes("int16"), codecs.Zstd()
    recipe = Recipe(name="all", source=sources.Folder(), derive=fields, store=store)
    build(recipe, tmp_path / "out", tmp_path / "raw", options=BuildOptions(workers=0))
    data = open_dataset(tmp_path / "out")
    assert data.manifest.rejected == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds

        builder = tfds.builder_from_directory(str(data.path))
        theirs = list(tfds.as_numpy(builder.as_dataset(split="train", shuffle_files=False)))
    for ours, read in zip(data.samples("train"), theirs, strict=True):
        for name in ("image", *fields):
            value = read[name]
            if name == "packed":
                value = numcodecs.blosc.decompress(value[1:])
            if name in undecoded | {"packed"}:
                value = np.frombuffer(value, data.fields[name].dtype).reshape(read[f"{name}/shape"])
            np.testing.assert_array_equal(value, ours[name], strict=True)
