"""All samples of a source's listing, as packed columns: about 200 bytes a sample instead of Python objects.

A listing of millions of samples costs its text and 8 bytes a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.dataset.names import check_name
from tfprep.errors import DatasetError, SourceError
from tfprep.fields import Array
from tfprep.seeding import sample_hash
from tfprep.sources import Entry, Listing
from tfprep.sources.reference import part_of

CHUNK = 1 << 14
"""Number of entries that are Python objects at a time."""
SEPARATOR = "\0"
COLUMNS = ("key", "files", "values", "stat")
_NUMBERS = ("hashes", "digests", "splits", "sizes")


@dataclass(frozen=True)
class TextColumn:
    """N byte strings, packed one after another.

    Attributes:
      data: All strings; string i is `data[edges[i] : edges[i + 1]]`.
      edges: int64 [N + 1].
    """

    data: bytes
    edges: Array

    def __len__(self) -> int:
        return len(self.edges) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.edges[row] : self.edges[row + 1]]

    def take(self, rows: Array) -> list[bytes]:
        """Return the strings of these rows."""
        starts, stops = self.edges[rows].tolist(), self.edges[rows + 1].tolist()
        return [self.data[start:stop] for start, stop in zip(starts, stops, strict=True)]


def column(strings: Sequence[bytes]) -> TextColumn:
    """Pack strings into a column."""
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    return TextColumn(b"".join(strings), np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))


def joined(chunks: Iterable[TextColumn]) -> TextColumn:
    """Return one column that holds the strings of all chunks."""
    chunks = list(chunks)
    ends = np.cumsum([0, *(len(chunk.data) for chunk in chunks)], dtype=np.int64)
    edges = [chunk.edges[1:] + end for chunk, end in zip(chunks, ends, strict=False)]
    return TextColumn(b"".join(chunk.data for chunk in chunks), np.concatenate([np.zeros(1, np.int64), *edges]))


@dataclass(frozen=True)
class SampleTable:
    """All N samples of a listing as columns.

    Attributes:
      columns: Keys, files, values and stats, packed (`COLUMNS`).
      hashes: uint64 [N], the hash of seed and key.
      digests: uint64 [N], of what the listing says: key, split, files with sizes and times, values.
      splits: int16 [N], an index into `names`.
      bytes: int64 [N], the size of a sample's files.
      names: The splits; "train" is the first if there is one, the others follow by name.
    """

    columns: Mapping[str, TextColumn]
    hashes: Array
    digests: Array
    splits: Array
    bytes: Array
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.hashes)


def collect_samples(listing: Listing, root: Path, seed: int) -> SampleTable:
    """Walk the listing once and pack it. Raises SourceError if two samples have the same key."""
    numbers: dict[str, int] = {}
    chunks: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, *_NUMBERS)}
    for entries in _chunks(listing.entries):
        for name, packed in _columns(entries, root, seed, numbers).items():
            chunks[name].append(packed)
    names = tuple(sorted(numbers, key=lambda name: (name != "train", name)))
    for name in names:
        _check_split(name)
    rank = np.array([names.index(name) for name in numbers], np.int16)
    hashes, digests, splits, sizes = (np.concatenate(chunks.pop(n) or [np.zeros(0, int)]) for n in _NUMBERS)
    # One column after another, so that no more than one of them is in memory twice.
    columns = {name: joined(chunks.pop(name)) for name in COLUMNS}
    samples = SampleTable(columns, hashes, digests, rank[splits] if names else splits, sizes, names)
    _check_unique(samples)
    return samples


def _chunks(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    chunk: list[Entry] = []
    for entry in entries:
        chunk.append(entry)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _columns(entries: Sequence[Entry], root: Path, seed: int, splits: dict[str, int]) -> dict[str, Any]:
    """Return the entries of one chunk as columns. A split that occurs for the first time is added to `splits`."""
    prefix = os.path.join(root, "")
    stats = [_stat(prefix, entry.files) for entry in entries]
    texts = {
        "key": [entry.key.encode() for entry in entries],
        "files": [os.fsencode(SEPARATOR.join(entry.files)) for entry in entries],
        "values": [json.dumps(entry.values).encode() if entry.values else b"" for entry in entries],
        "stat": [stat.encode() for stat, _ in stats],
    }
    names = [entry.split.encode() for entry in entries]
    return {
        **{name: column(strings) for name, strings in texts.items()},
        "hashes": np.array([sample_hash(seed, entry.key) for entry in entries], np.uint64),
        "digests": _digests(zip(*texts.values(), names, strict=True), len(entries)),
        "splits": np.array([splits.setdefault(entry.split, len(splits)) for entry in entries], np.int16),
        "sizes": np.array([size for _, size in stats], np.int64),
    }


def _digests(rows: Iterable[Sequence[bytes]], count: int) -> Array:
    """Return a number of 64 bits for each row of texts."""
    digests = (blake2b(b"\0\0".join(row), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), "<u8", count)


def _stat(prefix: str, files: Sequence[str]) -> tuple[str, int]:
    """Return size and modification time of a sample's files as text, and the sum of their sizes."""
    texts, total = [], 0
    for path in files:
        part = part_of(path)
        try:
            status = os.stat(prefix + (path if part is None else part.container))
        except OSError as error:
            texts.append(type(error).__name__)
        else:
            texts.append(f"{status.st_size}:{status.st_mtime_ns}")
            total += status.st_size if part is None else part.bytes or 0
    return " ".join(texts), total


def parse_values(values: Sequence[bytes]) -> list[list[Any]]:
    """Parse many short JSON texts as one text: parsing them one by one takes four times as long."""
    parsed: list[list[Any]] = json.loads(b"[%b]" % b",".join(text or b"[]" for text in values))
    return parsed


def split_files(joined: bytes) -> list[str]:
    return os.fsdecode(joined).split(SEPARATOR) if joined else []


def _check_split(name: str) -> None:
    try:
        check_name("the name of a split", name)
    except DatasetError as error:
        raise SourceError(str(error)) from error


def _check_unique(samples: SampleTable) -> None:
    order = np.argsort(samples.hashes, kind="stable")
    ranked = samples.hashes[order]
    for position in np.flatnonzero(ranked[1:] == ranked[:-1]):
        first, second = int(order[position]), int(order[position + 1])
        key = samples.columns["key"][first]
        if key == samples.columns["key"][second]:
            files = [split_files(samples.columns["files"][row]) for row in (first, second)]
            both = " and ".join(", ".join(paths) for paths in files)
            raise SourceError(f"two samples have the key {key.decode()!r}: {both}; rename one of them")


def limit_samples(samples: SampleTable, limit: int | None) -> SampleTable:
    """Return the `limit` samples with the smallest hashes: a random part of all samples, the same every time."""
    if limit is None or limit >= len(samples):
        return samples
    kept = np.sort(np.argsort(samples.hashes, kind="stable")[:limit])
    present = [n for n in range(len(samples.names)) if (samples.splits[kept] == n).any()]
    splits = np.searchsorted(present, samples.splits[kept]).astype(np.int16)
    columns = {name: column(packed.take(kept)) for name, packed in samples.columns.items()}
    return SampleTable(
        columns, samples.hashes[kept], samples.digests[kept], splits, samples.bytes[kept],
        tuple(samples.names[n] for n in present),
    )  # fmt: skip
