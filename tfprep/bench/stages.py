"""The cost of each stage of loading: reading, decoding, batching, the hand-over to TensorFlow, the user's map function.

Every stage includes the work of the stages before it, and all are measured in turns. The cost of a stage is the additional time
per image. Stages that run in parallel hide each other's cost, so a cost is not the seconds of work of a stage: it tells which
stage an image waits for.

Reading and decoding alone are the limit of any loader of these records on this machine: threads that know nothing of batches,
order or TensorFlow, and use the index and the codecs, not the reader that is compared with them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from tfprep.bench.loaders import Map, loader_candidate, numpy_candidate
from tfprep.bench.rounds import Candidate, Count, Rounds, Spread
from tfprep.codecs import Codec, Raw, Scalar, Text
from tfprep.dataset import Dataset
from tfprep.errors import RecordError
from tfprep.fields import Array, FieldSpec
from tfprep.limits import usable_cpus
from tfprep.load import Data

WORDS = {
    "reading": "read only",
    "decoding": "read and decode",
    "batching": "in order, into batches",
    "tensorflow": "as tensors",
    "map": "with your .map",
}


@dataclass(frozen=True)
class StageCost:
    """The rate up to a stage, and the `share` (0 to 1) of the time per image that the stage adds."""

    name: str
    images_per_s: Spread
    bytes_per_s: Spread
    cpu_ms: Spread
    cores: Spread
    share: float

    @property
    def words(self) -> str:
        return WORDS[self.name]


@dataclass(frozen=True)
class StageCosts:
    """The stages in the order of the data. The limiting stage is the one with the largest share."""

    costs: tuple[StageCost, ...]

    @property
    def limit(self) -> StageCost:
        return max(self.costs, key=lambda stage: stage.share)

    @property
    def top(self) -> StageCost:
        return self.costs[-1]

    @property
    def record_bytes(self) -> float:
        """Bytes of a record on disk."""
        reading = self.stage("reading")
        return reading.bytes_per_s.median / reading.images_per_s.median

    def stage(self, name: str) -> StageCost:
        return next(stage for stage in self.costs if stage.name == name)

    def as_json(self) -> list[dict[str, Any]]:
        return [{**asdict(stage), "words": stage.words} for stage in self.costs]


def stage_candidates(
    data: Data, split: str, batch_size: int, map_function: Map | None, **options: Any
) -> list[Candidate]:
    """A candidate for each stage. `options` are those of the loader; its `threads` hold for the first stages too.

    All candidates run without a cache, which would hide the cost of reading and decoding from the second epoch on.
    """
    threads = int(options.get("threads", 0))
    options = {**options, "cache": False}
    stages = [
        records("reading", data, split, decode=False, threads=threads),
        records("decoding", data, split, decode=True, threads=threads),
        numpy_candidate(data, split, batch_size, name="batching", **options),
        loader_candidate(data, split, batch_size, name="tensorflow", **options),
    ]
    if map_function is not None:
        stages.append(loader_candidate(data, split, batch_size, name="map", map_function=map_function, **options))
    return stages


def stage_costs(rounds: Rounds) -> StageCosts:
    """The costs of the stages that were measured."""
    measured = [name for name in WORDS if name in rounds.measurements]
    seconds = [1 / rounds.images_per_s(name).median for name in measured]
    added = [max(0.0, now - before) for before, now in zip([0.0, *seconds], seconds, strict=False)]
    costs = []
    for name, share in zip(measured, added, strict=True):
        spreads = {measure: rounds.of(name, measure) for measure in ("images_per_s", "bytes_per_s", "cpu_ms", "cores")}
        costs.append(StageCost(name, **spreads, share=share / sum(added)))
    return StageCosts(tuple(costs))


# --- reading and decoding alone

Numbers = npt.NDArray[np.int64]
CHUNK = 16
"""Records that a thread processes between two reports."""
RING_BYTES = 32 << 20
"""Memory that a thread fills in turn. A single row would stay in the processor's cache, while batches do not."""


@dataclass(frozen=True)
class RecordSpans:
    """The places of the records of a split: by record its file and frame, and the bytes of each field."""

    paths: tuple[Path, ...]
    file: Numbers
    offset: Numbers
    size: Numbers
    fields: Mapping[str, tuple[Numbers, Numbers]]

    @classmethod
    def of(cls, dataset: Dataset, split: str) -> RecordSpans:
        """The spans of all records, those of every variant."""
        names, variants = list(dataset.manifest.fields), range(dataset.split(split).variants)
        columns = ["shard", "offset", "size", *(f"{name}_{part}" for name in names for part in ("offset", "size"))]
        tables = [dataset.index(split, variant, columns) for variant in variants]
        shards = dataset.split(split).shards

        def joined(name: str) -> Numbers:
            return np.concatenate([table.column(name).to_numpy().astype(np.int64) for table in tables])

        first = np.repeat(np.arange(len(variants)) * shards, [len(table) for table in tables])
        paths = tuple(dataset.shard_path(dataset.file(split, v, shard)) for v in variants for shard in range(shards))
        fields = {name: (joined(f"{name}_offset"), joined(f"{name}_size")) for name in names}
        return cls(paths, joined("shard") + first, joined("offset"), joined("size"), fields)


