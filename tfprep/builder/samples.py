"""All samples of a source's listing, on disk instead of in memory: a plan of any size takes about 100 MB.

A listing is written to two files without names: the texts of each sample (key, files, values, sizes and times), and a row of 58
bytes for each (`ROW`). The rows are then arranged by shard in two steps: they are distributed over buckets, each holds
some shards and fits into memory, and each bucket is sorted. The task of a shard is cut out of the files when its turn comes.
Small files stay in memory.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.dataset.names import check_name, is_training_split
from tfprep.errors import DatasetError, SourceError
from tfprep.fields import Array
from tfprep.limits import usable_cpus
from tfprep.pool import Done, Mark, Pool, Task
from tfprep.seeding import sample_hashes
from tfprep.sources import Entry, Listing
from tfprep.sources.raw import RawState, parse_reference, raw_states
from tfprep.storage.local import writing
from tfprep.storage.urls import folder_at, is_remote

BLOCK = 1 << 18
"""Number of rows that are in memory at a time."""
_IN_MEMORY_BYTES = 32 << 20
"""A file that is smaller stays in memory: the texts of some 200,000 samples."""
_ALL = (1 << 64) - 1
"""The largest hash there is."""
Sample = tuple[str, list[str], list[Any], str, int]
"""Key, files, values, stat, identity: what a task holds of a sample."""


class _Scratch:
    """A file without a name: nothing is left of it when the process ends, however it ends."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, "w+b", dir=str(self._folder))  # noqa: SIM115
        self.size = 0

    def append(self, data: bytes) -> None:
        with writing(self._folder / "plan"):
            self._file.seek(self.size)
            self._file.write(data)
        self.size += len(data)

    def read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        data: bytes = self._file.read(size)
        return data

    def rows(self, start: int, stop: int) -> Array:
        """Return rows, if the file holds rows."""
        return np.frombuffer(self.read(start * ROW.itemsize, (stop - start) * ROW.itemsize), ROW)

    def __len__(self) -> int:
        """Return the number of rows, if the file holds rows."""
        return self.size // ROW.itemsize

    def blocks(self) -> Iterator[Array]:
        """Yield all rows in order, some at a time."""
        for start in range(0, len(self), BLOCK):
            yield self.rows(start, min(len(self), start + BLOCK))

    def __del__(self) -> None:
        self._file.close()


# --- listing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SampleTable:
    """All samples in the order of the listing.

    Attributes:
      names: The splits by name, those for training first: statistics are of the pixels of the first one.
      rank: int16, the place in `names` of each split in the order in which the listing names them.
      most: The largest hash of a sample that counts.
      texts, numbers: The files.
    """

    names: tuple[str, ...]
    rank: Array
    most: int
    texts: _Scratch
    numbers: _Scratch

    def __len__(self) -> int:
        return len(self.numbers)

    def blocks(self) -> Iterator[Array]:
        """Yield the rows of the samples that count, in order; `split` is an index into `names`."""
        for rows in map(np.copy, self.numbers.blocks()):
            rows["split"] = self.rank[rows["split"]]
            yield rows if self.most == _ALL else rows[rows["hash"] <= np.uint64(self.most)]

    def hashes(self) -> Array:
        """Return the hashes of all samples, sorted: uint64 [N]."""
        hashes = np.empty(len(self), np.uint64)
        for number, rows in enumerate(self.numbers.blocks()):
            hashes[number * BLOCK :][: len(rows)] = rows["hash"]
        hashes.sort()
        return hashes

    def totals(self, most_bytes: int) -> dict[str, tuple[int, int]]:
        """Return the number of samples and of raw bytes by split; a sample counts as `most_bytes` at most."""
        samples, sizes = np.zeros(len(self.names), np.int64), np.zeros(len(self.names), np.int64)
        for rows in self.blocks():
            samples += np.bincount(rows["split"], minlength=len(samples))
            np.add.at(sizes, rows["split"], np.minimum(rows["bytes"], most_bytes))
        return {name: (int(samples[n]), int(sizes[n])) for n, name in enumerate(self.names)}


