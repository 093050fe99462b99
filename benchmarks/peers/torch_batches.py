"""Batches of PyTorch's worker processes in shared memory, which is how a batch gets to the trainer fastest.

DataLoader sends a NumPy array from a worker through a pipe, and a tensor as a handle of shared memory. The workers therefore
decode into a tensor that is allocated in shared memory, as `default_collate` allocates its result; no pixel is copied afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from common import CROP, decode_into

IMAGE_BYTES = CROP * CROP * 3


class EndlessShuffle(torch.utils.data.Sampler[int]):
    """One permutation after another, so that the loader is not started again for each of the short epochs."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self._count).tolist()


def shared_images(count: int) -> torch.Tensor:
    """uint8 [count, 224, 224, 3] in shared memory, not initialized."""
    storage = torch.UntypedStorage._new_shared(count * IMAGE_BYTES)
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(count, CROP, CROP, 3)


def shared_batch(contents: Sequence[bytes], labels: Sequence[int], form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch from encoded images and labels."""
    images = shared_images(len(contents))
    for row, content in zip(images.numpy(), contents, strict=True):
        decode_into(row, content, form)
    return images, torch.tensor(labels)


def as_it_is(batch: Any) -> Any:
    """A `collate_fn` for datasets that return whole batches."""
    return batch
