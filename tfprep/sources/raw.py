"""Raw files: the names in a folder, the states of files, and the bytes of a reference.

A reference is text, as the entries of a listing hold it: `cat/1.jpg` is a file below the root. A part of a file has the first
byte, the number of bytes (with `z` if they are deflated), in a zip file the CRC-32 of the content, and the name of the member, as
in `shards/a.tar//1536+20480//cat/1.jpg` and `a.zip//37+2048z#1c291ca3//cat/1.jpg`. Paths of sources never hold two slashes in a
row, so that no file has such a name. An absolute path is that of a copy on this machine (`staged`).

Raw files are on this machine. Only datasets are read at URLs (`tfprep.dataset.Records`): their references name files below a root
that is a URL, or objects by their own, such as `s3://bucket/a.tfrecord//57+2048//key`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import zlib
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from tfprep.errors import SampleError, SourceError, StorageError
from tfprep.fields import Array
from tfprep.images import MAX_FILE_BYTES, check_file_size
from tfprep.storage.address import Url, parse_url
from tfprep.storage.local import whole_file, writing
from tfprep.storage.store import open_store
from tfprep.storage.urls import is_remote


class RawState(NamedTuple):
    """Identity of a file's content: size and time of change, or at a URL the store's entity tag; and its size.

    The text of a file that cannot be looked at is the name of an error. `identity` is empty at a URL; on this machine it also
    differs where another file of the same size and time took the place, but is not a property of a copy on another machine.
    """

    text: str
    bytes: int = 0
    identity: str = ""


def check_local(root: str | Path) -> None:
    """Raise SourceError if a root is a URL."""
    if is_remote(root):
        raise SourceError(f"{root}: raw files are read from folders; copy them first, as with `aws s3 sync`")


def names_of(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the folders in a folder, in any order, hidden ones among them. Raises OSError.

    What is neither a file nor a folder, such as a pipe or a dangling link, counts as a file: only its sample is rejected.
    """
    files, folders = list[str](), list[str]()
    with os.scandir(os.fspath(folder)) as entries:
        for item in entries:
            try:
                is_folder = item.is_dir()
            except OSError:  # a link to itself
                is_folder = False
            (folders if is_folder else files).append(item.name)
    return files, folders


def raw_states(root: Path, texts: Iterable[str]) -> dict[str, RawState]:
    """Return the state of each file that the references are to, by `Reference.file`; each file is looked at once."""
    files = list(dict.fromkeys(texts))
    if "//" in "\0".join(files):  # Most references are paths of whole files, and a plan has millions.
        files = list(dict.fromkeys(parse_reference(text).file for text in files))
    return {file: _state(root, file) for file in files}


def open_raw(path: str | Path) -> BinaryIO:
    """Open a whole file for reading. OSError also if it is not a regular file: a FIFO would wait for a writer."""
    check_local(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


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
    reference = parse_reference(text)
    if reference.missing:
        raise SampleError(f"there is no member {reference.member!r} in {reference.file}")
    url = _url(root, reference.file)
    if reference.bytes is not None:
        return _read_part(root, url, reference, reference.bytes, most_bytes)
    if url is not None:
        raise SampleError("a whole object at a URL is not read; copy the files first")
    return _read_local(root, reference, most_bytes)


def _read_part(root: Path, url: Url | None, reference: Reference, size: int, most_bytes: int) -> bytes:
    """Read a part of a file, of `size` bytes, and inflate and check it as its reference says."""
    check_file_size(size, most_bytes)
    try:
        if url is None:
            data = _read_local(root, reference, most_bytes)
        else:
            data = bytes(open_store(url.parent).read(url.name, reference.start, reference.start + size))
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise SampleError("cannot read the file: there is no such object") from error.__cause__
        raise
    if len(data) != size:
        lost = size - len(data)
        raise SampleError(f"the container ends {lost} bytes before the member does; it was cut short")
    if reference.deflated:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            data = inflate.decompress(data, most_bytes + 1)
        except zlib.error as error:
            raise SampleError(f"the member is damaged: {error}") from error
        check_file_size(len(data), most_bytes)
        if not inflate.eof:
            raise SampleError("the member is damaged: its compressed data has no end")
    if reference.crc not in (None, zlib.crc32(data)):
        raise SampleError("the member is damaged: its checksum is wrong")
    return data


def file_system_of(root: Path) -> str:
    """Return what two looks at the raw files share if `RawState.identity` can be compared between them; "" if it never can."""
    if is_remote(root):
        return ""
    device = os.stat(root).st_dev
    with suppress(OSError):  # Other systems than Linux have no such file.
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, kind = line.partition(" - ")
            # File systems in user space may number their files again with every mount, or every look.
            if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}" and kind.startswith("fuse"):
                return ""
    return f"{os.statvfs(root).f_fsid:x}"


