"""Loaders with a local cache of shards: the same batches whatever it holds, and its limit, restarts and damage."""

import time
from contextlib import closing
from itertools import islice

import pytest

import tfprep
from tests.conftest import write_dataset
from tests.load.batches import check_same, overwrite
from tests.waiting import wait_until
from tfprep.dataset.imported.make import index_tfrecords
from tfprep.dataset.manifest import sha256_of
from tfprep.errors import LoaderError, RecordError
from tfprep.load import local as module
from tfprep.storage import cache

pytest.importorskip("obstore")
OPTIONS = {"seed": 4, "cache": False, "workers": "threads"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """50 samples in 5 shards of 2 variants, with the checksums of its files."""
    made = write_dataset(tmp_path_factory.mktemp("made") / "d", samples={"train": 50}, variants=2, shards=5)

    def seal(document):
        for files in document["splits"]["train"]["files"]:
            for file in files:
                file["sha256"] = sha256_of(made.path / file["name"])

    made.seal(seal)
    return made


@pytest.fixture(scope="module")
def url(made, _s3_server):
    return _s3_server.copy(made.path)


@pytest.fixture(autouse=True)
def _any_disk(monkeypatch):
    monkeypatch.setattr(cache, "KEPT_FREE_BYTES", 0)


def whole(folder):
    return {path.name for path in folder.glob("*.whole")}


def check_equal(there, here):
    check_same(list(islice(here.repeat(), 15)), list(islice(there.repeat(), 15)))


def loader_of(place, tmp_path, **options):
    return tfprep.open(place).numpy_loader("train", 8, local=tmp_path / "cache", **{**OPTIONS, **options})


@pytest.mark.parametrize("order", ["global", "block", "sequential"])
@pytest.mark.parametrize("share", [None, 0.45])
def test_batches_are_those_of_the_folder_whatever_the_cache_holds(made, url, s3, tmp_path, order, share):
    data = tfprep.open(made.path)
    total = sum(file.bytes for files in data.splits["train"].files for file in files)
    limit = None if share is None else int(total * share)
    for _ in range(2):  # cold, then after a restart
        with (
            closing(loader_of(url, tmp_path, order=order, local_limit=limit)) as there,
            closing(data.numpy_loader("train", 8, order=order, **OPTIONS)) as here,
        ):
            check_equal(there, here)
            expected = there.report()["local"]
            wait_until(lambda there=there: there.report()["local"]["bytes_to_fetch"] == 0)
            check_equal(there, here)
            report = there.report()["local"]
        assert report["used_bytes"] == sum(path.stat().st_size for path in (tmp_path / "cache").glob("*.whole"))
        assert report["used_bytes"] <= (limit or total)
        assert report["hits"] == report["predicted_hits"] == expected["predicted_hits"]
        assert report["errors"] == []
        assert (report["hits"] == 1.0) == (limit is None)
        assert not list((tmp_path / "cache").glob("*.part"))


def arriving(s3):
    before = len(s3.proxy.requests)
    time.sleep(0.3)
    return len(s3.proxy.requests) > before


def test_a_warm_cache_makes_no_request_for_records(made, url, s3, tmp_path):
    with closing(loader_of(url, tmp_path)) as loader:
        list(loader.repeat(1))  # no request of this loader is on its way when it is closed
        wait_until(lambda: loader.report()["local"]["hits"] == 1.0)
    wait_until(lambda: not arriving(s3))  # on a busy machine, requests of threads that `close` did not wait for
    s3.proxy.reset()
    with (
        closing(loader_of(url, tmp_path)) as there,
        closing(tfprep.open(made.path).numpy_loader("train", 8, **OPTIONS)) as here,
    ):
        check_equal(there, here)
        assert there.stats["requests"] == 0
    assert s3.proxy.reads(".tfrecord-") == []


def test_a_damaged_copy_is_read_from_the_store_and_removed(made, url, s3, tmp_path):
    with closing(loader_of(url, tmp_path)) as loader:
        next(iter(loader))
        wait_until(lambda: loader.report()["local"]["hits"] == 1.0)
    damaged = sorted((tmp_path / "cache").glob("*.whole"))[0]
    overwrite(damaged, damaged.stat().st_size // 2, b"\0\xff\0")
    content = damaged.read_bytes()
    with (
        closing(loader_of(url, tmp_path, order="global")) as there,
        closing(tfprep.open(made.path).numpy_loader("train", 8, order="global", **OPTIONS)) as here,
    ):
        check_equal(there, here)
        report = there.report()
    assert report["bad_records"] == []
    (error,) = report["local"]["errors"]
    assert "a record was damaged" in error
    assert damaged.name not in whole(tmp_path / "cache") or damaged.read_bytes() != content


def test_a_record_damaged_at_the_store_is_a_bad_record(made, s3, tmp_path):
    url = s3.copy(made.path)
    data = tfprep.open(url)
    shard = data.file("train", 0, 2)
    content = bytearray((made.path / shard.name).read_bytes())
    content[len(content) // 2] ^= 1
    s3.put(f"{url}/{shard.name}", bytes(content))
    with closing(loader_of(url, tmp_path, training=False, on_bad="skip")) as loader:
        assert sum(len(batch["label"]) for batch in loader) == 49
        wait_until(lambda: loader.report()["local"]["errors"])
        assert "its SHA-256 is not that of the build" in loader.report()["local"]["errors"][0]
        assert len(loader.report()["bad_records"]) == 1
    with closing(loader_of(url, tmp_path, training=False)) as loader, pytest.raises(RecordError, match="checksum"):
        list(loader)


def test_two_loaders_share_a_cache(url, s3, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    with closing(loader_of(url, tmp_path, seed=1)) as one, closing(loader_of(url, tmp_path, seed=2)) as two:
        s3.proxy.requests.clear()
        for _, _, _ in zip(one, two, range(10), strict=False):
            pass
        wait_until(lambda: one.report()["local"]["hits"] == two.report()["local"]["hits"] == 1.0)
    assert len(whole(tmp_path / "cache")) == 10


def test_the_report_before_the_first_step(url, s3, tmp_path, made):
    data = tfprep.open(made.path)
    sizes = [file.bytes for files in data.splits["train"].files for file in files]
    with closing(loader_of(url, tmp_path, local_limit=sum(sizes), order="block", block=10)) as loader:
        fetching, report = loader.report()["fetching"], loader.report()["local"]
        assert fetching["bytes_per_epoch"] == pytest.approx(sum(sizes) / 2, rel=0.2)  # one of two variants, and gaps
        assert fetching["requests_per_epoch"] <= 2 * 5
        assert (report["bytes_to_fetch"], report["predicted_hits"], report["hits"]) == (sum(sizes), 1.0, 0.0)
    with closing(loader_of(url, tmp_path, local_limit=min(sizes) - 1)) as loader:
        assert loader.report()["local"]["predicted_hits"] == 0.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"local_limit": "2GB"}, "local_limit is the limit of the folder `local`"),
        ({"local": "x", "local_limit": "much"}, "local_limit is a number of bytes or text"),
        ({"local": "x"}, "local= keeps shards of datasets at URLs; .* is a folder"),
    ],
)
def test_options_that_cannot_be_met(made, options, text):
    with pytest.raises(LoaderError, match=text):
        tfprep.open(made.path).numpy_loader("train", 8, **options)


def test_an_index_of_tfrecords_has_no_checksums_to_compare_with(url, s3, tmp_path):
    index_tfrecords(f"{url}/made-train.tfrecord-0000[0-4]-of-00005", "train", tmp_path / "index")
    with pytest.raises(LoaderError, match="local= compares shards with their SHA-256, which an index"):
        loader_of(tmp_path / "index", tmp_path, fields=["label"])
