"""What an epoch consists of: which sample each of its items is, and how often that sample has come before.

A draw has a `size`, the items of one epoch, and `samples(item, epoch)`: the sample's place in the selection, and its visit,
about the number of times it was seen before (so that a sample seen twice in an epoch shows two variants). No draw looks at
another: all are computed from (seed, epoch).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError
from tfprep.read.permute import Words, permute, seed_key, subkey, words

GOLDEN_RATIO = 0.6180339887498949


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


@dataclass(frozen=True, eq=False)
class Strata:
    """So many items of every epoch from each stratum: `quotas[i]` from the `sizes[i]` samples that come i-th in the selection.

    A stratum is gone through in one random order after another, without regard to where epochs end: after any number of
    epochs its samples were seen equally often, or once more.
    """

    sizes: tuple[int, ...]
    quotas: tuple[int, ...]
    seed: int

    def __post_init__(self) -> None:
        for size, quota in zip(self.sizes, self.quotas, strict=True):
            if size == 0 and quota > 0:
                raise LoaderError(f"a stratum of no samples cannot give {quota} an epoch")

    @property
    def size(self) -> int:
        return sum(self.quotas)

    @cached_property
    def ends(self) -> Words:
        """Where each stratum's items of an epoch end."""
        return words(np.cumsum(self.quotas))

    @cached_property
    def columns(self) -> tuple[Words, Words, Words]:
        """(first sample, samples, quota) by stratum."""
        return words(np.cumsum([0, *self.sizes[:-1]])), words(self.sizes), words(self.quotas)

    @property
    def key(self) -> int:
        return seed_key(self.seed, "strata")

    def samples(self, item: Words, epoch: Words) -> tuple[Words, Words]:
        stratum = np.searchsorted(self.ends, item, "right")
        first, size, quota = (column[stratum] for column in self.columns)
        place = epoch * quota + item - (self.ends[stratum] - quota)
        visit, inside = place // size, place % size
        return first + permute(inside, size, subkey(subkey(self.key, stratum), visit)), visit


@dataclass(frozen=True, eq=False)
class Weighted:
    """`size` items an epoch, each sample in proportion to its weight.

    Systematic sampling (Madow, 'On the theory of systematic sampling', 1949): with an expected count of 2.3, a sample comes 2
    or 3 times in every epoch, 2.3 times on average. The start moves by the golden ratio from epoch to epoch, which spreads
    the samples of small weight evenly over the epochs.
    """

    weights: npt.NDArray[np.float64]
    seed: int

    def __post_init__(self) -> None:
        weights = self.weights
        if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
            raise LoaderError("weights are finite numbers from 0 on, not all of them 0")

    @property
    def size(self) -> int:
        return len(self.weights)

    @cached_property
    def ends(self) -> npt.NDArray[np.float64]:
        """The expected counts of an epoch, added up: `size` at the end, exactly."""
        total = np.cumsum(self.weights * (self.size / fsum(self.weights)))
        last = int(np.flatnonzero(self.weights)[-1])
        total[last:] = self.size
        return total

    @cached_property
    def start(self) -> float:
        return seed_key(self.seed, "weights") / 2**64

    def samples(self, item: Words, epoch: Words) -> tuple[Words, Words]:
        offset: Any = (self.start + epoch.astype(np.float64) * GOLDEN_RATIO) % 1.0
        sample = np.searchsorted(self.ends, item.astype(np.float64) + offset, "right")
        before = np.where(sample > 0, self.ends[sample - 1], 0.0)
        visit = epoch * np.ceil(self.ends[sample] - before).astype(np.uint64)
        again = item - np.maximum(np.ceil(before - offset), 0.0).astype(np.uint64)
        return sample.astype(np.uint64), visit + again
