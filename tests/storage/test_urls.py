"""Datasets at URLs, on fsspec's file system in memory."""

from __future__ import annotations

import sys
import uuid
from contextlib import closing
from pathlib import Path

import fsspec
import numpy as np
import pytest

import tfprep
from tfprep.dataset import open_dataset
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError, MissingDependencyError
from tfprep.storage.urls import folder_at, is_remote, listed_sizes, scheme_of


@pytest.fixture
def url(photos):
    """The dataset of `photos`, copied to a URL."""
    folder = f"memory://{uuid.uuid4().hex}"
    files = fsspec.filesystem("memory")
    for path in photos.path.iterdir():
        files.pipe_file(f"{folder}/{path.name}", path.read_bytes())
    yield folder
    files.rm(folder, recursive=True)


def test_samples_equal_those_of_the_folder(photos, url):
    there, here = open_dataset(url), open_dataset(photos.path)
    assert there.manifest == here.manifest
    assert there.index("train").equals(here.index("train"))
    assert there.index("train", columns=["key", "offset"]).equals(here.index("train", columns=["key", "offset"]))
    for a, b in zip(there.samples("train", positions=[0, 7]), here.samples("train", positions=[0, 7]), strict=True):
        np.testing.assert_equal(a, b)


def test_a_dataset_at_a_url_is_verified(photos, url):
    before = {(fault.file, fault.offset) for fault in verify(photos.path)}
    assert {(fault.file, fault.offset) for fault in verify(url)} == before
    files = fsspec.filesystem("memory")
    shard = open_dataset(url).file("train", 0, 0).name
    content = bytearray(files.cat_file(f"{url}/{shard}"))
    content[100] ^= 1
    files.pipe_file(f"{url}/{shard}", bytes(content))
    (more,) = [fault for fault in verify(url) if (fault.file, fault.offset) not in before]
    assert (more.file, more.offset, "checksum" in more.reason) == (shard, 0, True)


def test_a_url_without_a_dataset():
    with pytest.raises(DatasetError, match=r"memory://nothing.* holds no tfprep.json: the folder does not exist"):
        open_dataset("memory://nothing/here")


def test_an_unknown_scheme():
    with pytest.raises(DatasetError, match=r"gopher://a/b cannot be read: .*gopher"):
        folder_at("gopher://a/b")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(
        MissingDependencyError,
        match=r"the URL gs://bucket/photos needs universal_pathlib: pip install 'tfprep\[remote\]'",
    ):
        folder_at("gs://bucket/photos")


def test_text_that_is_not_a_url_is_a_path(tmp_path):
    for place in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        folder = folder_at(place)
        assert (type(folder), folder, is_remote(folder), scheme_of(folder)) == (type(tmp_path), tmp_path, False, "")
    assert folder_at(Path("a/b")) == Path("a/b")
    url = folder_at("memory://a/b")
    assert (is_remote(url), scheme_of(url), folder_at(url)) == (True, "memory", url)


def test_an_error_of_the_storage_is_reported(url, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("403, forbidden")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem._open", refuse)
    with pytest.raises(DatasetError, match=r"tfprep.json cannot be read \(RuntimeError: 403, forbidden\)"):
        open_dataset(url)


def test_a_shard_of_another_size_is_refused_before_the_first_batch(photos, url):
    data, files = tfprep.open(url), fsspec.filesystem("memory")
    shard = data.file("train", 0, 1)
    files.pipe_file(f"{url}/{shard.name}", files.cat_file(f"{url}/{shard.name}") + b"more")
    text = rf"{shard.name} holds {shard.bytes + 4} bytes, tfprep.json says {shard.bytes}"
    with pytest.raises(DatasetError, match=text):
        data.numpy_loader("train", 4)
    data.numpy_loader("train", 4, on_bad="skip").close()


def test_a_store_that_lists_nothing_is_read_all_the_same(url, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("403, no right to list")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.ls", refuse)
    assert listed_sizes(folder_at(url)) == {}
    with closing(tfprep.open(url).numpy_loader("train", 4, fields="label")) as loader:
        assert len(next(iter(loader))["label"]) == 4
