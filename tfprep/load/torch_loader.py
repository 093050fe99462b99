"""Batches as a PyTorch `IterableDataset`, split among ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tfprep.errors import LoaderError
from tfprep.load.loader import Loader
from tfprep.load.reader.batch import Batch


class TorchLoader(Loader, IterableDataset[Any]):  # type: ignore[misc] # PyTorch need not be installed
    """Yields whole batches of tensors: use it directly, or as `DataLoader(loader, batch_size=None)`.

    In training each iteration delivers one epoch, and the next iteration the next epoch. The loader reads with threads, or with
    worker processes of its own (`workers="processes"`), so a `DataLoader` around it has no workers; for one with workers there is
    `Data.random_access`. With `torch.distributed` each rank gets its part of every batch. Text comes as lists of str, images of
    different sizes as lists of tensors.
    """

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise LoaderError(
                "torch_loader() has threads and worker processes of its own: use DataLoader(loader, batch_size=None) with "
                "num_workers=0. For workers of a DataLoader: DataLoader(data.random_access(split, variant='all'), "
                "batch_sampler=data.batch_sampler(split, batch_size), num_workers=8)"
            )
        return super().__iter__()

    def _element(self, batch: Batch) -> Any:
        return self.pipeline.outputs.pack({name: _tensors_of(value) for name, value in batch.values.items()})


def _tensors_of(value: Any) -> Any:
    """An array, or a list of arrays, as tensors over the same memory; text as lists of str."""
    if isinstance(value, list):
        return [_tensors_of(array) for array in value]
    if value.dtype == object:
        return value.tolist()
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def torch_hosts() -> tuple[int, int] | None:
    """(rank, count) of this process in `torch.distributed`, as the option `hosts` takes it; None where it is not in use."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
