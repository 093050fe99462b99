"""One interface over folders, memory and S3: the same table of cases for each, and how stores fail."""

from __future__ import annotations

import itertools
import pickle
import re
import threading
from pathlib import Path

import pytest

from tfprep.errors import DatasetError, ObjectChangedError, SampleError, StorageError
from tfprep.storage import objects
from tfprep.storage.address import Url, parse_url
from tfprep.storage.folder import FolderStore
from tfprep.storage.store import open_store

pytest.importorskip("obstore")
_names = itertools.count()


@pytest.fixture
def quick(monkeypatch):
    """Clients that repeat requests four times, after short waits."""
    monkeypatch.setattr(objects, "RETRIES", 4)
    monkeypatch.setattr(objects, "FIRST_BACKOFF_S", 0.01)
    objects._connected.cache_clear()
    yield
    objects._connected.cache_clear()


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path)
    if request.param == "memory":
        return f"memory://bucket-{next(_names)}/inside"
    return request.getfixturevalue("s3").new_url()


def refuse(size):
    raise SampleError(f"the check of {size} bytes")


def test_what_is_written_is_listed_and_read(place, tmp_path):
    store = open_store(place)
    assert store.list() == []
    (tmp_path.parent / "local.bin").write_bytes(b"from a file")
    contents = {"a.txt": b"0123456789", "deep/b c.bin": bytes(range(256)), "deep/er/ü.bin": b"", "z": b"x"}
    for name, content in contents.items():
        store.write(name, content)
    store.write("deep/file", tmp_path.parent / "local.bin")
    contents["deep/file"] = b"from a file"
    assert {info.name: info.bytes for info in store.list()} == {name: len(data) for name, data in contents.items()}
    assert [info.name for info in store.list()] == sorted(contents)
    assert [info.name for info in store.list(recursive=False)] == ["a.txt", "z"]
    assert [info.name for info in store.list("deep")] == sorted(name for name in contents if name.startswith("deep/"))
    for name, content in contents.items():
        assert bytes(store.read(name)) == content
        sizes = []
        assert (bytes(store.read_whole(name, sizes.append)), sizes) == (content, [len(content)])
        assert store.info(name).bytes == len(content)
    with pytest.raises(SampleError, match="the check of 10 bytes"):
        store.read_whole("a.txt", refuse)
    ranges = [(0, 3), (3, 3), (2, 7), (9, 10)]
    for start, stop in ranges:
        assert bytes(store.read("a.txt", start, stop)) == b"0123456789"[start:stop]
    assert bytes(store.read("a.txt", 4)) == b"456789"
    assert (bytes(store.read("deep/er/ü.bin", 0, 9)), bytes(store.read("deep/er/ü.bin", 3))) == (b"", b"")
    assert (bytes(store.read("a.txt", 8, 99)), bytes(store.read("a.txt", 50, 99))) == (b"89", b"")
    ranges = [(0, 3), (2, 7), (9, 10)]
    assert [bytes(piece) for piece in store.read_ranges("a.txt", ranges)] == [b"0123456789"[slice(*r)] for r in ranges]
    assert list(store.read_ranges("a.txt", [])) == []
    with pytest.raises(StorageError, match=r"before byte 99|cannot be read"):
        store.read_ranges("a.txt", [(0, 2), (8, 99)])
    store.delete(["a.txt", "deep/file", "never there"])
    assert [info.name for info in store.list()] == ["deep/b c.bin", "deep/er/ü.bin", "z"]


def test_replacing_only_what_is_unchanged(place):
    store = open_store(place)
    first = store.replace("sub/manifest", b"one", None)
    with pytest.raises(ObjectChangedError, match=r"sub/manifest was written by another process"):
        store.replace("sub/manifest", b"two", None)
    assert store.info("sub/manifest").version == first
    second = store.replace("sub/manifest", b"two!", first)
    with pytest.raises(ObjectChangedError):
        store.replace("sub/manifest", b"three", first)
    assert bytes(store.read("sub/manifest")) == b"two!"
    assert store.info("sub/manifest").version == second
    with pytest.raises(ObjectChangedError):
        store.replace("nothing", b"x", second)


