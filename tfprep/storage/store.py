"""Objects at a URL: list, read ranges, write whole, replace only if unchanged, delete; through obstore, the Python face of Rust's
object_store.

Names are relative to the URL, with `/` between their parts. An object appears whole under its name or not at all, so a reader
never sees half of one.

Every request is repeated by one rule (`Store._request`): what was throttled (429), reset, cut short, timed out or answered
by 5xx, with an exponential, random backoff; never what was refused (403, 404, 412). obstore's own repetition, which leaves out
cut listings and reset deletions, is switched off but for the parts of large uploads, which would begin again without it.
Credentials and endpoints come from the environment only: AWS_*, GOOGLE_* and AZURE_* as the stores' own tools read them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from tfprep.errors import ObjectChangedError, StorageError, TfprepError
from tfprep.optional import require_package
from tfprep.storage.address import ObjectInfo, Url, parse_url, without_secrets

T = TypeVar("T")
Content: TypeAlias = bytes | Path
"""What is written: bytes, or a local file."""

RETRIES, FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRY_S = 8, 0.1, 10.0, 120.0
"""Eight more attempts over at most two minutes: an S3 bucket that throttles takes seconds to adapt to a new load."""
CONNECT_S, ANSWER_S, REQUEST_S = 10.0, 20.0, 120.0
"""Time to connect, between two pieces of an answer, and for a whole one: 16 MB at the slowest link that is of use, 1 Mbit/s."""
MULTIPART_BYTES, PART_BYTES = 128 << 20, 16 << 20
"""Larger objects are written in parts of this size. A process that is killed meanwhile leaves parts at the store, which are in no
listing and which everybody pays for until a rule of the bucket removes them, so what is smaller is one request."""
_LONGEST_REASON = 240
_TRANSIENT = re.compile(
    r"non-2xx status code: (?:408|409|429|5(?!01))|HTTP error: (?!builder|Error performing)|NoSuchUpload"
)
"""Errors that a repetition may not meet again. An upload is unknown (NoSuchUpload) where the answer to its end was lost.

'HTTP error: Error performing' is how obstore names the kind of store, a web server, before what happened there."""
_NO_CONDITIONS = (
    "a build at a URL needs a server that compares If-None-Match and If-Match when it writes, as Amazon S3, Google Cloud Storage "
    "and Azure do. Update the server, or build into a local folder and copy that"
)
_NO_BUCKET = re.compile("<Code>(?:NoSuchBucket|ContainerNotFound)</Code>")
"""What S3, Google Cloud Storage and Azure answer where there is no such bucket or container."""
_METADATA_SERVER = "169.254.169.254"
_END = 1 << 62
"""Where a range ends that is to reach to the end of its object: stores cut it there."""
_AFTER_THE_END = ("416 Range Not Satisfiable", "Invalid range")
"""What servers, and obstore's own memory, say of a range that begins after the end of an object."""
_CHECKS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ENVIRONMENT = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


