"""One interface over memory and S3: the same table of cases for each, and how stores fail."""

import itertools
import pickle
import traceback

import pytest

from tests.storage.server import VERBS
from tfprep.errors import DatasetError, ObjectChangedError, StorageError
from tfprep.storage import store as objects
from tfprep.storage.address import Url, parse_url, without_secrets
from tfprep.storage.store import open_store
from tfprep.storage.urls import folder_at, listed_sizes

pytest.importorskip("obstore")
_names = itertools.count()


@pytest.fixture
def quick(quick, monkeypatch):
    """Clients that repeat requests four times, after short waits."""
    monkeypatch.setattr(objects, "RETRIES", 4)


@pytest.fixture(params=["memory", "s3"])
def place(request):
    if request.param == "memory":
        return f"memory://bucket-{next(_names)}/inside"
    return request.getfixturevalue("s3").new_url()


def test_what_is_written_is_listed_and_read(place, tmp_path):
    store = open_store(place)
    assert store.list() == []
    (tmp_path.parent / "local.bin").write_bytes(b"from a file")
    contents = {"a.txt": b"0123456789", "deep/b c.bin": bytes(range(256)), "deep/er/ü.bin": b"", "z": b"x"}
    contents |= {"100%.jpg": b"a", "a b/ü é.png": b"b", "x+y=z&.txt": b"c"}  # unusual names are one object
    for name, content in contents.items():
        store.write(name, content)
    store.write("deep/file", tmp_path.parent / "local.bin")
    contents["deep/file"] = b"from a file"
    assert {info.name: info.bytes for info in store.list()} == {name: len(data) for name, data in contents.items()}
    assert [info.name for info in store.list()] == sorted(contents)
    assert [info.name for info in store.list(recursive=False)] == ["100%.jpg", "a.txt", "x+y=z&.txt", "z"]
    assert [info.name for info in open_store(f"{place}/deep").list()] == ["b c.bin", "er/ü.bin", "file"]
    for name, content in contents.items():
        assert bytes(store.read(name)) == content
        assert store.info(name).bytes == len(content)
    ranges = [(0, 3), (3, 3), (2, 7), (9, 10)]
    for start, stop in ranges:
        assert bytes(store.read("a.txt", start, stop)) == b"0123456789"[start:stop]
    assert bytes(store.read("a.txt", 4)) == b"456789"
    assert (bytes(store.read("deep/er/ü.bin", 0, 9)), bytes(store.read("deep/er/ü.bin", 3))) == (b"", b"")
    assert (bytes(store.read("a.txt", 8, 99)), bytes(store.read("a.txt", 50, 99))) == (b"89", b"")
    store.delete(["a.txt", "deep/file", "never there"])
    assert [info.name for info in store.list()] == sorted(contents.keys() - {"a.txt", "deep/file"})


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


def test_what_is_missing_is_named(place):
    store = open_store(place)
    for call in (
        lambda: store.info("no/where"),
        lambda: store.read("no/where"),
        lambda: store.read("no/where", 2, 4),
    ):
        with pytest.raises(StorageError, match="no/where") as caught:
            call()
        assert isinstance(caught.value.__cause__, FileNotFoundError)
        assert str(caught.value).count("the URL") == 1


CALLS = {
    "GET": lambda store: bytes(store.read("x", 100, 200_000)) == CONTENT[100:200_000],
    "HEAD": lambda store: store.info("x").bytes == len(CONTENT),
    "LIST": lambda store: [info.name for info in (*store.list(), *store.list(recursive=False))] == ["x", "z", "x", "z"],
    "PUT": lambda store: store.write("y", b"y") and bytes(store.read("y")) == b"y",
    "DELETE": lambda store: store.delete(["z"]) is None and [info.name for info in store.list()] == ["x"],
    **dict.fromkeys(
        ("BEGIN", "PART", "COMPLETE"), lambda store: store.write("y", CONTENT) and bytes(store.read("y")) == CONTENT
    ),
}
CONTENT = bytes(range(256)) * 4000


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("fault", ["503", "429", "500", "reset", "truncate", "lost"])
@pytest.mark.usefixtures("quick")
def test_every_verb_is_repeated_by_one_rule(s3, monkeypatch, verb, fault):
    """Until the fourth fault in a row: a fifth attempt is made, no sixth."""
    store = open_store(s3.new_url())
    store.write("x", CONTENT)
    store.write("z", b"z")
    monkeypatch.setattr(objects, "MULTIPART_BYTES", 1000)
    s3.proxy.reset()
    s3.proxy.faults_of[verb].extend([fault] * 4)
    assert CALLS[verb](store)
    has_body = verb not in ("HEAD", "PUT", "PART")
    assert not s3.proxy.faults_of[verb] or (fault == "truncate" and not has_body)