def collect_samples(listing: Listing, root: Path, seed: int, folder: Path | None = None) -> SampleTable:
    """Walk the listing once and write it down.

    Args:
      listing: The samples of a source.
      root: The folder of the raw files.
      seed: The recipe's seed.
      folder: Where the files without names take room; None is the folder for temporary files.

    Raises:
      SourceError: Two samples have the same key, a split has a name that no dataset can have, or an entry is none.
    """
    split_numbers: dict[str, int] = {}
    texts, numbers = _Scratch(folder), _Scratch(folder)
    for chunk in write_listing(listing, root, seed):
        content, data, splits = chunk
        rows = np.frombuffer(data, ROW).copy()
        of_chunk = [split_numbers.setdefault(name, len(split_numbers)) for name in splits]
        rows["split"] = np.array(of_chunk, np.int16)[rows["split"]]
        rows["offset"] += texts.size
        texts.append(content)
        numbers.append(rows.tobytes())
    names = tuple(sorted(split_numbers, key=lambda name: (not is_training_split(name), name.lower(), name)))
    for name in names:
        try:
            check_name("the name of a split", name)
        except DatasetError as error:
            raise SourceError(str(error)) from error
    rank = np.array([names.index(name) for name in split_numbers], np.int16)
    table = SampleTable(names, rank, _ALL, texts, numbers)
    _check_unique(table)
    return table


def limit_samples(table: SampleTable, limit: int | None) -> SampleTable:
    """Return the `limit` samples with the smallest hashes: a random part of all samples, the same every time."""
    if limit is None or limit >= len(table):
        return table
    limited = replace(table, most=int(table.hashes()[limit - 1]))
    present = [name for name, (samples, _) in limited.totals(0).items() if samples]
    places = [present.index(name) if name in present else -1 for name in table.names]
    return replace(limited, names=tuple(present), rank=np.array(places, np.int16)[table.rank])


def _check_unique(table: SampleTable) -> None:
    hashes = table.hashes()
    repeated = hashes[1:][hashes[1:] == hashes[:-1]]
    if not len(repeated):
        return
    first: dict[str, str] = {}
    for rows in table.blocks():
        for row in rows[np.isin(rows["hash"], repeated, kind="sort")]:  # NumPy 2.0 fails on uint64 otherwise.
            key, paths, *_ = _sample(table.texts, row)
            files = ", ".join(paths)
            if key in first:
                is_twice = first[key] == files
                fix = "list it once, or tell rows of a table apart by key=" if is_twice else "rename one of them"
                raise SourceError(f"two samples have the key {key!r}: {first[key]} and {files}; {fix}")
            first[key] = files


def _sample(texts: _Scratch, row: Any) -> Sample:
    lengths, start, parts = row["lengths"].tolist(), 0, []
    content = texts.read(int(row["offset"]), sum(lengths) + 3 * len(BETWEEN))
    for length in lengths:
        parts.append(content[start : start + length])
        start += length + len(BETWEEN)
    key, files, values, stat = parts
    paths = os.fsdecode(files).split(SEPARATOR) if files else []
    return key.decode(), paths, json.loads(values or b"[]"), stat.decode(), int(row["identity"])


# --- arranging --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrangedSamples:
    """All samples sorted by split, shard and hash.

    Attributes:
      names: The splits.
      starts: By split and shard, the numbers of its first and last row (exclusive).
      texts, numbers: The files.
    """

    names: tuple[str, ...]
    starts: Mapping[tuple[str, int], tuple[int, int]]
    texts: _Scratch
    numbers: _Scratch

    def __len__(self) -> int:
        return len(self.numbers)

    def rows(self, split: str, shard: int) -> Array:
        """Return the rows of a shard."""
        return self.numbers.rows(*self.starts[split, shard])

    def samples(self, split: str, shard: int) -> list[Sample]:
        """Return what the task of a shard holds of its samples."""
        return [_sample(self.texts, row) for row in self.rows(split, shard)]


def arrange(table: SampleTable, shards: Mapping[str, int], folder: Path | None = None) -> ArrangedSamples:
    """Sort the samples by split, shard and hash.

    Args:
      table: The samples.
      shards: The number of shards of each split.
      folder: As in `collect_samples`.
    """
    counts = np.array([shards[name] for name in table.names], np.uint64)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.astype(np.int64))])
    total = int(first[-1])

    def numbers_of(rows: Array) -> Array:
        """Return the shard of each row, counted over all splits."""
        shard: Array = (rows["hash"] % counts[rows["split"]]).astype(np.int64) + first[rows["split"]]
        return shard

    numbers, sizes = _Scratch(folder), np.zeros(total, np.int64)
    for rows in _buckets(table, numbers_of, total, folder):
        shard = numbers_of(rows)
        by_hash = np.argsort(np.ascontiguousarray(rows["hash"]))
        near = shard[by_hash] - shard.min(initial=total)  # numbers of 16 bits are sorted in one pass, by a radix sort
        order = by_hash[np.argsort(near.astype(np.min_scalar_type(near.max(initial=0))), kind="stable")]
        numbers.append(_reordered(rows, order))
        sizes += np.bincount(shard, minlength=total)
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]).tolist()
    starts = {
        (name, shard): (edges[first[n] + shard], edges[first[n] + shard + 1])
        for n, name in enumerate(table.names)
        for shard in range(shards[name])
    }
    return ArrangedSamples(table.names, starts, table.texts, numbers)


