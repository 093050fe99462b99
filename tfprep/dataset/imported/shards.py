"""The shards of an imported dataset: which they are, and whether they are still as they were."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from tfprep.dataset.manifest import Manifest
from tfprep.errors import DatasetError
from tfprep.storage.address import Url
from tfprep.storage.store import open_store
from tfprep.storage.urls import folder_at, is_remote, open_file

_WILDCARD = re.compile(r"[*?\[]")
Place = Any
"""A `Path`, or a `Url`."""


@dataclass(frozen=True)
class Shard:
    """One file as it was listed.

    Attributes:
        path: Where it is, a `Path` or a `Url`.
        bytes: Its size.
        version: A text that changes when the file is written: its time of modification in nanoseconds, or what the store says.
    """

    path: Place
    bytes: int
    version: str


def list_shards(pattern: str) -> list[Shard]:
    """The files that a path or URL with wildcards names, sorted by name.

    Raises:
        DatasetError: There is none, or one is not a regular file.
    """
    if "://" in pattern and not pattern.startswith("file://"):
        fixed = pattern[: match.start()] if (match := _WILDCARD.search(pattern)) else pattern
        folder: Any = folder_at(fixed.rpartition("/")[0])
        wanted = pattern[len(fixed.rpartition("/")[0]) + 1 :]
        parts = wanted.count("/")
        shards = [
            Shard(folder / info.name, info.bytes, info.version)
            for info in open_store(folder).list(recursive=parts > 0)
            if info.name.count("/") == parts and fnmatch.fnmatchcase(info.name, wanted)
        ]
    else:
        path = Path(os.path.abspath(pattern.removeprefix("file://")))
        depth = next((number for number, part in enumerate(path.parts) if _WILDCARD.search(part)), None)
        if depth is None:
            return [_local(path)]
        found = Path(*path.parts[:depth]).glob("/".join(path.parts[depth:]))
        shards = [_local(file) for file in sorted(found) if file.is_file() and not file.name.startswith(".")]
    if not shards:
        raise DatasetError(
            f"{pattern} names no file; put the pattern in quotes so that the shell does not change it: 'DIR/train-*.tfrecord'"
        )
    return shards


def shards_at(folder: Place, names: Iterable[str]) -> list[Shard]:
    """Files of one folder by name; DatasetError where one is missing."""
    names = list(names)
    if not is_remote(folder):
        return [_local(folder / name) for name in names]
    listed = {info.name: info for info in open_store(folder).list(recursive=False)}
    if missing := [name for name in names if name not in listed]:
        raise DatasetError(f"{folder / missing[0]} is missing; is the dataset complete?")
    return [Shard(folder / name, listed[name].bytes, listed[name].version) for name in names]


_NUMBERED = re.compile(r"(?:[0-9a-f]{16}-)?(.*)-([0-9]{5})-of-([0-9]{5})(.*)", re.DOTALL)
"""The digest before a name of `tfprep.dataset.names.stored_name` differs from shard to shard."""


def missing_shards(paths: Iterable[Place]) -> list[str]:
    """Return the names of shards that are not there though others are: `x-00000-of-00004` says that there are four."""
    found: dict[tuple[Place, str, int, str], set[int]] = {}
    for path in paths:
        if match := _NUMBERED.fullmatch(path.name):
            key = (path.parent, match[1], int(match[3]), match[4])
            found.setdefault(key, set()).add(int(match[2]))
    return [
        f"{start}-{number:05d}-of-{count:05d}{end}"
        for (_, start, count, end), numbers in found.items()
        for number in range(count)
        if number not in numbers
    ]


def current(path: Place) -> Shard:
    """The file at a path as it is now; DatasetError where it is missing."""
    if is_remote(path):
        info = open_store(path.parent).info(path.name)
        return Shard(path, info.bytes, info.version)
    return _local(path)


def _local(path: Path) -> Shard:
    try:
        status = path.stat()
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror}); is the dataset complete?") from error
    if not path.is_file():
        raise DatasetError(
            f"{path} is not a regular file; name the shards with a pattern such as 'DIR/train-*.tfrecord'"
        )
    return Shard(path, status.st_size, str(status.st_mtime_ns))


# --- names --------------------------------------------------------------------------------------------------------------


def common_root(paths: Sequence[Place]) -> Place:
    """The folder that all these files are in or below."""
    if is_remote(paths[0]):
        key = os.path.commonpath([path.parent.key for path in paths])
        return Url(paths[0].scheme, paths[0].bucket, key)
    return Path(os.path.commonpath([path.parent for path in paths]))


def name_below(root: Place, path: Place) -> str:
    """A file's name in the manifest: its path below the root, with %2F for '/'."""
    key = path.key[len(root.key) :].strip("/") if is_remote(path) else path.relative_to(root).as_posix()
    return quote(key, safe=" !#$&'()+,;=@[]{}~^`-._")


def path_below(root: Place, name: str) -> Place:
    """The path of a file by its name in the manifest, links resolved: the manifest refers to it wherever it is."""
    if is_remote(root):
        return root / unquote(name)
    return Path(os.path.realpath(root / unquote(name)))


def root_of(folder: Place, manifest: Manifest) -> Place:
    """The folder that the shards of an imported dataset are in or below; `folder` is that of its manifest."""
    assert manifest.imported is not None
    root = manifest.imported.root
    if "://" in root:
        return folder_at(root)
    return folder / root if is_remote(folder) else Path(os.path.join(folder, root))


def check_sizes(folder: Place, manifest: Manifest, split: str) -> None:
    """Check that the shards of a split are there, of the sizes that were indexed. Each record has its checksum in the index.

    Args:
        folder: The folder of the manifest.
        manifest: What the dataset is.
        split: The split.

    Raises:
        DatasetError: A shard is missing or has changed.
    """
    root = root_of(folder, manifest)
    for file in manifest.splits[split].files[0]:
        now = current(path_below(root, file.name))
        if now.bytes != file.bytes:
            raise DatasetError(
                f"{now.path} has changed since it was indexed: it holds {now.bytes:,} bytes, then it held {file.bytes:,}. Run "
                "the same tfprep index command again, which reads only what changed"
            )


def open_shard(path: Place) -> BinaryIO:
    """Open a shard for reading, wherever a link leads: it is named by the user, not by the dataset of a stranger."""
    return open_file(path if is_remote(path) else Path(os.path.realpath(path)))