def test_of_many_writers_one_replaces(place):
    store = open_store(place)
    version = store.write("m", b"old")
    results = []

    def write(number: int) -> None:
        try:
            open_store(place).replace("m", b"new %d" % number, version)
            results.append(number)
        except ObjectChangedError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = results
    assert bytes(store.read("m")) == b"new %d" % winner


def test_what_is_missing_is_named(place):
    store = open_store(place)
    for call in (
        lambda: store.info("no/where"),
        lambda: store.read("no/where"),
        lambda: store.read("no/where", 2, 4),
        lambda: store.read_whole("no/where", refuse),
    ):
        with pytest.raises(StorageError, match="no/where") as caught:
            call()
        assert isinstance(caught.value.__cause__, FileNotFoundError)
        assert str(caught.value).count("the URL") == (0 if isinstance(store, FolderStore) else 1)


@pytest.mark.parametrize("fault", ["503", "429", "reset", "truncate"])
@pytest.mark.usefixtures("quick")
def test_what_can_be_repeated_is_repeated(s3, fault):
    store = open_store(s3.new_url())
    store.write("x", bytes(range(256)) * 1000)
    s3.proxy.faults.extend([fault] * 3)
    assert bytes(store.read("x", 100, 200_000)) == (bytes(range(256)) * 1000)[100:200_000]
    assert [request.fault for request in s3.proxy.reads("/x")] == [fault] * 3 + [""]


@pytest.mark.parametrize("fault", ["503", "reset", "lost"])
@pytest.mark.usefixtures("quick")
def test_a_conditional_write_without_an_answer_is_repeated(s3, fault):
    store = open_store(s3.new_url())
    version = None
    for content in (b"one", b"two"):
        s3.proxy.write_faults.extend([fault] * 2)
        version = store.replace("x", content, version)
        assert (bytes(store.read("x")), store.info("x").version) == (content, version)
    with pytest.raises(ObjectChangedError):
        store.replace("x", b"three", None)


def test_what_cannot_be_repeated_is_not(s3):
    url = s3.new_url()
    store = open_store(url)
    store.write("x", b"content")
    s3.proxy.reset()
    s3.proxy.faults.append("403")
    with pytest.raises(StorageError, match=rf"{url}/x cannot be read: the store refuses .*AWS_ACCESS_KEY_ID"):
        store.read("x", 0, 3)
    with pytest.raises(
        StorageError, match=rf"{url}/y does not exist in its store; check the URL, and AWS_ACCESS_KEY_ID"
    ):
        store.read("y", 0, 3)
    assert len(s3.proxy.reads()) == 2


@pytest.mark.usefixtures("quick")
def test_a_store_that_stays_down_is_an_error_without_secrets(s3):
    url = s3.new_url()
    s3.proxy.always = "503"
    with pytest.raises(StorageError, match=rf"{url}/x cannot be read: .*503") as caught:
        open_store(url).read("x", 0, 3)
    assert len(s3.proxy.reads()) == 1 + objects.RETRIES
    text = str(caught.value) + repr(caught.value.__cause__) + repr(caught.value)
    assert not any(value in text for name, value in s3.environment.items() if "KEY" in name)


def test_an_answer_that_a_repetition_would_get_as_well_is_an_error_at_once(s3):
    """Such as that of Amazon to a token that has expired: it is no 403."""
    url = s3.new_url()
    text = rf"{url}/x cannot be (read|written): the store answers ExpiredToken: It is so; check AWS_ACCESS_KEY_ID, .* AWS_REGION"
    s3.proxy.always = "400 ExpiredToken"
    s3.proxy.write_faults.extend(["400 ExpiredToken"] * 3)
    for call in (
        lambda store: store.read("x"),
        lambda store: store.write("x", b""),
        lambda store: store.replace("x", b"", None),
    ):
        with pytest.raises(StorageError, match=text):
            call(open_store(url))
    assert [request.method for request in s3.proxy.requests if request.fault] == ["GET", "PUT", "PUT"]


def test_google_at_an_endpoint_of_its_own(s3, monkeypatch):
    """As at an emulator. Reading is the same request as that of S3, but for the signature."""
    monkeypatch.setenv("GOOGLE_BASE_URL", s3.endpoint)
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    folder = s3.new_url()
    s3.put(f"{folder}/x", b"0123456789")
    assert bytes(open_store(folder.replace("s3://", "gs://")).read("x", 2, 5)) == b"234"