@pytest.mark.parametrize("verb", ["GET", "HEAD", "LIST", "PUT", "DELETE"])
@pytest.mark.usefixtures("quick")
def test_no_verb_is_repeated_without_end_and_its_error_has_no_secrets(s3, verb):
    url = s3.new_url()
    s3.proxy.faults_of[verb].extend(["503"] * 99)
    with pytest.raises(StorageError, match=rf"{url}.* cannot be .*503") as caught:
        CALLS[verb](open_store(url))
    assert len(s3.proxy.requests) == 1 + objects.RETRIES
    text = str(caught.value) + repr(caught.value.__cause__) + repr(caught.value)
    assert not any(value in text for name, value in s3.environment.items() if "KEY" in name)


@pytest.mark.parametrize("answer", ["501 NotImplemented", "400 NotImplemented"])
def test_a_server_that_knows_no_conditions_is_named(s3, answer):
    store = open_store(s3.new_url())
    s3.proxy.write_faults.append(answer)
    with pytest.raises(
        StorageError, match=r"on a condition: .*NotImplemented.*If-None-Match and If-Match .*local folder"
    ):
        store.replace("lock", b"me", None)
    assert [request.method for request in s3.proxy.requests] == ["PUT"]


@pytest.mark.parametrize("version", [None, '"of nobody"'])
@pytest.mark.usefixtures("quick")
def test_a_server_that_ignores_conditions_is_named(s3, version):
    bucket = f"s3://bucket-{next(_names)}"
    s3.put(bucket, b"")
    store = open_store(f"{bucket}/folder")
    s3.proxy.ignores_conditions = True
    with pytest.raises(StorageError, match=r"the server ignores the condition; .*If-None-Match and If-Match"):
        store.replace("lock", b"me", version)


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
    no_bucket = open_store("s3://no-such-bucket/x")
    for use in (lambda: no_bucket.read("y"), lambda: no_bucket.write("y", b""), no_bucket.list):
        with pytest.raises(StorageError, match="the store answers NoSuchBucket") as caught:
            use()
        assert caught.value.__cause__ is None  # nobody may take it for a missing object


def test_an_answer_that_a_repetition_would_get_as_well_is_an_error_at_once(s3):
    """Such as that of Amazon to a token that has expired: it is not a 403."""
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


@pytest.mark.parametrize(
    ("scheme", "variable", "value"),
    [
        ("s3", "AWS_ENDPOINT_URL_S3", "http://mi nio:pa55word@host"), ("s3", "AWS_ENDPOINT_URL_S3", "ht!tp://host"),
        ("s3", "AWS_ENDPOINT_URL_S3", "minio:pa55word@host"), ("s3", "AWS_ENDPOINT_URL_S3", "http://u:pa55/word@h"),
        ("az", "AZURE_AUTHORITY_HOST", "http://u:pa55/word@h"),
    ],
)  # fmt: skip
def test_an_endpoint_that_is_not_a_url_is_named(monkeypatch, scheme, variable, value):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv(variable, value)
    with pytest.raises(StorageError, match=rf"the environment variable {variable} is a URL such as") as caught:
        open_store(f"{scheme}://bucket/folder").read("x")
    assert "pa55" not in str(caught.value)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_METADATA_ENDPOINT"])
@pytest.mark.usefixtures("quick")
def test_a_password_in_an_endpoint_is_not_shown(s3, monkeypatch, variable):
    """Port 9 of loopback refuses connections: the error of the request names its address."""
    for name in s3.environment:
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, "http://minio:pa55@127.0.0.1:9")
    if variable != "AWS_METADATA_ENDPOINT":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-access-key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-that-nobody-may-see")
    store = open_store("s3://bucket/folder")
    for call in (lambda: store.read("x"), store.list, lambda: store.write("x", b""), lambda: store.delete(["x"])):
        with pytest.raises(StorageError, match=r"user\}?@127\.0\.0\.1:9") as caught:
            call()
        text = "".join(traceback.format_exception(caught.value))
        assert "pa55" not in text
        assert "minio" not in text


def test_http_reads_and_does_not_list(s3):
    folder = s3.new_url()
    s3.put(f"{folder}/x", b"0123456789")
    store = open_store(f"{s3.endpoint}/{folder.removeprefix('s3://')}")
    assert bytes(store.read("x", 2, 5)) == b"234"
    assert store.info("x").bytes == 10
    s3.proxy.reset()
    with pytest.raises(StorageError, match="cannot be listed"):
        store.list()
    assert len(s3.proxy.requests) == 1, "what a server does not know it will not know a moment later"
    s3.proxy.reset()
    assert listed_sizes(parse_url(f"{s3.endpoint}/{folder.removeprefix('s3://')}")) == {}
    assert not s3.proxy.requests, "a loader need not wait for an answer that no web server gives"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *(
            (text, "carries a user, a password or a query; give the plain URL")
            for text in (
                "s3://AKIAKEY:pa55word@bucket/data", "https://user:pa55word@host/data", "s3://bucket/data?token=pa55word",
                "https://host/data?X-Amz-Signature=pa55word", "https://host/data#pa55word", "https://host/b@c?pa55word",
                "s3://AKIAKEY:pa55word/more@bucket/x", "s3://AKIAKEY:pa55word#more@bucket", "https://user:pa55word?more@host/x",
            )
        ),
        ("gopher://a/b", r"gopher://a/b cannot be read: .*gopher"), ("s3://", "names no bucket"), ("https:///x", "names no host"),
    ],
)  # fmt: skip
def test_urls_that_are_wrong_or_carry_secrets_are_refused_without_showing_these(text, reason):
    with pytest.raises(DatasetError, match=reason) as caught:
        folder_at(text)
    assert "pa55word" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "text", "shown"),
    [
        ({"AZURE_STORAGE_ACCOUNT_KEY": "bm90aGluZw=="}, "got bm90aGluZw== and", "got $AZURE_STORAGE_ACCOUNT_KEY and"),
        ({"AWS_SESSION_TOKEN": "a-long-session-token"}, "or a-long-session-token", "or $AWS_SESSION_TOKEN"),
        ({"HTTPS_PROXY": "http://me:pa55@proxy:3128"}, "http://me:pa55@proxy:3128/x", "http://$user@proxy:3128/x"),
        ({"https_proxy": "me:pa55word@proxy:3128"}, "way me:pa55word@proxy:3128", "way ${https_proxy: user}@proxy:3128"),
        ({"ANY_URL": "https://me:pa/5?w#rd@h/b@c"}, "to https://me:pa/5?w#rd@h/b@c", "to https://${ANY_URL: user}@c"),
        ({}, "https://me:pa55@host:1/path, amqp://pa55@host", "https://$user@host:1/path, amqp://$user@host"),
        ({}, "s3://bucket/b@c and https://host:1/d@e", "s3://bucket/b@c and https://host:1/d@e"),  # no users
        ({"A_TOKEN": "abcdefgh", "MASTER_KEY": "abcdefgh-more"}, "abcdefgh, abcdefgh-more", "$A_TOKEN, $MASTER_KEY"),
    ],
)  # fmt: skip
def test_secrets_of_the_environment_and_of_urls_are_replaced_in_messages(monkeypatch, environment, text, shown):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert without_secrets(text, {"OTHER": "abcdefgh-and"}) == shown


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


def test_missing_credentials_are_named(monkeypatch):
    """As obstore says it on a machine of no cloud, where nothing answers at the address of the metadata server."""

    def head(*_):
        raise OSError("Error performing PUT http://169.254.169.254/latest/api/token in 1 ms: no answer")

    monkeypatch.setattr("obstore.head", head)
    text = r"/x cannot be read: the environment holds no credentials; check AWS_ACCESS_KEY_ID"
    with pytest.raises(StorageError, match=text):
        open_store("s3://bucket/folder").info("x")
