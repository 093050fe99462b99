"""The files of a shard while it is built, and a journal from which the next attempt continues if the process dies.

The journal has one entry for each finished sample, written after the sample's records. Records and entries go to the operating
system sample by sample, so they outlive the process, although not the machine. All names are temporary until `commit`.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfprep.builder.receipts import Reject
from tfprep.builder.shards.sums import Moments
from tfprep.dataset.manifest import FileInfo
from tfprep.dataset.names import stored_name
from tfprep.errors import RecordError
from tfprep.fields import FieldSpec
from tfprep.records import Frame, check_frame, format_index
from tfprep.records.framing import footer_crc, frame
from tfprep.storage.local import temporary_path, write_whole, writing
from tfprep.storage.store import Store

KEY, OFFSET, SIZE, PAYLOAD_CRC = range(4)
DIGEST = 7
"""Places in a row of the index; label, height and width stand before the digest, the fields' spans behind it."""
OF_IMAGE = 2
"""Entries at the end of a row: digest and hash of the image."""


@dataclass(frozen=True)
class SampleResult:
    """The addition of one sample to its shard.

    Attributes:
      key: The sample's key.
      digest: Digest of its sources; empty if they could not be read.
      rows: The row of the index for each variant; empty if the sample was rejected.
      specs: What each stored field is; empty if the sample was rejected before that was known.
      moments, counts: Sums over the pixels, and counts of classes, by field.
      reject: Why the sample was left out.
      profile: Name of the color profile of its image if that is not sRGB, and not converted to it.
    """

    key: str
    digest: bytes
    rows: Sequence[list[Any]] = ()
    specs: Mapping[str, FieldSpec] = field(default_factory=dict)
    moments: Mapping[str, Moments] = field(default_factory=dict)
    counts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    reject: Reject | None = None
    profile: str = ""


class UnfinishedShard:
    """The files of one attempt at a shard. Use it as a context: what is not committed is removed.

    If the process dies instead, the files stay, and an attempt of the same `run` continues from them.

    Attributes:
      variants: The file of each variant.
    """

    def __init__(self, paths: Sequence[Path], run: str) -> None:
        """Open the files. `paths` are their final names, and `run` is a word that belongs to one run of a build."""
        self._journal_path = temporary_path(paths[0].with_name(f"{paths[0].name}.journal"), run)
        self.variants = [VariantFile(path, temporary_path(path, run)) for path in paths]
        with writing(self._journal_path):
            self._journal = self._journal_path.open("ab+")

    def __enter__(self) -> UnfinishedShard:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()
        for file in self.variants:
            file.close()
        for path in (self._journal_path, *(file.temporary for file in self.variants)):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def resume(self) -> list[SampleResult]:
        """Return the results of the samples that an earlier attempt finished; what it wrote beyond them is cut off."""
        results = []
        self._journal.seek(0)
        end = 0
        while True:
            try:
                result: SampleResult = pickle.load(self._journal)
            except (EOFError, pickle.UnpicklingError):  # the last one may be cut short
                break
            pairs = list(zip(self.variants, result.rows, strict=False))
            frames = [file.read(row) for file, row in pairs]
            if not all(frames):
                break
            for (file, _), framed in zip(pairs, frames, strict=True):
                file.append(framed)
            results.append(result)
            end = self._journal.tell()
        self._journal.truncate(end)
        for file in self.variants:
            file.cut()
        return results

    def note(self, result: SampleResult) -> None:
        """Write the journal's entry of a sample that is finished."""
        with writing(self._journal_path):
            for file in self.variants:
                file.flush()
            self._journal.write(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
            self._journal.flush()


class VariantFile:
    """The file of one variant while it is written."""

    def __init__(self, path: Path, temporary: Path) -> None:
        self._path, self.temporary = path, temporary
        with writing(temporary):
            self._file = temporary.open("ab+")
        self._frames: list[Frame] = []
        self._end = 0
        self._sha256 = hashlib.sha256()

    def write(self, payload: bytes) -> tuple[Frame, int]:
        """Write a record; return where it is, and the masked checksum of the payload."""
        framed = frame(payload)
        with writing(self.temporary):
            self._file.write(framed)
        return self.append(framed), footer_crc(framed)

    def read(self, row: Sequence[Any]) -> bytes:
        """Return the frame of a row; empty if it is not there as it was written."""
        where = Frame(row[OFFSET], row[SIZE])
        self._file.seek(where.offset)
        framed = self._file.read(where.size)
        try:
            check_frame(framed, self.temporary, where, payload_crc=row[PAYLOAD_CRC])
        except RecordError:
            return b""
        return framed

    def cut(self) -> None:
        """Remove what stands behind the records that are kept."""
        self._file.truncate(self._end)
        self._file.seek(self._end)

    def flush(self) -> None:
        self._file.flush()

    def sync(self) -> None:
        """Write the records to the disk."""
        with writing(self.temporary):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with suppress(OSError):  # The disk is full: that was reported.
            self._file.close()

    def commit(self) -> None:
        """Give the file its final name, and write the `.idx` beside it."""
        with writing(self._path):
            self.temporary.replace(self._path)
        write_whole(self._path.with_name(f"{self._path.name}.idx"), format_index(self._frames))

    def put(self, store: Store) -> FileInfo:
        """Write the file to a store, with its `.idx`, under a name that belongs to its content."""
        info = self.info()
        info = replace(info, name=stored_name(info.name, info.sha256))
        store.write(f"{info.name}.idx", format_index(self._frames).encode())
        store.write(info.name, self.temporary)
        return info

    def info(self) -> FileInfo:
        return FileInfo(self._path.name, len(self._frames), self._end, self._sha256.hexdigest())

    def append(self, framed: bytes) -> Frame:
        """Count a frame that is in the file."""
        written = Frame(self._end, len(framed))
        self._frames.append(written)
        self._sha256.update(framed)
        self._end += len(framed)
        return written
