"""Shards at a URL: the index is a local folder, the records come from the object store."""

from __future__ import annotations

import numpy as np
import pytest

import tfprep
from tests.dataset.imported.conftest import detection, serialized, write
from tfprep.dataset import index_tfrecords
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError

pytest.importorskip("obstore")
pytest.importorskip("moto")


def batches(data, **options) -> list[dict]:
    return list(data.numpy_loader("train", 7, training=False, **options))


def test_an_index_of_shards_in_an_object_store(s3, tmp_path):
    from tfprep.storage.store import open_store

    rng = np.random.default_rng(4)
    examples = [serialized(detection(rng, number)) for number in range(30)]
    for shard in range(2):
        write(tmp_path / "raw" / "deep" / f"train-{shard}", examples[15 * shard : 15 * shard + 15])
    url = s3.copy(tmp_path / "raw" / "deep")
    out = tmp_path / "index"
    report = index_tfrecords(f"{url}/train-*", "train", out)
    assert len(report.scanned) == 2
    assert index_tfrecords(f"{url}/train-*", "train", out).scanned == ()
    index_tfrecords(str(tmp_path / "raw" / "deep" / "train-*"), "train", tmp_path / "local")
    there, here = tfprep.open(out), tfprep.open(tmp_path / "local")
    for one, other in zip(batches(there), batches(here), strict=True):
        assert one["image_filename"].tolist() == other["image_filename"].tolist()
        assert all(np.array_equal(a, b) for a, b in zip(one["image_encoded"], other["image_encoded"], strict=True))
    loader = there.loader("train", 5, fields=["image_filename"])
    assert len(next(iter(loader))["image_filename"]) == 5
    assert list(verify(out)) == []
    open_store(url).write("train-0", b"something else")
    with pytest.raises(DatasetError, match="train-0 has changed since it was indexed"):
        there.numpy_loader("train", 5)
    with pytest.raises(DatasetError, match="train-0, byte 0, behind 0 whole records"):
        index_tfrecords(f"{url}/train-*", "train", out)
    open_store(url).delete(["train-0"])
    with pytest.raises(DatasetError, match="train-0"):
        there.numpy_loader("train", 5)
    with pytest.raises(DatasetError, match="name a local folder for the index with --out"):
        index_tfrecords(f"{url}/train-*", "train")
    with pytest.raises(DatasetError, match="names no file"):
        index_tfrecords(f"{url}/test-*", "train", out)
