"""Folders of this machine, and URLs that fsspec reads, such as `gs://bucket/photos` or `s3://...`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from tfprep.errors import DatasetError
from tfprep.optional import require_package
from tfprep.storage.local import open_regular

PathOrUrl: TypeAlias = "str | os.PathLike[str]"


def folder_at(path: PathOrUrl) -> Path:
    """Return a path as a `Path`, and a URL as universal_pathlib's `UPath`, which reads as a `Path` does.

    Raises:
        MissingDependencyError: universal_pathlib is not installed.
        DatasetError: The URL's scheme is unknown, or needs a package that is not installed.
    """
    if is_remote(path):
        return path  # type: ignore[return-value] # a `UPath` already
    text = os.fspath(path)
    if "://" not in text:
        return Path(text)
    require_package("upath", f"the URL {text}")
    from upath import UPath

    try:
        folder: Any = UPath(text)
        folder.fs  # noqa: B018 # the package for this scheme is imported here
    except (ValueError, ImportError) as error:
        raise DatasetError(f"{text} cannot be read: {error}") from error
    return Path(folder) if folder.protocol in ("", "file", "local") else folder


def open_file(path: Path) -> BinaryIO:
    """Open a file of a dataset for reading, local or at a URL.

    Raises:
        DatasetError: It is missing, cannot be opened, or is not a regular file of its own folder.
    """
    if not is_remote(path):
        return open_regular(path)
    try:
        return path.open("rb")
    except Exception as error:  # the packages behind fsspec have errors of their own
        raise DatasetError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


def listed_sizes(folder: Any) -> dict[str, int]:
    """Return the sizes of the files in a folder at a URL, by name, as far as its store lists them: some list none, as HTTP."""
    try:
        folder.fs.invalidate_cache(folder.path)  # another build may have replaced files since the last listing
        entries = folder.fs.ls(folder.path, detail=True)
    except (
        Exception
    ):  # the packages behind fsspec have errors of their own; a URL may be readable without being listable
        return {}
    return {entry["name"].rpartition("/")[2]: entry["size"] for entry in entries if isinstance(entry.get("size"), int)}


def is_remote(path: object) -> bool:
    """Return whether this is a folder or file at a URL, as `folder_at` returns it."""
    return not isinstance(path, str | os.PathLike)


def scheme_of(folder: object) -> str:
    """Return `gs` for `gs://bucket/photos`, and "" for a local folder."""
    return str(folder.protocol) if is_remote(folder) else ""  # type: ignore[attr-defined]
