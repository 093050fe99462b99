"""Loaders over datasets at URLs deliver the same batches as from a folder."""

import pytest

import tfprep
from tests.load.batches import batches, check_same, copy_in_memory
from tfprep.errors import RecordError, StorageError
from tfprep.storage.store import open_store

pytest.importorskip("obstore")

OPTIONS = {"fields": ["image", "lossless", "label", "key"], "variants": "rotate"}


@pytest.mark.parametrize("cache", ["auto", False])
@pytest.mark.parametrize("kind", ["numpy_loader", "loader"])
def test_a_url_that_tensorflow_does_not_read(photos, data, kind, cache):
    there = batches(tfprep.open(copy_in_memory(photos)), 18, kind=kind, cache=cache, **OPTIONS)
    check_same(batches(data, 18, **OPTIONS), there)


def test_a_request_that_fails_is_no_bad_record(photos, s3):
    """Records that a store does not deliver are not damaged: leaving them out would train on less, and nobody would notice."""
    data = tfprep.open(s3.copy(photos.path))
    loader = data.numpy_loader("train", 8, training=False, on_bad="skip")
    loader.pipeline.table.read()  # the index is read before the store refuses
    s3.proxy.always = "403"
    with pytest.raises(StorageError, match=r"made-train.* cannot be read: the store refuses"):
        list(loader)


def test_a_truncated_file(photos):
    folder = copy_in_memory(photos)
    data, store = tfprep.open(folder), open_store(folder)
    shard = data.file("train", 0, 0).name
    loader = data.numpy_loader("train", 8, training=False)  # it compares the sizes
    store.write(shard, bytes(store.read(shard))[:-10])
    with pytest.raises(RecordError, match="cut short: the file holds"):
        list(loader)
