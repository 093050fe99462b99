"""Files on local disks: written whole or not at all, opened only if they are regular files of the dataset's own folder.

A file that was written is still there after a power failure. If the system refuses to write (the disk is full or read-only, the
folder is gone), a BuildError says so and how to go on. Files of a dataset may come from a stranger: opening a FIFO would wait for
ever, and a link may lead to any file of the user's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tfprep.errors import BuildError, DatasetError

_TOO_MANY, _MORE_FILES = (errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"


def regular_size(path: Path) -> int:
    """Return the size of a file of a dataset without opening it.

    Raises:
        DatasetError: It is missing or cannot be opened, is not a regular file, or is a link that leads out of its folder.
    """
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            target, folder = path.resolve(strict=True), path.parent.resolve()
            if not target.is_relative_to(folder):
                raise DatasetError(f"{path} is a link that leads out of its folder, to {target}; copy the file itself")
            status = path.stat()
    except (OSError, ValueError, RuntimeError) as error:  # NUL in the path; a loop of links
        raise _cannot_open(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise DatasetError(f"{path} is not a regular file; the files of a dataset are")
    return status.st_size


def regular_descriptor(path: Path) -> int:
    """Open a file of a dataset for reading and return its descriptor; the errors are those of `regular_size`."""
    regular_size(path)
    try:
        # A FIFO that has just taken its place would wait for a writer.
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot_open(path, error) from error


def _cannot_open(path: Path, error: Exception) -> DatasetError:
    reason = getattr(error, "strerror", None) or error
    fix = _MORE_FILES if getattr(error, "errno", None) in _TOO_MANY else "is the dataset complete?"
    return DatasetError(f"{path} cannot be opened ({reason}); {fix}")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under its name, synced, when the block ends; if the block raises, nothing appears."""
    # A process id is not enough: processes of two machines, or of two containers, may write the same file with the same id.
    temporary = temporary_path(path, secrets.token_hex(6))
    try:
        with writing(path), temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with writing(path):
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Yield a folder that takes the place of `out`, missing or empty, when the block ends, and is removed if it raises.

    It is beside `out` and locked meanwhile. The next process with the same `out` removes what a killed one left.

    Raises:
        BuildError: No folder can take this place, the disk refuses, or another process writes there.
    """
    target = out.resolve()
    if os.path.ismount(target) or target in (Path.cwd(), *Path.cwd().parents):
        raise BuildError(
            f"{out} is a mount point or the current folder, which cannot be replaced; name a new folder in it"
        )
    temporary, busy = temporary_path(target, "export"), BuildError(f"another process writes {out}; wait for it")
    with writing(out):
        temporary.mkdir(parents=True, exist_ok=True)
    with locked(temporary, busy) as descriptor:
        if not temporary.exists() or not os.path.samestat(os.fstat(descriptor), temporary.stat()):
            raise busy  # it has just become `out`
        try:
            with writing(out):
                for path in temporary.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                yield temporary
                os.sync()  # one call for any number of files
                temporary.replace(target)
                sync_folder(target.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def link_or_copy(source: Path, target: Path) -> bool:
    """Give a file a second name, which must be free; a file system without hard links gets a copy. Return True for a link."""
    try:
        os.link(source, target)
        return True
    except OSError:
        with source.open("rb") as content, whole_file(target) as copy:
            shutil.copyfileobj(content, copy, 1 << 20)
        return False


def temporary_path(path: Path, word: str) -> Path:
    """Return the name of a file while it is written, which `remove_leftovers` recognizes; `word` belongs to the writer."""
    return path.with_name(f".{path.name}.{word}.tmp")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a `write_error`."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> BuildError:
    """Return the error that says what cannot be written, why, and what to do."""
    fix = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        fix = "; nothing was published. Make room, then run the same command again: a build continues"
    elif error.errno in _TOO_MANY:
        fix = f"; {_MORE_FILES}"
    elif error.errno == errno.EISDIR:
        fix = "; a folder has its name: move it away, then run the same command again"
    elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        fix = "; choose a folder that this user may write to"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EIO):
        fix = "; the output folder is gone or its disk fails. Run the same command again: a build continues from what is left"
    return BuildError(f"cannot write {path}: {error.strerror or error}{fix}")


@contextmanager
def locked(path: Path, busy: Exception | None = None, *, shared: bool = False) -> Iterator[int]:
    """Hold a lock of the operating system on a file, which is made if it is missing, or on a folder.

    The lock ends with the context, also if a process that was forked meanwhile has a copy of the descriptor, or with its process,
    however that ends.

    Args:
        path: The file or folder.
        busy: What is raised if another process holds it; None waits for it.
        shared: Whether others may hold it with this process, who ask for a shared one too.

    Yields:
        The descriptor; that of a file is open for reading and writing.
    """
    with writing(path):
        flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (fcntl.LOCK_NB if busy else 0))
        except (BlockingIOError, PermissionError) as error:
            assert busy is not None
            raise busy from error
        except OSError as error:
            reason = f"cannot lock {path}: {error.strerror}; choose a folder on another file system"
            raise BuildError(reason) from error
        owner = os.getpid()
        try:
            yield descriptor
        finally:
            if os.getpid() == owner:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; a rename survives a power failure only after this."""
    with writing(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path, word: str = "*") -> None:
    """Remove the temporary files of processes that were killed while they wrote; `word` as in `temporary_path`.

    A folder stays: that of an export, which may be running, and which the next export to the same place removes.
    """
    for path in folder.glob(f".*.{word}.tmp"):
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
