"""Samplers: which sample each item of an epoch is, and how often that sample was drawn before.

A sampler has a `size`, the number of items of one epoch. `samples(item, epoch)` returns the sample's number in the selection
and its pass: how many times the sample was drawn earlier in the run, so that a sample drawn twice in an epoch shows two
variants. `substitute(sample, draw)` returns another sample that could have been drawn instead: it replaces one that cannot be
read. No sampler keeps state: every result is computed from (seed, epoch).

`variants_of` says which variant of a sample an epoch reads, and `fold_of` divides samples into folds for cross-validation.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError
from tfprep.load.order.permutation import (
    GOLDEN,
    Numbers,
    Words,
    below,
    mix,
    permute,
    seed_key,
    subkey,
    whole_number,
    words,
)

UNIT_BITS = 32
UNIT = 1 << UNIT_BITS
"""Expected counts are multiples of 2^-32, so that sums of them are exact."""
TINY, HUGE = 1e-290, 1e290
STEP = GOLDEN >> 32
"""The golden ratio as a multiple of 2^-32: multiples of it, modulo 1, spread more evenly than those of any other number."""


@dataclass(frozen=True)
class UniformSampler:
    """Every sample once."""

    size: int

    def samples(self, item: Words, epoch: Words) -> tuple[Words, Words]:
        return item, epoch

    def substitute(self, sample: Words, draw: Words) -> Words:
        return below(draw, words(self.size))


@dataclass(frozen=True, eq=False)
class StratifiedSampler:
    """Each stratum has a quota of every epoch's items: `quotas[i]` for the `sizes[i]` samples that come i-th in the selection.

    A stratum's samples are drawn in one random order after another, which do not end where epochs end: after any number of
    epochs each of its samples was drawn equally often, or once more.
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
        return words(np.cumsum(self.quotas))

    @cached_property
    def columns(self) -> tuple[Words, Words, Words]:
        """(first sample, samples, quota) by stratum."""
        return words(np.cumsum([0, *self.sizes[:-1]])), words(self.sizes), words(self.quotas)

    def samples(self, item: Words, epoch: Words) -> tuple[Words, Words]:
        stratum = np.searchsorted(self.ends, item, "right")
        first, size, quota = (column[stratum] for column in self.columns)
        position = epoch * quota + item - (self.ends[stratum] - quota)
        passes, inside = position // size, position % size
        key = subkey(subkey(seed_key(self.seed, "strata"), stratum), passes)
        return first + permute(inside, size, key), passes

    def substitute(self, sample: Words, draw: Words) -> Words:
        first, size, _ = self.columns
        stratum = np.searchsorted(np.cumsum(size), sample, "right")
        chosen: Words = first[stratum] + below(draw, size[stratum])
        return chosen


