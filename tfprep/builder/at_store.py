"""A dataset at an object store: its lock, its publication, and what builds leave behind there.

The lock is an object that names its holder, who writes it again every few seconds.

    .tfprep/lock              a build, a publication, a cleaning: one at a time
    .tfprep/running/<run>     a part of a build: many at a time, but none while `.tfprep/lock` is held

A store has no locks that end with their process. A holder of this machine is gone when its process is; one of another machine
when its object has not changed for `DEAD_S`, measured by the clock of whoever waits. A build that is stopped for so long and goes
on afterwards may still write receipts. Publication compares every receipt with its plan, and replaces `tfprep.json` only if
nobody else has done so.

A store renames nothing, and other processes read what is there. All shards and the index therefore have names that belong to
their content (`stored_name`), and `tfprep.json` names them:

1. The index and `locations.bin` are written under names of their own. Nothing that a reader sees has changed.
2. `tfprep.json` is replaced, if it is still the one that was there when the build began. From now on readers see the new dataset.
3. The files that have one name for all builds (rejects, Croissant) are written.
4. `tfprep.json` is replaced by one that holds their digests too.

The shards of the dataset before stay, because somebody may be reading them, until `clean` removes them. TensorFlow Datasets finds
shards by prescribed names alone, so that its files are not written.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c

from tfprep.builder.layout import Layout, is_alive, locked, refusal, this_process
from tfprep.builder.publish import (
    Publication,
    manifest_there,
    other_files,
    replace_manifest,
    says_the_same,
    shard_names,
    write_tables,
)
from tfprep.builder.receipts import Receipt, contents_path, read_receipts, without_digest
from tfprep.dataset import Manifest, read_manifest
from tfprep.dataset.manifest import MANIFEST, FileDigest, digest_of
from tfprep.dataset.names import PRIVATE, fields_receipts, stored_name
from tfprep.dataset.other_readers import tfds_files
from tfprep.errors import BuildError, BuildLockedError, DatasetError, ObjectChangedError, StorageError
from tfprep.storage.address import ObjectInfo
from tfprep.storage.local import remove_leftovers
from tfprep.storage.store import Store, find_object
from tfprep.storage.urls import PathOrUrl, folder_at

HEARTBEAT_S, DEAD_S = 10.0, 45.0
"""A holder misses four heartbeats before it counts as gone: a store that throttles delays a request by seconds."""
_POLL_S = 1.0
LOCK, RUNNING = ".tfprep/lock", ".tfprep/running"


class StoreLock:
    """The lock that a build holds."""

    def __init__(self, store: Store, name: str, place: str) -> None:
        self._store, self._name, self._place = store, name, place
        self._note = {**this_process(), "run": secrets.token_hex(6)}
        self._version: str | None = None
        self._ended, self._lost = threading.Event(), False

    def acquire(self) -> None:
        """Write the object, in the place of one whose holder is gone. Raises BuildLockedError, which names the holder."""
        while True:
            try:
                self._version = self._store.replace(self._name, self._content(), self._version)
                break
            except ObjectChangedError:
                self._version = version_left(self._store, self._name, self._place)

        def beat() -> None:
            while not self._lost and not self._ended.wait(HEARTBEAT_S):
                self._beat_once()

        threading.Thread(target=beat, name="tfprep-store-lock", daemon=True).start()

    def release(self) -> None:
        self._ended.set()
        if not self._lost:
            with suppress(StorageError):  # Who comes next sees that this process is gone.
                self._store.delete([self._name])

    def check(self) -> None:
        """Raise BuildError if another process took the lock because this one showed no sign of life."""
        if self._lost:
            raise BuildError(
                f"{self._place}: this process was stopped for more than {DEAD_S:.0f} s and another build began; run the same "
                "command again when that one has ended: it continues"
            )

    def _beat_once(self) -> None:
        try:
            self._version = self._store.replace(self._name, self._content(), self._version)
        except ObjectChangedError:
            self._lost = not self._ended.is_set()
        except StorageError:
            pass  # The build itself meets a store that is gone.

    def _content(self) -> bytes:
        return json.dumps({**self._note, "beat": time.time_ns()}).encode()


@contextmanager
def store_locked(store: Store, place: str, *, shared: bool = False) -> Iterator[StoreLock]:
    """Hold the lock of a dataset at a store, alone or shared with other parts.

    Both kinds write their own object first and look for the other kind then: of two that begin at once, at least one sees the
    other.

    Raises:
        BuildLockedError: Another process holds it, which is named.
        StorageError: The store cannot be reached or refuses.
    """
    lock = StoreLock(store, f"{RUNNING}/{secrets.token_hex(8)}" if shared else LOCK, place)
    lock.acquire()
    try:
        others = [LOCK] if shared else [info.name for info in store.list(RUNNING)]
        for name in others:
            version = version_left(store, name, place)
            if version is not None and not shared:
                store.delete([name])
        yield lock
    finally:
        lock.release()


def version_left(store: Store, name: str, place: str) -> str | None:
    """Return the version of a lock's object whose holder is gone; None where there is no object.

    Raises:
        BuildLockedError: The holder is alive.
    """
    try:
        version = store.info(name).version
        holder = bytes(store.read(name)).decode(errors="replace")
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    alive = is_alive(holder)
    end = time.monotonic() + DEAD_S
    while alive is None and time.monotonic() < end:  # a holder on another machine: wait for a heartbeat
        time.sleep(_POLL_S)
        info = find_object(store, name)
        if info is None or info.version != version:
            alive = info is not None  # else it was released
    if alive:
        raise BuildLockedError(refusal(place, holder))
    return version


# --- publication ------------------------------------------------------------------------------------------------------


@contextmanager
def locked_at_store(layout: Layout, *, shared: bool = False) -> Iterator[Publication]:
    """Hold the lock of a dataset at a store, and yield the function that publishes.

    Raises:
      BuildLockedError: Another build holds the lock; it is named.
      StorageError: The store cannot be reached or refuses.
    """
    store = layout.store
    with store_locked(store, str(layout.out), shared=shared) as lock:
        info = find_object(store, MANIFEST)
        before = None if info is None else info.version

        def publication(
            layout: Layout, there: Manifest | None, manifest: Manifest, receipts: Sequence[Receipt]
        ) -> Manifest:
            if there is None or not _is_published(store, there, manifest):
                there = _publish(layout, manifest, receipts, lock, before)
            kept = {layout.receipt(receipt.split, receipt.shard).name for receipt in receipts}
            kept |= {contents_path(layout, receipt).name for receipt in receipts}
            names = [info.name for info in store.list(_RECEIPTS)]
            if left := [name for name in names if name.removeprefix(f"{_RECEIPTS}/") not in kept]:
                with suppress(StorageError):  # Only room is lost.
                    store.delete(left)
            return there

        yield publication


def _is_published(store: Store, there: Manifest, manifest: Manifest) -> bool:
    """Return whether the manifest at the store says the same as this one and all objects that it names are there."""
    if not says_the_same(there, manifest) or set(there.files) <= {there.index, there.locations}:
        return False
    sizes = {info.name: info.bytes for info in store.list(recursive=False)}
    return all(sizes.get(name) == one.bytes for name, one in there.files.items())


def _publish(
    layout: Layout, manifest: Manifest, receipts: Sequence[Receipt], lock: StoreLock, before: str | None
) -> Manifest:
    written, manifest = write_tables(layout, manifest, receipts)
    digests = {}
    for usual, path in written.items():
        digest = digest_of(path)
        name = stored_name(usual, digest.sha256)
        layout.store.write(name, path)
        path.unlink()
        digests[name] = digest
    lock.check()
    first = replace(manifest, files=dict(digests))
    version = replace_manifest(layout.out, first, before)
    texts = other_files(first, receipts, digests[first.index])
    for name in [name for name in texts if name not in tfds_files(manifest)]:
        content = texts[name].encode()
        layout.store.write(name, content)
        digests[name] = FileDigest(len(content), google_crc32c.value(content), hashlib.sha256(content).hexdigest())
    published = replace(first, files=digests)
    replace_manifest(layout.out, published, version)
    return published


# --- leftovers --------------------------------------------------------------------------------------------------------


_RECEIPTS = f"{PRIVATE}/receipts"
_RECEIPT = re.compile(rf"{re.escape(_RECEIPTS)}/(.+)-([0-9]{{5}})\.json\Z")
_OURS = re.compile(
    r"[0-9a-f]{16}-((index|locations)\.\w+|\w+-\w+\.tfrecord-[0-9]{5}-of-[0-9]{5}(\.idx)?)\Z"
    rf"|{re.escape(_RECEIPTS)}/.+-[0-9]{{5}}-[0-9a-f]{{16}}\.contents\.json\Z"
)
"""Names that only builds give: with the digest of their content. Nothing else is ever removed."""
_OF_FIELDS = re.compile(
    r"([a-zA-Z]\w*)-[0-9a-f]{12}/(index\.parquet|locations\.bin|tfprep\.json|dataset_info\.json|features\.json|\w+\.labels\.txt"
    r"|\w+-\w+\.tfrecord-[0-9]{5}-of-[0-9]{5}(\.idx)?)\Z"
)
"""Names that only the files of added fields have, in a folder for each content."""


@dataclass(frozen=True)
class Leftovers:
    """Leftovers of builds and of `add_fields` below a URL or in a folder.

    Attributes:
      url: The dataset's URL or folder.
      unreferenced: Objects that neither the dataset nor an unfinished run refers to.
      unfinished: Objects of a run that has not published; the same run continues from them. They are never removed.
      removed: Whether `unreferenced` were removed.
    """

    url: str
    unreferenced: tuple[ObjectInfo, ...]
    unfinished: tuple[ObjectInfo, ...]
    removed: bool = False


def clean(place: PathOrUrl, *, remove: bool = False) -> Leftovers:
    """Find, and remove if asked to, what builds and `add_fields` left.

    In a local folder, where builds remove by themselves what they no longer need, these are added fields alone. Readers that
    opened an earlier dataset in this place may still read its shards: remove them when those have ended.

    Args:
      place: The dataset's URL or folder.
      remove: Remove what was found, while no build runs there.

    Returns:
      What was found.

    Raises:
      BuildLockedError: A build runs there, which is named; it is asked for only to remove.
      DatasetError: The folder holds no dataset, or the dataset is damaged.
      StorageError: The store cannot be reached or refuses.
    """
    folder: Any = folder_at(place)
    layout = Layout(folder)
    if not layout.at_store:
        read_manifest(folder)  # a lock makes folders, which are for datasets alone
    if not remove:
        return _leftovers(layout)
    with store_locked(layout.store, str(folder)) if layout.at_store else locked(layout):
        leftovers = _leftovers(layout)
        names = [info.name for info in leftovers.unreferenced]
        if names:
            layout.store.delete(names)
        if not layout.at_store:
            for emptied in {folder / name.partition("/")[0] for name in names}:
                remove_leftovers(emptied)
                with suppress(OSError):  # it holds files of somebody else
                    emptied.rmdir()
    return replace(leftovers, removed=True)


def _leftovers(layout: Layout) -> Leftovers:
    infos = {info.name: info for info in layout.store.list()}
    manifest = manifest_there(layout, damaged_is_none=False)  # a damaged one names nothing to keep
    ours, started = _files_of_fields(
        layout, infos, {entry.folder for entry in manifest.groups.values()} if manifest else set()
    )
    if layout.at_store:
        ours |= {name for name in infos if _OURS.match(name)} - (
            {*manifest.files, *shard_names(manifest)} if manifest else set()
        )
        matches = [match for name in infos if (match := _RECEIPT.match(name)) and not name.endswith(".contents.json")]
        for receipt in filter(None, read_receipts(layout, [(match[1], int(match[2])) for match in matches])):
            started.add(f"{_RECEIPTS}/{contents_path(layout, receipt).name}")
            started |= {name for file in receipt.files for name in (file.name, f"{file.name}.idx")}
    return Leftovers(
        url=str(layout.out),
        unreferenced=tuple(infos[name] for name in sorted(ours - started)),
        unfinished=tuple(infos[name] for name in sorted(ours & started) if not name.startswith(PRIVATE)),
    )


def _files_of_fields(layout: Layout, infos: Mapping[str, ObjectInfo], published: Set[str]) -> tuple[set[str], set[str]]:
    """Return the names of the files of added fields outside the published folders, and those of them that receipts refer to."""
    folders: dict[str, set[str]] = {}
    for name in infos:
        folder = name.partition("/")[0]
        if _OF_FIELDS.match(name) and folder not in published:
            folders.setdefault(folder, set()).add(name)
    awaited = set()
    for group in {folder.rpartition("-")[0] for folder in folders}:
        for receipt in layout.store.list(fields_receipts(group)):
            with suppress(ValueError):  # a damaged receipt is none, to `add_fields` too
                awaited.add(without_digest(bytes(layout.store.read(receipt.name)))["folder"])
    ours = {name for folder, names in folders.items() if not _is_foreign(layout, folder, names) for name in names}
    return ours, {name for name in ours if name.partition("/")[0] in awaited}


def _is_foreign(layout: Layout, folder: str, names: Set[str]) -> bool:
    """Return whether a folder that is named as one of added fields holds the dataset of somebody else."""
    if f"{folder}/{MANIFEST}" not in names:
        return False
    try:
        return "model_fields" not in read_manifest(layout.out / folder).recipe
    except StorageError:
        raise
    except DatasetError:
        return True
