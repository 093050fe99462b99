"""What an epoch consists of: which sample each of its items is, and how often that sample has come before.

A draw has a `size`, the items of one epoch, and `samples(item, epoch)`: the sample's place in the selection, and its visit,
the number of times it was seen before (so that a sample seen twice in an epoch shows two variants). No draw looks at
another: all are computed from (seed, epoch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tfprep.read.permute import Words


class Draw(Protocol):
    @property
    def size(self) -> int: ...

    def samples(self, item: Words, epoch: Words) -> tuple[Words, Words]:
        """(sample, visit) of these items of these epochs: uint64 [N] each."""
        ...


@dataclass(frozen=True)
class Each:
    """Every sample once."""

    size: int

    def samples(self, item: Words, epoch: Words) -> tuple[Words, Words]:
        return item, epoch
