"""From entries of a listing to rows of one width and the texts beside them, a chunk at a time, here or in helper processes.

Looking at files and hashing keys take most of the time of a plan, so large listings are written down by helpers while this
process goes on to list. A helper is `python -m tfprep.builder.planning.listing ROOT SEED PARENT`; chunks and results are pickles,
each after its length. What a helper makes of a chunk is what this process would make of it.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import pickle
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tfprep.child_process import end_with_parent, worker_environment
from tfprep.fields import Array
from tfprep.limits import usable_cpus
from tfprep.seeding import sample_hashes
from tfprep.sources import Entry
from tfprep.sources.raw import RawState, raw_states
from tfprep.sources.reference import parse_reference
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
_LENGTH = struct.Struct("<q")
_PIPE_BYTES = 1 << 20
"""The most that Linux gives a pipe of a user without privileges: 16 times the default, and as many fewer turns of both ends."""


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
    helpers: deque[_Helper] = deque()
    try:
        for number, chunk in enumerate(_chunks(entries)):
            if number == _ALONE and _is_local(root, chunk) and usable_cpus() > 1:
                helpers.extend(_Helper(root, seed) for _ in range(min(usable_cpus(), _MOST_HELPERS)))
            if not helpers:
                yield _written(chunk, root, seed)
                continue
            helper = helpers.popleft()
            yield from helper.take()
            helper.hand(chunk)
            helpers.append(helper)
        for helper in helpers:
            yield from helper.take()
    finally:
        for helper in helpers:
            helper.end()


def _chunks(entries: Iterable[Entry]) -> Iterator[_Chunk]:
    entries = iter(entries)
    while chunk := list(islice(entries, CHUNK)):
        yield _columns(chunk)


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


# --- helpers ----------------------------------------------------------------------------------------------------------


class _Helper:
    """A process that writes down one chunk at a time. A chunk of a helper that has died is written down here."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root, self._seed = root, seed
        self._chunk: _Chunk | None = None
        command = [sys.executable, "-m", __name__, os.fspath(root), str(seed), str(os.getpid())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=worker_environment()
        )
        for pipe in (self._process.stdin, self._process.stdout):
            _enlarge(pipe)

    def hand(self, chunk: _Chunk) -> None:
        """Give it a chunk; it must have none."""
        self._chunk = chunk
        with suppress(BrokenPipeError):
            _send(self._process.stdin, tuple(chunk))

    def take(self) -> Iterator[Written]:
        """Wait for its chunk, and yield it; nothing if it has none."""
        if self._chunk is not None:
            answer = _receive(self._process.stdout)
            yield _written(self._chunk, self._root, self._seed) if answer is None else Written(*answer)
            self._chunk = None

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.communicate()


def _enlarge(pipe: BinaryIO | Any) -> None:
    if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux has it
        with suppress(OSError):  # The pipes of all processes of a user together have a limit.
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _send(pipe: BinaryIO | Any, message: Any) -> None:
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def _receive(pipe: BinaryIO | Any) -> Any:
    """Return the next message; None at the end, also in the middle of a message."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    content = pipe.read(size)
    return pickle.loads(content) if len(content) == size else None


def _help(root: Path, seed: int, parent: int) -> None:
    end_with_parent(parent)
    chunks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    gc.disable()  # a chunk holds no cycle; the collector would look at all of it several times, an eighth of the time
    while (message := _receive(chunks)) is not None:
        _send(answers, tuple(_written(_Chunk(*message), root, seed)))


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        _help(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
