"""The places of a build's files, and the lock that keeps a second build out.

Finished shards wait in `.tfprep/new` until the whole dataset is published.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tfprep.dataset.names import PRIVATE, REJECTS
from tfprep.errors import BuildError, BuildLockedError, StorageError
from tfprep.storage.address import without_secrets
from tfprep.storage.local import locked as file_locked
from tfprep.storage.local import writing
from tfprep.storage.store import Store, open_store
from tfprep.storage.urls import folder_at, is_remote, scheme_of


@dataclass
class Layout:
    """The folders and files of one build.

    Attributes:
      out: The dataset itself: a folder, or a `Url` of an object store.
      scratch: The local folder of what this run alone uses, where `out` is at a store; None for `out` itself.
      private, here: The folders of what readers do not read: that of the dataset, and that of this machine alone (logs, locks,
        shards that wait to be published).
      staged: The folder of the shards that wait to be published.
    """

    out: Path
    scratch: Path | None = None

    def __post_init__(self) -> None:
        self.private = self.out / PRIVATE
        self.here = (self.scratch or self.out) / PRIVATE
        self.staged = self.here / "new"
        self.receipts = self.private / "receipts"
        self.plan = self.private / "plan.json"
        # The recipes that were built, as JSON by fingerprint, from which a later build says what changed.
        self.recipes = self.private / "recipes"
        self.manifest_copy = self.private / "tfprep.json"  # for a repair
        # The list of all shards that may be in `out`, so that none is ever forgotten there.
        self.files = self.private / "files.json"
        self.log = self.here / "build.log"
        self.report = self.out / "report.html"
        self.failed_rejects = self.private / REJECTS  # of a build that published nothing because of them
        self.lock = self.here / "lock"
        self.locks = self.here / "locks"  # of which a byte is the lock of one shard (`name_locked`)
        self.mark = self.private / "mark"  # of the running build on a cluster, by which its nodes know the folder
        # The plan that parts of a build agreed on, and the logs of parts.
        self.parts = self.private / "parts"
        self.part_plan = self.parts / "plan.json"

    def absolute(self) -> Layout:
        """Return the folders as another process finds them."""
        return self if self.at_store else Layout(self.out.absolute(), self.scratch)

    @property
    def at_store(self) -> bool:
        return is_remote(self.out)

    @property
    def store(self) -> Store:
        """The store of `out`."""
        return open_store(self.out)

    def part_log(self, number: int, parts: int) -> Path:
        return self.here / self.parts.name / f"part-{number}-of-{parts}.log"

    def receipt(self, split: str, shard: int) -> Path:
        return self.receipts / f"{split}-{shard:05d}.json"

    def contents(self, split: str, shard: int) -> Path:
        return self.receipts / f"{split}-{shard:05d}.contents.json"

    def find(self, name: str) -> Path | None:
        """Return the path of a shard's file, which waits to be published or is published; None if it does not exist."""
        return next((path for path in (self.staged / name, self.out / name) if path.exists()), None)

    def make(self) -> None:
        """Create the folders. Raises BuildError if that is not possible."""
        if self.at_store:
            with writing(self.staged):
                self.staged.mkdir(parents=True, exist_ok=True)
            return
        above = next(path for path in (self.out, *self.out.absolute().parents) if path.exists())
        if not above.is_dir():
            raise BuildError(f"{self.out}: {above} is a file; --out names a folder, which is created if it is missing")
        try:
            with writing(self.out):
                for folder in (self.staged, self.receipts, self.recipes):
                    folder.mkdir(parents=True, exist_ok=True)
        except BuildError as error:
            # In /proc, for example; elsewhere the missing parents would have been created.
            if isinstance(error.__cause__, FileNotFoundError):
                raise BuildError(f"{self.out}: no folder can be made there; choose another with --out") from error
            raise


@contextmanager
def locked(layout: Layout, *, shared: bool = False) -> Iterator[None]:
    """Hold the folder's lock. Raises BuildLockedError, which names the process, host and start of the build that has it.

    It ends with its process, however that ends. Parts of a build share it with each other.
    """
    layout.make()
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(file_locked(layout.lock, BuildLockedError(), shared=shared))
        except BuildLockedError as error:
            holder = layout.lock.read_text()
            parts = f"parts of {layout.out} are being built; wait for them, or build into another folder"
            raise BuildLockedError(refusal(layout.out, holder) if holder else parts) from error
        os.ftruncate(descriptor, 0)
        if shared:
            yield
            return
        os.write(descriptor, json.dumps(this_process()).encode())
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)


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
def placed(out: str | os.PathLike[str], scratch: str | os.PathLike[str] | None = None) -> Iterator[Layout]:
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
    with scratch_folder(Path(scratch) if scratch else None) as own:
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
        with ExitStack() as stack:
            with file_locked(top):
                for path in top.glob(f"{_PREFIX}*"):  # those whose lock ended with its process
                    with suppress(BlockingIOError), file_locked(path, BlockingIOError()):
                        shutil.rmtree(path, ignore_errors=True)
                own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=top))
                stack.enter_context(file_locked(own))
            stack.callback(shutil.rmtree, own, ignore_errors=True)
            lock = stack.pop_all()
    with lock:
        yield own


# --- the holder of a lock ---------------------------------------------------------------------------------------------


def this_process() -> dict[str, Any]:
    """Return what a lock says of its holder."""
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": without_secrets(" ".join(sys.argv)),
        "machine": _machine(),
        "born": _born(os.getpid()),
    }


def is_alive(holder: str) -> bool | None:
    """Return whether the holder's process runs; None if that cannot be seen from this machine."""
    try:
        note = json.loads(holder)
        is_here = note["machine"] == _machine() != ""
        return bool(_born(int(note["process"])) == note["born"]) if is_here else None
    except (ValueError, KeyError, TypeError):
        return None


def _machine() -> str:
    """Return what two processes share exactly if each one sees the other's process id; "" where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _born(process: int) -> str:
    """Return when a process started, in ticks of the system; "" if it does not run. Ids of processes are used again."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else fields[18]


def refusal(place: str | Path, holder: str) -> str:
    """Return the message that names the process, host and start of the build that holds a lock, from what it wrote there."""
    try:
        build = json.loads(holder)
        who = f"process {build['process']} on {build['host']}, started {build['started']}: {build['command']}"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return f"{place} is being built by {who}; wait for it, or build into another folder"
