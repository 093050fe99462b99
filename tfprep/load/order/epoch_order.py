"""The order of an epoch's items, as a function of (seed, epoch) alone.

- "global": an exact permutation of all items.
- "block": permuted blocks of consecutive items, mixed within a window of several blocks: a window's bytes lie in few
  stretches of the files, which disks and object stores like. The last block may be short.
- "sequential": as on disk.

Positions and items are numbered from 0. Nothing is stored: the item at any position of any epoch is computed by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError
from tfprep.load.order.permutation import Words, permute, seed_key, subkey, unpermute, words

OrderName: TypeAlias = Literal["global", "block", "sequential"]


@dataclass(frozen=True)
class EpochOrder:
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

    def items(self, position: Any, epoch: Any, size: int) -> Words:
        """The items at these positions of these epochs of `size` items: uint64 [N]."""
        position, epoch = np.broadcast_arrays(words(position), words(epoch))
        if self.name == "sequential" or not size:
            same: Words = position.copy()
            return same
        key = subkey(seed_key(self.seed, f"order/{self.name}"), epoch)
        if self.name == "global":
            return permute(position, size, key)
        return self._blocks(position, size, key)

    def windows(self, position: Any, epoch: Any, size: int) -> npt.NDArray[np.int64]:
        """The number of the window that each position lies in, over all epochs: int64 [N]; -1 where the order has no windows."""
        position, epoch = np.broadcast_arrays(words(position), words(epoch))
        if self.name != "block" or not size:
            return np.full(position.shape, -1, np.int64)
        block, blocks = np.uint64(self.block), words(-(-size // self.block))
        missing = blocks * block - np.uint64(size)
        key = subkey(seed_key(self.seed, f"order/{self.name}"), epoch)
        short = unpermute(blocks - np.uint64(1), blocks, key)
        number = self._padded(position, missing, short) // (block * np.uint64(self.window))
        windows: npt.NDArray[np.int64] = (epoch * (blocks + np.uint64(1)) + number).astype(np.int64)
        return windows

    def _padded(self, position: Words, missing: Words, short: Words) -> Words:
        """The positions as they were if the short block were a whole one."""
        block = np.uint64(self.block)
        padded: Words = position + np.where(position >= (short + np.uint64(1)) * block - missing, missing, np.uint64(0))
        return padded

    def _blocks(self, position: Words, size: int, key: Words) -> Words:
        """Positions are laid out in slots of `block` positions; the slot that got the short last block is cut short."""
        block, blocks = np.uint64(self.block), words(-(-size // self.block))
        missing = blocks * block - np.uint64(size)
        short = unpermute(blocks - np.uint64(1), blocks, key)
        mixed = self._mixed(position, blocks, missing, short, subkey(key, 0))
        padded = self._padded(mixed, missing, short)
        items: Words = permute(padded // block, blocks, key) * block + padded % block
        return items

    def _mixed(self, position: Words, blocks: Words, missing: Words, short: Words, key: Words) -> Words:
        """Permutes the positions within each window of slots."""
        block, window = np.uint64(self.block), np.uint64(self.window)
        number = self._padded(position, missing, short) // (block * window)
        first = number * window
        last = np.minimum(first + window, blocks)
        start = first * block - np.where(first > short, missing, np.uint64(0))
        stop = last * block - np.where(last > short, missing, np.uint64(0))
        moved: Words = start + permute(position - start, stop - start, subkey(key, number))
        return moved
