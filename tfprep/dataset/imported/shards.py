"""The shards of an imported dataset: which they are, and whether they are still as they were."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from tfprep.dataset.imported.declared import INFO_JSON, tfds_splits
from tfprep.dataset.manifest import Manifest, read_manifest
from tfprep.dataset.names import BESIDE, MANIFEST, POINTER, check_name
from tfprep.dataset.versions import find_version
from tfprep.errors import DatasetError
from tfprep.storage.address import Url
from tfprep.storage.store import open_store
from tfprep.storage.urls import folder_at, is_remote, names_in

_WILDCARD = re.compile(r"[*?\[]")
_BESIDE = re.compile(rf"\..*|.*\.idx|{BESIDE}", re.DOTALL)
"""Files and folders that a pattern leaves out: hidden ones, the places of records that builds and DALI write beside shards, and
the index."""
Place = Any
"""A `Path`, or a `Url`."""


@dataclass(frozen=True)
class Shard:
    """One file as it was listed.

    Attributes:
        path: Where it is, a `Path` or a `Url`.
        bytes: Its size.
        version: A text that changes when the file is written: its time of modification in nanoseconds, or what the store says.
        records: The number of records that `dataset_info.json` says it has.
    """

    path: Place
    bytes: int
    version: str
    records: int | None = field(default=None, compare=False)


def find_source(source: str, split: str | None) -> tuple[str, Place, dict[str, list[Shard]]]:
    """Find the shards of a pattern, which are of one split, or of a directory of TensorFlow Datasets.

    Returns:
        The dataset's name, the folder that all shards are in or below, and the shards of each split.

    Raises:
        DatasetError: There is none, one is missing or not a regular file, or nothing says which split they are.
    """
    source = os.path.expanduser(source.removeprefix("file://"))  # the shell leaves '~' in quotes
    # With wildcards it is no folder, and neither is such a path.
    is_url = "://" in source and not _WILDCARD.search(source)
    folder: Place = folder_at(source) if is_url else Path(os.path.abspath(source))
    names = names_in(folder)
    if {POINTER, MANIFEST} & names and read_manifest(find_version(folder).path).imported is None:
        raise DatasetError(f"{folder} was built by tfprep; open it as it is, it needs no other index")
    if INFO_JSON in names:
        name, of_splits = tfds_splits(folder)
        if split is not None and split not in of_splits:
            raise DatasetError(f"{folder} has no split {split!r}; it has {', '.join(of_splits) or 'none'}")
        chosen = {key: files for key, files in of_splits.items() if split in (None, key)}
        empty = [key for key, files in chosen.items() if not files]
        if empty or not chosen:
            which = f" of {', '.join(empty)}; index the other splits one by one (--split)" if empty else ""
            raise DatasetError(f"{folder / INFO_JSON} names no shards{which}")
        listed = {shard.path.name: shard for shard in list_shards(f"{folder}/*")}
        if missing := [file for files in chosen.values() for file in files if file not in listed]:
            raise DatasetError(f"{folder / missing[0]} does not exist, or is not a file; is the dataset complete?")
        splits = {
            key: [replace(listed[file], records=count) for file, count in files.items()]
            for key, files in chosen.items()
        }
    elif not is_remote(folder) and folder.is_dir():
        raise DatasetError(
            f"{folder} has no {INFO_JSON}, so it is not a directory of TensorFlow Datasets; name the shards of one split with a "
            f"pattern: '{folder}/train-*' --split train"
        )
    elif split is None:
        raise DatasetError(f"which split are the shards {source} of? Name it with --split, for example --split train")
    else:
        splits = {split: list_shards(source)}
        folder = common_root([shard.path for shard in splits[split]])
        name = folder.name
    for key in splits:
        check_name("the name of a split", key)
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)[:90].strip("_")
    name = name if name[:1].isalpha() else f"tfrecords_{name}".strip("_")
    return re.sub(r"_v[0-9]+\Z", "", name) or "tfrecords", folder, splits


def list_shards(pattern: str) -> list[Shard]:
    """Return the files that a path or URL with wildcards names, sorted by name; DatasetError where there is none."""
    if "://" in pattern:
        fixed = pattern[: match.start()] if (match := _WILDCARD.search(pattern)) else pattern
        folder, names = fixed.rpartition("/")[0], pattern[len(fixed.rpartition("/")[0]) + 1 :]
        shards = [
            Shard(folder_at(folder) / info.name, info.bytes, info.version)
            for info in open_store(folder).list(recursive="/" in names)
            if not any(map(_BESIDE.fullmatch, parts := info.name.split("/"))) and _fits(parts, names.split("/"))
        ]
    else:
        path = Path(os.path.abspath(pattern))
        below = next((one for one in path.parents if one.exists()), path)  # its own name may have brackets
        if path.exists() or not _WILDCARD.search(names := path.relative_to(below).as_posix()):
            return [current(path)]
        paths = below.glob(names)
        named = [file for file in sorted(paths) if not any(map(_BESIDE.fullmatch, file.relative_to(below).parts))]
        shards = [current(file) for file in named if not file.is_dir()]
    if not shards:
        raise DatasetError(
            f"{pattern} names no file; put the pattern in quotes so that the shell does not change it: 'DIR/train-*.tfrecord'"
        )
    return shards


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return True if the folders and the file of a path fit those of a pattern, in which `**` is any number of folders."""
    if pattern and pattern[0] == "**":
        return any(_fits(names[skipped:], pattern[1:]) for skipped in range(len(names)))
    if not names or not pattern:
        return not (names or pattern)
    return fnmatch.fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


def current(path: Place) -> Shard:
    """Return the file at a path as it is now; DatasetError where it is missing or not a regular file."""
    if is_remote(path):
        info = open_store(path.parent).info(path.name)
        return Shard(path, info.bytes, info.version)
    try:
        status = path.stat()
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror}); is the dataset complete?") from error
    if not path.is_file():
        raise DatasetError(
            f"{path} is not a regular file; name the shards with a pattern such as 'DIR/train-*.tfrecord'"
        )
    return Shard(path, status.st_size, str(status.st_mtime_ns))


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


# --- names --------------------------------------------------------------------------------------------------------------


def common_root(paths: Sequence[Place]) -> Place:
    """Return the folder that all these files are in or below."""
    if is_remote(paths[0]):
        key = os.path.commonpath([path.parent.key for path in paths])
        return Url(paths[0].scheme, paths[0].bucket, key)
    return Path(os.path.commonpath([path.parent for path in paths]))


def name_below(root: Place, path: Place) -> str:
    """Return a file's name in the manifest: its path below the root, with %2F for '/'."""
    key = path.key[len(root.key) :].strip("/") if is_remote(path) else path.relative_to(root).as_posix()
    return quote(key, safe=" !#$&'()+,;=@[]{}~^`-._", errors="surrogateescape")


def path_below(root: Place, name: str) -> Place:
    """Return the path of a file by its name in the manifest, links resolved: the user named it, wherever it is."""
    path = root / unquote(name, errors="surrogateescape")
    return path if is_remote(root) else Path(os.path.realpath(path))


def root_of(folder: Place, manifest: Manifest) -> Place:
    """Return the folder that the shards of an imported dataset are in or below; `folder` is that of its manifest."""
    assert manifest.imported is not None
    root = manifest.imported.root
    if "://" in root:
        return folder_at(root)
    return folder / root if is_remote(folder) else Path(os.path.join(folder, root))
