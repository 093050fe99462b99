"""The code of docs/format.md for TensorFlow Datasets, tf.data and DALI delivers the samples of `Data.samples`."""

import warnings

import numpy as np
import pyarrow.parquet as pq
import pytest

import tfprep
from tests.docs import pages
from tests.photos import build_photos
from tfprep import codecs

PAGE = pages.text("format.md")
BLOCKS = pages.blocks("format.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """24 photos of two classes."""
    root = tmp_path_factory.mktemp("format")
    return tfprep.open(build_photos(root, 24, codecs.Jpeg(95), noise=(3, 4), size=(24, 32))).path


def run(module, folder):
    (block,) = (block for block in BLOCKS if module in block)
    names = {"folder": str(folder), "__name__": "page"}
    exec(compile(block, f"docs/format.md, {module}", "exec"), names)
    return names


def same_samples(folder, pairs, atol):
    """Each sample once, in any order: by the mean of its image, which differs between any two."""
    expected = [(sample["image"], sample["label"]) for sample in tfprep.open(folder).samples("train")]
    by_mean = [sorted(some, key=lambda pair: pair[0].mean()) for some in (expected, pairs)]
    assert len(pairs) == len(expected) == 24
    for (image, label), (other, other_label) in zip(*by_mean, strict=True):
        assert np.abs(image.astype(int) - other.astype(int)).max() <= atol
        assert label == other_label


def unbatched(batches):
    return [
        (np.array(image), np.asarray(label).item())
        for images, labels in batches
        for image, label in zip(images, labels, strict=True)
    ]


def test_locations(folder):
    rows, index = run("memmap", folder)["rows"], pq.read_table(folder / "index.parquet")
    for name in ("offset", "size", "payload_crc", "label", "image_size"):
        assert rows[name].tolist() == index[name].to_pylist()


def test_tensorflow_datasets(folder):
    pytest.importorskip("tensorflow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TensorFlow Datasets itself
        names = run("tensorflow_datasets", folder)
        assert names["builder"].info.supervised_keys == ("image", "label")
        pairs = [(image.numpy(), int(label)) for image, label in names["train"]]
    same_samples(folder, pairs, atol=10)


def test_tf_data(folder):
    pytest.importorskip("tensorflow")
    batches = run("TFRecordDataset(files", folder)["batches"]
    same_samples(folder, unbatched(batches.as_numpy_iterator()), atol=0)


def test_dali(folder):
    pytest.importorskip("nvidia.dali")
    names = run("nvidia.dali", folder)
    runs = [(names["images"], names["labels"]), *(names["pipeline"].run() for _ in range(2))]
    same_samples(folder, unbatched((images.as_array(), labels.as_array()) for images, labels in runs), atol=0)


def test_fields_stored_as_zstd(tmp_path):
    tf = pytest.importorskip("tensorflow")
    draws = np.random.default_rng(0)
    values = {
        "steps": np.cumsum(draws.integers(0, 9, (40, 30)), 0).astype("uint16"),
        "flat": np.ones((7, 5), "float32"),
        "empty": np.ones((7, 5, 0), "float32"),
        "wide": draws.normal(size=(9, 8)),
    }
    names = run("numcodecs", tmp_path)
    for value in values.values():
        features = codecs.Zstd().encode(value)
        found = names["decoded"](tf.constant(features[""]).numpy(), value.shape, value.dtype)
        np.testing.assert_array_equal(found, value)
    assert codecs.Zstd().encode(values["steps"])[""][0] == 1, "differences of rows"
