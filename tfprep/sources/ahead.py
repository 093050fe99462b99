"""Raw files at URLs are read some files ahead of their use: a worker that reads one after the other waits most of the time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from tfprep.errors import SampleError, StorageError
from tfprep.sources.raw import Read, read_raw
from tfprep.storage.urls import is_remote

FILES, MOST_BYTES = 16, 4 << 20
"""Files ahead, and the largest of them, so that they take at most 64 MB of a worker. At 30 ms they are 500 files a second."""


class FilesAhead:
    """Files are read in the order in which they will be asked for. One that cannot be read ahead is read once more when it is."""

    def __init__(self, root: Path, files: Iterator[str], pool: ThreadPoolExecutor) -> None:
        self._root, self._files, self._pool = root, files, pool
        self._ahead: deque[tuple[str, Future[bytes | None]]] = deque()

    def read(self, root: Path, file: str) -> bytes:
        """Return a file's content, as `tfprep.sources.raw.read_raw` does."""
        for name in itertools.islice(self._files, FILES - len(self._ahead)):
            self._ahead.append((name, self._pool.submit(_read_small, self._root, name)))
        content = self._take(file) if any(name == file for name, _ in self._ahead) else None
        return read_raw(root, file) if content is None else content

    def _take(self, file: str) -> bytes | None:
        while self._ahead[0][0] != file:  # files of a sample that was rejected before they were needed
            self._ahead.popleft()[1].cancel()
        return self._ahead.popleft()[1].result()


@contextmanager
def files_ahead(root: Path, files: Iterable[str]) -> Iterator[Read]:
    """Begin to read these files, in their order. The value stands in for `read_raw`, and is that for files of this machine."""
    files = list(files)
    if not is_remote(root) and not any("://" in file for file in files):
        yield read_raw
        return
    pool = ThreadPoolExecutor(FILES, "tfprep-raw")
    try:
        yield FilesAhead(root, iter(files), pool).read
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _read_small(root: Path, file: str) -> bytes | None:
    """Return the content, None if it cannot be read. A larger file is read when its sample comes, whose memory it then takes."""
    with suppress(SampleError, StorageError):
        return read_raw(root, file, MOST_BYTES)
    return None
