"""Objects at a URL, read and written through obstore, the Python face of Rust's object_store.

obstore repeats requests that were throttled (429), reset, cut short, timed out or answered by 5xx, with an exponential, random
backoff, and never those that were refused (403, 404, 412). Credentials and endpoints come from the environment alone: AWS_*,
GOOGLE_* and AZURE_* as the stores' own tools read them.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tfprep.errors import ObjectChangedError, StorageError
from tfprep.optional import require_package
from tfprep.storage.address import ObjectInfo, Url, without_secrets

RETRIES, FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRY_S = 8, 0.1, 10.0, 120.0
"""Eight more attempts over at most two minutes: an S3 bucket that throttles takes seconds to adapt to a new load."""
CONNECT_S, ANSWER_S, REQUEST_S = 10.0, 20.0, 120.0
"""Time to connect, between two pieces of an answer, and for a whole one: 16 MB at the slowest link that is of use, 1 Mbit/s."""
MULTIPART_BYTES, PART_BYTES = 128 << 20, 16 << 20
"""Larger objects are written in parts of this size. A process that is killed meanwhile leaves parts at the store, which nobody
lists and everybody pays for, so what is smaller is one request."""
_LONGEST_REASON = 240
_REFUSED = re.compile(r"non-2xx status code: (?!408|409|429)[34]|Received redirect")
"""Answers that a repetition would get as well, such as 400 for an expired token and 301 for another region."""
_METADATA_SERVER = "169.254.169.254"
_END = 1 << 62
"""Where a range ends that is to reach to the end of its object: stores cut it there."""
_BEHIND_THE_END = ("416 Range Not Satisfiable", "Invalid range")
"""What servers, and obstore's own memory, say of a range that begins behind the end of an object."""
_CHECKS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ENVIRONMENT = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


class ObjectStore:
    """The objects below one URL. Its methods are those of `tfprep.storage.store.Store`."""

    def __init__(self, url: Url) -> None:
        require_package("obstore", f"the URL {url}")
        self._url = url
        self._store = _client(url)

    def list(self, folder: str = "", *, recursive: bool = True) -> list[ObjectInfo]:
        import obstore

        top = self._key(folder)
        try:
            if recursive:
                entries = [entry for chunk in obstore.list(self._store, top or None) for entry in chunk]
            else:
                entries = list(obstore.list_with_delimiter(self._store, top or None)["objects"])
        except Exception as error:
            raise self._failed(folder, error, "cannot be listed") from None
        start = len(self._url.key) + 1 if self._url.key else 0
        infos = [_info(entry["path"][start:], entry) for entry in entries]
        return sorted(infos, key=lambda info: info.name)

    def info(self, name: str) -> ObjectInfo:
        import obstore

        try:
            entry = obstore.head(self._store, self._key(name))
        except Exception as error:
            raise self._failed(name, error) from _cause(error)
        return _info(name, entry)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> memoryview:
        import obstore

        if stop is not None and stop <= start:
            return memoryview(b"")
        try:
            return memoryview(obstore.get_range(self._store, self._key(name), start=start, end=stop or _END))
        except Exception as error:
            if any(text in str(error).partition("\n")[0] for text in _BEHIND_THE_END):
                return memoryview(b"")  # An empty object has no range at all.
            raise self._failed(name, error) from _cause(error)

    def read_whole(self, name: str, check: Callable[[int], None]) -> memoryview:
        import obstore

        try:
            answer = obstore.get(self._store, self._key(name))
        except Exception as error:
            raise self._failed(name, error) from _cause(error)
        check(answer.meta["size"])
        try:
            return memoryview(answer.bytes())
        except Exception as error:
            raise self._failed(name, error) from _cause(error)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        import obstore

        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        try:
            pieces = obstore.get_ranges(self._store, self._key(name), starts=starts, ends=stops) if starts else []
        except Exception as error:
            raise self._failed(name, error) from _cause(error)
        for piece, start, stop in zip(pieces, starts, stops, strict=True):
            if len(piece) < stop - start:
                raise StorageError(f"{self._url / name} ends at byte {start + len(piece)}, before byte {stop}")
        return [memoryview(piece) for piece in pieces]

    def write(self, name: str, content: bytes | Path) -> str:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        return self._put(name, content, "overwrite", use_multipart=size > MULTIPART_BYTES)

    def replace(self, name: str, content: bytes, version: str | None) -> str:
        mode, end = "create" if version is None else _conditions(version), time.monotonic() + RETRY_S
        while True:
            try:
                # Not every store can make a multipart upload conditional.
                return self._put(name, content, mode, use_multipart=False)
            except (ObjectChangedError, _NoAnswerError) as error:
                # A request whose answer was lost may have been done: a repetition then meets what it has written itself. obstore
                # repeats no conditional request that was sent.
                if (current := self._version_of(name, content)) is not None:
                    return current
                if isinstance(error, ObjectChangedError) or time.monotonic() > end:
                    raise
                time.sleep(FIRST_BACKOFF_S)

    def _version_of(self, name: str, content: bytes) -> str | None:
        """Return the object's version if this is its content."""
        try:
            version = self.info(name).version
            return version if self.read(name) == content else None
        except StorageError:
            return None

    def delete(self, names: Sequence[str]) -> None:
        import obstore

        try:
            obstore.delete(self._store, [self._key(name) for name in names])
        except FileNotFoundError:
            for name in names if len(names) > 1 else ():  # Google and Azure say so of the first name
                self.delete([name])
        except Exception as error:
            raise self._failed(names[0], error, "cannot be deleted") from None

    def _put(self, name: str, content: bytes | Path, mode: Any, **options: Any) -> str:
        import obstore
        from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

        try:
            key = self._key(name)
            return _version(obstore.put(self._store, key, content, mode=mode, chunk_size=PART_BYTES, **options))
        except (AlreadyExistsError, PreconditionError):
            raise ObjectChangedError(f"{self._url / name} was written by another process in the meantime") from None
        except GenericError as error:
            kind = StorageError if _REFUSED.search(str(error)) else _NoAnswerError
            raise kind(str(self._failed(name, error, "cannot be written"))) from None
        except Exception as error:
            raise self._failed(name, error, "cannot be written") from None

    def _key(self, name: str) -> str:
        key = (self._url / name).key if name else self._url.key
        return unquote(key) if self._url.scheme in ("http", "https") else key  # obstore quotes it

    def _failed(self, name: str, error: Exception, what: str = "cannot be read") -> StorageError:
        """Return the error of a request that was refused, or that failed after all repetitions, with what to check."""
        url = self._url / name if name else self._url
        variables = _CHECKS.get(url.scheme, "the URL")
        checks = f"the URL, and {variables}" if url.scheme in _CHECKS else variables
        reason = _reason(str(error))
        if isinstance(error, FileNotFoundError):
            return StorageError(f"{url} does not exist in its store; check {checks}")
        if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
            return StorageError(f"{url} {what}: the store refuses these credentials (403 or 401); check {variables}")
        if _METADATA_SERVER in reason:  # where a machine of the cloud asks for credentials; others have no such server
            return StorageError(f"{url} {what}: the environment holds no credentials; check {variables}")
        return StorageError(f"{url} {what}: {reason}; check {variables}")


