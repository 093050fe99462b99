"""Raw files, in a folder of this machine or below a URL: their names, their states, and the bytes of a reference.

A reference is text, as the entries of a listing hold it: `cat/1.jpg` is a file below the root. A part of a file has the first
byte, the number of bytes (with `z` if they are deflated), and the name of the member, as in
`shards/a.tar//1536+20480//cat/1.jpg`. Paths of sources never hold two slashes in a row, so that no file has such a name. An
absolute path is that of a copy on this machine (`tfprep.sources.staging`).

A source gets its root from `raw_root`: a `Path`, or a `RawUrl`, which has those methods of a `Path` that sources use. What is
below a URL is listed once for each root, with one request for 1,000 objects, when a name is first needed.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import stat
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from tfprep.errors import SampleError, SourceError, StorageError
from tfprep.images import MAX_FILE_BYTES, check_file_size
from tfprep.storage.address import Url
from tfprep.storage.store import open_store
from tfprep.storage.urls import PathOrUrl, folder_at, is_remote, open_file

Read: TypeAlias = Callable[[Path, str], bytes]
"""Reads a reference below a root: `read_raw`, or a stand-in for it."""


class Names(NamedTuple):
    """The names in a folder: of files, of folders, and how many are of neither, such as pipes."""

    files: list[str]
    folders: list[str]
    others: int = 0


class RawState(NamedTuple):
    """Identity of a file's content: size and time of change, or at a URL the store's entity tag; and its size.

    The text of a file that cannot be looked at is the name of an error. `identity` is empty at a URL; on this machine it also
    differs where another file of the same size and time took the place, but is not a property of a copy on another machine.
    """

    text: str
    bytes: int = 0
    identity: str = ""


class _Objects:
    """The objects below a URL, by folder and name. They are listed when they are first needed."""

    def __init__(self, url: Url) -> None:
        self._url = url

    @cached_property
    def folders(self) -> Mapping[str, dict[str, RawState | None]]:
        """The state of each file by folder and name; None stands for a folder."""
        folders: dict[str, dict[str, RawState | None]] = {"": {}}
        for info in open_store(self._url).list():
            folder, _, name = info.name.rpartition("/")
            _add_folder(folders, folder)
            if folders[folder].get(name, info):  # some tools write an empty object in the name of each folder
                text = f"{info.bytes}:{info.version or info.modified}".replace(" ", "_")
                folders[folder][name] = RawState(text, info.bytes)
        if not folders[""]:
            raise SourceError(
                f"{self._url}: there are no objects below this URL; say where the raw files are with --data"
            )
        return folders

    def state(self, path: str) -> RawState:
        folder, _, name = path.rpartition("/")
        return self.folders.get(folder, {}).get(name) or _MISSING


_MISSING = RawState("FileNotFoundError")


@dataclass(frozen=True, order=True)
class RawUrl(Url):
    """A raw file at a URL, or a folder of them. The objects are those below the root."""

    objects: _Objects = field(compare=False, repr=False)
    path: str = ""
    """The path below the root."""

    def __str__(self) -> str:
        return super().__str__()

    def __truediv__(self, name: str) -> RawUrl:
        path = f"{self.path}/{name}".strip("/")
        return RawUrl(self.scheme, self.bucket, f"{self.key}/{name}".strip("/"), self.objects, path)

    def absolute(self) -> RawUrl:
        return self

    @property
    def suffix(self) -> str:
        return os.path.splitext(self.key)[1]

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the file for reading; 4 MB are one request."""
        assert mode == "rb", mode
        return open_file(self)  # type: ignore[arg-type]

    def read_bytes(self) -> bytes:
        return bytes(open_store(self.parent).read_whole(self.name, lambda size: None))

    def read_text(self, encoding: str) -> str:
        return self.read_bytes().decode(encoding)

    def is_dir(self) -> bool:
        return self.path in self.objects.folders

    def exists(self) -> bool:
        return self.is_dir() or self.objects.state(self.path) is not _MISSING


def raw_root(place: PathOrUrl) -> Path:
    """Return the root of raw files: a `Path`, or for a URL a new `RawUrl`, which has the methods of a `Path` that sources use.

    Raises:
        DatasetError: The URL's scheme is unknown, or it carries credentials.
        SourceError: It is that of a web server.
        MissingDependencyError: The package for object stores is not installed.
    """
    root: Any = place if _remote(place) else folder_at(place)
    if is_remote(root) and not _remote(root):
        if root.scheme in ("http", "https"):
            raise SourceError(f"{root}: a web server does not list its files; copy them to a folder or an object store")
        root = RawUrl(root.scheme, root.bucket, root.key, _Objects(root))
    return root  # type: ignore[no-any-return]


