"""Reads the raw parts of a sample, and digests their content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tfprep.errors import BuildError, SampleError, StorageError
from tfprep.sources import Entry, read_files
from tfprep.sources.raw import Read, read_raw
from tfprep.storage.urls import is_remote


class RawSample(NamedTuple):
    """The raw parts of a sample.

    Attributes:
      parts: Bytes of a file, or a value, by field.
      digest: 16 bytes of SHA-256 of all files' content and of the values.
      image_digest: 16 bytes of SHA-256 of the image's file alone: its size as 8 bytes, little-endian, and its content. Empty
        if no field of the source is an image.
    """

    parts: dict[str, Any]
    digest: bytes
    image_digest: bytes


@dataclass(frozen=True)
class Inputs:
    """The raw files below a folder or a URL.

    Attributes:
      root: As `tfprep.sources.raw.raw_root` returns it.
      files, values: The names of the fields, as in the source's `Listing`.
      image: The field of `files` whose own digest is kept.
    """

    root: Path
    files: tuple[str, ...]
    values: tuple[str, ...]
    image: str | None = None
    _folder: tuple[int, int] | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_folder", _identity(self.root))

    def read(self, files: Sequence[str], values: Sequence[Any], read: Read = read_raw) -> RawSample:
        """Read and digest the files of a sample, by `read`.

        Raises:
          SampleError: A file cannot be read, or does not fit into memory.
          BuildError: The folder itself is gone, or its store cannot be reached or refuses, so that no file can be read.
        """
        try:
            raw: dict[str, Any] = {**read_files(self.root, self.files, Entry("", "", tuple(files)), read)}
        except MemoryError as error:
            raise SampleError("its files do not fit into memory", stage="read") from error
        except StorageError as error:
            raise BuildError(f"{error}. Run the same command again: it continues") from error
        except SampleError as error:
            if _identity(self.root) != self._folder:
                raise BuildError(
                    f"the raw data is gone: {self.root} was removed or unmounted while it was read. Bring it back, then "
                    "run the same command again: it continues"
                ) from error
            raise
        sha256, image_digest = hashlib.sha256(), b""
        for number, (name, data) in enumerate(raw.items()):
            sha256.update(len(data).to_bytes(8, "little"))
            sha256.update(data)
            if name == self.image:
                # So far the digest of the first file is its own: an image that comes first is digested once.
                image_digest = digest_of_file(data) if number else sha256.copy().digest()[:16]
        sha256.update(json.dumps(values).encode())
        parts = {**raw, **dict(zip(self.values, values, strict=True))}
        return RawSample(parts, sha256.digest()[:16], image_digest)

    def digest(self, files: Sequence[str], values: Sequence[Any], read: Read = read_raw) -> bytes:
        """Return the digest of `read` alone; it is empty if a file cannot be read."""
        try:
            return self.read(files, values, read).digest
        except SampleError:
            return b""

    def path_of(self, name: str, files: Sequence[str]) -> str:
        """Return the file of a field, or the first file of the sample."""
        return files[self.files.index(name)] if name in self.files else next(iter(files), "")


def digest_of_file(data: bytes) -> bytes:
    """Return 16 bytes of SHA-256 of a file's size and content."""
    return hashlib.sha256(len(data).to_bytes(8, "little") + data).digest()[:16]


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from an empty mount point of the same name; None of a URL."""
    if is_remote(folder):
        return None
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino
