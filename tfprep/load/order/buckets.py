"""Batches of one bucket each: the place of every batch of an epoch, and its items, computed in constant time.

An epoch's items are numbered bucket by bucket. Each bucket is cut into batches. Every epoch has its own permutation of a bucket's
items, and of all batches (`tfprep.load.order.permutation`). Each step has `batch_size` positions: after a smaller batch, some are
not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tfprep.load.order.permutation import Numbers, below, mix, permute, seed_key, subkey, unpermute, words


@dataclass(frozen=True)
class BucketOrder:
    """The batches of an epoch. `sizes` are the items of each bucket. With `keeps`, the last, smaller batch of each is kept; with
    `shuffles`, items and batches are permuted."""

    sizes: tuple[int, ...]
    batch_size: int
    seed: int
    keeps: bool
    shuffles: bool

    @cached_property
    def batches(self) -> Numbers:
        """The batches of each bucket."""
        whole = np.array(self.sizes, np.int64)
        return -(-whole // self.batch_size) if self.keeps else whole // self.batch_size

    @property
    def left_out(self) -> list[int]:
        """Items of each bucket that an epoch leaves out."""
        return [max(size - int(n) * self.batch_size, 0) for size, n in zip(self.sizes, self.batches, strict=True)]

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return int(self.batches.sum())

    def _place(self, step: Any, epoch: Any) -> tuple[Numbers, Numbers]:
        """The bucket of the batch at each step of an epoch, and its number among the bucket's batches."""
        step, epoch = np.broadcast_arrays(np.atleast_1d(step), np.atleast_1d(epoch))
        if self.shuffles:
            step = permute(step, self.steps, self.key(epoch)).astype(np.int64)
        ends = np.cumsum(self.batches)
        bucket = np.searchsorted(ends, step, "right")
        return bucket, step - (ends - self.batches)[bucket]

    def bucket(self, step: Any, epoch: Any) -> Numbers:
        """The bucket of the batch at each step of an epoch."""
        return self._place(step, epoch)[0]

    def count(self, step: int, epoch: int) -> int:
        """The items of a batch."""
        return _smaller(self, epoch).get(step, self.batch_size) if self.keeps else self.batch_size

    def key(self, epoch: Any) -> Any:
        """The key of the permutation of all batches of an epoch."""
        return subkey(seed_key(self.seed, "order/buckets"), epoch)

    def items(self, inside: Numbers, epoch: Numbers) -> tuple[Numbers, Numbers]:
        """The bucket at each of these positions of an epoch, and the item's number in it."""
        step, offset = np.divmod(inside, self.batch_size)
        bucket, number = self._place(step, epoch)
        size = np.array(self.sizes, np.int64)[bucket]
        item = np.minimum(number * self.batch_size + offset, size - 1)
        if self.shuffles:
            key = subkey(subkey(seed_key(self.seed, "order/bucket"), epoch), bucket)
            item = permute(item, size, key).astype(np.int64)
        return bucket, item

    def substitute(self, inside: int, epoch: int, key: Any) -> tuple[int, int]:
        """Another item for a position: its bucket, and its number there."""
        bucket = int(self.bucket(inside // self.batch_size, epoch)[0])
        return bucket, int(below(mix(words(key)), words(self.sizes[bucket]))[0])


@lru_cache(maxsize=16)
def _smaller(order: BucketOrder, epoch: int) -> dict[int, int]:
    """The items of the smaller batches of an epoch by step: each bucket has one at most, its last."""
    last = (np.cumsum(order.batches) - 1)[[size > 0 for size in order.sizes]]
    steps = unpermute(last, order.steps, order.key(epoch)) if order.shuffles else last
    sizes = [(size - 1) % order.batch_size + 1 for size in order.sizes if size]
    return dict(zip(steps.tolist(), sizes, strict=True))
