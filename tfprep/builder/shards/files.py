"""The files of a shard while it is built, one for each variant, under temporary names until `commit`.

Records go to the operating system sample by sample: memory holds one sample. A process that dies leaves a temporary file,
which the next attempt of the same run overwrites.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from tfprep.dataset.manifest import FileInfo
from tfprep.dataset.names import stored_name
from tfprep.records import Frame, format_index, frame
from tfprep.records.framing import footer_crc
from tfprep.storage.local import temporary_path, writing
from tfprep.storage.store import Store
from tfprep.storage.urls import durable_write


class ShardFile:
    """The file of one variant of a shard; `run` is a word that belongs to one run of a command."""

    def __init__(self, path: Path, run: str) -> None:
        self._path, self._temporary = path, temporary_path(path, run)
        with writing(path):
            self._file = self._temporary.open("wb")
        self._frames: list[Frame] = []
        self._bytes, self._sha256 = 0, sha256()

    def write(self, payload: bytes) -> tuple[Frame, int]:
        """Write a record; return where it is, and the masked checksum of the payload."""
        framed = frame(payload)
        with writing(self._path):
            self._file.write(framed)
        written = Frame(self._bytes, len(framed))
        self._frames.append(written)
        self._sha256.update(framed)
        self._bytes += len(framed)
        return written, footer_crc(framed)

    def close(self) -> None:
        """Close the file, and remove it if it was not committed."""
        with suppress(OSError):  # The disk is full: that was reported.
            self._file.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def commit(self) -> None:
        """Give the file, synced, its final name, and write the `.idx` beside it. The caller syncs the folder."""
        with writing(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._temporary.replace(self._path)
        durable_write(self._path.with_name(f"{self._path.name}.idx"), format_index(self._frames), sync=False)

    def put(self, store: Store) -> FileInfo:
        """Write the file to a store, with its `.idx`, under a name that belongs to its content."""
        info = self.info()
        info = replace(info, name=stored_name(info.name, info.sha256))
        with writing(self._path):
            self._file.flush()
        store.write(f"{info.name}.idx", format_index(self._frames).encode())
        store.write(info.name, self._temporary)
        return info

    def info(self) -> FileInfo:
        return FileInfo(self._path.name, len(self._frames), self._bytes, self._sha256.hexdigest())