class Store:
    """The objects below one URL. Safe to use from any thread."""

    def __init__(self, url: Url) -> None:
        require_package("obstore", f"the URL {url}")
        self._url = url
        self._store = _client(url)

    def list(self, *, recursive: bool = True) -> list[ObjectInfo]:
        """Return the objects of the store, sorted by name; with `recursive` those in its folders too.

        Raises:
            StorageError: The store cannot be reached, refuses, or cannot list. A folder that does not exist is an empty list.
        """
        import obstore

        top = self._key("") or None

        def entries() -> list[Any]:
            if recursive:
                return [entry for chunk in obstore.list(self._store, top) for entry in chunk]
            return list(obstore.list_with_delimiter(self._store, top)["objects"])

        start = len(self._url.key) + 1 if self._url.key else 0
        infos = [_info(entry["path"][start:], entry) for entry in self._request("", entries, "cannot be listed")]
        return sorted(infos, key=lambda info: info.name)

    def info(self, name: str) -> ObjectInfo:
        """Return an object's size and version.

        Raises:
            StorageError: The object is missing (its cause is a FileNotFoundError), or the store refuses.
        """
        import obstore

        return _info(name, self._request(name, lambda: obstore.head(self._store, self._key(name))))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> memoryview:
        """Return the bytes [start, stop) of an object (None: to its end); fewer where the object ends before.

        Raises:
            StorageError: As for `info`.
        """
        return self.read_version(name, start, stop or _END)[0] if stop is None or start < stop else memoryview(b"")

    def read_version(self, name: str, start: int, stop: int) -> tuple[memoryview, str]:
        """Return what `read` returns, and the version of the object that it is from; "" where servers do not say it reliably.

        Raises:
            StorageError: As for `info`.
        """
        import obstore

        def content() -> tuple[Any, str]:
            try:
                answer = obstore.get(self._store, self._key(name), options={"range": (start, stop)})
                # Web servers of one address may give one file several tags.
                return answer.bytes(), "" if self._url.scheme in ("http", "https") else _version(answer.meta)
            except Exception as error:
                if any(text in str(error).partition("\n")[0] for text in _AFTER_THE_END):
                    return b"", ""  # An empty object has no range at all.
                raise

        data, version = self._request(name, content)
        return memoryview(data), version

    def write(self, name: str, content: Content) -> str:
        """Write an object whole, in place of one of that name, and return its version.

        Raises:
            StorageError: The store cannot be reached or refuses; nothing was written.
            BuildError: A local disk is full or read-only.
        """
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        in_parts = size > MULTIPART_BYTES
        return self._request(name, lambda: self._put(name, content, "overwrite", in_parts), "cannot be written")

    def replace(self, name: str, content: bytes, version: str | None) -> str:
        """Write an object only if it is still of this version (None: only if there is none), and return the new version.

        Raises:
            ObjectChangedError: There is another version, or there is one at all.
            StorageError, BuildError: As for `write`.
        """
        mode: Any = "create"
        if version is not None:
            tag, _, number = version.partition(" ")
            mode = {"e_tag": tag, "version": number} if number else {"e_tag": tag}

        def put() -> str:
            try:
                return self._put(name, content, mode)  # Not every store can make a multipart upload conditional.
            except Exception as error:
                # A request whose answer was lost may have been done: a repetition then meets what it has written itself.
                if _is_changed(error) or _TRANSIENT.search(str(error)):
                    with contextlib.suppress(StorageError):
                        version = self.info(name).version
                        if self.read(name) == content:
                            return version
                raise

        new = self._request(name, put, "cannot be written", conditional=True)
        self._check_conditions(name, content)
        return new

    def _check_conditions(self, name: str, content: bytes) -> None:
        """Try to write what was just written on conditions that do not hold, once for each bucket of S3 in a process.

        Some servers that speak S3 ignore conditions without a word: two builds would then both hold the lock.
        """
        bucket = self._url.bucket, _environment()
        if self._url.scheme != "s3" or bucket in _with_conditions:
            return
        wrong = "0" * 32
        for mode in ("create", {"e_tag": f'"{wrong}"'}):
            try:
                self._request(
                    name, functools.partial(self._put, name, content, mode), "cannot be written", conditional=True
                )
            except ObjectChangedError:
                continue
            raise StorageError(
                f"{self._url / name} cannot be written on a condition: the server ignores the condition; {_NO_CONDITIONS}"
            )
        _with_conditions.add(bucket)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; names that do not exist are passed over.

        Raises:
            StorageError: The store cannot be reached or refuses.
        """
        import obstore

        try:
            keys = [self._key(name) for name in names]
            self._request(names[0] if names else "", lambda: obstore.delete(self._store, keys), "cannot be deleted")
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            for name in names if len(names) > 1 else ():  # Google and Azure say so of the first name
                self.delete([name])

    def _put(self, name: str, content: Content, mode: Any, in_parts: bool = False) -> str:
        import obstore

        store = _client(self._url, repeats=True) if in_parts else self._store
        options: Any = {"mode": mode, "use_multipart": in_parts, "chunk_size": PART_BYTES}
        return _version(obstore.put(store, self._key(name), content, **options))

    def _request(
        self, name: str, request: Callable[[], T], what: str = "cannot be read", *, conditional: bool = False
    ) -> T:
        """Return what a request gives; repeat it while its error is one that may pass.

        Raises:
            StorageError: It was refused, or failed after all repetitions. Its cause is a FileNotFoundError for a missing object.
            ObjectChangedError: The condition of a write does not hold.
        """
        if self._url.scheme != "memory" and _asking_process.setdefault("pid", os.getpid()) != os.getpid():
            raise StorageError(  # obstore's threads are not in a fork, and no answer would come
                f"{self._url} cannot be reached from a process that was forked from one that has used URLs; start processes with "
                "the method 'spawn' (multiprocessing_context='spawn' of a DataLoader), or use URLs in the forked processes only"
            )
        end, backoff = time.monotonic() + RETRY_S, FIRST_BACKOFF_S
        for retries_left in range(RETRIES, -1, -1):
            try:
                return request()
            except TfprepError:
                raise
            except Exception as error:
                if not retries_left or time.monotonic() > end or not _TRANSIENT.search(str(error)):
                    # The store's own error is not the cause: its text may hold parts of a signed request.
                    cause = FileNotFoundError("404") if _is_missing(error) else None
                    raise self._failed(name, error, what, conditional=conditional) from cause
            time.sleep(random.uniform(backoff / 2, backoff))
            backoff = min(2 * backoff, LONGEST_BACKOFF_S)
        raise AssertionError("the last repetition returns or raises")

    def _key(self, name: str) -> str:
        key = (self._url / name).key if name else self._url.key
        return unquote(key) if self._url.scheme in ("http", "https") else key  # obstore quotes it

    def _failed(self, name: str, error: Exception, what: str, *, conditional: bool) -> TfprepError:
        """Return the error of a request that was refused, or that failed after all repetitions, with what to check."""
        url = self._url / name if name else self._url
        variables = _CHECKS.get(url.scheme, "the URL")
        checks = f"the URL, and {variables}" if url.scheme in _CHECKS else variables
        answer = re.search(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", str(error), re.DOTALL)
        shown = f"the store answers {answer[1]}: {answer[2].strip()}" if answer else str(error).partition("\n")[0]
        reason = without_secrets(shown)[:_LONGEST_REASON].rstrip(".")
        if _is_changed(error):
            return ObjectChangedError(f"{url} was written by another process in the meantime")
        if conditional and ("status code: 501" in str(error) or "<Code>NotImplemented" in str(error)):
            return StorageError(f"{url} cannot be written on a condition: {reason}; {_NO_CONDITIONS}")
        if _is_missing(error):
            return StorageError(f"{url} does not exist in its store; check {checks}, or if tfprep clean removed it")
        if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
            return StorageError(f"{url} {what}: the store refuses these credentials (403 or 401); check {variables}")
        if _METADATA_SERVER in reason:  # where a machine of the cloud asks for credentials; others have no such server
            return StorageError(f"{url} {what}: the environment holds no credentials; check {variables}")
        return StorageError(f"{url} {what}: {reason}; check {variables}")


def open_store(place: str | Path | Url) -> Store:
    """Return the store of a URL. Nothing is requested yet.

    Raises:
        DatasetError: The URL is not one that can be read.
        MissingDependencyError: The package for object stores is not installed.
    """
    return Store(place if isinstance(place, Url) else parse_url(str(place)))


def find_object(store: Store, name: str) -> ObjectInfo | None:
    """Return an object's size and version; None where there is none. Raises StorageError if the store refuses."""
    try:
        return store.info(name)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _is_changed(error: Exception) -> bool:
    """Return True if the condition of a write did not hold."""
    return type(error).__name__ in ("AlreadyExistsError", "PreconditionError")


