"""Reading and decoding alone, as fast as threads can: the limit of any loader of these records on this machine.

The code knows nothing of batches, order or TensorFlow. It uses the index and the codecs, not the reader that is compared with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from tfprep.bench.measure.measure import Candidate, Count
from tfprep.codecs import Codec, Raw, Scalar, Text
from tfprep.dataset import Dataset
from tfprep.errors import RecordError
from tfprep.fields import Array, FieldSpec
from tfprep.limits import usable_cpus

Numbers = npt.NDArray[np.int64]
CHUNK = 16
"""Records that a thread processes between two reports."""
RING_BYTES = 32 << 20
"""Memory that a thread fills in turn. A single row would stay in the processor's cache, while batches do not."""


@dataclass(frozen=True)
class RecordSpans:
    """Where the records of some variants of a split are: by record its file and frame, and the bytes of each field."""

    paths: tuple[Path, ...]
    file: Numbers
    offset: Numbers
    size: Numbers
    fields: Mapping[str, tuple[Numbers, Numbers]]

    def __len__(self) -> int:
        return len(self.offset)


def places(dataset: Dataset, split: str, variants: Sequence[int]) -> RecordSpans:
    """The spans of all records of these variants."""
    names = list(dataset.fields)
    columns = ["shard", "offset", "size", *(f"{name}_{part}" for name in names for part in ("offset", "size"))]
    tables = [dataset.index(split, variant, columns) for variant in variants]
    shards = dataset.split(split).shards

    def joined(name: str) -> Numbers:
        return np.concatenate([table.column(name).to_numpy().astype(np.int64) for table in tables])

    first = np.repeat(np.arange(len(variants)) * shards, [len(table) for table in tables])
    paths = tuple(dataset.shard_path(dataset.file(split, v, shard)) for v in variants for shard in range(shards))
    fields = {name: (joined(f"{name}_offset"), joined(f"{name}_size")) for name in names}
    return RecordSpans(paths, joined("shard") + first, joined("offset"), joined("size"), fields)


def reading(dataset: Dataset, split: str, *, threads: int = 0, seed: int = 0) -> Candidate:
    """Threads that read whole records in random order, each thread into its own memory."""
    return _candidate("reading", dataset, split, {}, threads, seed)


def decoding(dataset: Dataset, split: str, *, threads: int = 0, seed: int = 0) -> Candidate:
    """Threads that read records and decode every field. Raw fields are read directly into their array."""
    return _candidate("decoding", dataset, split, dict(dataset.codecs), threads, seed)


def _candidate(
    name: str, dataset: Dataset, split: str, codecs: Mapping[str, Codec], threads: int, seed: int
) -> Candidate:
    where = places(dataset, split, range(dataset.split(split).variants))
    order = np.random.default_rng(seed).permutation(len(where))

    def begin() -> WorkerThreads:
        worker = _RecordReader(where, {n: (codec, dataset.fields[n]) for n, codec in codecs.items()})
        return WorkerThreads(worker.copy, order, threads or usable_cpus())

    return Candidate(name, begin)


class WorkerThreads(Iterator[Any]):
    """Threads that process the records of `order` without end. An element is the size of what one of them has processed."""

    def __init__(self, make_worker: Callable[[], Callable[[int], int]], order: Numbers, threads: int) -> None:
        self._order = order
        self._next = count()
        self._closed = False
        self._done: SimpleQueue[Count | BaseException] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(make_worker(),), name=f"tfprep-bench-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __next__(self) -> Count:
        done = self._done.get()
        if isinstance(done, BaseException):
            raise done
        return done

    def close(self) -> None:
        self._closed = True
        for thread in self._threads:
            thread.join()

    def _run(self, work: Callable[[int], int]) -> None:
        try:
            while not self._closed:
                start = next(self._next) * CHUNK  # atomic: `count` is C code
                numbers = [int(self._order[n % len(self._order)]) for n in range(start, start + CHUNK)]
                self._done.put(Count(CHUNK, sum(work(number) for number in numbers)))
        except BaseException as error:
            self._done.put(error)