def test_http_reads_and_does_not_list(s3):
    folder = s3.new_url()
    s3.put(f"{folder}/x", b"0123456789")
    store = open_store(f"{s3.endpoint}/{folder.removeprefix('s3://')}")
    assert bytes(store.read("x", 2, 5)) == b"234"
    assert store.info("x").bytes == 10
    with pytest.raises(StorageError, match="cannot be listed"):
        store.list()


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIAKEY:pa55word@bucket/data",
        "https://user:pa55word@host/data",
        "https://host/data?X-Amz-Signature=pa55word",
        "s3://bucket/data?token=pa55word",
        "https://host/data#pa55word",
        "https://host/b@c?pa55word",
        "s3://AKIAKEY:pa55word/more@bucket/x",
        "s3://AKIAKEY:pa55word#more@bucket",
        "https://user:pa55word?more@host/x",
    ],
)
def test_urls_with_secrets_are_refused_without_showing_them(text):
    with pytest.raises(DatasetError, match="carries a user, a password or a query; give the plain URL") as caught:
        parse_url(text)
    assert "pa55word" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)


def test_secrets_of_the_environment_are_replaced_in_messages(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bm90aGluZw==")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-long-session-token")
    text = objects.without_secrets("got bm90aGluZw== and a-long-session-token")
    assert text == "got $AZURE_STORAGE_ACCOUNT_KEY and $AWS_SESSION_TOKEN"


def test_a_secret_that_begins_with_another_is_hidden_whole(monkeypatch):
    monkeypatch.setenv("SHORT_TOKEN", "abcdefgh")
    monkeypatch.setenv("AZURE_STORAGE_MASTER_KEY", "abcdefgh-and-more")
    text = objects.without_secrets("abcdefgh, abcdefgh-and-more", {"OTHER": "abcdefgh-and"})
    assert text == "$SHORT_TOKEN, $AZURE_STORAGE_MASTER_KEY"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/a/b/", Url("s3", "bucket", "a/b")),
        ("gs://bucket", Url("gs", "bucket", "")),
        ("https://host:8080//a//b", Url("https", "host:8080", "a/b")),
        ("s3://bucket/100%/é#1", Url("s3", "bucket", "100%/é#1")),
        ("s3://bucket/b@c#1", Url("s3", "bucket", "b@c#1")),
        ("https://[::1]:8080/b@c", Url("https", "[::1]:8080", "b@c")),
    ],
)
def test_urls(text, url):
    assert parse_url(text) == url
    assert parse_url(str(url)) == url
    assert pickle.loads(pickle.dumps(url)) == url
    assert (url / "x" / "y").name == "y"
    assert (url / "x").with_name("z") == url / "z"
    assert (url / "x").parent == url


@pytest.mark.parametrize(
    ("text", "reason"), [("gopher://a/b", "gopher"), ("s3://", "names no bucket"), ("https:///x", "names no host")]
)
def test_urls_that_name_nothing(text, reason):
    with pytest.raises(DatasetError, match=reason):
        parse_url(text)


def test_an_unusual_name_is_one_object(place):
    store = open_store(place)
    for name in ("100%.jpg", "a b/ü é.png", "x+y=z&.txt"):
        store.write(name, name.encode())
        assert bytes(store.read(name)) == name.encode()
    assert [info.name for info in store.list()] == sorted(["100%.jpg", "a b/ü é.png", "x+y=z&.txt"])


def test_a_folder_keeps_what_a_failed_write_would_have_replaced(tmp_path):
    store = open_store(tmp_path)
    store.write("x", b"old")
    with pytest.raises(FileNotFoundError):
        store.write("x", Path(tmp_path / "not there"))
    assert (bytes(store.read("x")), [path.name for path in tmp_path.iterdir()]) == (b"old", ["x"])


def test_missing_credentials_are_named(s3, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    error = Exception("Error performing PUT http://169.254.169.254/latest/api/token in 1 ms: no answer")
    text = str(objects.ObjectStore(parse_url(s3.new_url()))._failed("x", error))
    assert re.search(r"/x cannot be read: the environment holds no credentials; check AWS_ACCESS_KEY_ID", text)
