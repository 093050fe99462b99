"""Methods that the loaders of all frameworks have (passes, counters, report and state), and batches as NumPy arrays."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from tfprep import augment
from tfprep.errors import DatasetError, LoaderError, SampleError
from tfprep.fields import RASTER_KINDS, Size
from tfprep.limits import usable_cpus
from tfprep.load.at_load.draws import Drawn, drawn, placed
from tfprep.load.at_load.ops import RandomFlip
from tfprep.load.at_load.plan import AtLoad
from tfprep.load.order.schedule import Numbers
from tfprep.load.outputs import transform_of
from tfprep.load.pipeline import Pipeline
from tfprep.load.plan import LoaderPlan
from tfprep.load.reader.batch import Batch
from tfprep.load.state import start_step, state_at
from tfprep.units import number as counted


class PipelineAccessors:
    """The methods that every loader has.

    Attributes:
        pipeline: The samples, the options and what reads them.
    """

    pipeline: Pipeline
    _epochs: int | None = 1
    """The epochs of one iteration in training; None for an iteration without an end."""

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        """Batches of one iteration; TypeError for `repeat()`, which has no end."""
        steps = self.pipeline.passes.steps(self._epochs)
        if steps is None:
            raise TypeError("repeat() has no end; len(loader) is the number of steps of an epoch")
        return steps

    def __repr__(self) -> str:
        """One line: what is read, for what, and how many steps a pass has."""
        pipeline, kind = self.pipeline, type(self).__name__
        names = ", ".join(dict.fromkeys(source.name for source in pipeline.sources))
        order, size, samples = pipeline.schedule.order.name, pipeline.options.batch_size, pipeline.schedule.size
        lost = _not_shown(pipeline.plan)
        if not pipeline.training:
            return (
                f"<{kind} of {names} for evaluation (training=False): {samples:,} samples as they are, in {order} order, "
                f"{counted(pipeline.passes.steps(1) or 0, 'step')} of {size}{lost}>"
            )
        which = "the same ones" if order == "sequential" else "other ones"
        left = f"; {pipeline.left_out:,} samples are left out, {which} each time" if pipeline.left_out else ""
        passes = {None: "a pass has no end", 1: "a pass is an epoch"}.get(
            self._epochs, f"a pass is {self._epochs} epochs"
        )
        return (
            f"<{kind} of {names} for training (training=True): {passes}; an epoch is {samples:,} samples in {order} order, "
            f"{counted(pipeline.steps_per_epoch or 0, 'step')} of {size}{left}{lost}>"
        )

    def repeat(self, count: int | None = None) -> Self:
        """The epochs one after another in one iteration: `count` of them, or without an end.

        Raises:
            LoaderError: `count` is not a number from 1 or None, or this loader is for evaluation, which has no epochs.
        """
        loader = copy.copy(self)
        loader._epochs = self._epochs_of(count)
        return loader

    def _epochs_of(self, count: Any) -> int | None:
        """The epochs of `repeat(count)`, None for a stream without an end."""
        if not self.pipeline.training:
            raise LoaderError("repeat() is for training; with training=False every pass reads the same samples once")
        whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
        if count is not None and (not whole or (count < 1 and count != -1)):
            raise LoaderError(
                f"repeat() takes a number of epochs from 1, or None for a stream without an end, not {count!r}"
            )
        return None if count in (None, -1) else int(count)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that hold one epoch."""
        return self.pipeline.steps_per_epoch

    @property
    def start_step(self) -> int:
        """The step that the first pass begins with."""
        return self.pipeline.options.start_step

    @property
    def next_step(self) -> int:
        """The step that the next pass begins with."""
        return self.pipeline.passes.next_step

    def at_epoch(self, number: int) -> Self:
        """Let the next pass be this epoch of the run, and those behind it the epochs that follow.

            for images, labels in train.at_epoch(3):
                ...

        Args:
            number: The number of the epoch, from 0.

        Returns:
            This loader.

        Raises:
            LoaderError: It is no whole number from 0, or this loader is for evaluation, which has no epochs.
        """
        self.pipeline.passes.move_to(self.pipeline.schedule.first_step(number))
        return self

    @property
    def stats(self) -> dict[str, Any]:
        """Counters over all passes as plain numbers, since the loader was made. Any thread may read them.

        `batches_ready` and `batches_in_flight` are current values. `wait_s` is how long the consumer waited for batches, in
        `waits` waits; `read_s`, `decode_s` and `idle_s` are summed over the reading threads.
        """
        pipeline = self.pipeline
        readers, counts, fetched = pipeline.readers, pipeline.counts, pipeline.assembler.fetched
        return {
            **{name: value for name, value in counts.items() if name != "records"},
            "batches_ready": sum(reader.ready for reader in readers),
            "batches_in_flight": sum(reader.in_flight for reader in readers),
            "prefetch": max((reader.prefetch for reader in readers), default=pipeline.memory.prefetch),
            "threads": sum(len(reader.states) for reader in readers),
            "cache_bytes": 0 if pipeline.cache is None else pipeline.cache.nbytes,
            "requests": fetched.requests,
            "bytes_fetched": fetched.bytes,
            "bad_records": pipeline.bad.count,
            "rows_lost": pipeline.bad.rows_lost,
        }

    def report(self) -> dict[str, Any]:
        """Return what the loader chose and found: memory, cache, workers, bad records, and its `stats`."""
        pipeline = self.pipeline
        memory, options, local, rows = pipeline.memory, pipeline.options, pipeline.local, pipeline.cache
        cache: dict[str, Any] = {"kind": "none"}
        if rows is not None:
            cache = {"kind": "decoded", "capacity": rows.capacity, "of": pipeline.table.records}
            cache |= {"records": rows.records, "bytes": rows.nbytes}
        return {
            "samples": pipeline.schedule.sampler.size,
            "training": pipeline.training,
            "steps_per_epoch": pipeline.steps_per_epoch,
            "left_out_per_epoch": pipeline.left_out,
            "order": pipeline.schedule.order.name,
            "variants": pipeline.variants.choice,
            "memory": {
                "budget_bytes": memory.budget,
                "batch_bytes": memory.batch_bytes,
                "prefetch": memory.prefetch,
                "batches_bytes": memory.batches_bytes,
                "workers_bytes": pipeline.workers.nbytes,
                "index_bytes": pipeline.table.nbytes,
            },
            "cache": cache,
            "fetching": {**pipeline.fetching, "memory_bytes": memory.fetch_bytes} if pipeline.is_remote else None,
            "local": None if local is None else local.report(pipeline.first_needed, pipeline.shard_records),
            "threads": options.threads or usable_cpus(),
            "workers": pipeline.workers_report(),
            "verify": options.verify,
            "on_bad": options.on_bad,
            "bad_records": pipeline.bad.report(),
            "stats": self.stats,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the batch that comes next, for torchdata's `StatefulDataLoader` and loops of your own.

        Returns:
            What `state_at` returns for that step.

        Raises:
            LoaderError: `fit` or tf.data reads the loader, and takes batches in advance: use `SaveLoaderState`, or `state_at`.
        """
        return self.state_at(self.pipeline.passes.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue where this state was taken. Its first epoch ends where the interrupted one would have ended.

        A pickle or copy of the loader holds its options alone: it begins with `start_step`.

        Args:
            state: What `state_dict` or `state_at` of a loader with the same options returned.

        Raises:
            LoaderError: The state belongs to another run (see `step_of`).
        """
        self.pipeline.passes.resume(self.step_of(state))

    def state_at(self, step: int) -> dict[str, Any]:
        """The state of the run before a step, to be saved with the weights of that moment.

        Args:
            step: The number of steps since the beginning of the run, which is step 0.

        Returns:
            A JSON object of about one kilobyte. It identifies the dataset's files and all options that decide what is delivered.

        Raises:
            LoaderError: `step` is not a whole number from 0.
        """
        return state_at(self.pipeline.plan, step)

    def step_of(self, state: Mapping[str, Any]) -> int:
        """The step that comes next by a state, as the option `start_step` takes it.

        Args:
            state: What `state_at` of a loader with the same options returned.

        Raises:
            LoaderError: The state belongs to another run: other files, seed, batch size, order, selection or values.
        """
        return start_step(self.pipeline.plan, state)

    def close(self) -> None:
        """Stop the reading threads and free the memory. Passes that are still open end with an error."""
        self.pipeline.close()


class NumpyLoader(PipelineAccessors):
    """An iterable of elements as `fields`, `inputs` and `targets` describe them. Made by `Data.numpy_loader`.

    Arrays are [B, ...], text comes as arrays of str, images of different sizes as lists of arrays. In training each iteration
    delivers one epoch, and the next iteration the next epoch (see `tfprep.load.passes`). The memory of a batch is not used again
    while any array or view of it exists.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __iter__(self) -> Iterator[Any]:
        return self.elements()

    def elements(self, look: int = 0) -> Iterator[Any]:
        """An iteration of which `look` batches may be taken without using an epoch."""
        pack = self.pipeline.outputs.pack
        return self.pipeline.batches(lambda batch: pack(with_text(batch)), epochs=self._epochs, look=look)


def with_text(batch: Batch) -> dict[str, Any]:
    """The batch's values, with text decoded."""
    return {name: _decoded(value) for name, value in batch.values.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return np.array([text.decode("utf-8", "surrogateescape") for text in value.ravel()], object).reshape(
            value.shape
        )
    return value


# --- samples and parts of pictures that are not shown ---------------------------------------------------------------------

PICTURES = 1000
"""Pictures that stand for all: a share of 1/2 is then known to 2 %."""


def _not_shown(plan: LoaderPlan) -> str:
    """Return the samples that each bucket leaves out, and how much of a picture is cut off: on average, and at most."""
    at_load, buckets, sizes = plan.at_load, plan.schedule.buckets, plan.options.bucket
    if at_load is not None and buckets is not None and sizes is not None and plan.schedule.rows is not None:
        ends = np.cumsum(buckets.sizes) // plan.schedule.times
        rows = np.split(plan.schedule.rows, ends[:-1])
        return "; buckets: " + "; ".join(
            f"{height} x {width} of {samples:,}{f', {left:,} left out' if left else ''}"
            f"{_cut_off(plan, at_load, _pictures(plan, mine), form, ', ')}"
            for form, ((height, width), samples, left, mine) in enumerate(
                zip(sizes.sizes, buckets.sizes, buckets.left_out, rows, strict=True)
            )
        )
    views = (at_load.views or (at_load,)) if at_load else ()
    ops = [*plan.options.geometry, *(op for view in views for op in view.geometry)]
    cuts = not all(isinstance(op, RandomFlip | augment.Resize) for op in ops)  # only then their sizes are worth a look
    pictures = _pictures(plan, plan.schedule.rows) if cuts else []
    if at_load is None or not at_load.views:
        return _cut_off(plan, at_load, pictures, -1, "; ")
    named = {view.prefix.partition("/")[0]: view for view in at_load.views}
    return "".join(_cut_off(plan, view, pictures, -1, f"; {name} views: ") for name, view in named.items())


def _pictures(plan: LoaderPlan, rows: Numbers | None) -> list[Size]:
    """Sizes of some of the pictures as they are stored; none where the index does not hold them, or lies at a URL."""
    rasters = [
        plan.specs[name] for name in plan.read.fields if name in plan.specs and plan.specs[name].kind in RASTER_KINDS
    ]
    height, width = rasters[0].shape[:2] if rasters else (None, None)
    if height is not None and width is not None:
        return [(height, width)] * (PICTURES if rows is None else min(len(rows), PICTURES))
    part = plan.table.parts[0]
    if not rasters or (plan.is_remote and plan.options.bucket is None):
        return []
    try:
        if rows is None:  # records lie in random order
            index = part.dataset.index(part.split, 0, ["height", "width"], PICTURES)
            columns = [index.column(name) for name in index.column_names]
        else:
            some = rows[np.linspace(0, len(rows) - 1, min(len(rows), PICTURES)).astype(np.int64)]
            columns = [plan.table.column(name).take(some) for name in ("height", "width")]
    except (DatasetError, LoaderError):  # the index is of another build, say: reading says so
        return []
    sizes = zip(*(column.to_pylist() for column in columns), strict=True)
    return [size for size in sizes if len(size) == 2 and None not in size]


def _cut_off(plan: LoaderPlan, view: AtLoad | None, pictures: Sequence[Size], form: int, before: str) -> str:
    """Return the share of a picture that this form of the geometry cuts off; "" where that is nothing, or not known."""
    ops = view.forms[form] if view else ()
    draws: list[Sequence[Drawn] | None] = [None] * len(pictures)
    if view is not None and view.training:
        draws = [each[: len(ops)] for each in drawn(view, np.arange(len(pictures)))]
    shares = []
    for size, each in zip(pictures, draws, strict=True):
        try:
            transform = placed(transform_of(plan.options.geometry, size), ops, each)
        except SampleError:  # it is smaller than a crop, which reading it will say
            continue
        corners = np.array([[0, 0], [transform.size[1], transform.size[0]]], np.float64)
        ends = np.clip(transform.pull(corners), 0, [size[1], size[0]])
        shares.append(1 - float(np.prod(np.ptp(ends, axis=0))) / (size[0] * size[1]))
    if not shares or max(shares) < 0.0005:
        return ""
    return f"{before}{np.mean(shares):.1%} of a picture cut off (at most {max(shares):.1%})"