class _RecordReader:
    """Reads one record at a time and decodes the fields that it has a codec for. Each thread has its own, with its memory.

    Like the loader, it reads a record with one `preadv`, and fields that need no decoding directly into their array.
    """

    def __init__(self, where: RecordSpans, codecs: Mapping[str, tuple[Codec, FieldSpec]]) -> None:
        self._where = where
        self._codecs = codecs
        self._files: dict[int, int] = {}
        largest = int(where.size.max(initial=1))
        self._scratches = _ring((largest,), "uint8") if not codecs else [np.empty(largest, np.uint8)]
        fixed = {name: spec for name, (_, spec) in codecs.items() if None not in spec.shape and spec.dtype != "string"}
        self._rings = {name: _ring(spec.shape, spec.dtype) for name, spec in fixed.items()}
        direct = [name for name, (codec, _) in codecs.items() if isinstance(codec, Raw) and name in fixed]
        self._direct = sorted(direct, key=lambda name: int(where.fields[name][0][0]))
        self._turn = 0

    def copy(self) -> _RecordReader:
        return _RecordReader(self._where, self._codecs)

    def __call__(self, number: int) -> int:
        self._next_rows()
        start, size = int(self._where.offset[number]), int(self._where.size[number])
        content = self._read(number, start, size)
        for name, (codec, spec) in self._codecs.items():
            if name not in self._direct:
                self._decode(name, codec, spec, number, content, start)
        return size

    def __del__(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)

    def _next_rows(self) -> None:
        self._turn += 1
        self._scratch = self._scratches[self._turn % len(self._scratches)]
        self._rows = {name: ring[self._turn % len(ring)] for name, ring in self._rings.items()}

    def _read(self, number: int, start: int, size: int) -> Array:
        """Read a record into scratch memory, and fields that need no decoding directly into their array."""
        got = os.preadv(self._file(int(self._where.file[number])), self._pieces(number, start, size), start)
        if got != size:
            path = self._where.paths[int(self._where.file[number])]
            reason = f"{got} of {size} bytes: the file is truncated; 'tfprep verify' lists all damage"
            raise RecordError(reason, path=str(path), record=None, offset=start)
        return self._scratch[:size]

    def _pieces(self, number: int, start: int, size: int) -> list[Any]:
        pieces: list[Any] = []
        at = 0
        for name in self._direct:
            offset, row = int(self._where.fields[name][0][number]) - start, self._bytes_of(name)
            pieces += [self._scratch[at:offset], row]
            at = offset + row.nbytes
        return [*pieces, self._scratch[at:size]]

    def _decode(self, name: str, codec: Codec, spec: FieldSpec, number: int, record: Array, start: int) -> None:
        offset, size = (int(column[number]) for column in self._where.fields[name])
        content = record[offset - start : offset - start + size]
        if isinstance(codec, Scalar | Text):
            return  # a few bytes
        if name in self._rows and hasattr(codec, "decode_into"):
            codec.decode_into(content, spec, self._rows[name])
        else:
            codec.decode(content, spec)

    def _bytes_of(self, name: str) -> Array:
        return self._rows[name].reshape(-1).view(np.uint8)

    def _file(self, number: int) -> int:
        if number not in self._files:
            self._files[number] = os.open(self._where.paths[number], os.O_RDONLY)
        return self._files[number]


def _ring(shape: tuple[int | None, ...], dtype: str) -> list[Array]:
    """Arrays of one shape that together fill `RING_BYTES`. Their pages are mapped already."""
    sizes = [size for size in shape if size is not None]
    row_bytes = max(1, int(np.prod(sizes, dtype=np.int64)) * np.dtype(dtype).itemsize)
    whole = np.ones((max(1, RING_BYTES // row_bytes) if row_bytes >= 1 << 12 else 1, *sizes), dtype)
    return list(whole)
