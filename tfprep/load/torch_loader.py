"""Batches as a PyTorch `IterableDataset` that splits itself among ranks and workers.

The workers of a `DataLoader` begin a pass without a word to the process that owns it, so they agree by a small file: the
iteration that began last, its first step, and the step that comes next. Workers of one iteration have the same base seed, other
iterations other ones; the first worker of an iteration takes the next epoch, and the others join it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import multiprocessing
import os
import secrets
import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tfprep.limits import usable_cpus
from tfprep.load.accessors import PipelineAccessors, summary
from tfprep.load.numpy_loader import steps_of_pass, with_text
from tfprep.load.options import LoaderOptions
from tfprep.load.passes import Steps
from tfprep.load.pipeline import Pipeline, repeated
from tfprep.load.reader.batch import Batch

_RECORD = struct.Struct("<qqq")


class TorchPasses:
    """The next step of a run, known to a process and its workers. Each process that owns a `DataLoader` has a run of its own.

    The first worker makes the folder of the files, so that a loader without workers needs none. It is removed with the object
    that named it, in the process that made that.
    """

    def __init__(self) -> None:
        self._name = f"tfprep-torch-{secrets.token_hex(8)}"
        self._seed, self._passes = -1, 0
        weakref.finalize(self, _remove, self._name, os.getpid())

    @property
    def next_step(self) -> int:
        """The step that comes next, as far as workers of this process have begun passes."""
        try:
            content = (Path(tempfile.gettempdir()) / self._name / str(os.getpid())).read_bytes()
        except FileNotFoundError:  # no worker has begun a pass; there may be no folder for temporary files either
            return 0
        return int(_RECORD.unpack(content)[2])

    def begin(self, seed: int, steps: int, at_least: int) -> int:
        """The first step of the pass that this worker begins.

        Args:
            seed: The base seed of the iteration, the same for all of its workers.
            steps: The steps of a pass.
            at_least: The next step as this process knows it from passes without workers.
        """
        self._passes = self._passes + 1 if seed == self._seed else 0  # persistent workers begin one pass after another
        self._seed = seed
        owner = multiprocessing.parent_process()
        folder = Path(tempfile.gettempdir()) / self._name
        folder.mkdir(0o700, exist_ok=True)
        path = folder / str(owner.pid if owner else os.getpid())
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            last, base, following = _RECORD.unpack(file.read(_RECORD.size) or _RECORD.pack(-1, 0, 0))
            if last != seed:
                base = max(following, at_least)
            first: int = base + self._passes * steps
            file.seek(0)
            file.write(_RECORD.pack(seed, base, max(following, first + steps)))
        return first


def _remove(name: str, process: int) -> None:
    if os.getpid() == process:
        with contextlib.suppress(FileNotFoundError):  # no folder for temporary files
            shutil.rmtree(Path(tempfile.gettempdir()) / name, ignore_errors=True)


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
