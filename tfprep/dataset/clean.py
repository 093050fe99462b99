"""`tfprep clean`: older versions of a dataset, and what builds and `fields add` left at an object store."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tfprep.dataset.manifest import Manifest, read_manifest
from tfprep.dataset.names import INDEX, LOCATIONS, MANIFEST, POINTER, PRIVATE, REJECTS, REPORT, SHARDS
from tfprep.dataset.versions import (
    RUN,
    NewVersion,
    current_version,
    find_current,
    older_versions,
    own_bytes,
    remove_old,
    version_folder,
    version_numbers,
)
from tfprep.storage.address import ObjectInfo
from tfprep.storage.store import Store, open_store
from tfprep.storage.urls import PathOrUrl, folder_at, is_remote, size_of

AGE_S = 24 * 3600.0
_SHARD = r"\w+-\w+\.tfrecord-[0-9]{5}-of-[0-9]{5}(\.idx)?"
_OURS = re.compile(
    rf"{SHARDS}/([0-9a-f]{{16}}-{_SHARD}|[a-zA-Z]\w*-[0-9a-f]{{12}}/({_SHARD}|{INDEX}|{LOCATIONS}|{MANIFEST}))\Z"
    rf"|v[0-9]{{4,18}}/({RUN}|{MANIFEST}|{INDEX}|{LOCATIONS}|{REJECTS}|{REPORT})\Z"
    rf"|{re.escape(PRIVATE)}/trial-[0-9a-f]{{16}}\Z"
)
"""Names that only tfprep gives. Nothing else is ever removed."""


@dataclass(frozen=True)
class Leftovers:
    """What a dataset does not need.

    Attributes:
      place: The dataset's folder or URL.
      versions: The bytes of each older version that no other version shares, by its number.
      unreferenced: Objects at a store that neither a version nor an unfinished run refers to.
      unfinished: Objects of an unfinished run; the same run continues from them. They are never removed.
      young: Unreferenced objects at a store that are not a day old and stay, because a build that goes on may need them.
      freed: The number of bytes that were removed.
      kept: The older versions that were to be removed and are still there: somebody reads them, as far as locks tell.
    """

    place: str
    versions: Mapping[int, int]
    unreferenced: tuple[ObjectInfo, ...] = ()
    unfinished: tuple[ObjectInfo, ...] = ()
    young: tuple[ObjectInfo, ...] = ()
    freed: int = 0
    kept: tuple[int, ...] = ()


def clean(place: PathOrUrl, *, keep: int = 0, remove: bool = False) -> Leftovers:
    """Find, and remove if asked to, older versions, and objects at a store that nothing refers to and that are a day old.

    A version in a local folder that a process reads stays. At a store nothing shows that a version is read: remove older ones
    when the loaders that opened them have ended.

    Args:
      place: The dataset's folder or URL.
      keep: The number of older versions that stay.
      remove: Remove what was found. A build may run at a store meanwhile: what its receipts name, and what is young, stays.

    Returns:
      What was found.

    Raises:
      BuildLockedError: A build runs in the local folder.
      DatasetError: There is no dataset, or it is damaged.
      StorageError: The store cannot be reached or refuses.
    """
    root = folder_at(place)
    found = _find(root, keep)
    if not remove:
        return found
    if is_remote(root):
        if found.unreferenced:
            open_store(root).delete([info.name for info in found.unreferenced])
        return replace(found, freed=sum(info.bytes for info in found.unreferenced))
    with NewVersion(root):
        freed = remove_old(root, keep)
        return replace(found, freed=freed, kept=tuple(older_versions(root, keep)))


def _find(root: Path, keep: int) -> Leftovers:
    if not is_remote(root):
        return Leftovers(str(root), {n: own_bytes(version_folder(root, n)) for n in older_versions(root, keep)})
    there = find_current(root) if size_of(root / POINTER) is None else current_version(root)
    current = there.number if there else 0  # a store may hold what is left of a first build
    numbers = [number for number in version_numbers(root) if number < current]  # later ones were never published
    older = numbers[: max(0, len(numbers) - keep)]
    kept = {number: read_manifest(version_folder(root, number)) for number in {current, *numbers} - {0, *older}}
    needed = {name for number, manifest in kept.items() for name in _needed(number, manifest)}
    infos = {info.name: info for info in open_store(root).list()}
    started = set(_started(open_store(root), infos))
    ours = [
        info
        for name, info in infos.items()
        if _OURS.match(name) and name not in needed and f"{name.rpartition('/')[0]}/" not in needed
    ]
    unfinished = [info for info in ours if info.name in started or f"{info.name.rpartition('/')[0]}/" in started]
    limit, waiting = time.time() - AGE_S, {info.name for info in unfinished}
    unused = [info for info in ours if info.name not in waiting]
    young = [info for info in unused if float(info.modified or 0) >= limit]
    old = [info for info in unused if float(info.modified or 0) < limit]
    folders = {number: f"{version_folder(Path(), number)}/" for number in older}
    sizes = {n: sum(info.bytes for info in ours if info.name.startswith(folder)) for n, folder in folders.items()}
    return Leftovers(str(root), sizes, tuple(old), tuple(unfinished), tuple(young))


def _needed(number: int, manifest: Manifest) -> Iterator[str]:
    """Yield the names of the objects of a version, and of folders with a slash at the end."""
    yield f"{version_folder(Path(), number)}/"
    for entry in manifest.groups.values():
        yield f"{entry.within}/{entry.folder}/"
    for file in manifest.shard_files():
        yield from (f"{manifest.within}/{file.name}", f"{manifest.within}/{file.name}.idx")


def _started(store: Store, names: Mapping[str, ObjectInfo]) -> Iterator[str]:
    """Yield what receipts refer to, in the form of `_needed`."""
    for name in names:
        if not re.match(rf"{re.escape(PRIVATE)}/(receipts|fields/\w+)/[^/]+\.json\Z", name):
            continue
        with suppress(ValueError, KeyError, TypeError):  # a damaged receipt counts for nothing, in a build too
            receipt = json.loads(bytes(store.read(name)).partition(b"\n")[0])
            if "folder" in receipt:
                yield f"{SHARDS}/{receipt['folder']}/"
            for file in receipt.get("files", ()):
                yield from (f"{SHARDS}/{file['name']}", f"{SHARDS}/{file['name']}.idx")
