"""Leftovers of builds at an object store: shards that no dataset refers to any more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfprep.builder.layout import Layout
from tfprep.builder.receipts import contents_path, read_receipts
from tfprep.builder.store_lock import store_locked
from tfprep.dataset import Manifest, read_manifest
from tfprep.dataset.names import PRIVATE
from tfprep.errors import BuildError, DatasetError, StorageError
from tfprep.storage.address import ObjectInfo
from tfprep.storage.urls import PathOrUrl, folder_at, is_remote

_RECEIPTS = f"{PRIVATE}/receipts"
_RECEIPT = re.compile(rf"{re.escape(_RECEIPTS)}/(.+)-([0-9]{{5}})\.json\Z")
_OURS = re.compile(
    r"[0-9a-f]{16}-((index|locations)\.\w+|\w+-\w+\.tfrecord-[0-9]{5}-of-[0-9]{5}(\.idx)?)\Z"
    rf"|{re.escape(_RECEIPTS)}/.+-[0-9]{{5}}-[0-9a-f]{{16}}\.contents\.json\Z"
)
"""Names that only builds give: with the digest of their content. Nothing else is ever removed."""


@dataclass(frozen=True)
class Leftovers:
    """Leftovers of builds below a URL.

    Attributes:
      url: The dataset's URL.
      unreferenced: Objects that neither the dataset nor an unfinished build refers to.
      unfinished: Objects of a build that has not published; the same build continues from them. They are never removed.
      removed: Whether `unreferenced` were removed.
    """

    url: str
    unreferenced: tuple[ObjectInfo, ...]
    unfinished: tuple[ObjectInfo, ...]
    removed: bool = False


def clean(place: PathOrUrl, *, remove: bool = False) -> Leftovers:
    """Find, and remove if asked to, what builds left at an object store.

    Readers that opened an earlier dataset at this URL may still read its shards: remove them when those have ended.

    Args:
      place: The dataset's URL.
      remove: Remove what was found, while no build runs there.

    Returns:
      What was found.

    Raises:
      BuildError: This is a local folder, which builds clean themselves.
      BuildLockedError: A build runs there, which is named; it is asked for only to remove.
      StorageError: The store cannot be reached or refuses.
    """
    folder: Any = folder_at(place)
    if not is_remote(folder):
        raise BuildError(f"{folder} is a local folder; builds remove there what they no longer need")
    layout = Layout(folder)
    if not remove:
        return _leftovers(layout)
    with store_locked(layout.store, str(folder)):
        found = _leftovers(layout)
        if found.unreferenced:
            layout.store.delete([info.name for info in found.unreferenced])
    return replace(found, removed=True)


def _leftovers(layout: Layout) -> Leftovers:
    infos = {info.name: info for info in layout.store.list()}
    published, started = set(_published_names(layout)), set(_receipt_names(layout, infos))
    ours = {name for name in infos if _OURS.match(name)}
    return Leftovers(
        url=str(layout.out),
        unreferenced=tuple(infos[name] for name in sorted(ours - published - started)),
        unfinished=tuple(infos[name] for name in sorted((ours & started) - published) if not name.startswith(PRIVATE)),
    )


def _published_names(layout: Layout) -> Iterator[str]:
    """Yield the names of the objects that `tfprep.json` names; a damaged one is an error, for it names nothing to keep."""
    try:
        manifest: Manifest = read_manifest(layout.out)
    except StorageError:
        raise
    except DatasetError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return
        raise
    yield from manifest.files
    for file in manifest.shard_files():
        yield from (file.name, f"{file.name}.idx")


def _receipt_names(layout: Layout, infos: Mapping[str, ObjectInfo]) -> Iterator[str]:
    """Yield the names of the objects that receipts name."""
    matches = [match for name in infos if (match := _RECEIPT.match(name)) and not name.endswith(".contents.json")]
    places = [(match[1], int(match[2])) for match in matches]
    for receipt in read_receipts(layout, places):
        if receipt is not None:
            yield f"{_RECEIPTS}/{contents_path(layout, receipt).name}"
            for file in receipt.files:
                yield from (file.name, f"{file.name}.idx")
