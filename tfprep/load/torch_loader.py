"""Batches as a PyTorch `IterableDataset` that splits itself among ranks and workers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tfprep.errors import LoaderError
from tfprep.limits import usable_cpus
from tfprep.load.numpy_loader import NumpyLoader, with_text
from tfprep.load.options import LoaderOptions
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.batch import Batch


class TorchLoader(IterableDataset[Any]):  # type: ignore[misc] # PyTorch need not be installed
    """Yields whole batches of tensors: use it directly, or in `DataLoader(loader, batch_size=None, num_workers=n)`.

    Worker i of n reads the steps i, i + n, ...; `DataLoader` takes batches from its workers in turn, so the order is that of a
    single process. With `torch.distributed` each rank gets its part of every batch. Text comes as lists of str, images of
    different sizes as lists of tensors.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        options = pipeline.options
        if options.hosts is None and (rank := _rank()) is not None:
            pipeline = pipeline.with_options(replace(options, hosts=rank))
        self._whole = NumpyLoader(pipeline)

    def __iter__(self) -> Iterator[Any]:
        pipeline, info = self._whole.pipeline, get_worker_info()
        first, stride = pipeline.options.start_step, 1
        if info is not None:
            pipeline = pipeline.with_options(_share(pipeline, info.num_workers))
            first, stride = first + info.id, info.num_workers
        return pipeline.batches(functools.partial(_element, pipeline), first, stride)

    def __len__(self) -> int:
        """Batches of one iteration; TypeError in training, which has no end."""
        try:
            return len(self._whole)
        except LoaderError as error:
            raise TypeError(str(error)) from error

    def __getstate__(self) -> Pipeline:
        return self._whole.pipeline

    def __setstate__(self, pipeline: Pipeline) -> None:
        self.__init__(pipeline)  # type: ignore[misc] # a worker makes its own

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that hold one epoch."""
        return self._whole.steps_per_epoch

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


def _element(pipeline: Pipeline, batch: Batch) -> Any:
    return pipeline.outputs.pack({name: _tensor(value) for name, value in with_text(batch).items()})


def _share(pipeline: Pipeline, workers: int) -> LoaderOptions:
    """The options of one of `workers` workers: its part of the CPUs and of the memory."""
    options = pipeline.options
    threads = options.threads or max(1, usable_cpus() // workers)
    return replace(options, workers="threads", threads=threads, memory_budget=pipeline.memory.budget // workers)


def _rank() -> tuple[int, int] | None:
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
