"""Datasets of every version of the format, which are committed once and never written again, are read as what they are.

`expected.json` beside them was written by other readers (`make.py`).
"""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tfprep
from tests.dataset.golden.make import IMAGES
from tfprep.dataset.manifest import FORMAT_VERSION, seal
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError

HERE = Path(__file__).parent
OLDEST = 3
VERSIONS = range(OLDEST, FORMAT_VERSION + 1)
DATASETS = [(version, name) for version in VERSIONS for name in ("every_kind", "originals", "indexed")]
RASTERS = (*IMAGES, "depth", "distance")
FLOAT = ("boxes", "points", "weight", "ragged")


@pytest.fixture(params=DATASETS, ids=lambda item: f"v{item[0]}-{item[1]}")
def golden(request, tmp_path):
    """A copy of the dataset, since no test may change it, and its records by split."""
    version, name = request.param
    expected = json.loads((HERE / f"v{version}/expected.json").read_text(encoding="utf-8"))
    return Path(shutil.copytree(HERE / f"v{version}" / name, tmp_path / name)), expected[name]


def comparable(name, value):
    """A field as `expected.json` holds it."""
    array = np.asarray(value)
    if name in RASTERS:
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return {"shape": list(array.shape), "pixels" if name in IMAGES else "values": digest}
    return array.reshape(-1).tolist()


def check(sample, expected):
    assert {name: comparable(name, value) for name, value in sample.items()} == expected
    for name in FLOAT:
        assert name not in sample or np.asarray(sample[name]).dtype == np.float32


def test_every_record_is_read_as_other_readers_read_it(golden):
    path, expected = golden
    data = tfprep.open(path)
    assert {
        f"{split}_v{v}" if v else split for split in data.splits for v in range(data.splits[split].variants)
    } == set(expected)
    for split, records in expected.items():
        name, _, variant = split.partition("_v")
        samples = list(data.samples(name, int(variant or 0)))
        for sample, record in zip(samples, records, strict=True):
            check(sample, {field: value for field, value in record.items() if field != "key"})


def test_a_loader_delivers_every_record_under_its_key(golden):
    path, expected = golden
    for split in ("train", "val"):
        fields = [name for name in expected[split][0] if name != "key"]
        loader = tfprep.open(path).numpy_loader(split, 1, training=False, fields=[*fields, "key"])
        for number, (batch, record) in enumerate(zip(loader, expected[split], strict=True)):
            sample = {name: values[0] for name, values in batch.items()}
            assert sample.pop("key") == record.get("key", f"{split}-00000.tfrecord#{number}")
            check(sample, {name: record[name] for name in fields})


def test_verify_finds_no_fault(golden):
    path, _ = golden
    assert list(verify(path)) == []


def test_every_version_that_is_read_has_its_golden_datasets():
    assert {path.name for path in HERE.glob("v*")} == {f"v{version}" for version in VERSIONS}


@pytest.mark.parametrize(
    ("version", "advice"),
    [(FORMAT_VERSION + 1, "upgrade tfprep"), (OLDEST - 1, "build it again with this version"), (True, "")],
)
def test_other_versions_are_refused(version, advice, tmp_path):
    path = Path(shutil.copytree(HERE / f"v{FORMAT_VERSION}" / "originals", tmp_path / "other"))
    document = json.loads((path / "v0001/manifest.json").read_text())
    del document["sha256"]
    (path / "v0001/manifest.json").write_text(seal({**document, "format_version": version}))
    with pytest.raises(DatasetError, match=f"format version {version}, this tfprep reads .*; {advice}"):
        tfprep.open(path)
