"""A dataset is a set of immutable versions and one small pointer. This module is the only one that publishes.

    out/photos/
      tfprep.json           the pointer: {"version": 4, "keep": 1}; the only file that is ever replaced
      current -> v0004      a link for people and other tools (local folders only), repaired from the pointer
      v0004/                shards, index, `manifest.json`, report: written once
      v0003/                the version before
      .tfprep/              receipts, the lock, and `new`: the version that is being made

At an object store, which has no hard links, all versions share the shards in `shards/`, whose names begin with the digest of
their content; the folder of a version holds the rest. `manifest.json` names the shards.

A version is made in `.tfprep/new`, with hard links to what it shares with the current one. Publication makes its files durable,
moves the folder into place and replaces the pointer. A process that dies before the last step leaves the version before, and the
next one continues. Readers lock the folder that they read (`hold`), and removal skips folders that are locked.

Of several processes that make a version in a local folder, one at a time holds a lock, and the others are refused. A store has no
locks: names belong to contents there, so that two builds do not write over each other's shards, and the pointer is replaced only
if nobody else has, so that the slower build is refused at its end. Its shards stay, and it continues from them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import sys
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tfprep.dataset.names import BESIDE, LOCATIONS, MANIFEST, POINTER, PRIVATE, REPORT, fields_receipts
from tfprep.errors import BuildError, BuildLockedError, DatasetError, ObjectChangedError, StorageError
from tfprep.storage.address import without_secrets
from tfprep.storage.local import link_or_copy, remove_leftovers, sync_folder, whole_file, writing
from tfprep.storage.local import locked as file_locked
from tfprep.storage.store import find_object, open_store
from tfprep.storage.urls import (
    PathOrUrl,
    check_no_link,
    durable_write,
    folder_at,
    is_remote,
    names_in,
    read_content,
    read_file,
    size_of,
)

if TYPE_CHECKING:
    from tfprep.dataset.manifest import AddedFields, Manifest

CURRENT = "current"
NEW = f"{PRIVATE}/new"
SAME_SHARDS = f"{PRIVATE}/same-shards"
"""The folder of a version with the shards of the current one, made while `NEW` may hold those of a build that goes on later."""
RUN = "run"
"""The object at a store by which a build takes the number of a version."""
_FOLDER = re.compile(r"v([0-9]{4,18})\Z")
_MOST_POINTER_BYTES = 4096
_ATTEMPTS = 100
"""Builds that publish while a reader opens the dataset; each costs it another look at the pointer."""


@dataclass(frozen=True)
class Version:
    """One version of a dataset.

    Attributes:
      root: The folder or URL of the dataset, with the pointer.
      number: The number of the version, from 1; 0 for a folder that was copied out of its dataset under another name.
      path: The folder or URL of the version.
      is_chosen: Whether the user named it, by its number or its folder.
      keep: The number of older versions that stay, as it was given last; None if the pointer does not say.
    """

    root: Path
    number: int
    path: Path
    is_chosen: bool = field(default=False, compare=False)
    keep: int | None = field(default=None, compare=False)


def version_folder(root: Path, number: int) -> Path:
    """Return the folder or URL of a version."""
    return root / f"v{number:04d}"


# --- opening --------------------------------------------------------------------------------------------------------------


def current_version(root: PathOrUrl) -> Version:
    """Return the version that the pointer names.

    Args:
      root: The folder or URL of the dataset.

    Raises:
      DatasetError: There is no dataset, or its pointer is damaged. The cause is a FileNotFoundError where there is no pointer.
    """
    place = folder_at(root)
    path = place / POINTER
    try:
        content = read_file(path, _MOST_POINTER_BYTES)
    except DatasetError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise DatasetError(f"{place} holds no {POINTER}: {_why_not(place)}") from FileNotFoundError()
        raise
    number = keep = None
    with suppress(ValueError, RecursionError, KeyError, TypeError):
        document = json.loads(content)
        number, keep = document["version"], document.get("keep")
    if type(number) is not int or not 1 <= number < 10**18:
        raise DatasetError(
            f'{path} is damaged, or of another version of tfprep: it is {{"version": N}}. Run the build again'
        )
    return Version(place, number, version_folder(place, number), keep=keep if type(keep) is int else None)


def find_version(path: PathOrUrl, number: int | None = None) -> Version:
    """Return the version that a user's path means.

    Args:
      path: The folder or URL of a dataset or of one of its versions, or the folder of TFRecords with an index in it.
      number: The version; None for the current one.

    Raises:
      DatasetError: There is none; the message says what to do.
    """
    folder = folder_at(path)
    if not is_remote(folder) and os.path.isfile(folder):
        raise DatasetError(f"{folder} is a file; open the dataset's folder, {folder.parent}")
    if number is not None:
        if hasattr(number, "__index__"):
            version = Version(folder, number, version_folder(folder, number), is_chosen=True)
            if size_of(version.path / MANIFEST) is not None:
                return version
        known = ", ".join(map(str, version_numbers(folder))) or "none"
        raise DatasetError(f"{folder} has no version {number!r}; it has {known}. Builds keep older ones with --keep")
    try:
        return current_version(folder)
    except DatasetError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        if size_of(folder / MANIFEST) is not None:
            folder = folder if is_remote(folder) else folder.resolve()
            named = _FOLDER.match(folder.name)
            return Version(folder.parent, int(named[1]) if named else 0, folder, is_chosen=True)
        if size_of(folder / BESIDE / POINTER) is not None:
            return current_version(folder / BESIDE)
        raise


def version_numbers(root: Path) -> list[int]:
    """Return the numbers of all complete versions of a dataset, in order."""
    if is_remote(root):
        names = [info.name.rpartition("/")[0] for info in open_store(root).list() if info.name.endswith(f"/{MANIFEST}")]
        return sorted(int(match[1]) for name in names if (match := _FOLDER.match(name)))
    return [number for number, folder in _local_versions(root).items() if (folder / MANIFEST).exists()]


def _local_versions(root: Path) -> dict[int, Path]:
    """Return the folders of all versions by number, in order, also of those that lost their manifest.

    `locations.bin` tells them from folders of the user that are named so: other tools write TFRecords and a `manifest.json` too.
    """
    folders = [path.parent for path in root.glob(f"v*/{LOCATIONS}")]
    numbers = {int(match[1]): path for path in folders if (match := _FOLDER.match(path.name)) and not path.is_symlink()}
    return dict(sorted(numbers.items()))


def older_versions(root: Path, keep: int) -> list[int]:
    """Return the older versions of a local dataset, but for the `keep` latest, and all older ones that lost their manifest."""
    current, complete = current_version(root).number, version_numbers(root)
    older = [number for number in complete if number < current]
    damaged = [number for number in _local_versions(root) if number < current and number not in complete]
    return sorted([*older[: max(0, len(older) - keep)], *damaged])


def _why_not(root: Path) -> str:
    if is_remote(root):
        return "check the URL; `tfprep build RECIPE --out FOLDER` makes a dataset"
    if not root.exists():
        return "the folder does not exist; `tfprep build RECIPE --out FOLDER` makes one"
    if (root / PRIVATE).is_dir():
        return "a build has begun here and not finished; run the same command again and it continues"
    if numbers := version_numbers(root):
        return f"it has versions and nothing says which is current; open one of them, such as {version_folder(root, numbers[-1])}"
    index = "`tfprep index` makes one of TFRecords that another tool wrote"
    return f"it is not a dataset built by tfprep; {index}, and `tfprep init` writes a recipe for raw images"


# --- holding --------------------------------------------------------------------------------------------------------------


class Held:
    """A shared lock on the folder of a version. It ends with the last reference to this object, in forked processes too."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)  # a forked process has a copy of the descriptor, which holds the same lock


