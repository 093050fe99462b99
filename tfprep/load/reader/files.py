"""Records by their offsets: bytes of shard files held open, or of byte ranges fetched from a URL, which are kept until
they are removed.

A record's large fields are read straight to where they belong, the rest into scratch memory.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from tfprep.errors import DatasetError, DatasetReplacedError, RecordError, StorageError
from tfprep.fields import Array
from tfprep.load.order.schedule import Numbers
from tfprep.load.reader.thread_state import Scratch
from tfprep.records.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, OTHER_RECORD, footer_crc, masked
from tfprep.storage.local import FileIdentity, identity_of, regular_descriptor
from tfprep.storage.store import Store, open_store
from tfprep.storage.urls import is_remote


@dataclass(eq=False)
class ByteRange:
    """A byte range [start, stop) of a file, fetched with one request, for `records`, whose frames begin at `frames`."""

    file: int
    start: int
    stop: int
    last_step: int
    records: Numbers
    frames: tuple[int, ...]
    content: Array | None = None
    error: DatasetError | None = None
    claim: threading.Lock = field(default_factory=threading.Lock)
    ready: threading.Event = field(default_factory=threading.Event)

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class Fetched:
    """The byte ranges of all readers of a loader, by record. It makes the requests and counts them. Any thread may use it."""

    def __init__(self, paths: Sequence[Any]) -> None:
        self._paths = paths
        self._stores: dict[Any, Store] = {}
        self._ranges: dict[tuple[int, int], tuple[ByteRange, ...]] = {}
        self._versions: dict[Any, str] = {}
        self._lock = threading.Lock()
        self.requests, self.bytes = 0, 0

    def add(self, ranges: Sequence[ByteRange]) -> None:
        with self._lock:
            for part in ranges:
                for frame in part.frames:
                    self._ranges[part.file, frame] = (*self._ranges.get((part.file, frame), ()), part)

    def remove(self, ranges: Sequence[ByteRange]) -> None:
        with self._lock:
            for part in ranges:
                for frame in part.frames:
                    others = tuple(other for other in self._ranges.get((part.file, frame), ()) if other is not part)
                    if others:
                        self._ranges[part.file, frame] = others
                    else:
                        self._ranges.pop((part.file, frame), None)

    def read(self, file: int, frame: int, start: int, stop: int) -> Array:
        """Return the bytes [start, stop) of a record, fetched ahead or now; fewer where the file ends before.

        Raises:
            StorageError: The store does not deliver them.
        """
        if start == stop:
            return np.empty(0, np.uint8)
        for part in self._ranges.get((file, frame), ()):
            if part.start <= start and stop <= part.stop:
                content = self.content(part)
                return content[start - part.start : stop - part.start]
        return self.request(file, start, stop)

    def content(self, part: ByteRange) -> Array:
        """Return the bytes of a range: fetch them, or wait for the thread that does."""
        if not self.fetch(part):
            part.ready.wait()
        if part.content is None:
            assert part.error is not None
            raise type(part.error)(str(part.error))  # a new one: many threads may raise it
        return part.content

    def fetch(self, part: ByteRange) -> bool:
        """Fetch a range, unless another thread has begun to; return whether this thread did."""
        if not part.claim.acquire(blocking=False):
            return False
        try:
            part.content = self.request(part.file, part.start, part.stop)
        except (StorageError, DatasetReplacedError) as error:
            part.error = error
        except BaseException as error:
            part.error = StorageError(f"{self._paths[part.file]} cannot be read ({type(error).__name__}: {error})")
            raise
        finally:
            part.ready.set()
        return True

    def request(self, file: int, start: int, stop: int) -> Array:
        """Read bytes of a file with one request.

        Raises:
            DatasetReplacedError: They are of another object than the bytes that were read before.
            StorageError: The store does not deliver them.
        """
        path = self._paths[file]
        data, version = self._store(path).read_version(path.name, start, stop)
        content = np.frombuffer(data, np.uint8)
        with self._lock:
            if version and version != self._versions.setdefault(path, version):
                raise DatasetReplacedError(
                    f"{path} was replaced since the loader began to read it; open the dataset again"
                )
            self.requests, self.bytes = self.requests + 1, self.bytes + len(content)
        return content

    def _store(self, path: Any) -> Store:
        folder = path.parent
        if folder not in self._stores:
            self._stores[folder] = open_store(folder)
        return self._stores[folder]


OPEN_FILES = 256
"""Shards held open at a time; the usual limit of a process is 1,024 descriptors."""


class _LocalFile:
    """A descriptor that closes when its last user lets go: a file may leave the cache while a thread reads from it."""

    def __init__(self, path: Path) -> None:
        self.fd = -1  # for `__del__`, if the next line raises
        self.fd = regular_descriptor(path)

    @cached_property
    def content(self) -> Array | None:
        """A memory map of the file, uint8 [bytes]; None where it cannot be mapped, as an empty one, or under `ulimit -v`."""
        try:
            return np.frombuffer(mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ), np.uint8)
        except (OSError, ValueError):
            return None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At the end of the interpreter the name `os` may be gone already, the argument is not.
        if self.fd >= 0:
            close(self.fd)


class Files:
    """Shard files by their number in `paths`, opened when first asked for. Safe to use from any thread.

    A file that is opened must be the one that was there when the loader was made: a build renames its shards to their places, so
    that another inode is another build's. Of one that was written to in place since then, `changed` says so: the checksums of
    each of its records are to be compared.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        identities: Sequence[FileIdentity | None],
        *,
        damaged: Callable[[int], None] | None = None,
        limit: int = OPEN_FILES,
    ) -> None:
        """`identities`: those of the files when the loader was made; None where any file will do, such as a copy of a shard.
        `damaged`: called with the number of a file that is a copy on a local disk, where a record of it is damaged."""
        self.paths, self._identities = paths, identities
        self.remote = np.array([is_remote(path) for path in paths], bool)
        self.fetched = Fetched(paths)
        self.changed = np.zeros(len(paths), bool)
        self._limit, self._damaged = limit, damaged
        self._open: OrderedDict[int, _LocalFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, number: int) -> _LocalFile:
        """The open file; the least recently used is closed where there are too many.

        Raises:
            DatasetReplacedError: Another file has taken its place.
            DatasetError: It cannot be opened.
        """
        with self._lock:
            if number in self._open:
                self._open.move_to_end(number)
                return self._open[number]
            file = self._open[number] = self._opened(number)
            if len(self._open) > self._limit:
                self._open.popitem(last=False)
            return file

    def _opened(self, number: int) -> _LocalFile:
        path, identity = self.paths[number], self._identities[number]
        try:
            file = _LocalFile(path)
        except DatasetError as error:
            if identity is not None and isinstance(error.__cause__, FileNotFoundError):
                raise _replaced(path, "removed") from error
            raise
        if identity is not None and (now := identity_of(os.fstat(file.fd))) != identity:
            if (now.device, now.inode) != (identity.device, identity.inode):
                raise _replaced(path, "replaced")
            self.changed[number] = True
        return file

    def will_need(self, number: int, offset: int, size: int) -> None:
        """Let the system begin to read these bytes; it does not wait for them."""
        if hasattr(os, "posix_fadvise") and not self.remote[number]:
            file = self.get(number)  # this name keeps it open: another thread may push it out of the cache meanwhile
            os.posix_fadvise(file.fd, offset, size, os.POSIX_FADV_WILLNEED)

    def arrived(self, number: int) -> None:
        """Read this file from where it lies now: on a local disk."""
        self.remote[number] = is_remote(self.paths[number])

    def recover(self, number: int) -> bool:
        """Give up the local copy of a file with a damaged record; return whether the record is worth another reading."""
        if self._damaged is None:
            return False
        with self._lock:
            if not self.remote[number]:
                self._damaged(number)  # the path is the URL again
                self.remote[number] = True
                self._open.pop(number, None)
        return True

    def close(self) -> None:
        """Close all files as soon as nobody reads from them."""
        with self._lock:
            self._open.clear()


