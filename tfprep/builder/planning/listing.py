"""From entries of a listing to rows of one width and the texts beside them, a chunk at a time, here or in helper processes.

Looking at files and hashing keys take most of the time of a plan, so large listings are written down by helpers while this
process goes on to list. What a helper makes of a chunk is what this process would make of it.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfprep.child_process import Mark, Processes, TaskCrashed, TaskDone
from tfprep.fields import Array
from tfprep.limits import usable_cpus
from tfprep.seeding import sample_hashes
from tfprep.sources import Entry
from tfprep.sources.raw import RawState, parse_reference, raw_root, raw_states
from tfprep.storage.urls import is_remote

CHUNK = 1 << 14
"""Number of entries that are Python objects at a time."""
_ALONE = 4
"""Chunks that are written down before helpers are started: a listing of 65,000 samples takes less time than their start."""
_MOST_HELPERS = 4
"""As many as keep pace with a source that lists as fast as Python can."""
SEPARATOR = "\0"
BETWEEN = b"\0\0"
"""Between the texts of a sample; no path is empty, so the files of a sample do not hold it."""
ROW = np.dtype(
    [
        ("hash", "<u8"),  # of seed and key
        ("digest", "<u8"),  # of what the listing says: key, split, files with sizes and times, values
        (
            "identity",
            "<u8",
        ),  # of what else tells the files from others of the same size and time, on this machine alone
        ("bytes", "<i8"),  # size of the sample's files
        ("offset", "<i8"),  # of its texts
        ("lengths", "<u4", 4),  # of key, files, values and stat
        ("split", "<i2"),
    ]
)


class Written(NamedTuple):
    """A chunk, written down: the texts, the rows as bytes, and the splits in the order in which `split` numbers them."""

    texts: bytes
    rows: bytes
    splits: list[str]

    def numbered(self, splits: dict[str, int]) -> Array:
        """Return the rows with the numbers that `splits` gives; a split that is not in it yet is added."""
        rows = np.frombuffer(self.rows, ROW).copy()
        numbers = np.array([splits.setdefault(name, len(splits)) for name in self.splits], np.int16)
        rows["split"] = numbers[rows["split"]]
        return rows


class _Chunk(NamedTuple):
    keys: list[str]
    splits: list[str]
    files: list[tuple[str, ...]]
    values: list[tuple[Any, ...]]


def write_listing(entries: Iterable[Entry], root: Path, seed: int) -> Iterator[Written]:
    """Write down all entries, in their order.

    Args:
      entries: The entries of a listing.
      root: The folder of the raw files, or a URL.
      seed: The recipe's seed.
    """
    entries = iter(entries)
    chunks = (_columns(chunk) for chunk in iter(lambda: list(itertools.islice(entries, CHUNK)), []))
    for number, chunk in enumerate(chunks):
        if number == _ALONE and _is_local(root, chunk) and usable_cpus() > 1:
            yield from _by_helpers(itertools.chain([chunk], chunks), root, seed)
            return
        yield _written(chunk, root, seed)


def _by_helpers(chunks: Iterator[_Chunk], root: Path, seed: int) -> Iterator[Written]:
    """Have each chunk written down by one of some processes, and yield the results in order; a chunk at which one dies, here."""
    count = min(usable_cpus(), _MOST_HELPERS)
    pending: dict[int, _Chunk] = {}
    results: dict[int, Written] = {}
    with closing(Processes(f"{__name__}:open_helper", workers=count, item_timeout_s=inf)) as helpers:
        helpers.start()
        helpers.open((os.fspath(root), seed))
        events = helpers.events()
        for due in itertools.count():
            for number, chunk in zip(range(due + len(pending) + len(results), due + count), chunks, strict=False):
                pending[number] = chunk
                helpers.submit(number, tuple(chunk))
            if not pending and not results:
                return
            while due not in results:
                event = next(events)
                if isinstance(event, TaskDone):
                    results[event.task] = Written(*event.result)
                elif isinstance(event, TaskCrashed):
                    results[event.task] = _written(pending[event.task], root, seed)
                pending = {number: chunk for number, chunk in pending.items() if number not in results}
            yield results.pop(due)


def open_helper(argument: tuple[str, int]) -> Callable[[Sequence[Any], Mark], tuple[Any, ...]]:
    """Return the work of a helper process (`tfprep.child_process`)."""
    root, seed = raw_root(argument[0]), argument[1]

    def work(chunk: Sequence[Any], mark: Mark) -> tuple[Any, ...]:
        gc.disable()  # A chunk holds no cycle; the collector would look at all of it several times, an eighth of the time.
        return tuple(_written(_Chunk(*chunk), root, seed))

    return work


def _columns(chunk: Sequence[Entry]) -> _Chunk:
    return _Chunk(
        [entry.key for entry in chunk],
        [entry.split for entry in chunk],
        [entry.files for entry in chunk],
        [entry.values for entry in chunk],
    )


def _is_local(root: Path, chunk: _Chunk) -> bool:
    """Return whether no file is at a URL: a process that asks a store keeps what it was told."""
    return not is_remote(root) and not any("://" in path for files in chunk.files for path in files)


# --- one chunk --------------------------------------------------------------------------------------------------------


def _written(chunk: _Chunk, root: Path, seed: int) -> Written:
    states = raw_states(root, (path for files in chunk.files for path in files))
    stats = [_stat(states, files) for files in chunk.files]
    columns = (
        [key.encode() for key in chunk.keys],
        [SEPARATOR.join(files).encode("utf-8", "surrogateescape") for files in chunk.files],
        [_values_text(values) for values in chunk.values],
        [stat.encode() for stat, *_ in stats],
    )
    splits: dict[str, int] = {}
    rows = np.zeros(len(chunk.keys), ROW)
    rows["split"] = [splits.setdefault(split, len(splits)) for split in chunk.splits]
    names = {split: split.encode() for split in splits}
    joined = [BETWEEN.join(texts) for texts in zip(*columns, (names[split] for split in chunk.splits), strict=True)]
    rows["hash"] = sample_hashes(seed, columns[0])
    rows["digest"] = _digests(joined)
    rows["identity"] = _digests([identity.encode() for *_, identity in stats])
    rows["bytes"] = [size for _, size, _ in stats]
    rows["offset"][1:] = np.cumsum(list(map(len, joined[:-1])))
    for number, column in enumerate(columns):
        rows["lengths"][:, number] = list(map(len, column))
    return Written(b"".join(joined), rows.tobytes(), list(splits))


def _digests(texts: Iterable[bytes]) -> Array:
    return np.frombuffer(b"".join([blake2b(text, digest_size=8).digest() for text in texts]), "<u8")


def _values_text(values: Sequence[Any]) -> bytes:
    if len(values) == 1 and type(values[0]) is int:  # a label alone: `json.dumps` would take a fifth of the whole plan
        return b"[%d]" % values[0]
    return json.dumps(values).encode() if values else b""


def _stat(states: Mapping[str, RawState], files: Sequence[str]) -> tuple[str, int, str]:
    """Return the states of a sample's files as text, the sum of their sizes, and their identities."""
    if len(files) == 1 and (state := states.get(files[0])) is not None:  # a whole file: the reference is its path
        return state
    references = [parse_reference(path) for path in files]
    of_files = [states[reference.file] for reference in references]
    sizes = (
        state.bytes if reference.bytes is None else reference.bytes
        for reference, state in zip(references, of_files, strict=True)
        if not reference.missing
    )
    return " ".join(state.text for state in of_files), sum(sizes), " ".join(state.identity for state in of_files)