def names_of(folder: Path) -> Names:
    """Return the names in a folder, in any order. Names that begin with a dot are among them. Raises OSError, SourceError."""
    if url := _remote(folder):
        states = url.objects.folders.get(url.path, {})
        return Names([name for name, state in states.items() if state], [n for n, state in states.items() if not state])
    names = Names([], [])
    others = 0
    with os.scandir(os.fspath(folder)) as entries:
        for item in entries:
            try:
                is_folder = item.is_dir()
            except OSError:  # a link to itself: it counts as a file, and reading it rejects only that sample
                is_folder = False
            if is_folder:
                names.folders.append(item.name)
            elif item.is_symlink() or item.is_file():  # a dangling link counts as a file: reading it rejects one sample
                names.files.append(item.name)
            else:
                others += 1
    return names._replace(others=others)


def raw_states(root: Path, texts: Iterable[str]) -> dict[str, RawState]:
    """Return the state of each file that the references are to, by `Reference.file`; each file is looked at once."""
    files = list(dict.fromkeys(texts))
    plain = "//" not in "\0".join(files)  # Most references are paths of whole files, and a plan has millions.
    if not plain:
        files = list(dict.fromkeys(parse_reference(text).file for text in files))
    url = _remote(root)
    return {
        file: url.objects.state(file) if url and not file.startswith("/") else _local_state(_local_path(root, file))
        for file in files
    }


def state_of(path: Path) -> RawState:
    """Return the state of a raw file: a path below the root of a source."""
    url = _remote(path)
    return url.objects.state(url.path) if url else _local_state(str(path))


def open_raw(path: Path) -> BinaryIO:
    """Open a whole file below a root for reading. OSError also if it is not a regular file: a FIFO would wait for a writer."""
    if url := _remote(path):
        return url.open()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def arrow_input(path: Path) -> Path | BinaryIO:
    """Return what Arrow reads a file from: by itself if it is of this machine. The errors are those of `open_raw`."""
    file = open_raw(path)
    if _remote(path):
        return file
    file.close()
    return path


def read_whole(path: Path) -> bytes:
    """Return the content of a file below a root; the errors are those of `open_raw`."""
    with open_raw(path) as file:
        return file.read()


