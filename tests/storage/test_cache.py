"""The cache of whole objects on a local disk: what is in it is whole, and never more than its limit."""

import hashlib
import itertools
import multiprocessing
import os
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import wait_until
from tfprep.errors import StorageError
from tfprep.storage import cache as module
from tfprep.storage.address import parse_url
from tfprep.storage.cache import CachedObject, LocalCache
from tfprep.storage.store import open_store

pytest.importorskip("obstore")
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _small_disk(monkeypatch):
    monkeypatch.setattr(module, "KEPT_FREE_BYTES", 0)
    monkeypatch.setattr(module, "PART_BYTES", 1000)


def an_object(nbytes, url=None):
    """A new object of random bytes in a store."""
    url = url or f"memory://{uuid.uuid4().hex}"
    content = os.urandom(nbytes)
    open_store(url).write(f"object-{next(_numbers)}", content)
    name = open_store(url).list()[-1].name
    return CachedObject(parse_url(url) / name, nbytes, hashlib.sha256(content).hexdigest()), content


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".whole", ".part"))


@pytest.mark.parametrize("nbytes", [0, 1, 999, 1000, 1001, 25_000])
def test_an_object_is_fetched_once_and_found_again(tmp_path, nbytes):
    item, content = an_object(nbytes)
    cache = LocalCache(tmp_path / "cache", None)
    assert cache.find(item) is None
    path = cache.fetch(item)
    assert path.read_bytes() == content
    open_store(item.url.parent).delete([item.url.name])
    assert cache.fetch(item) == path
    assert LocalCache(tmp_path / "cache", None).find(item) == path
    assert names(tmp_path / "cache") == [f"{item.sha256}.whole"]


def test_other_bytes_than_the_checksum_says_are_not_kept(tmp_path):
    item, content = an_object(5000)
    cache = LocalCache(tmp_path, None)
    for wrong in (content[:-1] + b"?", content[:-1]):
        open_store(item.url.parent).write(item.url.name, wrong)
        with pytest.raises(StorageError, match="its SHA-256 is not that of the build"):
            cache.fetch(item)
        assert names(tmp_path) == []


def test_the_limit_holds_and_what_is_leased_stays(tmp_path):
    (a, _), (b, _), (c, _), (d, _) = (an_object(1000) for _ in range(4))
    one, two = LocalCache(tmp_path, 2500), LocalCache(tmp_path, 2500)
    one.lease([a, b, c])
    assert one.fetch(a)
    assert one.fetch(b)
    assert one.room_bytes == 500
    assert one.fetch(c) is None  # a fixed set: nothing makes room for it
    assert two.fetch(d) is None
    one.close()
    two.lease([b, d])
    assert two.fetch(d)  # nobody has leased a
    assert two.used_bytes == 2000
    assert (two.find(a), two.find(b) is not None, two.find(d) is not None) == (None, True, True)


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "thesis.whole").write_bytes(b"x" * 5000)
    (tmp_path / ("a" * 63 + "g.part")).write_bytes(b"x")
    cache = LocalCache(tmp_path, 1000)
    item, _ = an_object(1000)
    assert cache.fetch(item)
    other, _ = an_object(1000)
    assert cache.fetch(other)  # the first one makes room
    assert cache.find(item) is None
    cache.drop(cache.find(other))  # as one that is damaged
    cache.drop(tmp_path / "thesis.whole")
    assert cache.find(other) is None
    assert (tmp_path / "thesis.whole").exists()
    assert (tmp_path / ("a" * 63 + "g.part")).exists()


def test_a_fetch_that_is_stopped_or_fails_leaves_nothing(tmp_path):
    item, _ = an_object(5000)
    answers = iter([False, False, True])
    assert LocalCache(tmp_path, None).fetch(item, lambda: next(answers)) is None
    assert names(tmp_path) == []
    open_store(item.url.parent).delete([item.url.name])
    with pytest.raises(StorageError, match="does not exist in its store"):
        LocalCache(tmp_path, None).fetch(item)
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"the local cache cannot write .*file"):
        LocalCache(tmp_path / "file" / "below", None)


def test_of_many_threads_one_fetches_and_nobody_sees_half(tmp_path):
    item, content = an_object(200_000)
    with ThreadPoolExecutor(8) as threads:
        fetches = [threads.submit(LocalCache(tmp_path, 250_000).fetch, item) for _ in range(8)]
        while not all(fetch.done() for fetch in fetches):
            if (path := LocalCache(tmp_path, None).find(item)) is not None:
                assert path.read_bytes() == content
    assert any(fetch.result() is not None for fetch in fetches)
    assert names(tmp_path) == [f"{item.sha256}.whole"]


def test_a_fetch_that_ends_leaves_the_file_of_the_next_one(tmp_path, monkeypatch):
    """The object was evicted just after it came, and another process fetches it again."""
    item, _ = an_object(1000)
    publish, part = LocalCache._publish, tmp_path / f"{item.sha256}.part"

    def publish_and_begin_again(cache, path):
        whole = publish(cache, path)
        part.write_bytes(b"of the next fetch")
        return whole

    monkeypatch.setattr(LocalCache, "_publish", publish_and_begin_again)
    assert LocalCache(tmp_path, None).fetch(item)
    assert part.read_bytes() == b"of the next fetch"


def _fetch_for_ever(folder, item, environment):
    os.environ.update(environment)
    module.PART_BYTES, module.KEPT_FREE_BYTES = 1000, 0
    LocalCache(folder, 10_000).fetch(item)


def test_what_a_killed_process_left_is_removed_and_its_room_given_out(tmp_path, s3):
    item, content = an_object(10_000, s3.new_url())
    s3.proxy.faults.extend(["", "", "stall"])
    process = multiprocessing.get_context("spawn").Process(
        target=_fetch_for_ever, args=(tmp_path, item, s3.environment)
    )
    process.start()
    wait_until(lambda: len(s3.proxy.reads()) >= 3)
    cache = LocalCache(tmp_path, 10_000)
    assert names(tmp_path) == [f"{item.sha256}.part"]
    assert (cache.find(item), cache.used_bytes, cache.fetch(item)) == (None, 10_000, None)  # the other process is at it
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    s3.proxy.released.set()
    assert cache.fetch(item).read_bytes() == content
    s3.proxy.released.clear()
    assert names(tmp_path) == [f"{item.sha256}.whole"]
