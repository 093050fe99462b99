"""The loader as a `tf.data.Dataset`: TensorFlow takes each batch over as it lies in memory, without a copy."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.errors import LoaderError
from tfprep.load.choice import choose_path
from tfprep.load.graph import graph_dataset
from tfprep.load.handover import dataset_of
from tfprep.load.straight import is_possible, loader_iterator
from tfprep.read.interrupt import Stoppable, stop_on_interrupt
from tfprep.read.outputs import Output
from tfprep.read.pipeline import Pipeline
from tfprep.read.state import start_step, state_at
from tfprep.read.stats import report

PREFETCH = 2
"""Batches that wait on TensorFlow's side of the hand-over; all others wait in the reader."""


class Loader(tf.data.Dataset):  # type: ignore[misc] # TensorFlow is untyped
    """A `tf.data.Dataset`, and what a trainer wants to know of it. Made by `Data.loader`."""

    def __init__(
        self, pipeline: Pipeline, dataset: tf.data.Dataset, info: Mapping[str, str], *, straight: bool = False
    ) -> None:
        """`straight`: loops of one's own take batches from the reader itself (see `tfprep.load.straight`)."""
        self._pipeline = pipeline
        self._straight = straight
        self._dataset = dataset
        self._info = dict(info)
        self._stoppable = Stoppable(pipeline.interrupt)
        stop_on_interrupt(self._stoppable)
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    def __iter__(self) -> Any:
        """In a loop of one's own, errors come as tfprep raised them; inside `tf.function` TensorFlow wraps them."""
        iterator = super().__iter__()
        if not tf.executing_eagerly():
            return iterator
        straight = self._straight and is_possible(self._pipeline)
        return loader_iterator(iterator, self._pipeline, functools.partial(_batches, self._pipeline), straight=straight)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold one epoch."""
        return self._pipeline.steps_per_epoch

    @property
    def start_step(self) -> int:
        """The step that every iterator begins with."""
        return self._pipeline.options.start_step

    @property
    def info(self) -> dict[str, str]:
        """Which path was chosen, and why."""
        return dict(self._info)

    @property
    def stats(self) -> dict[str, Any]:
        """Counters over all iterators, as plain numbers (see `tfprep.read.stats.snapshot`); cheap, from any thread."""
        return self._pipeline.stats()

    def report(self) -> dict[str, Any]:
        """What was chosen and found: path, memory, cache, bad records, counters."""
        return {**self._info, **report(self._pipeline)}

    def state_at(self, step: int) -> dict[str, Any]:
        """Where the run stands before this step, as a small JSON object: keep it with the weights of that moment."""
        return state_at(self._pipeline, step)

    def step_of(self, state: Mapping[str, Any]) -> int:
        """The step that the state says comes next; LoaderError where it belongs to another dataset, seed or batch size."""
        return start_step(self._pipeline, state)

    def close(self) -> None:
        """Stop the reading threads and give the memory back; iterators still open end with an error."""
        self._pipeline.close()


def make_loader(pipeline: Pipeline) -> Loader:
    """The pipeline as a dataset, by the path that its options ask for."""
    _check_device(pipeline.options.prefetch_to_device)
    path, reason = choose_path(pipeline)
    pipeline.table.read_ahead()
    dataset = _batches(pipeline) if path == "direct" else _prefetched(graph_dataset(pipeline))
    device = pipeline.options.prefetch_to_device
    if device is not None:
        dataset = dataset.apply(tf.data.experimental.prefetch_to_device(device))
    return Loader(pipeline, dataset, {"path": path, "reason": reason}, straight=path == "direct" and device is None)


def _batches(pipeline: Pipeline, skip: int = 0) -> tf.data.Dataset:
    """The batches of the direct path but for the first `skip`. Their number is known; on the graph path a worker of the tf.data
    service may have a share of them."""
    start = pipeline.options.start_step + skip
    dataset = _direct(pipeline, start)
    return _prefetched(dataset.apply(tf.data.experimental.assert_cardinality(_cardinality(pipeline, start))))


def _prefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.prefetch(PREFETCH).with_options(_options())


def _check_device(name: str | None) -> None:
    """LoaderError where TensorFlow has no such device: its own error comes with the first batch, and names an op."""
    if name is None:
        return
    try:
        wanted = tf.DeviceSpec.from_string(str(name))
    except (TypeError, ValueError):
        wanted = None
    there = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices()]
    kinds = {(spec.device_type, spec.device_index) for spec in there}
    if wanted is None or wanted.device_type is None or (wanted.device_type, wanted.device_index or 0) not in kinds:
        known = ", ".join(f"/{kind}:{index}" for kind, index in sorted(kinds))
        raise LoaderError(
            f"prefetch_to_device={name!r}: there is no such device; there are {known}. None keeps batches here"
        )


def _direct(pipeline: Pipeline, start: int) -> tf.data.Dataset:
    rows, outputs, pack = static_rows(pipeline), pipeline.outputs.outputs, pipeline.outputs.pack
    if pipeline.outputs.ragged:
        return _ragged(pipeline, rows, start)
    names = tf.nest.flatten(pack({output.name: output.name for output in outputs}))

    def batches() -> Iterator[tuple[Any, ...]]:
        return (tuple(batch.values[name] for name in names) for batch in pipeline.batches(start))

    return dataset_of(batches, pack({output.name: _signature(output, rows)[0] for output in outputs}))


def _ragged(pipeline: Pipeline, rows: int | None, start: int) -> tf.data.Dataset:
    """Arrays of different sizes cross over as one long array and its row lengths, and are put together on the other side."""
    outputs = pipeline.outputs.outputs

    def batches() -> Iterator[tuple[Any, ...]]:
        for batch in pipeline.batches(start):
            yield tuple(array for output in outputs for array in _arrays(output, batch.values[output.name]))

    dataset = dataset_of(batches, tuple(spec for output in outputs for spec in _signature(output, rows)))
    return dataset.map(lambda *tensors: pipeline.outputs.pack(_tensors(outputs, list(tensors))))


def static_rows(pipeline: Pipeline) -> int | None:
    """Samples of each batch on this host; None where they differ."""
    schedule = pipeline.schedule
    if schedule.remainder == "keep" and schedule.size % schedule.batch_size:
        return None
    if schedule.remainder == "wrap" and schedule.epochs is not None:
        return None
    if not pipeline.options.training and pipeline.options.on_bad == "skip":
        return None
    start, stop = schedule.span(0)
    even = schedule.batch_size % schedule.hosts.count == 0
    return stop - start if even or schedule.remainder == "wrap" else None


def _cardinality(pipeline: Pipeline, start: int) -> int:
    steps = pipeline.schedule.steps
    return tf.data.INFINITE_CARDINALITY if steps is None else max(0, steps - start)


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.autotune.enabled = (
        False  # it has nothing to tune here, and dropping an iterator under it can block for seconds
    )
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


# --- arrays of one size as they are; arrays of different sizes as ragged tensors ---------------------------------------


def _signature(output: Output, rows: int | None) -> list[tf.TensorSpec]:
    dtype = tf.dtypes.as_dtype(output.dtype)
    if None not in output.shape:
        return [tf.TensorSpec((rows, *output.shape), dtype)]
    depth = ragged_rank(output)
    return [tf.TensorSpec((None, *output.shape[depth:]), dtype), *[tf.TensorSpec((None,), tf.int64)] * depth]


def ragged_rank(output: Output) -> int:
    """How many axes of a sample, from the first on, may differ between samples."""
    return max(axis + 1 for axis, size in enumerate(output.shape) if size is None)


def _arrays(output: Output, value: Any) -> list[Any]:
    if None not in output.shape:
        return [value]
    return flatten(value, ragged_rank(output), np.dtype(output.dtype), output.shape)


def flatten(arrays: Sequence[Any], depth: int, dtype: Any, shape: tuple[int | None, ...]) -> list[Any]:
    """Arrays of different sizes as one long array, and the row lengths of each of the `depth` ragged axes."""
    inner = tuple(size or 0 for size in shape[depth:])
    flat = [np.asarray(array, dtype).reshape(-1, *inner) for array in arrays]
    lengths = [
        np.concatenate([[], *(np.full(int(np.prod(array.shape[:axis])), array.shape[axis]) for array in arrays)])
        for axis in range(depth)
    ]
    return [np.concatenate([np.empty((0, *inner), dtype), *flat]), *(length.astype(np.int64) for length in lengths)]


def _tensors(outputs: Sequence[Output], tensors: list[Any]) -> dict[str, Any]:
    values = {}
    for output in outputs:
        flat = tensors.pop(0)
        if None in output.shape:
            lengths = [tensors.pop(0) for _ in range(ragged_rank(output))]
            flat = tf.RaggedTensor.from_nested_row_lengths(flat, lengths, validate=False)
        values[output.name] = flat
    return values
