"""Everything between a dataset and its batches, without TensorFlow: what the loaders of all frameworks share."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfprep.dataset import Dataset
from tfprep.read.batch import Batch, BatchMemory
from tfprep.read.draws import Each
from tfprep.read.files import Files
from tfprep.read.fill import Filler, Part
from tfprep.read.options import LoaderOptions
from tfprep.read.order import Order
from tfprep.read.outputs import EXTRA, Outputs, channels_of, resolve
from tfprep.read.reader import Pace, Reader
from tfprep.read.schedule import Schedule
from tfprep.read.table import Table
from tfprep.read.variants import Variants

AHEAD = 8


class Pipeline:
    """One split under one set of options. `batches` may be called many times; every call reads by itself."""

    def __init__(self, dataset: Dataset, split: str, options: LoaderOptions) -> None:
        self.dataset, self.split, self.options = dataset, split, options
        self.outputs = resolve(dataset.fields, options.fields, options.inputs, options.targets)
        stored = [name for name in self.outputs.fields if name in dataset.fields or name not in EXTRA]
        self.table = Table(dataset, split, stored)
        self.schedule = _schedule(dataset, split, options, self.table)
        extra = {
            output.name: output.fields[0] for output in self.outputs.outputs if output.fields[0] not in dataset.fields
        }
        self._files = Files()
        self._filler = Filler(
            self.table, _parts(dataset, self.outputs), extra, self._files, verify=options.verify != "never"
        )
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()

    @property
    def steps_per_epoch(self) -> int:
        return self.schedule.steps_per_epoch

    def read(self, start: int | None = None, stride: int = 1) -> Reader:
        """A reader of the batches from this step on (None: `options.start_step`)."""
        ahead = self.options.ahead or AHEAD
        start_step, stop_step = self.schedule.span(0)
        memory = BatchMemory(self.outputs.outputs, stop_step - start_step + 1, ahead + 2)
        pace = Pace(ahead, self.options.threads, self.options.timeout_s)
        first = self.options.start_step if start is None else start
        reader = Reader(self.schedule, self._filler, memory, pace, start=first, stride=stride)
        self._readers.add(reader)
        return reader

    def batches(self, start: int | None = None, stride: int = 1) -> Iterator[Batch]:
        """Batches in order; closing the iterator, or dropping it, stops its threads."""
        reader = self.read(start, stride)
        try:
            yield from reader
        finally:
            reader.close()

    def close(self) -> None:
        """Stop all threads and give the memory back."""
        for reader in list(self._readers):
            reader.close()
        self._files.close()


def _schedule(dataset: Dataset, split: str, options: LoaderOptions, table: Table) -> Schedule:
    training = options.training
    order = options.order or ("global" if training else "sequential")
    variants = options.variants if options.variants is not None else ("rotate" if training else 0)
    grouped = order != "global"
    return Schedule(
        draw=Each(dataset.split(split).samples),
        order=Order(order, options.seed, options.block, options.window),
        variants=Variants(variants, dataset.split(split).variants, options.seed),
        batch_size=options.batch_size,
        remainder=options.remainder or ("wrap" if training else "keep"),
        hosts=options.host,
        epochs=None if training else 1,
        groups=_groups(order, options.block, table) if grouped else None,
    )


def _groups(order: str, block: int, table: Table) -> Any:
    """What a row takes its variant with: its block, or its shard."""
    return np.arange(table.samples) // block if order == "block" else table.places(0).shard.astype(np.int64)


def _parts(dataset: Dataset, outputs: Outputs) -> list[Part]:
    parts = []
    for output in outputs.outputs:
        first = 0
        for name in output.fields:
            if name not in dataset.fields:
                continue  # key and variant come from the index
            spec = dataset.fields[name]
            last = first + (channels_of(spec) if output.stacked else 0)
            parts.append(Part(name, dataset.codecs[name], spec, output, (first, last) if output.stacked else None))
            first = last
    return parts
