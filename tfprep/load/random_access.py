"""Samples by number, for PyTorch's map-style datasets, Grain and whatever else brings an order of its own.

A sample's number is its place in the index; with `variant="all"` the samples of variant 0 come first, then those of variant 1,
and so on, as the records lie on disk.
"""

from __future__ import annotations

import operator
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal, SupportsIndex, TypeAlias, TypedDict

import numpy as np

from tfprep.augment.transform import GeometryOp
from tfprep.errors import LoaderError
from tfprep.load.numpy_loader import with_text
from tfprep.load.options import LoaderOptions, OnBad, Verify
from tfprep.load.order.schedule import BatchIndices
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.batch import Batch, BatchMemory, empty_array
from tfprep.load.reader.thread_state import ThreadState
from tfprep.load.selection import SplitRows, table_rows
from tfprep.load.state import fingerprint

VariantOrAll: TypeAlias = int | Literal["all"]


class AccessKeywords(TypedDict, total=False):
    """The keywords of `random_access`, for type checkers and editors."""

    fields: Sequence[str] | None
    variant: VariantOrAll
    geometry: Sequence[GeometryOp]
    on_bad: OnBad
    verify: Verify


REQUESTS = 16
"""Records that are fetched from a store at a time."""
SINGLE_KEPT = 128
"""Samples read one by one whose memory is kept for the next ones once it is let go: two batches, of which one is in use while the
other is read. The system would otherwise find and clear new pages each time."""


class RandomAccess:
    """The samples of a split by number: a sequence of dicts of NumPy arrays by field. Made by `Data.random_access`.

        photos = data.random_access("train", fields=["image", "label"])
        photos[7]["image"]                                              # uint8 [H, W, C]

    It is a map-style dataset for `torch.utils.data.DataLoader`, which gets all samples of a batch in one call, and a
    `grain.RandomAccessDataSource`. Text is str. Any number of threads may read at once; a process that is forked, or gets a
    pickle, opens the files anew. The arrays of samples that are read together share memory: copy what you keep of a few.
    """

    def __init__(self, sources: Sequence[SplitRows], options: LoaderOptions, class_names: Sequence[str] = ()) -> None:
        """`options.variants` is a number or "all"."""
        self._process = os.getpid()
        self._pipeline = Pipeline(sources, options, class_names)
        self._rows = table_rows(self._pipeline.sources, self._pipeline.table)
        self._samples = self._pipeline.table.samples if self._rows is None else len(self._rows)
        self._threads = threading.local()
        self._single = BatchMemory(self._pipeline.plan.batch_outputs, 1, SINGLE_KEPT)

    @classmethod
    def of(
        cls,
        sources: Sequence[SplitRows],
        class_names: Sequence[str],
        *,
        fields: Sequence[str] | None = None,
        variant: VariantOrAll = 0,
        geometry: Sequence[GeometryOp] = (),
        on_bad: OnBad = "raise",
        verify: Verify = "first_epoch",
    ) -> RandomAccess:
        """Open the samples of these splits (see `Data.random_access`); the shares of a mix do not count."""
        if variant != "all" and (isinstance(variant, bool) or not isinstance(variant, int)):
            raise LoaderError(f"variant is 'all' or a number, not {variant!r}")
        options = LoaderOptions(
            1, training=True, order="sequential", remainder="keep", fields=fields, variants=variant, geometry=geometry,
            on_bad=on_bad, verify=verify, cache=False, workers="threads",
        )  # fmt: skip
        return cls([replace(source, share=None) for source in sources], options, class_names)

    def __reduce__(self) -> tuple[Any, ...]:
        return RandomAccess, (self._pipeline.sources, self._pipeline.options, self._pipeline.class_names)

    def __len__(self) -> int:
        return self._samples * self._pipeline.schedule.times

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        """The dataset, its files and the options: Grain compares it when it resumes."""
        names = ", ".join(source.name for source in self._pipeline.sources)
        options = self._pipeline.options
        chosen = f"fields={[output.name for output in self._pipeline.outputs.outputs]}, variant={options.variants!r}"
        chosen += f", geometry={list(options.geometry)!r}" if options.geometry else ""
        chosen += "" if self._rows is None else f", rows {zlib.crc32(self._rows.tobytes()):08x}"
        digest = fingerprint(self._pipeline.sources)
        return f"<RandomAccess to {len(self):,} samples of {names}: {chosen}, files {digest}>"

    def __getitem__(self, number: SupportsIndex) -> dict[str, Any]:
        """Return one sample.

        Raises:
            IndexError: There is no such number.
            RecordError: The record cannot be read; the message names it.
        """
        return self.__getitems__([number])[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))

    def __getitems__(self, numbers: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Return several samples, which are read and decoded together: less time a sample than one by one.

        Raises:
            IndexError: There is no such number.
            RecordError: A record cannot be read; the message names it.
        """
        if not len(numbers):
            return []
        if os.getpid() != self._process:  # forked: threads and open files of the other process are not here
            self.__init__(self._pipeline.sources, self._pipeline.options, self._pipeline.class_names)  # type: ignore[misc]
        batch = self._read(self._indices(numbers))
        values = with_text(batch)
        return [{name: value[row] for name, value in values.items()} for row in range(len(numbers))]

    @property
    def bad_records(self) -> list[dict[str, Any]]:
        """The records that this process could not read and replaced, with on_bad="skip": path, record, key and reason of each."""
        return self._pipeline.bad.report()

    def close(self) -> None:
        """Close the files."""
        self._pipeline.close()
        self._single.close()

    def _indices(self, numbers: Sequence[SupportsIndex]) -> BatchIndices:
        wanted, total = [operator.index(number) for number in numbers], len(self)
        for number in wanted:
            if not -total <= number < total:
                way_out = "; batch_sampler gives the numbers of random_access(variant='all')"
                way_out = "" if self._pipeline.options.variants == "all" else way_out
                raise IndexError(f"there are {total:,} samples, numbered from 0; there is no {number}{way_out}")
        place = np.array(wanted, np.int64) % total
        choice = self._pipeline.options.variants
        if isinstance(choice, int):
            variant, position = np.full_like(place, choice), place
        else:
            variant, position = np.divmod(place, self._samples)
        return BatchIndices(position if self._rows is None else self._rows[position], variant, place)

    def _read(self, indices: BatchIndices) -> Batch:
        rows = len(indices.row)
        outputs = self._pipeline.plan.batch_outputs
        values = self._single.arrays(1) if rows == 1 else {one.name: empty_array(one, rows) for one in outputs}
        assembler = self._pipeline.assembler
        fill = assembler.fill
        batch = Batch(0, indices, assembler.located(indices, np.arange(rows)), values)
        if not self._pipeline.is_remote or rows == 1:
            fill(batch, 0, rows, self._state())
            return batch
        with ThreadPoolExecutor(min(REQUESTS, rows)) as pool:  # each waits for an answer of the store
            list(pool.map(lambda row: fill(batch, row, row + 1, self._state()), range(rows)))
        return batch

    def _state(self) -> ThreadState:
        if not hasattr(self._threads, "state"):
            self._threads.state = ThreadState(threading.current_thread().name)
        state: ThreadState = self._threads.state
        return state
