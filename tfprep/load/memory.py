"""The memory budget of a loader: how many batches, and how much cache, fit into it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS, FieldSpec
from tfprep.limits import available_memory
from tfprep.load.order.schedule import Numbers
from tfprep.load.outputs import Output, row_bytes
from tfprep.load.reader.table import RecordTable

DEFAULT_SHARE = 0.25
"""The default budget, as a share of the memory that is free when the loader is made."""
PREFETCH = 8
"""Batches that are prefetched where the budget allows: more would hide no delay of a disk, and cost processor cache."""
PREFETCH_FROM_MEMORY = 2
"""Batches ahead where rows are copied from memory. There is no delay of a disk to hide, and memory that was used a moment ago is
still in the processor's cache: with eight batches in turn, copying takes a third longer."""
HELD_ELSEWHERE = 4
"""Batches that TensorFlow prefetches or that the consumer works on."""
FETCH_SHARE, MOST_FETCH_BYTES = 0.25, 1 << 30
"""For records that are fetched from URLs ahead of their use. A link of 10 Gbit/s brings 1 GiB in less than a second: more would
hide no longer delay."""

SMALLEST_ROW = 64
"""Bytes of a label or a text, counted roughly."""
MOST_CHANNELS = 4
"""Of a raster whose samples differ in their channels: RGBA."""
MOST_ARRAY_BYTES = 1 << 40
"""An index in which a sample's array is larger than this is damaged."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class MemoryPlan:
    """The budget, what a batch takes, and what decoding and processes take, in bytes; and the number of batches to prefetch."""

    budget: int
    batch_bytes: int
    prefetch: int
    working_bytes: int = 0
    fetch_bytes: int = 0
    """Bytes for records that are fetched from URLs ahead of their use."""

    @property
    def batches_bytes(self) -> int:
        return self.batch_bytes * (self.prefetch + HELD_ELSEWHERE) + self.working_bytes

    @property
    def in_turn(self) -> int:
        """Batches whose memory is used in turn: those that are prefetched, the next one, and the one delivered last."""
        return self.prefetch + 2

    @property
    def cache_bytes(self) -> int:
        return max(0, self.budget - self.batches_bytes - self.fetch_bytes)

    def with_fetching(self) -> MemoryPlan:
        """Return the plan with room for what is fetched ahead: `FETCH_SHARE` of the budget, if the batches leave as much."""
        most = min(int(self.budget * FETCH_SHARE), MOST_FETCH_BYTES, self.budget - self.batches_bytes)
        return replace(self, fetch_bytes=max(0, most))


def budget_bytes(budget: int | str | None) -> int:
    """The budget in bytes: as `parse_bytes` reads it, or for None `DEFAULT_SHARE` of the free memory."""
    return parse_bytes(budget) if budget is not None else int(available_memory() * DEFAULT_SHARE)


def plan_memory(
    budget: int | str | None, batch_bytes: int, prefetch: int | None, most: int | None = None, working_bytes: int = 0
) -> MemoryPlan:
    """Return how many batches to prefetch: `prefetch`, or else `most` (`PREFETCH`) batches, but within half the budget.

    Args:
        budget: Bytes, or text such as "2GB"; None for `DEFAULT_SHARE` of the free memory.
        batch_bytes: What the largest batch takes.
        prefetch: The number asked for.
        most: The most batches where no number is asked for.
        working_bytes: What threads take while they decode, and what worker processes take.

    Raises:
        LoaderError: That number of batches, or not even one, fits into the budget.
    """
    total = budget_bytes(budget)
    free = total - working_bytes
    if batch_bytes * (1 + HELD_ELSEWHERE) > free:
        working = f" and {working_bytes:,} bytes for decoding and worker processes" if working_bytes else ""
        raise LoaderError(
            f"memory_budget={total:,} bytes cannot hold {1 + HELD_ELSEWHERE} batches of {batch_bytes:,}{working}; a batch is "
            "filled, one waits, and TensorFlow and the trainer hold the others. Allow more, or make batch_size smaller"
        )
    fits = max(1, (free - total // 2) // max(batch_bytes, 1) - HELD_ELSEWHERE)
    plan = MemoryPlan(total, batch_bytes, prefetch or min(most or PREFETCH, fits), working_bytes)
    if plan.batches_bytes > total:
        raise LoaderError(
            f"prefetch={prefetch} takes {plan.batches_bytes:,} bytes with the {HELD_ELSEWHERE} batches that TensorFlow and "
            f"the trainer hold, memory_budget is {total:,}; prefetch={free // batch_bytes - HELD_ELSEWHERE} fits, or allow more"
        )
    return plan


@dataclass(frozen=True)
class Sizes:
    """Bytes of samples and batches; where samples differ in size, by the index.

    `rows` are those of the table that are read; None for all. `derived` are the fields that are derived at load.
    """

    specs: Mapping[str, FieldSpec]
    table: RecordTable
    rows: Numbers | None
    derived: Collection[str] = ()

    def of_batch(self, outputs: Sequence[Output], batch_rows: int) -> int:
        """Bytes of the largest batch of `batch_rows` samples: where these differ in size, of the largest ones."""
        fixed = batch_rows * sum(max(row_bytes(output), SMALLEST_ROW) for output in outputs)
        varying = self._varying(outputs)
        return fixed if varying is None else fixed + self._largest_sum(varying, batch_rows)

    def of_decoding(self, outputs: Sequence[Output], at_once: int) -> int:
        """Bytes of `at_once` decoded samples, where their stored sizes differ: of other samples the memory is not counted."""
        names = dict.fromkeys(field for output in outputs for field in output.fields if field in self.specs)
        stored = [Output(name, (name,), self.specs[name].shape, self.specs[name].dtype) for name in names]
        varying = self._varying(stored)
        return 0 if varying is None or not len(varying) else at_once * self._largest_sum(varying, 1)

    def _varying(self, outputs: Sequence[Output]) -> Numbers | None:
        """Bytes of each row's arrays that have no fixed size, int64 [N], in the largest of its variants; None without any."""
        differ = [output for output in outputs if None in output.shape and output.dtype != "string"]
        differ = [output for output in differ if not self._has_derived_rows(output.fields[0])]
        varying = [_decoded_bytes(output, self.specs, self.table) for output in differ]
        return np.stack(varying).sum(axis=0) if varying else None

    def _has_derived_rows(self, name: str) -> bool:
        """Return True for boxes, points and numbers that are derived at load, whose few bytes no index knows."""
        return name in self.derived and self.specs[name].kind not in RASTER_KINDS

    def _largest_sum(self, values: Numbers, count: int) -> int:
        """The sum of the `count` largest values of the rows that are read."""
        values = values if self.rows is None else values[self.rows]
        largest = np.partition(values, -count)[-count:] if count < len(values) else values
        return int(largest.sum())