@dataclass(frozen=True, eq=False)
class WeightedSampler:
    """`size` items an epoch, each sample in proportion to its weight.

    Systematic sampling (Madow, 'On the theory of systematic sampling', 1949): with an expected count of 2.3, a sample is drawn
    2 or 3 times in every epoch, 2.3 times on average. The start moves by the golden ratio from epoch to epoch, which spreads
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
    def ends(self) -> Words:
        """The expected counts of an epoch in units of 2^-32, added up: `size` at the end, exactly."""
        weights = self.weights
        if not TINY < weights.max() < HUGE / len(weights):  # their sum, or its inverse, would overflow
            weights = weights / weights.max()
        total = np.cumsum(weights * (self.size / fsum(weights)))
        last = int(np.flatnonzero(weights)[-1])
        total[last:] = self.size
        return words(np.rint(total * UNIT))

    def samples(self, item: Words, epoch: Words) -> tuple[Words, Words]:
        unit, start = np.uint64(UNIT), seed_key(self.seed, "weights") >> 32
        offset = (words(start) + epoch * np.uint64(STEP)) % unit
        sample = np.searchsorted(self.ends, item * unit + offset, "right")
        begin = np.where(sample > 0, self.ends[sample - 1], np.uint64(0))
        first_item = (begin + unit - np.uint64(1) - offset) // unit
        # An epoch with this offset draws ceil((end - offset) / unit) - ceil((begin - offset) / unit) of the sample with the
        # counts [begin, end). Summed over epochs, the offset's own wraps cancel, and what is left are sums of
        # floor((a k + b) / unit).
        shift = np.uint64(UNIT - 1 - start)
        before, until = (floor_sums(epoch, UNIT, UNIT - STEP, at + shift) for at in (begin, self.ends[sample]))
        return sample.astype(np.uint64), until - before + item - first_item

    def substitute(self, sample: Words, draw: Words) -> Words:
        """Any sample, in proportion to the weights."""
        position = below(draw, words(self.size)) * np.uint64(UNIT) + (draw & np.uint64(UNIT - 1))
        chosen: Words = np.searchsorted(self.ends, position, "right").astype(np.uint64)
        return chosen


Sampler: TypeAlias = UniformSampler | StratifiedSampler | WeightedSampler


def floor_sums(count: Words, modulus: int, factor: int, offset: Words) -> Words:
    """The sum of floor((factor i + offset) / modulus) over i < count, modulo 2^64, element by element.

    Euclid's algorithm on (factor, modulus), as in the AtCoder Library's `floor_sum`: each step swaps the two axes of the
    lattice points under a line. The steps are the same for all elements; those that have ended add nothing.
    """
    total = np.zeros_like(offset)
    while modulus and count.any():
        whole, rest = divmod(factor, modulus)
        total = total + count * (count - np.uint64(1)) // np.uint64(2) * np.uint64(whole)
        total, offset = total + count * (offset // np.uint64(modulus)), offset % np.uint64(modulus)
        top = np.uint64(rest) * count + offset
        count, offset = top // np.uint64(modulus), top % np.uint64(modulus)
        modulus, factor = rest, modulus
    return total


VariantChoice: TypeAlias = Literal["rotate", "random", "all"] | int


def used_variants(choice: VariantChoice, count: int) -> tuple[int, ...]:
    """The variants out of `count` that are read; LoaderError where the chosen number is not among them."""
    if isinstance(choice, str):
        return tuple(range(count))
    if not 0 <= choice < count:
        raise LoaderError(f"the split has variants 0 to {count - 1}; there is no variant {choice}")
    return (choice,)


def variants_of(choice: VariantChoice, seed: int, group: Any, passes: Any, count: Any) -> Words:
    """The variant that each group, with `count` variants, shows after `passes` earlier ones; not for "all"."""
    group, passes, count = np.broadcast_arrays(words(group), words(passes), words(count))
    if not isinstance(choice, str):
        return np.full(group.shape, choice, np.uint64)
    key = seed_key(seed, f"variants/{choice}")
    if choice == "rotate":
        turn: Words = (below(mix(subkey(key, group)), count) + passes) % count
        return turn
    return below(mix(subkey(subkey(key, passes), group)), count)


def fold_of(groups: Sequence[Hashable], strata: Sequence[Any] | None, count: int, seed: int) -> Numbers:
    """The fold, from 0, of every sample; all samples of a group are in one.

    Groups are assigned in a random order that the seed determines, each to the fold with most room left: for the classes of
    the group where there are `strata`, then for samples.
    """
    count = whole_number("the number of folds", count, 2)
    names, member = _numbered(groups)
    if names < count:
        raise LoaderError(f"{names} groups cannot be split into {count} folds")
    classes, stratum = _numbered([0] * len(groups) if strata is None else strata)
    shuffled = np.argsort(mix(subkey(seed_key(seed, "folds"), np.arange(names))), kind="stable")
    fold = np.empty(names, np.int64)
    if names == len(groups):
        # Single samples in turn, class after class, each in random order: sizes differ by at most one.
        fold[shuffled[np.argsort(stratum[shuffled], kind="stable")]] = np.arange(names) % count
        return fold
    # Groups, the largest first, each to the fold where classes and sizes stay most even.
    counts = np.zeros((names, classes))
    np.add.at(counts, (member, stratum), 1)
    share = counts / np.maximum(counts.sum(axis=0), 1)  # each class counts the same, however rare
    filled, sizes = np.zeros((count, classes)), np.zeros(count)
    for group in shuffled[np.argsort(-counts.sum(axis=1)[shuffled], kind="stable")]:
        after = ((filled + share[group]) ** 2 - filled**2).sum(axis=1)
        best = min(range(count), key=lambda at: (round(float(after[at]), 12), sizes[at]))
        fold[group] = best
        filled[best] += share[group]
        sizes[best] += counts[group].sum()
    return fold[member]


def _numbered(values: Sequence[Hashable]) -> tuple[int, Numbers]:
    """The number of different values, and the number of each value among them by first appearance."""
    seen: dict[Hashable, int] = {}
    numbers = np.array([seen.setdefault(value, len(seen)) for value in values], np.int64)
    return len(seen), numbers