def state_of(path: str | Path) -> RawState:
    """Return the state of a file of this machine."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        return RawState(type(error).__name__)
    return RawState(f"{status.st_size}:{status.st_mtime_ns}", status.st_size, f"{status.st_ctime_ns}:{status.st_ino}")


def _read_local(root: Path, reference: Reference, most_bytes: int) -> bytes:
    try:
        # An absolute path, of a copy (`staged`), is one whatever the root.
        with open_raw(os.path.join(root, reference.file)) as file:
            if reference.bytes is not None:
                return os.pread(file.fileno(), reference.bytes, reference.start)
            check_file_size(os.fstat(file.fileno()).st_size, most_bytes)
            data = file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SampleError(f"cannot read the file: {reason}") from error
    check_file_size(len(data), most_bytes)  # once more: it may grow, and the kernel's files say that they are empty
    return data


def _url(root: Path, file: str) -> Url | None:
    """Return the URL of a reference's file; None if it is a file of this machine."""
    if "://" in file:
        return parse_url(file)
    return root / file if isinstance(root, Url) and not file.startswith("/") else None


def _state(root: Path, file: str) -> RawState:
    url = _url(root, file)
    if url is None:
        return state_of(os.path.join(root, file))
    try:
        info = open_store(url.parent).info(url.name)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return RawState("FileNotFoundError")
        raise
    return RawState(f"{info.bytes}:{info.version or info.modified}".replace(" ", "_"), info.bytes)


_MARK = "//"
_NOT_THERE = "missing"
_SCHEME = re.compile(r"[a-z][a-z0-9]*://")


class Reference(NamedTuple):
    """A place of raw bytes.

    Attributes:
        file: The path of a file relative to the root, the absolute path of a copy, or a URL.
        start: The first byte of the part.
        bytes: The number of bytes of the part; None for the whole file.
        deflated: Whether the part is deflated, as members of zip files are.
        member: The name of the member of an archive; "" for a whole file.
        missing: True if the member is expected and not there: its sample is rejected when it is read.
        crc: The CRC-32 of the content, where the archive gives it.
    """

    file: str
    start: int = 0
    bytes: int | None = None
    deflated: bool = False
    member: str = ""
    missing: bool = False
    crc: int | None = None

    def __str__(self) -> str:
        if self.missing:
            return f"{self.file}{_MARK}{_NOT_THERE}{_MARK}{self.member}"
        if self.bytes is None:
            return self.file
        crc = "" if self.crc is None else f"#{self.crc:08x}"
        return f"{self.file}{_MARK}{self.start}+{self.bytes}{'z' * self.deflated}{crc}{_MARK}{self.member}"


