"""The places of a build's files. Finished shards wait in `.tfprep/new` until the whole version is published."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from tfprep.dataset.names import PRIVATE, REJECTS, SHARDS
from tfprep.dataset.versions import NEW, check_new, find_current
from tfprep.errors import BuildError, DatasetError, StorageError
from tfprep.storage.local import locked as file_locked
from tfprep.storage.local import writing
from tfprep.storage.urls import folder_at, is_remote, scheme_of

if TYPE_CHECKING:
    from tfprep.dataset.manifest import Manifest


@dataclass
class Layout:
    """The folders and files of one build.

    Attributes:
      out: The dataset itself: a folder, or a `Url` of an object store.
      scratch: The local folder of what only this run uses, where `out` is at a store; None for `out` itself.
      private, here: The folders of what readers do not read: that of the dataset, and that of this machine (logs, locks,
        shards that wait to be published).
      staged: The folder of the shards that wait to be published.
    """

    out: Path
    scratch: Path | None = None

    def __post_init__(self) -> None:
        self.private = self.out / PRIVATE
        self.here = (self.scratch or self.out) / PRIVATE
        self.staged = (self.scratch or self.out) / NEW
        self.receipts = self.private / "receipts"
        self.plan = self.private / "plan.json"
        # The recipes that were built, as JSON by fingerprint, from which a later build says what changed.
        self.recipes = self.private / "recipes"
        self.log = self.here / "build.log"
        self.failed_rejected = self.private / REJECTS  # of a build that published nothing because of them
        self.locks = self.here / "locks"  # one byte of it is the lock of a shard (`name_locked`)
        # The plan that parts of a build agreed on, and the logs of parts.
        self.parts = self.private / "parts"
        self.part_plan = self.parts / "plan.json"

    @property
    def at_store(self) -> bool:
        return is_remote(self.out)

    @cached_property
    def current(self) -> Path | None:
        """The folder of the current version when this was first asked for; None without one."""
        version = find_current(self.out)
        return None if version is None else version.path

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest of that version; None without one that can be read. Raises StorageError if the store refuses."""
        from tfprep.dataset.manifest import read_manifest  # which workers do not need

        try:
            return None if self.current is None else read_manifest(self.current)
        except DatasetError as error:
            if isinstance(error, StorageError) and not isinstance(error.__cause__, FileNotFoundError):
                raise
            return None

    def receipt(self, split: str, shard: int) -> Path:
        return self.receipts / f"{split}-{shard:05d}.json"

    def find(self, name: str) -> Path | None:
        """Return the path of a shard's file, which waits to be published or is published; None if a local one does not exist."""
        if self.at_store:
            return self.out / SHARDS / name
        folders = [self.staged, *([self.current] if self.current else [])]
        return next((folder / name for folder in folders if (folder / name).exists()), None)

    def make(self) -> None:
        """Create the folders. Raises BuildError if that is not possible."""
        if self.at_store:
            with writing(self.staged):
                self.staged.mkdir(parents=True, exist_ok=True)
            return
        check_new(self.out)
        above = next(path for path in (self.out, *self.out.absolute().parents) if path.exists())
        if not above.is_dir():
            raise BuildError(f"{self.out}: {above} is a file; --out names a folder, which is created if it is missing")
        with writing(self.out):
            for folder in (self.staged, self.receipts, self.recipes):
                folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def name_locked(layout: Layout, name: str) -> Iterator[None]:
    """Hold the lock of this name, and wait for it if another process has it. It ends with its process."""
    byte = int.from_bytes(blake2b(name.encode(), digest_size=7).digest(), "little")
    with writing(layout.locks):
        opened = layout.locks.open("a+")
    with opened as file:
        with writing(layout.locks):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
        yield


# --- places ------------------------------------------------------------------------------------------------------------


_PREFIX = "build-"


@contextmanager
def placed(out: str | os.PathLike[str]) -> Iterator[Layout]:
    """Yield the folders of a build.

    Raises:
      BuildError: Nothing can be built there.
      DatasetError: The URL is not one that can be used.
    """
    folder = folder_at(out)
    if not is_remote(folder):
        yield Layout(folder)
        return
    if scheme_of(folder) in ("http", "https"):
        raise BuildError(f"{folder} can only be read; build into a folder, or to s3://, gs:// or az://")
    with scratch_folder() as own:
        layout = Layout(folder, own)
        layout.make()
        yield layout


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for one run of a build below that for temporary files (`TMPDIR`), and remove it in the end, with those of
    runs that were killed. Raises BuildError where it cannot be written to, or belongs to another user.
    """
    top = Path(tempfile.gettempdir()) / f"tfprep-{os.getuid()}"
    with ExitStack() as stack:
        with writing(top):
            top.mkdir(mode=0o700, parents=True, exist_ok=True)
            if top.lstat().st_uid != os.getuid():
                raise BuildError(f"{top} belongs to another user; set TMPDIR to a folder of your own")
            with file_locked(top):
                for path in top.glob(f"{_PREFIX}*"):  # those whose lock ended with its process
                    with suppress(BlockingIOError), file_locked(path, BlockingIOError()):
                        shutil.rmtree(path, ignore_errors=True)
                own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=top))
                stack.enter_context(file_locked(own))
        stack.callback(shutil.rmtree, own, ignore_errors=True)
        yield own