def _replaced(path: Path, how: str) -> DatasetReplacedError:
    return DatasetReplacedError(f"{path} was {how} since the loader was made; open the dataset again")


def read_at(descriptor: int, target: Array, offset: int) -> bool:
    """Fill a uint8 array with the file's bytes from `offset` on, without the GIL; False where one `preadv` does not."""
    try:
        return os.preadv(descriptor, (target,), offset) == target.nbytes  # type: ignore[arg-type] # NumPy's stubs
    except OSError:
        return False


def read_into(file: _LocalFile, path: Path, offset: int, pieces: list[Array], wanted: int) -> None:
    """Fill the uint8 arrays, `wanted` bytes together, with the file's from `offset` on: one `preadv`, without the GIL.

    RecordError where the file ends early, or the disk fails.
    """
    got = 0
    while got < wanted:  # a signal or a network file system may give less at a time
        try:
            more = os.preadv(file.fd, _behind(pieces, got), offset + got)  # type: ignore[arg-type] # before 3.12
        except OSError as error:
            reason = f"cannot be read: {error.strerror} (errno {error.errno})"
            raise RecordError(reason, path=str(path), record=None, offset=offset) from error
        if more == 0:
            raise cut_short(path, offset, got, wanted)
        got += more


def cut_short(path: Path, offset: int, got: int, wanted: int) -> RecordError:
    return RecordError(f"cut short: the file holds {got} of {wanted} bytes", path=str(path), record=None, offset=offset)


def _behind(pieces: list[Array], skip: int) -> list[Array]:
    if not skip:
        return pieces
    rest = []
    for piece in pieces:
        if skip < piece.nbytes:
            rest.append(piece[skip:])
        skip = max(0, skip - piece.nbytes)
    return rest


SKIP_BYTES = 64 << 10
"""A gap between wanted fields of at most this is read along with them; behind a larger one a second read begins."""


class FieldSpan(NamedTuple):
    """Place of a field's bytes in the file, and the memory they are read into (None: scratch)."""

    name: str
    offset: int
    size: int
    target: Array | None