def records(name: str, dataset: Dataset, split: str, *, decode: bool, threads: int = 0) -> Candidate:
    """Threads that read whole records in random order, each thread into its own memory, and decode every field with `decode`.

    Raw fields are read directly into their array.
    """
    fields = dataset.manifest.fields.items() if decode else ()
    codecs = {name: (dataset.codecs[name], info.spec) for name, info in fields}
    spans = RecordSpans.of(dataset, split)
    order = np.random.default_rng(0).permutation(len(spans.offset))
    return Candidate(name, lambda: _Threads(lambda: _RecordReader(spans, codecs), order, threads or usable_cpus()))


class _Threads(Iterator[Any]):
    """Threads that process the records of `order` without end. An element is the size of what one of them has processed."""

    def __init__(self, make_reader: Callable[[], _RecordReader], order: Numbers, threads: int) -> None:
        self._order = order
        self._next = count()
        self._closed = False
        self._done: SimpleQueue[Count | BaseException] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(make_reader(),), name=f"tfprep-bench-{n}", daemon=True)
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

    def _run(self, reader: _RecordReader) -> None:
        try:
            while not self._closed:
                start = next(self._next) * CHUNK  # atomic: `count` is C code
                numbers = [int(self._order[n % len(self._order)]) for n in range(start, start + CHUNK)]
                self._done.put(Count(CHUNK, sum(reader.read(number) for number in numbers)))
        except BaseException as error:
            self._done.put(error)


class _RecordReader:
    """Reads one record at a time and decodes the fields that it has a codec for. Each thread has its own, with its memory.

    Like the loader, it reads a record with one `preadv`, and fields that need no decoding directly into their array.
    """

    def __init__(self, spans: RecordSpans, codecs: Mapping[str, tuple[Codec, FieldSpec]]) -> None:
        self._spans = spans
        self._codecs = codecs
        self._files: dict[int, int] = {}
        largest = int(spans.size.max(initial=1))
        self._scratches = _ring((largest,), "uint8") if not codecs else [np.empty(largest, np.uint8)]
        fixed = {name: spec for name, (_, spec) in codecs.items() if None not in spec.shape and spec.dtype != "string"}
        self._rings = {name: _ring(spec.shape, spec.dtype) for name, spec in fixed.items()}
        direct = [name for name, (codec, _) in codecs.items() if isinstance(codec, Raw) and name in fixed]
        self._direct = sorted(direct, key=lambda name: int(spans.fields[name][0][0]))
        self._turn = 0

    def read(self, number: int) -> int:
        """Read and decode a record; returns its size."""
        self._turn += 1
        scratch = self._scratches[self._turn % len(self._scratches)]
        rows = {name: ring[self._turn % len(ring)] for name, ring in self._rings.items()}
        start, size = int(self._spans.offset[number]), int(self._spans.size[number])
        pieces: list[Any] = []
        at = 0
        for name in self._direct:
            offset, row = int(self._spans.fields[name][0][number]) - start, rows[name].reshape(-1).view(np.uint8)
            pieces += [scratch[at:offset], row]
            at = offset + row.nbytes
        pieces.append(scratch[at:size])
        file = int(self._spans.file[number])
        if file not in self._files:
            self._files[file] = os.open(self._spans.paths[file], os.O_RDONLY)
        size_read = os.preadv(self._files[file], pieces, start)
        if size_read != size:
            reason = f"{size_read} of {size} bytes: the file is truncated; 'tfprep verify' lists all damage"
            raise RecordError(reason, path=str(self._spans.paths[file]), record=None, offset=start)
        for name, (codec, spec) in self._codecs.items():
            if name in self._direct or isinstance(codec, Scalar | Text):  # numbers and texts are a few bytes
                continue
            offset, nbytes = (int(column[number]) for column in self._spans.fields[name])
            content = scratch[offset - start : offset - start + nbytes]
            if name in rows and hasattr(codec, "decode_into"):
                codec.decode_into(content, spec, rows[name])
            else:
                codec.decode(content, spec)
        return size

    def __del__(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)


def _ring(shape: tuple[int | None, ...], dtype: str) -> list[Array]:
    """Arrays of one shape that together fill `RING_BYTES`. Their pages are mapped already."""
    sizes = [size for size in shape if size is not None]
    row_bytes = max(1, int(np.prod(sizes, dtype=np.int64)) * np.dtype(dtype).itemsize)
    return list(np.ones((max(1, RING_BYTES // row_bytes) if row_bytes >= 1 << 12 else 1, *sizes), dtype))
