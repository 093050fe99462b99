"""`tfprep.json`: what a dataset is, as plain JSON that reading never executes. `tfprep.dataset.parse` reads and checks it.

The file ends with the SHA-256 of all bytes before it, in one exact form (`seal`), so that a change of any byte is found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import google_crc32c

from tfprep.dataset.names import INDEX, LOCATIONS, check_file_name
from tfprep.errors import DatasetError
from tfprep.fields import FieldSpec
from tfprep.plain_json import indented
from tfprep.records.framing import FRAME_BYTES
from tfprep.storage.urls import open_file

FORMAT_VERSION = 2
MANIFEST = "tfprep.json"
BESIDE = "tfprep-index"
"""The folder of an imported dataset that lies beside its shards."""
NOT_SEALED = "was changed after it was written: its own checksum is wrong"


@dataclass(frozen=True)
class FileInfo:
    """One shard of one variant: its name, how many records and bytes it holds, and their SHA-256 in hexadecimal.

    The SHA-256 of imported shards is not known: "".
    """

    name: str
    records: int
    bytes: int
    sha256: str = ""

    def __post_init__(self) -> None:
        check_file_name(self.name)
        if not 0 <= self.records * FRAME_BYTES <= self.bytes:
            raise DatasetError(f"{self.name}: {self.records} records do not fit into {self.bytes} bytes")


@dataclass(frozen=True)
class SplitInfo:
    """One split: how many samples, and its files by variant and shard (`files[variant][shard]`).

    `rows_crc32c[variant][shard]` is the CRC-32C of the shard's rows in `locations.bin`; it is empty until that file is written.
    """

    samples: int
    files: tuple[tuple[FileInfo, ...], ...]
    rows_crc32c: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for variant, files in enumerate(self.files):
            records = [file.records for file in files]
            if records != [file.records for file in self.files[0]] or sum(records) != self.samples:
                raise DatasetError(
                    f"variant {variant} holds {sum(records)} records in {len(records)} shards, or not as many in each shard as "
                    f"variant 0; {self.samples} samples are listed"
                )

    @property
    def variants(self) -> int:
        return len(self.files)

    @property
    def shards(self) -> int:
        return len(self.files[0]) if self.files else 0

    @property
    def bytes(self) -> int:
        return sum(file.bytes for files in self.files for file in files)


@dataclass(frozen=True)
class FieldInfo:
    """One stored field: what it is, and its codec as `Codec.describe` gives it."""

    spec: FieldSpec
    codec: Mapping[str, Any]


@dataclass(frozen=True)
class Statistics:
    """Per-channel mean and standard deviation (population) of an image field over variant 0 of the training split."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Imported:
    """More of a dataset of TFRecords that other tools wrote, which `tfprep index` made.

    Attributes:
        root: The folder that all shards are in or below: relative to that of `tfprep.json`, absolute, or a URL.
        features: The name that each field has in the Examples.
        left_out: The features that are no fields, and why.
        versions: By split, for each shard a text that changes when the file is written.
        commands: By split, the command that indexes it.
    """

    root: str
    features: Mapping[str, str]
    left_out: Mapping[str, str]
    versions: Mapping[str, tuple[str, ...]]
    commands: Mapping[str, str]


@dataclass(frozen=True)
class Manifest:
    """All that `tfprep.json` holds.

    `classes` and `class_counts` are by field; counts are of variant 0, by split. `files` holds the digests of the published files
    that are no shards, by name: the index (its name is `index`), `locations.bin`, the files for TensorFlow Datasets, the rejects.
    `imported` is None for a built dataset; where it is not, there is no recipe.
    """

    name: str
    fingerprint: str
    recipe: Mapping[str, Any]
    fields: Mapping[str, FieldInfo]
    splits: Mapping[str, SplitInfo]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    class_counts: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    statistics: Mapping[str, Statistics] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    rejects: int = 0
    files: Mapping[str, FileDigest] = field(default_factory=dict)
    imported: Imported | None = None

    @property
    def index(self) -> str:
        """The name of the index's file. It is a hidden name while a build replaces an older dataset."""
        return self._named(INDEX)

    @property
    def locations(self) -> str:
        """The name of `locations.bin`, hidden like that of the index."""
        return self._named(LOCATIONS)

    def _named(self, ending: str) -> str:
        return next((name for name in self.files if name.endswith(ending)), ending)

    def shard_files(self) -> Iterator[FileInfo]:
        """Yield the files of all shards, by split, variant and shard."""
        for split in self.splits.values():
            for files in split.files:
                yield from files

    @property
    def way_out(self) -> str:
        """The command that mends what is wrong with the dataset's files, for messages."""
        return "run tfprep index again" if self.imported else "run the build again, it writes it anew"

    def to_json(self) -> str:
        """The text of `tfprep.json`, with its own checksum at the end."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        if self.imported is None:
            del own["imported"]
        else:
            own["splits"] = {name: _without_sha256(split) for name, split in self.splits.items()}
        return seal({"format_version": FORMAT_VERSION, **own})


def _without_sha256(split: SplitInfo) -> dict[str, Any]:
    files = [
        [{"name": file.name, "records": file.records, "bytes": file.bytes} for file in of_variant]
        for of_variant in split.files
    ]
    return {"samples": split.samples, "files": files, "rows_crc32c": split.rows_crc32c}


def seal(document: Mapping[str, Any]) -> str:
    """Return the document as JSON text whose last entry, `sha256`, is the SHA-256 of all bytes before that entry."""
    text = indented(document, ensure_ascii=False).removesuffix("\n}")
    if not _is_unicode(text):  # names of files that are not UTF-8
        text = indented(document).removesuffix("\n}")
    return text + _ending(text.encode())


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_sealed(content: bytes) -> bool:
    """Return whether the content ends exactly as `seal` ended it: no byte was changed since."""
    length = len(_ending(b""))
    return content[-length:] == _ending(content[:-length]).encode()


def _ending(text: bytes) -> str:
    return f',\n "sha256": "{hashlib.sha256(text).hexdigest()}"\n}}\n'


# --- digests of files --------------------------------------------------------------------------------------------------

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileDigest:
    """Size in bytes, CRC-32C (not masked) and SHA-256 (hexadecimal) of one file."""

    bytes: int
    crc32c: int
    sha256: str


def digest_of(path: Path) -> FileDigest:
    """Read a file once and return its digest."""
    size, crc, sha256 = 0, 0, hashlib.sha256()
    for chunk in _chunks(path):
        size += len(chunk)
        crc = google_crc32c.extend(crc, chunk)
        sha256.update(chunk)
    return FileDigest(size, crc, sha256.hexdigest())


def crc32c_of(path: Path) -> int:
    """Read a file once and return its CRC-32C."""
    crc = 0
    for chunk in _chunks(path):
        crc = google_crc32c.extend(crc, chunk)
    return crc


def matches(path: Path, digest: FileDigest) -> bool:
    """Return whether the file exists with the size and CRC-32C of the digest."""
    return path.is_file() and path.stat().st_size == digest.bytes and crc32c_of(path) == digest.crc32c


def sha256_of(path: Path) -> str:
    """Read a file once and return its SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with open_file(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
