"""Batches as a PyTorch `IterableDataset` that splits itself among ranks and workers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tfprep.limits import usable_cpus
from tfprep.load.numpy_loader import NumpyLoader, with_text
from tfprep.load.options import LoaderOptions
from tfprep.load.passes import Steps
from tfprep.load.pipeline import Pipeline, repeated
from tfprep.load.reader.batch import Batch
from tfprep.load.stats import summary
from tfprep.load.torch_passes import TorchPasses


class TorchLoader(IterableDataset[Any]):  # type: ignore[misc] # PyTorch need not be installed
    """Yields whole batches of tensors: use it directly, or in `DataLoader(loader, batch_size=None, num_workers=n)`.

    In training each iteration delivers one epoch, and the next iteration the next epoch. Worker i of n reads the steps i, i + n,
    ...; `DataLoader` takes batches from its workers in turn, so the order is that of a single process. Workers read ahead, so
    every iteration of a `DataLoader` with workers counts as an epoch. With `torch.distributed` each rank gets its part of every
    batch. Text comes as lists of str, images of different sizes as lists of tensors.
    """

    def __init__(self, pipeline: Pipeline, epochs: int | None = 1, passes: TorchPasses | None = None) -> None:
        """`epochs`: those of one iteration in training; None for no end. `passes`: those of another process's loader."""
        super().__init__()
        options = pipeline.options
        if options.hosts is None and (rank := torch_hosts()) is not None:
            pipeline = pipeline.with_options(replace(options, hosts=rank))
        self._whole, self._epochs = NumpyLoader(pipeline, epochs), epochs
        self._passes = passes or TorchPasses()

    def __iter__(self) -> Iterator[Any]:
        pipeline, info = self._whole.pipeline, get_worker_info()
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
        return len(self._whole)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return summary(self._whole.pipeline, type(self).__name__, self._epochs)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._whole.pipeline, self._epochs, self._whole.next_step, self._passes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        pipeline, epochs, next_step, passes = state
        self.__init__(pipeline, epochs, passes)  # type: ignore[misc] # a worker makes its own
        pipeline.passes.skip_to(next_step)

    def repeat(self, count: int | None = None) -> TorchLoader:
        """The epochs one after another in one iteration: `count` of them, or without an end.

        Raises:
            LoaderError: `count` is not a number from 1 or None, or this loader is for evaluation, which has no epochs.
        """
        pipeline = self._whole.pipeline
        return TorchLoader(pipeline, repeated(pipeline, count), self._passes)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that hold one epoch."""
        return self._whole.steps_per_epoch

    @property
    def next_step(self) -> int:
        """The step that the next iteration begins with."""
        return max(self._whole.next_step, self._passes.next_step)

    @property
    def stats(self) -> dict[str, Any]:
        """Counters of this process; each worker of a `DataLoader` has its own."""
        return self._whole.stats

    def report(self) -> dict[str, Any]:
        """What the loader chose and found: memory, cache, bad records."""
        return self._whole.report()

    def state_at(self, step: int) -> dict[str, Any]:
        """The state before this step, as a small JSON object."""
        return self._whole.state_at(step)

    def step_of(self, state: Mapping[str, Any]) -> int:
        """The next step of a state; LoaderError where the state belongs to another run."""
        return self._whole.step_of(state)

    def close(self) -> None:
        """Stop the threads of this process and give the memory back."""
        self._whole.close()


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
