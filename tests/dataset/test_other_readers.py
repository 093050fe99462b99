"""Class names, arrays of every dtype and `croissant.json`, read by TensorFlow Datasets and by the package of MLCommons."""

import hashlib
import json
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
from tfprep.dataset.other_readers import croissant_text, tfds_files, tfds_limits


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
    [([(2, 4), (2, 4)], {"uint32"}), ([(3, 4), (5, 4)], {"uint32"}), ([(3, 4), (5, 6)], {"image", *DTYPES[:-2]})],
    ids=["one size", "one side", "two sides"],
)
def test_arrays_of_every_dtype_and_shape_are_read(tmp_path, sizes, undecoded):
    """One dataset holds them all, but for complex numbers, which no map has: one field that TensorFlow Datasets cannot decode
    would hide all others."""
    pytest.importorskip("tensorflow")
    for number, size in enumerate(sizes):
        save(tmp_path / "raw" / "ab"[number % 2] / f"{number}.png", np.full((*size, 3), number, np.uint8))
    fields = {dtype: Extremes(dtype) for dtype in DTYPES[:-2]}
    store = {"image": codecs.Raw(), "label": codecs.Scalar()} | {name: codecs.Raw() for name in fields}
    fields["packed"], store["packed"] = Extremes("int16"), codecs.Zstd(predict="none")
    recipe = Recipe(name="all", source=sources.Folder(), derive=fields, store=store)
    with pytest.warns(UserWarning, match=r"delivers 'uint32' as bytes") as caught:
        build(recipe, tmp_path / "out", tmp_path / "raw", options=BuildOptions(workers=0))
    data = open_dataset(tmp_path / "out")
    assert data.manifest.rejected == 0
    assert tfds_limits(data.manifest).keys() == {"uint32"}
    assert len(caught) == 1
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


@pytest.fixture(scope="module")
def described(photos, tmp_path_factory):
    """The dataset of all kinds of fields, a folder with its index and `croissant.json`, and how MLCommons reads it."""
    mlcroissant = pytest.importorskip("mlcroissant")
    data = open_dataset(photos.path)
    folder = tmp_path_factory.mktemp("croissant")
    (folder / "index.parquet").write_bytes((photos.path / "index.parquet").read_bytes())
    (folder / "croissant.json").write_text(croissant_text(data.manifest, data.manifest.files["index.parquet"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return data, folder, mlcroissant.Dataset(jsonld=str(folder / "croissant.json"))


of_rdflib = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # which mlcroissant uses


def test_mlcroissant_finds_no_error_and_names_what_only_the_owner_knows(described):
    issues = described[2].metadata.issues
    assert not issues.errors
    assert {warning.split('"')[1].rpartition("/")[2] for warning in issues.warnings} <= {
        "citeAs", "datePublished", "license", "version", "url"
    }  # fmt: skip


@of_rdflib
def test_records_are_the_rows_of_the_index(described):
    data, _, read = described
    records = list(read.records("records"))
    rows = [
        row
        for split, info in data.splits.items()
        for v in range(info.variants)
        for row in data.index(split, v).to_pylist()
    ]
    assert len(records) == len(rows) == 50 * 3 + 11
    for record, row in zip(records, rows, strict=True):
        for name in ("key", "split"):
            assert record[f"records/{name}"].decode() == row[name]
        for name in ("variant", "shard", "offset", "size", "label"):
            assert record[f"records/{name}"] == row[name]


@of_rdflib
def test_classes_have_their_numbers(described):
    records = described[2].records("label_classes")
    names = {record["label_classes/number"]: record["label_classes/name"] for record in records}
    assert names == {0: "cat", 1: "dog", 2: "owl"}


def test_every_file_is_named_with_its_digest(described):
    data, folder, _ = described
    files = {file["@id"]: file for file in json.loads((folder / "croissant.json").read_text())["distribution"]}
    names = {file.name for split in data.splits.values() for files_of in split.files for file in files_of}
    assert files.keys() == names | {"index.parquet"}
    content = (folder / "index.parquet").read_bytes()
    assert files["index.parquet"]["sha256"] == hashlib.sha256(content).hexdigest()
