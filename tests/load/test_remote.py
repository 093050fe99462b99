"""Loaders over datasets at URLs deliver the same batches as from a folder, on the path that can read them. `ram://` is a file
system of TensorFlow, read like `gs://`; a small adapter lets fsspec read it too.
"""

from __future__ import annotations

import io
import uuid

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from upath.implementations.memory import MemoryPath
from upath.registry import register_implementation

import tfprep
from tfprep.errors import LoaderError, RecordError

tf = pytest.importorskip("tensorflow")

OPTIONS = {"seed": 5, "fields": ["image", "lossless", "label", "key"], "variants": "rotate"}


class RamFileSystem(fsspec.AbstractFileSystem):
    """The methods of fsspec that reading a dataset needs, over TensorFlow's `ram://`."""

    protocol = "ram"

    def _strip(self, path):
        return path if path.startswith("ram://") else f"ram://{path}"

    def info(self, path, **_):
        path = self._strip(path)
        if not tf.io.gfile.exists(path):
            raise FileNotFoundError(path)
        kind = "directory" if tf.io.gfile.isdir(path) else "file"
        return {"name": path, "type": kind, "size": tf.io.gfile.stat(path).length}

    def _open(self, path, mode="rb", **_):
        self.info(path)
        with tf.io.gfile.GFile(self._strip(path), mode) as file:
            return io.BytesIO(file.read())


class RamPath(MemoryPath):
    """A URL of this file system."""


@pytest.fixture(scope="module", autouse=True)
def _ram():
    fsspec.register_implementation("ram", RamFileSystem, clobber=True)
    register_implementation("ram", RamPath, clobber=True)


def copied(photos, scheme):
    folder = f"{scheme}://{uuid.uuid4().hex}"
    for path in photos.path.iterdir():
        if scheme == "ram":
            with tf.io.gfile.GFile(f"{folder}/{path.name}", "wb") as file:
                file.write(path.read_bytes())
        else:
            fsspec.filesystem(scheme).pipe_file(f"{folder}/{path.name}", path.read_bytes())
    return folder


def assert_same(one, other, count):
    for a, b in zip(one.take(count), other.take(count), strict=True):
        tf.nest.map_structure(lambda x, y: np.testing.assert_array_equal(x.numpy(), y.numpy()), a, b)


def test_a_url_that_tensorflow_reads(photos):
    there = tfprep.open(copied(photos, "ram")).loader("train", 8, **OPTIONS)
    assert there.info == {"path": "graph", "reason": "TensorFlow reads ram:// by itself, many records at a time"}
    here = tfprep.open(photos.path).loader("train", 8, **OPTIONS)
    assert here.info["path"] == "direct"
    assert_same(there, here, 3 * here.steps_per_epoch)


def test_options_that_need_python_take_the_direct_path(photos):
    options = {**OPTIONS, "on_bad": "skip"}
    there = tfprep.open(copied(photos, "ram")).loader("train", 8, **options)
    assert there.info["path"] == "direct"
    assert "TensorFlow ops cannot do on_bad='skip'" in there.info["reason"]
    assert_same(there, tfprep.open(photos.path).loader("train", 8, **options), 4)


@pytest.mark.parametrize("cache", ["auto", "encoded", False])
def test_a_url_that_only_fsspec_reads(photos, cache):
    there = tfprep.open(copied(photos, "memory")).loader("train", 8, cache=cache, **OPTIONS)
    assert there.info["path"] == "direct"
    assert there.info["reason"] == "TensorFlow does not read memory://: threads fetch the records through fsspec"
    here = tfprep.open(photos.path).loader("train", 8, **OPTIONS)
    assert_same(there, here, 3 * here.steps_per_epoch)


def test_the_graph_path_refuses_urls_that_tensorflow_cannot_read(photos):
    with pytest.raises(LoaderError, match="TensorFlow does not read memory://; use path='direct'"):
        tfprep.open(copied(photos, "memory")).loader("train", 8, path="graph")


def test_a_request_that_fails_is_a_bad_record(photos, monkeypatch):
    folder, whole = copied(photos, "memory"), MemoryFileSystem.cat_file
    lost = []

    def sometimes(self, path, start=None, end=None, **options):
        if start == lost[0]:
            raise ConnectionError("reset by peer")
        return whole(self, path, start=start, end=end, **options)

    data = tfprep.open(folder)
    lost.append(data.index("train").column("offset")[3].as_py())
    monkeypatch.setattr(MemoryFileSystem, "cat_file", sometimes)
    with pytest.raises(RecordError, match=r"memory://.*cannot be fetched \(ConnectionError: reset by peer\)"):
        list(data.numpy_loader("train", 8, training=False))
    skipping = data.numpy_loader("train", 8, training=False, on_bad="skip")
    assert sum(len(batch["label"]) for batch in skipping) == data.splits["train"].samples - 1
    (bad,) = skipping.report()["bad_records"]
    assert "ConnectionError" in bad["reason"]


def test_a_truncated_file(photos):
    folder = copied(photos, "memory")
    data = tfprep.open(folder)
    shard = f"{folder}/{data.file('train', 0, 0).name}"
    content = fsspec.filesystem("memory").cat_file(shard)
    loader = data.numpy_loader("train", 8, training=False)  # it compares the sizes
    fsspec.filesystem("memory").pipe_file(shard, content[:-10])
    with pytest.raises(RecordError, match="cut short: the file holds"):
        list(loader)