def _decoded_bytes(output: Output, specs: Mapping[str, FieldSpec], table: RecordTable) -> Numbers:
    itemsize, name = np.dtype(output.dtype).itemsize, output.fields[0]
    if specs[name].kind not in RASTER_KINDS:
        dtype = np.dtype(specs[name].dtype)
        stored = 1 if dtype.kind in "iu" else dtype.itemsize  # varints, floats
        return _product(name, _largest(table, f"{name}_size", name), itemsize) // stored
    height, width = (
        _largest(table, column, name) if size is None else np.int64(size)
        for column, size in zip(("height", "width"), output.shape[:2], strict=True)
    )
    channels = prod(MOST_CHANNELS if size is None else size for size in output.shape[2:])
    return _product(name, height, width, channels * itemsize)


def _product(name: str, *sizes: Any) -> Numbers:
    """The bytes of a field's arrays by the index's sizes, int64 [N]; LoaderError where no array has them."""
    factors = [np.asarray(size, np.float64) for size in sizes]
    nbytes = np.asarray(prod(factors))
    if any((factor < 0).any() for factor in factors) or (nbytes > MOST_ARRAY_BYTES).any():
        raise LoaderError(
            f"the index gives sizes of {name!r} that no array has: {nbytes.min():,.0f} to {nbytes.max():,.0f} bytes; it "
            "is damaged: build the dataset again"
        )
    return nbytes.astype(np.int64)


def _largest(table: RecordTable, column: str, field: str) -> Numbers:
    """A column of the index that a field is in, for each row the largest of the variants that are read: int64 [N]."""
    parts = []
    for part in table.parts:
        group = part.dataset.group_of(field)
        dataset = part.dataset.added(group) if group else part.dataset
        values = [dataset.index(part.split, variant, [column]).column(column) for variant in part.variants]
        parts.append(np.max([value.fill_null(0).to_numpy() for value in values], axis=0).astype(np.int64))
    return np.concatenate(parts)


def parse_bytes(value: int | str, option: str = "memory_budget") -> int:
    """The value of an option: a number of bytes, or text such as "800M", "2GB" or "1.5 GiB" (units of 1,024)."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)i?b?\s*", str(value).lower())
    try:
        amount = float(match[1]) * _UNITS[match[2]] if match else 0
    except ValueError:
        amount = 0
    if amount < 1:
        raise LoaderError(f"{option} is a number of bytes or text such as '2GB', not {value!r}")
    return int(amount)