class Record(NamedTuple):
    """A record: the number of its file, where its frame lies there, and the masked CRC-32C of its payload by the index."""

    file: int
    offset: int
    size: int
    payload_crc: int


def read_fields(
    files: Files, record: Record, spans: Sequence[FieldSpan], scratch: Scratch, *, verify: bool, whole: bool = False
) -> dict[str, Array]:
    """The bytes of each field as uint8 [N]: the target given, or scratch memory valid until the next call.

    `spans` stand in the order of their offsets. With `verify` the whole frame is read and both checksums are compared; with
    `whole` the payload comes as the field "" too; without, only what lies between the fields is read. Raises RecordError.
    """
    if files.remote[record.file]:
        return _fetched_fields(files, record, spans, verify=verify, whole=whole)
    scratch.reset(record.size)
    contents: dict[str, Array] = {}
    everything = verify or whole
    for run in [spans] if everything else _runs(spans):
        start = record.offset if everything else run[0].offset
        stop = record.offset + record.size if everything else run[-1].offset + run[-1].size
        if any(span.target is not None for span in run):
            pieces = _scattered(run, start, stop, scratch, contents)
        else:
            pieces = [scratch.take(stop - start)]
            for span in run:
                contents[span.name] = pieces[0][span.offset - start : span.offset - start + span.size]
        read_into(files.get(record.file), files.paths[record.file], start, pieces, stop - start)
        if verify:
            check_pieces(files.paths[record.file], record, pieces)
        if whole:
            contents[""] = pieces[0][HEADER_BYTES:-FOOTER_BYTES]
    return contents


def _fetched_fields(
    files: Files, record: Record, spans: Sequence[FieldSpan], *, verify: bool, whole: bool
) -> dict[str, Array]:
    """`read_fields` of a record at a URL: views of the memory that it was fetched into, copied to the targets given."""
    contents: dict[str, Array] = {}
    path, everything = files.paths[record.file], verify or whole
    for run in [spans] if everything else _runs(spans):
        start = record.offset if everything else run[0].offset
        stop = record.offset + record.size if everything else run[-1].offset + run[-1].size
        content = files.fetched.read(record.file, record.offset, start, stop)
        if len(content) < stop - start:
            raise cut_short(path, start, len(content), stop - start)
        if verify:
            check_pieces(path, record, [content])
        for span in run:
            field = contents[span.name] = content[span.offset - start : span.offset - start + span.size]
            if span.target is not None:
                span.target[:] = field
        if whole:
            contents[""] = content[HEADER_BYTES:-FOOTER_BYTES]
    return contents


def _runs(spans: Sequence[FieldSpan]) -> Sequence[Sequence[FieldSpan]]:
    """The spans in as few reads as need not skip much."""
    if len(spans) == 1:
        return [spans]
    runs = [[spans[0]]]
    for span in spans[1:]:
        last = runs[-1][-1]
        if span.offset - last.offset - last.size > SKIP_BYTES:
            runs.append([])
        runs[-1].append(span)
    return runs


def _scattered(
    run: Sequence[FieldSpan], start: int, stop: int, scratch: Scratch, contents: dict[str, Array]
) -> list[Array]:
    """Memory for the bytes from `start` to `stop`: the fields' own, and scratch for what lies between."""
    pieces = []
    for span in run:
        if span.offset > start:
            pieces.append(scratch.take(span.offset - start))
        contents[span.name] = scratch.take(span.size) if span.target is None else span.target
        pieces.append(contents[span.name])
        start = span.offset + span.size
    if stop > start:
        pieces.append(scratch.take(stop - start))
    return pieces


def check_pieces(path: Path, record: Record, pieces: Sequence[Array]) -> None:
    """Compare both checksums of a frame that lies in these pieces of memory; RecordError where one is wrong.

    The first piece holds at least the header, the last at least the footer.
    """
    header, last = pieces[0], pieces[-1]
    if sum(map(len, pieces)) < record.size:
        raise _wrong(path, record, f"cut short: the file holds {sum(map(len, pieces))} of {record.size} bytes")
    length, length_crc = struct.unpack("<QI", header[:HEADER_BYTES].tobytes())
    if length_crc != masked(google_crc32c.value(header[:8])):
        raise _wrong(path, record, "wrong checksum of the length; the file is damaged here, or is no TFRecord file")
    if length + FRAME_BYTES != record.size:
        raise _wrong(path, record, f"the frame holds {length + FRAME_BYTES} bytes, the index says {record.size}")
    crc, stored_crc = 0, footer_crc(last[-FOOTER_BYTES:].tobytes())
    for number, piece in enumerate(pieces):
        first = HEADER_BYTES if number == 0 else 0
        stop = len(piece) - (FOOTER_BYTES if number == len(pieces) - 1 else 0)
        crc = google_crc32c.extend(crc, piece[first:stop])
    if stored_crc != masked(crc):
        raise _wrong(path, record, "wrong checksum of the payload")
    if stored_crc != record.payload_crc:
        raise _wrong(path, record, OTHER_RECORD)


def _wrong(path: Path, record: Record, reason: str) -> RecordError:
    return RecordError(reason, path=str(path), record=None, offset=record.offset)