class _NoAnswerError(StorageError):
    """A request was sent and not answered, so that nobody knows whether it was done."""


def _reason(text: str) -> str:
    """Return what a store answered, if it gave a reason, and else the first line of the error, without secrets."""
    answer = re.search(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", text, re.DOTALL)
    shown = f"the store answers {answer[1]}: {answer[2].strip()}" if answer else text.partition("\n")[0]
    return without_secrets(shown)[:_LONGEST_REASON].rstrip(".")


def _cause(error: Exception) -> Exception | None:
    """What the error is chained to. The store's own error is left out: its text may hold parts of a signed request."""
    return FileNotFoundError("404") if isinstance(error, FileNotFoundError) else None


def _info(name: str, entry: Any) -> ObjectInfo:
    return ObjectInfo(name, entry["size"], _version(entry), str(entry["last_modified"].timestamp()))


def _version(entry: Any) -> str:
    """An object's version as text: the entity tag, and the store's own version where it has one."""
    return f"{entry['e_tag'] or ''} {entry['version'] or ''}".strip()


def _conditions(version: str) -> dict[str, str]:
    tag, _, number = version.partition(" ")
    return {"e_tag": tag, "version": number} if number else {"e_tag": tag}


_memory: dict[str, Any] = {}
_lock = threading.Lock()


def _client(url: Url) -> Any:
    """obstore's client for a bucket: one a process, so that its connections are kept, and another if the environment changes."""
    if url.scheme == "memory":
        from obstore.store import MemoryStore

        with _lock:
            return _memory.setdefault(url.bucket, MemoryStore())
    environment = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)))
    return _connected(url.scheme, url.bucket, os.getpid(), environment)


@functools.lru_cache(maxsize=64)
def _connected(scheme: str, bucket: str, _process: int, environment: tuple[tuple[str, str], ...]) -> Any:
    from obstore import store

    endpoints = [value for name, value in environment if "ENDPOINT" in name or name == "GOOGLE_BASE_URL"]
    client: Any = {
        "allow_http": scheme == "http" or any(value.startswith("http://") for value in endpoints),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "read_timeout": timedelta(seconds=ANSWER_S),
        "timeout": timedelta(seconds=REQUEST_S),
    }
    backoff: Any = {
        "init_backoff": timedelta(seconds=FIRST_BACKOFF_S),
        "max_backoff": timedelta(seconds=LONGEST_BACKOFF_S),
        "base": 2,
    }
    retries: Any = {"max_retries": RETRIES, "backoff": backoff, "retry_timeout": timedelta(seconds=RETRY_S)}
    if scheme in ("http", "https"):
        return store.HTTPStore(f"{scheme}://{bucket}", client_options=client, retry_config=retries)
    kind = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
    return kind(bucket, client_options=client, retry_config=retries)
