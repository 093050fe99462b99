"""Loaders over datasets at URLs deliver the same batches as from a folder."""

import uuid

import numpy as np
import pytest

import tfprep
from tfprep.errors import RecordError, StorageError
from tfprep.storage.store import open_store

pytest.importorskip("obstore")

tf = pytest.importorskip("tensorflow")

OPTIONS = {"seed": 5, "fields": ["image", "lossless", "label", "key"], "variants": "rotate"}


def copied(photos):
    folder = f"memory://{uuid.uuid4().hex}"
    store = open_store(folder)
    for path in photos.path.iterdir():
        store.write(path.name, path)
    return folder


def assert_same(one, other, count):
    for a, b in zip(one.take(count), other.take(count), strict=True):
        tf.nest.map_structure(lambda x, y: np.testing.assert_array_equal(x.numpy(), y.numpy()), a, b)


@pytest.mark.parametrize("cache", ["auto", False])
def test_a_url_that_tensorflow_does_not_read(photos, cache):
    there = tfprep.open(copied(photos)).loader("train", 8, cache=cache, **OPTIONS)
    here = tfprep.open(photos.path).loader("train", 8, **OPTIONS)
    assert_same(there, here, 3 * here.steps_per_epoch)


def test_a_request_that_fails_is_no_bad_record(photos, s3):
    """Records that a store does not deliver are not damaged: leaving them out would train on less, and nobody would notice."""
    data = tfprep.open(s3.copy(photos.path))
    loader = data.numpy_loader("train", 8, training=False, on_bad="skip")
    loader.pipeline.table.read()  # the index is read before the store refuses
    s3.proxy.always = "403"
    with pytest.raises(StorageError, match=r"made-train.* cannot be read: the store refuses"):
        list(loader)


def test_a_truncated_file(photos):
    folder = copied(photos)
    data, store = tfprep.open(folder), open_store(folder)
    shard = data.file("train", 0, 0).name
    loader = data.numpy_loader("train", 8, training=False)  # it compares the sizes
    store.write(shard, bytes(store.read(shard))[:-10])
    with pytest.raises(RecordError, match="cut short: the file holds"):
        list(loader)
