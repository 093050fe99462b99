"""Everything between datasets and their batches, without TensorFlow: what the loaders of all frameworks share."""

from __future__ import annotations

import math
import weakref
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tfprep.dataset import Dataset, FileInfo
from tfprep.errors import LoaderError
from tfprep.fields import FieldSpec
from tfprep.memory import available_memory
from tfprep.read.at_load import AtLoad, directed_fields, plan_at_load
from tfprep.read.at_load_fill import AtLoadFiller
from tfprep.read.bad import BadRecords
from tfprep.read.batch import Batch, BatchMemory
from tfprep.read.cache import DecodedCache, EncodedCache
from tfprep.read.fill import Filler, Policy
from tfprep.read.memory import plan_memory
from tfprep.read.options import LoaderOptions
from tfprep.read.order import Order
from tfprep.read.outputs import Outputs, resolve, row_bytes
from tfprep.read.parts import field_parts
from tfprep.read.permute import below, mix, seed_key, subkey, words
from tfprep.read.reader import Pace, Reader
from tfprep.read.schedule import Numbers, Schedule
from tfprep.read.selection import select
from tfprep.read.settings import settings_for
from tfprep.read.stats import NOTHING, Counts, add_counts, snapshot
from tfprep.read.table import Share, Table
from tfprep.read.tuning import set_allocator
from tfprep.read.values import convert, warped_spec
from tfprep.read.variants import Variants

PARTLY = 0.5
"""Of the records that are decoded: where so many fit, keeping them doubles the rate."""


@dataclass(frozen=True)
class Source:
    """One split that a pipeline reads: all of it, or some `rows`; with its `share` in a mix."""

    dataset: Dataset
    split: str
    rows: Numbers | None = None
    share: float | None = None


