"""Datasets at URLs, in memory and in a bucket of S3."""

import multiprocessing
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import tfprep
from tests.storage.server import copied_to_memory
from tfprep.dataset import open_dataset
from tfprep.errors import DatasetError, LoaderError, MissingDependencyError, StorageError
from tfprep.storage.store import Store, open_store
from tfprep.storage.urls import folder_at, is_remote, listed_sizes, scheme_of

pytest.importorskip("obstore")


@pytest.fixture(params=["memory", "s3"])
def url(photos, request):
    """The dataset of `photos`, copied to a URL."""
    return (
        copied_to_memory(photos.path) if request.param == "memory" else request.getfixturevalue("s3").copy(photos.path)
    )


def test_samples_equal_those_of_the_folder(photos, url):
    there, here = open_dataset(url), open_dataset(photos.path)
    assert there.manifest == here.manifest
    assert there.index("train").equals(here.index("train"))
    assert there.index("train", columns=["key", "offset"]).equals(here.index("train", columns=["key", "offset"]))
    for a, b in zip(there.samples("train", positions=[0, 7]), here.samples("train", positions=[0, 7]), strict=True):
        np.testing.assert_equal(a, b)


def test_a_url_without_a_dataset():
    with pytest.raises(DatasetError, match=r"memory://nothing.* holds no tfprep.json: check the URL"):
        open_dataset("memory://nothing/here")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        MissingDependencyError, match=r"the URL gs://bucket/photos needs obstore: pip install 'tfprep\[s3\]'"
    ):
        folder_at("gs://bucket/photos")


def test_text_that_is_not_a_url_is_a_path(tmp_path):
    for place in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        folder = folder_at(place)
        assert (type(folder), folder, is_remote(folder), scheme_of(folder)) == (type(tmp_path), tmp_path, False, "")
    assert folder_at(Path("a/b")) == Path("a/b")
    url = folder_at("memory://a/b")
    assert (is_remote(url), scheme_of(url), folder_at(url)) == (True, "memory", url)


def test_a_store_that_stops_answering_is_not_another_build(s3, photos):
    data = open_dataset(s3.copy(photos.path))
    samples = data.samples("train")
    next(samples)
    s3.proxy.always = "403"
    with pytest.raises(StorageError, match=r"tfprep.json cannot be read: the store refuses these credentials"):
        open_dataset(str(data.path))
    for read in (lambda: next(samples), lambda: data.index("val")):
        with pytest.raises(StorageError, match="the store refuses these credentials"):
            read()


def test_a_forked_process_fails_at_once(s3, photos):
    """It has no threads of the client, so that it would wait for an answer without an end."""
    data, fork = open_dataset(s3.copy(photos.path)), multiprocessing.get_context("fork")
    loader = tfprep.open(data.path).numpy_loader("train", 4)
    of_store = "forked from one that has used URLs; start processes with the method 'spawn'"
    of_loader = "the passes of this loader belong to the process that forked this one"
    for read, text in (
        (lambda: next(data.samples("train")), of_store),
        (lambda: next(iter(loader)), of_loader),
        (lambda: tfprep.open(data.path), of_store),
    ):
        receive, send = fork.Pipe(False)
        process = fork.Process(target=lambda: send.send(error_of(read)), daemon=True)  # noqa: B023
        process.start()
        assert receive.poll(30)
        assert text in receive.recv()
        process.join()
    loader.close()


def error_of(function):
    with pytest.raises((StorageError, LoaderError)) as error:
        function()
    return str(error.value)


def test_a_shard_that_is_missing_or_of_another_size_is_named_before_the_first_batch(url):
    data, store = tfprep.open(url), open_store(url)
    shard, missing = data.file("train", 0, 1), data.file("train", 0, 2).name
    store.write(shard.name, bytes(store.read(shard.name)) + b"more")
    text = rf"{shard.name} holds {shard.bytes + 4} bytes, manifest.json says {shard.bytes}"
    with pytest.raises(DatasetError, match=text):
        data.numpy_loader("train", 4)
    data.numpy_loader("train", 4, on_bad="skip").close()
    store.delete([missing])
    for on_bad in ("raise", "skip"):
        with pytest.raises(DatasetError, match=rf"{missing} does not exist in its store; is the dataset complete\?"):
            tfprep.open(url).numpy_loader("train", 4, on_bad=on_bad)


def test_a_store_that_lists_nothing_is_read_all_the_same(url, monkeypatch):
    def refuse(*_, **__):
        raise StorageError("403, no right to list")

    monkeypatch.setattr(Store, "list", refuse)
    assert listed_sizes(folder_at(url)) == {}
    with closing(tfprep.open(url).numpy_loader("train", 4, fields="label")) as loader:
        assert len(next(iter(loader))["label"]) == 4