def text_lines(path: Path, what: str) -> list[str]:
    """Return the lines of a text file of UTF-8, without the spaces around them. SourceError names `what` cannot be read."""
    try:
        return [line.strip() for line in read_whole(path).decode("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot read the {what}: {error}") from error


def read_raw(root: Path, text: str, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes that a reference is to.

    Args:
        root: The root of the raw files.
        text: The reference.
        most_bytes: The most bytes. Their number is compared before they are read, and that of a deflated member once more when it
            is inflated.

    Raises:
        SampleError: The file is missing, cannot be read, is larger than `most_bytes`, or ends too early.
        StorageError: A store cannot be reached, or refuses.
    """
    reference, check = parse_reference(text), functools.partial(check_file_size, most_bytes=most_bytes)
    if reference.missing:
        raise SampleError(f"there is no member {reference.member!r} in {reference.file}")
    check(reference.bytes or 0)
    remote = None if reference.file.startswith("/") else _remote(root)
    url = remote / reference.file if remote else None
    try:
        if url is None:
            data = _read_local(root, reference, check)
        elif reference.bytes is None:
            data = bytes(open_store(url.parent).read_whole(url.name, check))
        else:
            end = reference.start + reference.bytes
            data = bytes(open_store(url.parent).read(url.name, reference.start, end))
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise SampleError("cannot read the file: there is no such object") from error.__cause__
        raise
    if reference.bytes is None:
        return data
    if len(data) != reference.bytes:
        lost = reference.bytes - len(data)
        raise SampleError(f"the container ends {lost} bytes before the member does; it was cut short")
    if not reference.deflated:
        return data
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = inflate.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise SampleError(f"the member is damaged: {error}") from error
    check(len(content))
    if not inflate.eof:
        raise SampleError("the member is damaged: its compressed data has no end")
    return content


def file_system_of(root: Path) -> str:
    """Return what two looks at the raw files share if `RawState.identity` can be compared between them; "" if it never can."""
    if _remote(root):
        return ""
    device = os.stat(root).st_dev
    with suppress(OSError):  # Other systems than Linux have no such file.
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, kind = line.partition(" - ")
            # File systems in user space may number their files again with every mount, or every look.
            if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}" and kind.startswith("fuse"):
                return ""
    return f"{os.statvfs(root).f_fsid:x}"


# --- files of this machine --------------------------------------------------------------------------------------------


def _local_path(root: Path, file: str) -> str:
    """The path of a file below the root, or of a copy of one (`tfprep.sources.staging`), whatever the root."""
    return file if file.startswith("/") else os.path.join(root, file)


def _local_state(path: str) -> RawState:
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        return RawState(type(error).__name__)
    return RawState(f"{status.st_size}:{status.st_mtime_ns}", status.st_size, f"{status.st_ctime_ns}:{status.st_ino}")


def _read_local(root: Path, reference: Reference, check: Callable[[int], None]) -> bytes:
    try:
        # O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
        descriptor = os.open(_local_path(root, reference.file), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # reading a folder fails below
                raise SampleError("not a regular file")
            if reference.bytes is not None:
                return os.pread(descriptor, reference.bytes, reference.start)
            check(status.st_size)
            return _read_to_end(descriptor, status.st_size, check)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SampleError(f"cannot read the file: {reason}") from error


def _read_to_end(descriptor: int, size: int, check: Callable[[int], None]) -> bytes:
    """Return the content of a file that has `size` bytes: two calls of the system, where a file object takes eight.

    A file that grows, one larger than a single read, and those of the kernel, whose size is 0, take more; `check` raises if
    they are too large.
    """
    parts, total = [], 0
    while part := os.read(descriptor, max(size + 1 - total, 1 << 16)):
        total += len(part)
        check(total)
        parts.append(part)
    return b"".join(parts)


def _remote(root: object) -> RawUrl | None:
    return root if isinstance(root, RawUrl) else None


def _add_folder(folders: dict[str, dict[str, RawState | None]], folder: str) -> None:
    if folder not in folders:
        above, _, name = folder.rpartition("/")
        _add_folder(folders, above)
        folders[above][name], folders[folder] = None, {}


_MARK = "//"
_NOT_THERE = "missing"


class Reference(NamedTuple):
    """A place of raw bytes.

    Attributes:
        file: The path of a file relative to the root, or the absolute path of a copy.
        start: The first byte of the part.
        bytes: The number of bytes of the part; None for the whole file.
        deflated: Whether the part is deflated, as members of zip files are.
        member: The name of the member of an archive; "" for a whole file.
        missing: Whether the member is expected and not there: reading it rejects its sample.
    """

    file: str
    start: int = 0
    bytes: int | None = None
    deflated: bool = False
    member: str = ""
    missing: bool = False

    def __str__(self) -> str:
        if self.missing:
            return f"{self.file}{_MARK}{_NOT_THERE}{_MARK}{self.member}"
        if self.bytes is None:
            return self.file
        return f"{self.file}{_MARK}{self.start}+{self.bytes}{'z' * self.deflated}{_MARK}{self.member}"


def parse_reference(text: str) -> Reference:
    """Return what the text of a reference says."""
    if _MARK not in text:  # most texts, and a listing has millions
        return Reference(text)
    file, _, part = text.partition(_MARK)
    place, _, member = part.partition(_MARK)
    if place == _NOT_THERE:
        return Reference(file, member=member, missing=True)
    start, _, size = place.removesuffix("z").partition("+")
    return Reference(file, int(start), int(size), place.endswith("z"), member)


FILES_AHEAD, MOST_BYTES = 16, 4 << 20
"""Files ahead, and the largest of them, so that they take at most 64 MB of a worker. At 30 ms they are 500 files a second."""


@contextmanager
def files_ahead(root: Path, files: Iterable[str]) -> Iterator[Read]:
    """Begin to read these files, in their order. The value stands in for `read_raw`, and is that for files of this machine.

    A file that cannot be read ahead, or is large, is read when its sample comes, whose memory it then takes.
    """
    if not is_remote(root):
        yield read_raw
        return

    def read_small(file: str) -> bytes | None:
        with suppress(SampleError, StorageError):
            return read_raw(root, file, MOST_BYTES)
        return None

    def read(root: Path, file: str) -> bytes:
        for name in itertools.islice(left, FILES_AHEAD - len(ahead)):
            ahead.append((name, pool.submit(read_small, name)))
        if not any(name == file for name, _ in ahead):
            return read_raw(root, file)
        while ahead[0][0] != file:  # files of a sample that was rejected before they were needed
            ahead.popleft()[1].cancel()
        content = ahead.popleft()[1].result()
        return read_raw(root, file) if content is None else content

    left, ahead = iter(files), deque[tuple[str, Future[bytes | None]]]()
    pool = ThreadPoolExecutor(FILES_AHEAD, "tfprep-raw")
    try:
        yield read
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