class Pipeline:
    """Some splits under one set of options. `batches` may be called many times; every call reads by itself."""

    def __init__(self, sources: Sequence[Source], options: LoaderOptions, class_names: Sequence[str] = ()) -> None:
        self.sources, self.options = tuple(sources), options
        self.dataset = sources[0].dataset
        self.settings = settings_for(options, [source.dataset for source in sources])
        self.specs = _common_specs(sources)
        self.read_outputs = self._outputs()  # as records give them
        self.at_load = self._at_load()
        self.outputs = self.at_load.delivered(self.read_outputs) if self.at_load else self.read_outputs
        self.indexed = _indexed(sources, self.read_outputs, self.specs)
        stored = [name for name in self.read_outputs.fields if name not in self.indexed.values()]
        self.table = Table(_shares(sources, self.variants), stored, label="label" in self.indexed.values())
        self.schedule = self._schedule(class_names)
        start, stop = self.schedule.span(0)
        self._rows = stop - start  # of this host's largest batch
        self.memory = plan_memory(
            options.memory_budget, self._rows * self._row_bytes, options.ahead, self.settings.most_ahead
        )
        self.bad = BadRecords(options.on_bad)
        parts = [
            part
            for part in field_parts(self.read_outputs, self.specs, self.dataset.codecs, warped=bool(options.geometry))
            if part.output.name not in self.indexed
        ]
        self.cache = self._cache(decodes=not all(part.direct for part in parts))
        substitute = self._substitute if options.training else None
        policy = Policy(options.verify, self.bad, substitute, options.geometry)
        filler = Filler(self.table, parts, self.indexed, policy, self.cache, cold=self._is_cold())
        self._filler: Filler | AtLoadFiller = filler
        if self.at_load:
            read, key_of = self.read_outputs.outputs, self.table.key
            self._filler = AtLoadFiller(filler, self.at_load, read, self.schedule, key_of)
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._ended: Counts = NOTHING
        self.interrupted = False
        self.error: Exception | None = None
        """What ended the last iteration, if an error did."""

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        return self.schedule.steps_per_epoch

    @cached_property
    def variants(self) -> Variants:
        """Which variants are read: by default all in turn in training, else the unaugmented one."""
        choice = self.options.variants
        if choice is None:
            choice = "rotate" if self.options.training else 0
        return Variants(choice, self.options.seed)

    def stats(self) -> dict[str, Any]:
        """What all readers have done so far, as plain numbers."""
        return snapshot(self)

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, start: int | None = None, stride: int = 1) -> Reader:
        """A reader of the batches from this step on (None: `options.start_step`)."""
        if self.settings.allocator:
            set_allocator()
        filled = self.at_load.filled(self.read_outputs) if self.at_load else self.read_outputs
        memory = BatchMemory(filled.outputs, self._rows, self.memory.ahead + 2)
        pace = Pace(self.memory.ahead, self.settings.threads, self.options.timeout_s)
        first = self.options.start_step if start is None else start
        reader = Reader(self.schedule, self._filler, memory, pace, start=first, stride=stride)
        self._readers.add(reader)
        return reader

    def batches(self, start: int | None = None, stride: int = 1) -> Generator[Batch, None, None]:
        """Batches in order; closing the iterator, or dropping it, stops its threads."""
        reader = self.read(start, stride)
        try:
            yield from reader
        except Exception as error:
            self.error = error
            raise
        finally:
            reader.close()
            self._readers.discard(reader)
            self._ended = add_counts(self._ended, reader)

    @property
    def readers(self) -> list[Reader]:
        """Those at work."""
        return list(self._readers)

    @property
    def counts(self) -> Counts:
        """What all readers have done so far, those at work and those that have ended."""
        counts = self._ended
        for reader in self.readers:
            counts = add_counts(counts, reader)
        return counts

    def interrupt(self) -> None:
        """End all waits for batches at once, with an error."""
        self.interrupted = True
        for reader in self.readers:
            reader.stop(LoaderError("interrupted (Ctrl-C)"))

    def close(self) -> None:
        """Stop all threads and give the memory back."""
        for reader in list(self._readers):
            reader.close()
        self._filler.close()
        self.cache = None

    # --- putting it together ----------------------------------------------------------------------------------------

    @property
    def _row_bytes(self) -> int:
        return sum(max(row_bytes(output), 64) for output in self.outputs.outputs)

    def _outputs(self) -> Outputs:
        options, geometry = self.options, tuple(self.options.geometry)
        seen = {name: warped_spec(spec, geometry) for name, spec in self.specs.items()}
        try:
            outputs = resolve(seen, options.fields, options.inputs, options.targets, options.sample_weight)
        except LoaderError as error:
            if len(self.sources) == 1:
                raise
            raise LoaderError(
                f"{error}. A mix loads fields that all its datasets have, alike: {', '.join(seen)}"
            ) from None
        statistics = self.dataset.manifest.statistics
        return convert(outputs, self.specs, statistics, options.dtype, options.normalize)

    def _at_load(self) -> AtLoad | None:
        directed = {name for source in self.sources for name in directed_fields(source.dataset.manifest.recipe)}
        classes, options = self.dataset.manifest.classes, self.options
        return plan_at_load(
            options.at_load,
            self.read_outputs,
            self.specs,
            classes,
            directed,
            seed=options.seed,
            training=options.training,
        )

    def _schedule(self, class_names: Sequence[str]) -> Schedule:
        options, training = self.options, self.options.training
        name = options.order or ("global" if training else "sequential")
        counts = [source.dataset.split(source.split).variants for source in self.sources]
        subset = _subset(self.sources, self.table)
        shares = [source.share for source in self.sources if source.share is not None] or None
        selection = select(self.table, options, class_names, subset, shares)
        return Schedule(
            draw=selection.draw,
            order=Order(name, options.seed, options.block, options.window),
            variants=self.variants,
            batch_size=options.batch_size,
            remainder=options.remainder or ("wrap" if training else "keep"),
            hosts=options.host,
            epochs=None if training else 1,
            rows=selection.rows,
            groups=_groups(name, options.block, self.table),
            counts=counts[0] if len(set(counts)) == 1 else np.repeat(counts, [p.samples for p in self.table.parts]),
        )

    def _cache(self, *, decodes: bool) -> DecodedCache | EncodedCache | None:
        """By default none that holds too little to be worth its memory: `decodes` says whether a hit saves more than a read."""
        choice, left = self.settings.cache, self.memory.cache_bytes
        if choice is False or choice == "encoded":
            return EncodedCache(left) if choice else None
        if self.read_outputs.ragged:
            if self.options.cache == "decoded":
                raise LoaderError(
                    "cache='decoded' keeps arrays of one size; these images differ: use 'encoded', or geometry"
                )
            return None
        cache = DecodedCache(self.read_outputs.outputs, self.table.records, left)
        least = math.ceil(self.table.records * (PARTLY if decodes else 1))
        if choice == "auto" and (cache.capacity < least or not self.options.training):
            return None
        return cache

    def _is_cold(self) -> bool:
        """Whether the page cache cannot hold all files, so that most reads go to the disk."""
        return sum(file.bytes for source in self.sources for file in _files(source, self.variants)) > available_memory()

    def _substitute(self, place: int, attempt: int) -> int:
        """Another row for this place of the run, where the one that belongs there cannot be read."""
        rows = self.schedule.rows
        population = self.table.samples if rows is None else len(rows)
        key = subkey(subkey(seed_key(self.options.seed, "substitute"), place), attempt)
        sample = int(below(mix(key), words(population))[0])
        return sample if rows is None else int(rows[sample])


