"""Batches as a PyTorch `IterableDataset` that splits itself among ranks and workers."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tfprep.limits import usable_cpus
from tfprep.load.accessors import PipelineAccessors
from tfprep.load.numpy_loader import steps_of_pass, with_text
from tfprep.load.options import LoaderOptions
from tfprep.load.passes import Steps
from tfprep.load.pipeline import Pipeline, repeated
from tfprep.load.reader.batch import Batch
from tfprep.load.stats import summary
from tfprep.load.torch_passes import TorchPasses


class TorchLoader(PipelineAccessors, IterableDataset[Any]):  # type: ignore[misc] # PyTorch need not be installed
    """Yields whole batches of tensors: use it directly, or in `DataLoader(loader, batch_size=None, num_workers=n)`.

    In training each iteration delivers one epoch, and the next iteration the next epoch. Worker i of n reads the steps i, i + n,
    ...; `DataLoader` takes batches from its workers in turn, so the order is that of a single process. Workers read ahead, so
    every iteration of a `DataLoader` with workers counts as an epoch. With `torch.distributed` each rank gets its part of every
    batch. Text comes as lists of str, images of different sizes as lists of tensors. `stats` counts what this process reads; each
    worker of a `DataLoader` has counters of its own.
    """

    def __init__(self, pipeline: Pipeline, epochs: int | None = 1, passes: TorchPasses | None = None) -> None:
        """`epochs`: those of one iteration in training; None for no end. `passes`: those of another process's loader."""
        super().__init__()
        options = pipeline.options
        if options.hosts is None and (rank := torch_hosts()) is not None:
            pipeline = pipeline.with_options(replace(options, hosts=rank))
        self.pipeline, self._epochs = pipeline, epochs
        self._passes = passes or TorchPasses()

    def __iter__(self) -> Iterator[Any]:
        pipeline, info = self.pipeline, get_worker_info()
        if info is None:
            pipeline.passes.skip_to(self._passes.next_step)
            return pipeline.batches(functools.partial(_element, pipeline), epochs=self._epochs)
        shared, part = pipeline.with_options(_share(pipeline, info.num_workers)), (info.id, info.num_workers)
        element = functools.partial(_element, shared)
        length = shared.passes.steps(self._epochs)
        if shared.passes.ends:
            return shared.batches(element, part=part)
        first = self._passes.begin(info.seed - info.id, length or 0, pipeline.passes.next_step)
        return shared.batches(element, steps=Steps(first, None if length is None else first + length), part=part)

    def __len__(self) -> int:
        """Batches of one iteration; TypeError for `repeat()`, which has no end."""
        return steps_of_pass(self.pipeline, self._epochs)

    def __repr__(self) -> str:
        return summary(self.pipeline, type(self).__name__, self._epochs)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.pipeline, self._epochs, super().next_step, self._passes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        pipeline, epochs, next_step, passes = state
        self.__init__(pipeline, epochs, passes)  # type: ignore[misc] # a worker makes its own
        pipeline.passes.skip_to(next_step)

    def repeat(self, count: int | None = None) -> TorchLoader:
        """The epochs one after another in one iteration: `count` of them, or without an end.

        Raises:
            LoaderError: `count` is not a number from 1 or None, or this loader is for evaluation, which has no epochs.
        """
        return TorchLoader(self.pipeline, repeated(self.pipeline, count), self._passes)

    def at_epoch(self, number: int) -> TorchLoader:
        """See `PipelineAccessors.at_epoch`. Persistent workers of a `DataLoader` go on with the epochs that they have begun."""
        super().at_epoch(number)
        self._passes = TorchPasses()
        return self

    @property
    def next_step(self) -> int:
        """The step that the next iteration begins with."""
        return max(super().next_step, self._passes.next_step)


def tensors_of(element: Any) -> Any:
    """An element of NumPy arrays as one of tensors over the same memory."""
    if isinstance(element, dict):
        return {name: tensors_of(part) for name, part in element.items()}
    if isinstance(element, tuple):
        return tuple(tensors_of(part) for part in element)
    return _tensor(element)


def _element(pipeline: Pipeline, batch: Batch) -> Any:
    return pipeline.outputs.pack({name: _tensor(value) for name, value in with_text(batch).items()})


def _share(pipeline: Pipeline, workers: int) -> LoaderOptions:
    """The options of one of `workers` workers: its part of the CPUs and of the memory."""
    options = pipeline.options
    threads = options.threads or max(1, usable_cpus() // workers)
    return replace(options, workers="threads", threads=threads, memory_budget=pipeline.memory.budget // workers)


def torch_hosts() -> tuple[int, int] | None:
    """(rank, count) of this process in `torch.distributed`, as the option `hosts` takes it; None where it is not in use."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _tensor(value: Any) -> Any:
    if isinstance(value, list):
        return [_tensor(item) for item in value]
    if value.dtype == object:
        return value.tolist()
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(value)
