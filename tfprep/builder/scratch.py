"""Where a build's files are: in the folder of the dataset, or at an object store and in a local folder of this run alone.

Shards lie in the local folder until they are written whole to the store.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tfprep.builder.layout import Layout
from tfprep.errors import BuildError, StorageError
from tfprep.storage.local import writing
from tfprep.storage.urls import folder_at, is_remote, scheme_of

_PREFIX = "build-"


@contextmanager
def placed(out: str | os.PathLike[str], scratch: Path | None = None) -> Iterator[Layout]:
    """Yield the folders of a build; the log of one into a store is copied there in the end.

    Raises:
      BuildError: Nothing can be built there.
      DatasetError: The URL is not one that can be used.
    """
    folder = folder_at(out)
    if not is_remote(folder):
        if scratch is not None:
            raise BuildError("a scratch folder is for builds into an object store; leave --scratch out")
        yield Layout(folder)
        return
    if scheme_of(folder) in ("http", "https"):
        raise BuildError(f"{folder} can only be read; build into a folder, or to s3://, gs:// or az://")
    with scratch_folder(scratch) as own:
        layout = Layout(folder, own)
        layout.make()
        try:
            yield layout
        except StorageError:
            raise  # The log would meet the same error.
        except BaseException:
            _copy_logs(layout)
            raise
        _copy_logs(layout)


def _copy_logs(layout: Layout) -> None:
    for path in layout.here.rglob("*.log"):
        with suppress(StorageError):
            layout.store.write(f"{layout.here.name}/{path.relative_to(layout.here).as_posix()}", path)


@contextmanager
def scratch_folder(folder: Path | None = None) -> Iterator[Path]:
    """Make a folder for one run of a build, and remove it in the end, with those of runs that were killed.

    Args:
      folder: Where to make it. None for the system's folder of temporary files, which `TMPDIR` names.

    Raises:
      BuildError: It cannot be written to, or belongs to another user.
    """
    top = folder or Path(tempfile.gettempdir()) / f"tfprep-{os.getuid()}"
    with writing(top):
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder is None and top.lstat().st_uid != os.getuid():
            raise BuildError(f"{top} belongs to another user; choose a folder with --scratch")
        with _alone_in(top):
            _remove_abandoned(top)
            own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=top))
            lock = os.open(own, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(top: Path) -> None:
    """Remove the folders whose lock ended with its process."""
    for path in top.glob(f"{_PREFIX}*"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