def _is_missing(error: Exception) -> bool:
    """Return True if there is no such object; where the bucket itself is missing, nobody knows what there would be."""
    return isinstance(error, FileNotFoundError) and not _NO_BUCKET.search(str(error))


def _info(name: str, entry: Any) -> ObjectInfo:
    return ObjectInfo(name, entry["size"], _version(entry), str(entry["last_modified"].timestamp()))


def _version(entry: Any) -> str:
    """An object's version as text: the entity tag, and the store's own version where it has one."""
    return f"{entry['e_tag'] or ''} {entry['version'] or ''}".strip()


_asking_process: dict[str, int] = {}
"""The process that made the first request, for which obstore started its threads."""
_memory: dict[str, Any] = {}
_lock = threading.Lock()
_with_conditions: set[Any] = set()
"""The buckets, with the environment that leads to them, whose servers compare conditions."""


def _client(url: Url, *, repeats: bool = False) -> Any:
    """obstore's client for a bucket: one per process, which keeps its connections, and another if the environment changes."""
    if url.scheme == "memory":
        from obstore.store import MemoryStore

        with _lock:
            return _memory.setdefault(url.bucket, MemoryStore())
    return _connected(url.scheme, url.bucket, os.getpid(), _environment(), repeats)


def _environment() -> tuple[tuple[str, str], ...]:
    """Return the variables that decide how a store is reached."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)))


@functools.lru_cache(maxsize=64)
def _connected(scheme: str, bucket: str, _process: int, environment: tuple[tuple[str, str], ...], repeats: bool) -> Any:
    from obstore import store

    endpoints = {n: value for n, value in environment if value and ("ENDPOINT" in n or n == "GOOGLE_BASE_URL")}
    for name, value in environment:
        if value and (name in endpoints or name == "AZURE_AUTHORITY_HOST"):
            _check_endpoint(name, value)
    waits = (CONNECT_S, ANSWER_S, REQUEST_S, FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRY_S)
    connect, answer, request, first, longest, retry = (timedelta(seconds=seconds) for seconds in waits)
    allow_http = scheme == "http" or any(value.startswith("http://") for value in endpoints.values())
    client: Any = {"allow_http": allow_http, "connect_timeout": connect, "read_timeout": answer, "timeout": request}
    backoff = {"init_backoff": first, "max_backoff": longest, "base": 2}
    retries: Any = {"max_retries": RETRIES if repeats else 0, "backoff": backoff, "retry_timeout": retry}
    if scheme in ("http", "https"):
        return store.HTTPStore(f"{scheme}://{bucket}", client_options=client, retry_config=retries)
    kind = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
    return kind(bucket, client_options=client, retry_config=retries)


def _check_endpoint(name: str, value: str) -> None:
    """Raise StorageError unless this is a URL: obstore ends with a panic of Rust where it is none."""
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in value
        is_url = is_url and (parts.port is None or parts.port > 0)
    except ValueError:
        is_url = False
    if not is_url:
        raise StorageError(f"the environment variable {name} is a URL such as https://host:9000; it holds another text")