def hold(version: Version) -> Held | None:
    """Keep builds from removing a version while this process, or one that it forks, reads it.

    Args:
      version: The version.

    Returns:
      The lock, which lasts as long as the object; None where there is none, as at a URL.

    Raises:
      DatasetError: The version was removed.
    """
    if is_remote(version.path):
        return None
    try:
        held = Held(os.open(version.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        fcntl.flock(held.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError, BlockingIOError) as error:
        raise _removed(version) from error
    except OSError:
        return None  # the folder may not be listed, or its file system has no locks, and so no builds, which need one
    # It may have been moved away between the two calls.
    if not (version.path / MANIFEST).exists() or not os.path.samestat(os.fstat(held.descriptor), os.stat(version.path)):
        raise _removed(version)
    return held


def hold_current(path: PathOrUrl, number: int | None = None) -> tuple[Version, Held | None]:
    """Find a version as `find_version` does, and hold it. A version that a build removes meanwhile is looked for again."""
    for _ in range(_ATTEMPTS):
        version = find_version(path, number)
        try:
            return version, hold(version)
        except DatasetError:
            if find_version(path, number) == version:
                if version.is_chosen:
                    raise
                rule = f"{version.path}, the current version, is not there or lost its {MANIFEST}"
                raise DatasetError(f"{rule}: copy the dataset again, or run the build again") from None
    raise DatasetError(f"{path} is published again and again while it is opened; open it when the builds have ended")


def _removed(version: Version) -> DatasetError:
    return DatasetError(
        f"{version.path} was removed or moved: open {version.root} again. Builds keep older versions with --keep"
    )


# --- publishing -----------------------------------------------------------------------------------------------------------


@contextmanager
def locked(root: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a local dataset, exclusively or shared with other parts of a build. It ends with its process.

    At a store there is no lock (see above); that it compares conditions is tried here, before hours of work.

    Raises:
      BuildLockedError: Another process holds it; the message names its process, host and start.
      BuildError: Nothing can be written there, or the file system has no locks.
      StorageError: The store cannot be reached, refuses, or writes without comparing conditions.
    """
    if is_remote(root):
        trial = f"{PRIVATE}/trial-{secrets.token_hex(8)}"  # of this process only: parts begin at the same time
        open_store(root).replace(trial, b"", None)
        open_store(root).delete([trial])
        yield
        return
    path, busy = root / PRIVATE / "lock", BuildLockedError()
    with writing(root):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file_locked(path, busy, shared=shared) as descriptor:
            command, started = without_secrets(" ".join(sys.argv)), time.strftime("%Y-%m-%d %H:%M:%S")
            holder = f"process {os.getpid()} on {socket.gethostname()}, started {started}: {command}"
            with suppress(OSError):  # on a full disk, where `clean` makes room
                os.ftruncate(descriptor, 0)
                os.write(descriptor, b"" if shared else os.fsencode(holder))
            yield
    except BuildLockedError as error:
        if error is not busy:
            raise
        holder = path.read_text(errors="replace") or "another process, or by parts"
        raise BuildLockedError(f"{root} is being built by {holder}; wait, or build into another folder") from error


def check_new(root: Path) -> None:
    """Raise BuildError where no dataset can be written at a path."""
    if not is_remote(root) and os.fsencode(root.absolute()).decode("utf-8", "ignore") != str(root.absolute()):
        raise BuildError(f"{root}: the path is not UTF-8, and Arrow opens no other; choose another with --out")
    if size_of(root / MANIFEST) is not None:
        raise BuildError(f"{root} is a version of a dataset, which never changes; choose another folder")


class NewVersion:
    """The version that is being made. A context: it holds the lock of the dataset, and leaves its files for the next run.

    Attributes:
      root: The dataset.
      folder: The local folder of its files.
      before: The version that is current; None without one.
      is_pointed: Whether the pointer names it; if not, it is damaged, or a process died before it was written.
      copied: The number of files that were copied because the file system has no hard links.
    """

    def __init__(self, root: PathOrUrl, scratch: Path | None = None, folder: str = NEW) -> None:
        """Args: `root` is the dataset; `scratch` a local folder, in place of `root`, for files on their way to a store; `folder`
        is `NEW` or `SAME_SHARDS`."""
        self.root = folder_at(root)
        self.folder = (scratch or self.root) / folder
        self.before: Version | None = None
        self.is_pointed = False
        self.copied = 0
        self._names: dict[str, bool] = {}
        self._open = ExitStack()
        self._next: Version | None = None
        self._pointer: str | None = None
        self._run = secrets.token_hex(8)

    def __enter__(self) -> NewVersion:
        check_new(self.root)
        with ExitStack() as stack:
            stack.enter_context(locked(self.root))
            if is_remote(self.root):
                info = find_object(open_store(self.root), POINTER)
                self._pointer = None if info is None else info.version
            else:
                _tidy(self.root)
            self.before = find_current(self.root)
            with suppress(DatasetError):
                self.is_pointed = current_version(self.root) == self.before
            with writing(self.folder):
                with suppress(OSError):
                    self.folder.rmdir()  # overlayfs renames no folder of a lower layer, as of the image of a container
                self.folder.mkdir(parents=True, exist_ok=True)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, name: str, source: Path) -> None:
        """Make a durable file part of the version: by a hard link, or a copy where links fail or the file is at a store.

        Args:
          name: Its name in the version, such as `index.parquet` or `teacher/index.parquet`.
          source: The file, which may be in `folder` already.
        """
        target, self._names[name] = self.folder / name, True
        if target == source:
            return
        self.folder.joinpath(name).parent.mkdir(exist_ok=True)
        with writing(target):
            target.unlink(missing_ok=True)
        if is_remote(source):
            with whole_file(target) as file:
                file.write(read_content(source))
        elif not link_or_copy(source, target):
            self.copied += 1

    def add_fields(self, entry: AddedFields) -> None:
        """Make added fields of the current version part of this one; those at a store, or copied from one, are shared anyway."""
        assert self.before is not None
        folder = self.before.path / entry.folder
        check_no_link(folder)
        for path in () if is_remote(self.root) or entry.within else folder.iterdir():
            self.add(f"{entry.folder}/{path.name}", path)

    def take_added(self, before: Mapping[str, AddedFields], now: Mapping[str, AddedFields]) -> None:
        """Make added fields part of this version; files of those that it will not have are linked to where the next run that adds
        them finds what it need not compute again."""
        for group, entry in before.items():
            assert self.before is not None
            folder, place = self.before.path / entry.folder, self.root / fields_receipts(group) / entry.folder
            if group in now:
                self.add_fields(entry)
            elif not is_remote(folder) and folder.is_dir() and not folder.is_symlink():  # at a store it stays
                with writing(place):
                    place.mkdir(parents=True, exist_ok=True)
                for path in folder.iterdir():
                    if not (place / path.name).exists():
                        link_or_copy(path, place / path.name)

    def add_current(self, files: Iterable[str]) -> None:
        """Make all files of the current version part of this one, without its folders; `files` are those that are not shards."""
        assert self.before is not None
        names = names_in(self.before.path)
        if is_remote(self.root):
            names &= {*files, REPORT}  # shards stay where they are
        for name in names - {MANIFEST}:
            if is_remote(self.root) or (self.before.path / name).is_file():
                self.add(name, self.before.path / name)

    def file(self, name: str) -> Path:
        """Return the path of a new file, which the caller writes; `publish` makes it durable."""
        target, self._names[name] = self.folder / name, False
        with writing(target):
            target.parent.mkdir(exist_ok=True)
            target.unlink(missing_ok=True)  # it may be a link to a file of another version
        return target

    def write(self, name: str, text: str) -> Path:
        """Write a text file of the version, and return its path; `publish` makes it durable."""
        path = self.file(name)
        with writing(path):
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return path

    def clear(self, kept: Container[str] = ()) -> None:
        """Remove the files of runs that did not publish them, but for those of these names."""
        with writing(self.folder):
            for path in sorted(self.folder.rglob("*"), reverse=True):
                if path.is_dir() and not path.is_symlink():
                    with suppress(OSError):
                        path.rmdir()
                elif path.relative_to(self.folder).as_posix() not in kept:
                    path.unlink()

    def complete(self, manifest: Manifest) -> Path:
        """Write `manifest.json`, and make all files durable; the caller may then write a report beside them.

        Args:
          manifest: What the version is; it names all files but the report.

        Returns:
          The folder or URL of the files.

        Raises:
          BuildError: The disk refuses.
          StorageError: The store refuses.
        """
        from tfprep.dataset.manifest import parse_manifest  # with the codecs, which not every reader of versions needs

        text = manifest.to_json()
        try:
            parse_manifest(text.encode(), self.folder / MANIFEST)
        except DatasetError as error:
            raise BuildError(f"nothing was published, because nobody could read it: {error}") from error
        self.write(MANIFEST, text)
        self.clear(self._names)
        with writing(self.folder):
            for name, is_durable in self._names.items():
                if not is_durable:
                    with (self.folder / name).open("rb+") as file:
                        os.fsync(file.fileno())
        if is_remote(self.root):
            self._next = self._uploaded()
            return self._next.path
        # A folder of such a name may be somebody else's.
        named = [int(match[1]) for path in self.root.iterdir() if (match := _FOLDER.match(path.name))]
        number = max([*named, self.before.number if self.before else 0]) + 1
        self._next = Version(self.root, number, version_folder(self.root, number))
        return self.folder

    def publish(self, keep: int | None = None) -> Version:
        """Make what `complete` wrote the current version.

        Args:
          keep: The number of older versions that stay, those that somebody holds besides; None for the number that was given
            last, as the pointer says; where it does not, all stay this time, and so they do at a store.

        Returns:
          The version.

        Raises:
          BuildError: The disk refuses, or another process published at the store meanwhile.
          StorageError: The store refuses.
        """
        assert self._next is not None
        if is_remote(self.root):
            try:  # `replace` takes a pointer with this content for its own: where an answer was lost, the run's word says so
                pointer = json.dumps({"version": self._next.number, "run": self._run}) + "\n"
                open_store(self.root).replace(POINTER, pointer.encode(), self._pointer)
            except ObjectChangedError as error:
                raise BuildError(
                    f"{self.root}: another process published in the meantime, so this one did not; run the same command again: "
                    "it continues from the shards that are there"
                ) from error
            for name in self._names:
                (self.folder / name).unlink()
        else:
            for folder in (*(path for path in self.folder.iterdir() if path.is_dir()), self.folder):
                sync_folder(folder)
            with writing(self._next.path):
                os.rename(self.folder, self._next.path)
            sync_folder(self.folder.parent)
            sync_folder(self.root)
            if keep is None:
                keep = self.before.keep if self.before else 1
            pointer = json.dumps({"version": self._next.number, "keep": 1 if keep is None else keep}) + "\n"
            durable_write(self.root / POINTER, pointer)
            _point_link(self._next)
            with writing(self.folder):
                self.folder.mkdir()
            if keep is None:
                warnings.warn(
                    f"{POINTER} did not say how many older versions stay: now all do, later one", stacklevel=2
                )
            else:
                remove_old(self.root, keep)
        self._names.clear()
        self.before = self._next
        return self.before

    def _uploaded(self) -> Version:
        """Write the files to the store under a number that only this build uses."""
        store = open_store(self.root)
        number = self.before.number + 1 if self.before else 1
        while True:
            try:
                store.replace(f"{version_folder(Path(), number)}/{RUN}", self._run.encode(), None)
                break
            except ObjectChangedError:  # of a build that ended before it published
                number += 1
        version = Version(self.root, number, version_folder(self.root, number))
        for name in sorted(self._names, key=lambda name: name == MANIFEST):
            store.write(f"{version.path.name}/{name}", self.folder / name)
        return version


def find_current(root: Path) -> Version | None:
    """Return the current version for a build: the last complete one where the pointer names none, and None where there is none.

    Raises:
      StorageError: The store cannot be reached or refuses.
    """
    try:
        version = current_version(root)
        if size_of(version.path / MANIFEST) is not None:
            return version
    except StorageError:
        raise
    except DatasetError:
        pass
    numbers = version_numbers(root)
    return Version(root, numbers[-1], version_folder(root, numbers[-1])) if numbers else None


def _point_link(version: Version) -> None:
    """Make `current` a link to the version. The pointer decides: a file system without links is not an error."""
    link, target = version.root / CURRENT, version.path.name
    if not link.is_symlink() and (link / MANIFEST).exists():  # `cp -rL`, zip and Windows copy what a link leads to
        warnings.warn(f"{link} is a copy of a version, where other tools read old data: remove it", stacklevel=2)
    before = os.readlink(link) if link.is_symlink() else None
    if before == target or (not _FOLDER.match(before) if before is not None else link.exists()):
        return  # it is right already, or of somebody else
    temporary = version.root / PRIVATE / CURRENT
    with suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)


def _tidy(root: Path) -> None:
    """Undo and finish what a process left that was killed while it published or removed. The lock is held."""
    for path in root.glob(f".{POINTER}.*.tmp"):  # others may be the user's, whose files may be in this folder too
        path.unlink(missing_ok=True)
    for folder in (root / PRIVATE).glob("**/"):
        remove_leftovers(folder)
    same = root / SAME_SHARDS
    for path in (same, *(root / PRIVATE).glob("removed-*")):
        shutil.rmtree(path, ignore_errors=True)
    current = find_current(root)
    if current is None:
        return
    new, versions = root / NEW, _local_versions(root)  # shards without a manifest, which was lost, are used again
    last = max(versions, default=0)  # the receipts are those of the last one, also where the pointer was set back
    if last > current.number:
        place = same if _have_same_shards(versions[last], current.path) else new
        # It was moved here, and the pointer was not replaced. Not held, as far as locks tell.
        with suppress(OSError, BuildError), file_locked(versions[last], BlockingIOError()):
            if place.exists():
                place.rmdir()
            os.rename(versions[last], place)
        shutil.rmtree(same, ignore_errors=True)
    _point_link(current)


def _have_same_shards(first: Path, second: Path) -> bool:
    """Return True if two versions differ in added fields and reports only."""
    from tfprep.dataset.manifest import read_manifest

    with suppress(DatasetError):
        return read_manifest(first).splits == read_manifest(second).splits
    return False


# --- removing -------------------------------------------------------------------------------------------------------------


def remove_old(root: PathOrUrl, keep: int = 1) -> int:
    """Remove older versions of a local dataset. The lock of the dataset has to be held.

    Args:
      root: The folder of the dataset.
      keep: The number of versions that stay besides the current one, the latest ones; those that somebody holds stay too.

    Returns:
      The number of bytes that are free again: of files that no other version shares.
    """
    place, freed = folder_at(root), 0
    for number in older_versions(place, keep):
        path, aside = version_folder(place, number), place / PRIVATE / f"removed-{number}"
        # Not held, as far as locks tell. Where an exclusive lock of a folder (NFS), or the renaming of an old one (a lower layer
        # of overlayfs), is an error, versions stay.
        with suppress(OSError, BuildError), file_locked(path, BlockingIOError()):
            os.rename(path, aside)  # in one step, so that nobody opens half of it
            freed += own_bytes(aside)
            shutil.rmtree(aside, ignore_errors=True)
    return freed


def own_bytes(folder: Path) -> int:
    """Return the bytes of the files of a folder that no other folder shares with it."""
    states = [path.lstat() for path in folder.rglob("*") if path.is_file()]
    return sum(state.st_size for state in states if state.st_nlink == 1)
