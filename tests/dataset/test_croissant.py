"""`croissant.json` against the package of MLCommons."""

from __future__ import annotations

import hashlib
import json

import pytest

from tfprep.dataset import open_dataset
from tfprep.dataset.other_readers import croissant_text

mlcroissant = pytest.importorskip("mlcroissant")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of rdflib, which mlcroissant uses


@pytest.fixture(scope="module")
def described(photos, tmp_path_factory):
    """The dataset of all kinds of fields, and a folder in which its index and `croissant.json` lie."""
    data = open_dataset(photos.path)
    folder = tmp_path_factory.mktemp("croissant")
    (folder / "index.parquet").write_bytes((photos.path / "index.parquet").read_bytes())
    (folder / "croissant.json").write_text(croissant_text(data.manifest, data.manifest.files["index.parquet"]))
    return data, folder


def test_mlcroissant_finds_no_error_and_names_what_only_the_owner_knows(described):
    _, folder = described
    issues = mlcroissant.Dataset(jsonld=str(folder / "croissant.json")).metadata.issues
    assert not issues.errors
    assert {warning.split('"')[1].rpartition("/")[2] for warning in issues.warnings} <= {
        "citeAs", "datePublished", "license", "version", "url"
    }  # fmt: skip


def test_records_are_the_rows_of_the_index(described):
    data, folder = described
    records = list(mlcroissant.Dataset(jsonld=str(folder / "croissant.json")).records("records"))
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


def test_classes_have_their_numbers(described):
    _, folder = described
    records = mlcroissant.Dataset(jsonld=str(folder / "croissant.json")).records("label_classes")
    names = {record["label_classes/number"]: record["label_classes/name"] for record in records}
    assert names == {0: "cat", 1: "dog", 2: "owl"}


def test_every_file_is_named_with_its_digest(described):
    data, folder = described
    files = {file["@id"]: file for file in json.loads((folder / "croissant.json").read_text())["distribution"]}
    names = {file.name for split in data.splits.values() for files_of in split.files for file in files_of}
    assert files.keys() == names | {"index.parquet"}
    content = (folder / "index.parquet").read_bytes()
    assert files["index.parquet"]["sha256"] == hashlib.sha256(content).hexdigest()
