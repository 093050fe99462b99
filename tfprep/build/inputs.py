"""Reading the raw parts of a sample, and what their content comes to."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfprep.errors import BuildError, SampleError
from tfprep.sources import Entry, read_files


@dataclass(frozen=True)
class Inputs:
    """The raw files below `root`. `files` and `values` are the field names of a listing."""

    root: Path
    files: tuple[str, ...]
    values: tuple[str, ...]
    _folder: tuple[int, int] | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_folder", _identity(self.root))

    def read(self, files: Sequence[str], values: Sequence[Any]) -> tuple[dict[str, Any], bytes]:
        """The raw sample by field, and 16 bytes of SHA-256 of its files' content and its values.

        Raises SampleError where a file cannot be read, BuildError where none can: the folder itself is gone.
        """
        try:
            raw: dict[str, Any] = {**read_files(self.root, self.files, Entry("", "", tuple(files)))}
        except SampleError as error:
            if _identity(self.root) != self._folder:
                raise BuildError(
                    f"the raw data is gone: {self.root} was removed or unmounted while it was read. Bring it back, then "
                    "run the same command again: it continues"
                ) from error
            raise
        sha256 = hashlib.sha256()
        for data in raw.values():
            sha256.update(len(data).to_bytes(8, "little"))
            sha256.update(data)
        sha256.update(json.dumps(values).encode())
        return {**raw, **dict(zip(self.values, values, strict=True))}, sha256.digest()[:16]

    def digest(self, files: Sequence[str], values: Sequence[Any]) -> bytes:
        """The second part of `read` alone; empty where a file cannot be read."""
        try:
            return self.read(files, values)[1]
        except SampleError:
            return b""

    def path_of(self, name: str, files: Sequence[str]) -> str:
        """The file of a field, or the first file of the sample."""
        return files[self.files.index(name)] if name in self.files else next(iter(files), "")


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino
