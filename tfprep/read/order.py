"""The order of an epoch: which of its items stands in which place. A function of (seed, epoch) alone.

- "global": an exact permutation of all items.
- "block": blocks of consecutive items, permuted, then mixed inside a window of so many blocks: a window's bytes lie in few
  places, which disks and object stores like. The last block may be short.
- "sequential": as on disk.

Places and items are numbered from 0. Nothing is stored: any place of any epoch is computed by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from tfprep.errors import LoaderError
from tfprep.read.permute import Words, permute, seed_key, subkey, unpermute, words

OrderName: TypeAlias = Literal["global", "block", "sequential"]


@dataclass(frozen=True)
class Order:
    """`block` in items; `window` in blocks."""

    name: OrderName = "global"
    seed: int = 0
    block: int = 64
    window: int = 16

    def __post_init__(self) -> None:
        if self.name not in get_args(OrderName):
            raise LoaderError(f"order is 'global', 'block' or 'sequential', not {self.name!r}")
        if self.block < 1 or self.window < 1:
            raise LoaderError(f"blocks and windows hold at least 1, not block={self.block}, window={self.window}")

    def items(self, place: Any, epoch: Any, size: int) -> Words:
        """The items in these places of these epochs of `size` items: uint64 [N]."""
        place, epoch = np.broadcast_arrays(words(place), words(epoch))
        if self.name == "sequential" or not size:
            same: Words = place.copy()
            return same
        key = subkey(seed_key(self.seed, f"order/{self.name}"), epoch)
        if self.name == "global":
            return permute(place, size, key)
        return self._blocks(place, size, key)

    def _blocks(self, place: Words, size: int, key: Words) -> Words:
        """Places are laid out in slots of `block` places; the slot that got the short last block is cut short."""
        block, blocks = np.uint64(self.block), words(-(-size // self.block))
        missing = blocks * block - np.uint64(size)
        short = unpermute(blocks - np.uint64(1), blocks, key)
        mixed = self._mixed(place, blocks, missing, short, subkey(key, 0))
        padded = mixed + np.where(mixed >= (short + np.uint64(1)) * block - missing, missing, np.uint64(0))
        items: Words = permute(padded // block, blocks, key) * block + padded % block
        return items

    def _mixed(self, place: Words, blocks: Words, missing: Words, short: Words, key: Words) -> Words:
        """Each place moved inside its window of slots."""
        block, window = np.uint64(self.block), np.uint64(self.window)
        padded = place + np.where(place >= (short + np.uint64(1)) * block - missing, missing, np.uint64(0))
        number = padded // (block * window)
        first = number * window
        last = np.minimum(first + window, blocks)
        start = first * block - np.where(first > short, missing, np.uint64(0))
        stop = last * block - np.where(last > short, missing, np.uint64(0))
        moved: Words = start + permute(place - start, stop - start, subkey(key, number))
        return moved