def _reordered(rows: Array, order: Array) -> bytes:
    """Return the bytes of rows in another order. NumPy copies them a field at a time, ten times as long, if it sees fields."""
    return rows.view(f"V{ROW.itemsize}")[order].tobytes()


def _buckets(table: SampleTable, numbers_of: Any, total: int, folder: Path | None) -> Iterator[Array]:
    """Yield the rows in groups of whole shards: those of lower numbers first, about `BLOCK` rows a group."""
    count = max(1, min(total, -(-len(table) // BLOCK)))
    if count == 1:
        yield from ([np.concatenate(list(table.blocks()))] if len(table) else [])
        return
    scattered = _Scratch(folder)
    pieces: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for rows in table.blocks():
        bucket = numbers_of(rows) * count // total
        order = np.argsort(bucket, kind="stable")
        edges = np.searchsorted(bucket[order], np.arange(count + 1)).tolist()
        start = len(scattered)
        scattered.append(_reordered(rows, order))
        for number in range(count):
            pieces[number].append((start + edges[number], start + edges[number + 1]))
    for number in range(count):
        yield np.concatenate([scattered.rows(*piece) for piece in pieces[number]])


# --- writing down ------------------------------------------------------------------------------------------------------


CHUNK = 1 << 14
"""Number of entries that are Python objects at a time."""
_ALONE = 4
"""Chunks that are written down before helpers are started: a listing of 65,000 samples takes less time than their start."""
_MOST_HELPERS = 4
"""The number that keeps pace with a source that lists as fast as Python can."""
SEPARATOR = "\0"
BETWEEN = b"\0\0"
"""Between the texts of a sample; no path is empty, so the files of a sample do not hold it."""
ROW = np.dtype(
    [
        ("hash", "<u8"),  # of seed and key
        ("digest", "<u8"),  # of what the listing says: key, split, files with sizes and times, values
        ("identity", "<u8"),  # of inodes and the times at which those changed
        ("bytes", "<i8"),  # size of the sample's files
        ("offset", "<i8"),  # of its texts
        ("lengths", "<u4", 4),  # of key, files, values and stat
        ("split", "<i2"),
    ]
)


_Chunk = tuple[list[str], list[str], list[tuple[str, ...]], list[tuple[Any, ...]]]
"""Keys, splits, files and values of some entries."""
Written = tuple[bytes, bytes, list[str]]
"""A chunk, written down: the texts, the rows as bytes, and the splits in the order in which `split` numbers them."""


def write_listing(listing: Listing, root: Path, seed: int) -> Iterator[Written]:
    """Write down all entries of a listing, in their order.

    Args:
      listing: The listing of a source.
      root: The folder of the raw files, or a URL.
      seed: The recipe's seed.

    Raises:
      SourceError: An entry does not fit the listing, or holds what cannot be written down.
    """
    entries = iter(listing.entries)
    some = iter(lambda: list(itertools.islice(entries, CHUNK)), [])
    chunks = (_chunk(listing, chunk) for chunk in some)
    for number, chunk in enumerate(chunks):
        may_help = number == _ALONE and usable_cpus() > 1 and not is_remote(root)
        # A process that asks a store keeps what it was told.
        if may_help and not any("://" in path for files in chunk[2] for path in files):
            yield from _by_helpers(itertools.chain([chunk], chunks), root, seed)
            return
        yield _written(chunk, root, seed)


def _by_helpers(chunks: Iterator[_Chunk], root: Path, seed: int) -> Iterator[Written]:
    """Have each chunk written down by one of some processes, and yield the results in order."""
    count = min(usable_cpus(), _MOST_HELPERS)
    order: deque[Task] = deque()
    results: dict[Task, Written] = {}
    with closing(Pool(f"{__name__}:open_helper", (os.fspath(root), seed), count)) as helpers:
        events = helpers.events()
        while True:
            for chunk in itertools.islice(chunks, count - len(order)):
                order.append(helpers.submit(chunk))
            if not order:
                return
            while order[0] not in results:
                event = next(events)
                if isinstance(event, Done):
                    results[event.task] = event.result
            yield results.pop(order.popleft())


def open_helper(argument: tuple[str, int]) -> Callable[[_Chunk, Mark], Written]:
    """Return the work of a helper process (`tfprep.pool`)."""
    root, seed = folder_at(argument[0]), argument[1]

    def work(chunk: _Chunk, mark: Mark) -> Written:
        gc.disable()  # A chunk holds no cycle; the collector would look at all of it several times, an eighth of the time.
        return _written(chunk, root, seed)

    return work


# --- one chunk --------------------------------------------------------------------------------------------------------


def _chunk(listing: Listing, entries: Sequence[Entry]) -> _Chunk:
    files, values = [entry.files for entry in entries], [entry.values for entry in entries]
    if {*map(len, files)} != {len(listing.files)} or {*map(len, values)} != {len(listing.values)}:
        counts = len(listing.files), len(listing.values)
        wrong = next(entry for entry in entries if (len(entry.files), len(entry.values)) != counts)
        raise SourceError(
            f"{wrong} is not a sample of the source, whose files are {listing.files} and values {listing.values}"
        )
    return [entry.key for entry in entries], [entry.split for entry in entries], files, values


def _written(chunk: _Chunk, root: Path, seed: int) -> Written:
    try:
        return _rows(chunk, root, seed)
    except (AttributeError, TypeError, ValueError) as error:
        entries = [Entry(*parts) for parts in zip(*chunk, strict=True)]
        if len(entries) == 1:
            raise SourceError(
                f"{entries[0]} is not a sample: {error}. Key, split and files are texts, and values are what JSON holds: "
                "numbers of Python, texts, lists or None"
            ) from error
        for entry in entries:  # the first that is not a sample raises
            _written(([entry.key], [entry.split], [entry.files], [entry.values]), root, seed)
        raise


def _rows(chunk: _Chunk, root: Path, seed: int) -> Written:
    keys, of_splits, of_files, of_values = chunk
    states = raw_states(root, (path for files in of_files for path in files))
    stats = [_stat(states, files) for files in of_files]
    columns = (
        [key.encode() for key in keys],
        [_files_text(files).encode("utf-8", "surrogateescape") for files in of_files],
        [_values_text(values) for values in of_values],
        [stat.encode() for stat, *_ in stats],
    )
    splits: dict[str, int] = {}
    rows = np.zeros(len(keys), ROW)
    rows["split"] = [splits.setdefault(split, len(splits)) for split in of_splits]
    names = {split: split.encode() for split in splits}
    joined = [BETWEEN.join(texts) for texts in zip(*columns, (names[split] for split in of_splits), strict=True)]
    rows["hash"] = sample_hashes(seed, columns[0])
    rows["digest"] = _digests(joined)
    rows["identity"] = _digests([identity.encode() for *_, identity in stats])
    rows["bytes"] = [size for _, size, _ in stats]
    rows["offset"][1:] = np.cumsum(list(map(len, joined[:-1])))
    for number, column in enumerate(columns):
        rows["lengths"][:, number] = list(map(len, column))
    return b"".join(joined), rows.tobytes(), list(splits)


def _digests(texts: Iterable[bytes]) -> Array:
    return np.frombuffer(b"".join([blake2b(text, digest_size=8).digest() for text in texts]), "<u8")


def _files_text(files: Sequence[str]) -> str:
    text = SEPARATOR.join(files)
    if files and (not text or text.count(SEPARATOR) >= len(files)):  # paths that no file has: the sample is rejected
        text = SEPARATOR.join(path.replace(SEPARATOR, "\\0") or "." for path in files)
    return text


def _values_text(values: Sequence[Any]) -> bytes:
    if len(values) == 1 and type(values[0]) is int:  # a single label: `json.dumps` would take a fifth of the whole plan
        return b"[%d]" % values[0]
    return json.dumps(values).encode() if values else b""


def _stat(states: Mapping[str, RawState], files: Sequence[str]) -> tuple[str, int, str]:
    """Return the states of a sample's files as text, the sum of their sizes, and their identities."""
    if len(files) == 1 and (state := states.get(files[0])) is not None:  # a whole file: the reference is its path
        return state
    texts, size, identities = [], 0, []
    for path in files:
        reference = parse_reference(path)
        state = states[reference.file]
        texts.append(state.text)
        identities.append(state.identity)
        if not reference.missing:
            size += state.bytes if reference.bytes is None else reference.bytes
    return " ".join(texts), size, " ".join(identities)