def parse_reference(text: str) -> Reference:
    """Return what the text of a reference says."""
    if _MARK not in text:  # most texts, and a listing has millions
        return Reference(text)
    scheme = _SCHEME.match(text)
    end = text.find(_MARK, scheme.end() if scheme else 0)
    if end < 0:
        return Reference(text)
    place, _, member = text[end + len(_MARK) :].partition(_MARK)
    if place == _NOT_THERE:
        return Reference(text[:end], member=member, missing=True)
    place, _, crc = place.partition("#")
    start, _, size = place.removesuffix("z").partition("+")
    return Reference(text[:end], int(start), int(size), place.endswith("z"), member, crc=int(crc, 16) if crc else None)


# --- copies -------------------------------------------------------------------------------------------------------------

VARIABLE = "TFPREP_STAGING"


def staged(path: Path, kind: str, write: Callable[[BinaryIO], None], maker: str = "") -> Path:
    """Return the copy of a file whose parts cannot be read by themselves, in a form whose parts can; make it if there is none.

    Copies are in the folder that TFPREP_STAGING names, by default `~/.cache/tfprep/staging`. A copy belongs to one state of its
    file, and to one version of the library that decodes it; its name holds its size: a copy that was cut short is made again. The
    folder may be deleted at any time: the next build makes what it needs again.

    Args:
        path: The raw file, as a source gets it from its root.
        kind: What the copy holds, as the suffix of its name; a file may have several copies.
        write: Writes the copy.
        maker: The version of a library that decides what is written.

    Raises:
        SourceError: The raw file cannot be read, or the copy does not fit on the disk.
        BuildError: The disk is read-only.
    """
    state = state_of(path)
    name, version = _digest(str(path.absolute()), kind), _digest(f"{state.text} {state.identity}{maker}")
    folder = _folder()
    for copy in folder.glob(f"{name}-{version}-*"):
        if copy.name == f"{name}-{version}-{copy.stat().st_size}{kind}":  # of the size that was written
            return copy
    # Of this process: two builds may make the same copy at the same time. It is none of the copies that are looked for.
    unnamed = folder / f"{name}-{version}.{os.getpid()}{kind}"
    with writing(unnamed):
        folder.mkdir(parents=True, exist_ok=True)
    with whole_file(unnamed) as file:
        try:
            write(file)
            size = file.tell()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                rule = f"its copy in {folder} does not fit, the disk is full"
                raise SourceError(f"{path}: {rule}. Name a folder with more room in {VARIABLE}") from error
            raise SourceError(f"{path} is not whole, or cannot be read: {error.strerror or error}") from error
    copy = folder / f"{name}-{version}-{size}{kind}"
    with writing(copy):
        os.replace(unnamed, copy)
    for older in folder.glob(f"{name}-*"):
        if not older.name.startswith(f"{name}-{version}"):
            with suppress(OSError):
                older.unlink()
    return copy


def staged_files(
    path: Path, kind: str, files: Callable[[Path], Iterable[bytes | None]], maker: str = ""
) -> tuple[Path, Array, Array]:
    """Return the copy of what `files` yields of a file, and the first byte and the length of each (-1: there is none).

    The copy holds them one after another, then their lengths as int64, then their number as int64.
    """

    def write(target: BinaryIO) -> None:
        lengths = array("q")
        for content in files(path):
            target.write(content or b"")
            lengths.append(-1 if content is None else len(content))
        target.write(lengths.tobytes() + np.int64(len(lengths)).tobytes())

    copy = staged(path, kind, write, maker)
    with copy.open("rb") as file:
        file.seek(-8, 2)
        (count,) = np.frombuffer(file.read(8), np.int64)
        file.seek(-8 * (int(count) + 1), 2)
        lengths = np.frombuffer(file.read(8 * int(count)), np.int64)
    sizes = np.maximum(lengths, 0)
    return copy, np.cumsum(sizes) - sizes, lengths


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.path.expanduser(os.environ.get(VARIABLE) or f"{cache}/tfprep/staging")
    if folder.startswith("~"):  # as in a container, whose user has no home folder
        raise SourceError(f"there is no home folder for copies of raw files; name a folder for them in {VARIABLE}")
    return Path(folder).absolute()


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:20]