def _files(source: Source, variants: Variants) -> list[FileInfo]:
    split = source.dataset.split(source.split)
    return [file for variant in variants.used(split.variants) for file in split.files[variant]]


def _indexed(sources: Sequence[Source], outputs: Outputs, specs: Mapping[str, FieldSpec]) -> dict[str, str]:
    """The outputs that the index itself holds, and what they are: "key", "variant", or "label" for the first label stored."""
    first = [next((n for n, spec in s.dataset.fields.items() if spec.kind == "label"), None) for s in sources]
    found = {}
    for output in outputs.outputs:
        name = output.fields[0]
        if name not in specs or (
            {name} == set(first) and specs[name] == FieldSpec("label", (), "int64") and name == "label"
        ):
            found[output.name] = name
    return found


def _shares(sources: Sequence[Source], variants: Variants) -> list[Share]:
    return [
        Share(source.dataset, source.split, variants.used(source.dataset.split(source.split).variants))
        for source in sources
    ]


def _common_specs(sources: Sequence[Source]) -> Mapping[str, FieldSpec]:
    """The fields that all the datasets have, alike."""
    first, *rest = [source.dataset for source in sources]
    specs = dict(first.fields)
    for other in rest:
        for name, spec in list(specs.items()):
            if other.fields.get(name) != spec or other.codecs.get(name) != first.codecs[name]:
                del specs[name]
    if not specs:
        raise LoaderError("the datasets of a mix have no field in common: same name, kind, shape, dtype and codec")
    return specs


def _subset(sources: Sequence[Source], table: Table) -> Numbers | None:
    if all(source.rows is None for source in sources):
        return None
    rows = [
        first + (np.arange(source.dataset.split(source.split).samples) if source.rows is None else source.rows)
        for first, source in zip(table.first_row, sources, strict=False)
    ]
    return np.concatenate(rows).astype(np.int64)


def _groups(order: str, block: int, table: Table) -> Numbers | None:
    """What a row takes its variant with: itself, its block, or its file."""
    if order == "global":
        return None
    if order == "block":
        return np.arange(table.samples) // block
    rows = np.arange(table.samples)
    first_variant = np.concatenate([np.full(part.samples, part.variants[0]) for part in table.parts])
    return table.places.file[table.record(rows, first_variant)].astype(np.int64)
