"""Samplers: which sample each item of an epoch is, and how often that sample was drawn before; and the draws of an order.

A sampler has a `size`, the number of items of one epoch. `samples(item, epoch)` returns the sample's number in the selection
and its pass: how many times the sample was drawn earlier in the run, so that a sample drawn twice in an epoch shows two
variants. `substitute(sample, draw)` returns another sample that could have been drawn instead: it replaces one that cannot be
read. No sampler keeps state: every result is computed from (seed, epoch).

`variants_of` says which variant of a sample an epoch reads, and `fold_of` divides samples into folds for cross-validation.

Permutations are computed instead of stored: a balanced Feistel network over the product a·b >= size, with additions modulo a and
b in the rounds ("FE2" of Black and Rogaway, 'Ciphers with Arbitrary Finite Domains', CT-RSA 2002), followed by cycle walking: an
image outside the domain is mapped again. As a·b < size + 3·sqrt(size) + 4, hardly any is. The round function is the finaliser of
SplitMix64 (Steele, Lea and Flood, 'Fast Splittable Pseudorandom Number Generators', OOPSLA 2014).

All arithmetic is on unsigned 64-bit integers modulo 2^64, element by element. Arguments broadcast: every element may have its
own size and key. Sizes are below 2^62. Positions and items are numbered from 0.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tfprep.checks import whole_number
from tfprep.errors import LoaderError

Words: TypeAlias = npt.NDArray[np.uint64]
"""uint64 [N]"""
Numbers: TypeAlias = npt.NDArray[np.int64]
"""int64 [N]"""

ROUNDS = 20
"""With 8 rounds the 120 permutations of five elements are measurably not equally frequent; with 20 they pass our tests."""
GOLDEN = 0x9E3779B97F4A7C15


def words(values: Any) -> Words:
    """One number or several as uint64 [N]."""
    return np.atleast_1d(np.asarray(values)).astype(np.uint64)


def seed_key(seed: int, purpose: str) -> int:
    """A key of 64 bits for one use of the seed; keys for different purposes are independent."""
    return int.from_bytes(blake2b(f"{seed}\0{purpose}".encode(), digest_size=8).digest(), "little")


class _Kept(threading.local):
    """One generator for each thread: setting its state takes a third of the time that a new one takes."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.philox)
        self.state: Any = self.philox.state  # before the first draw


_kept = _Kept()
_kept_key = lru_cache(1024)(seed_key)


def generator_at(seed: int, step: str, position: int) -> np.random.Generator:
    """Return the generator of a step for the sample at a position of the run, valid until this thread's next call.

    It is Philox 4x64 with two numbers of 64 bits as its key: BLAKE2b of the seed and the step's name, and the position. A
    position counts the samples of all epochs, so it stands for (epoch, position in the epoch).

    Args:
        seed: The loader's seed.
        step: What draws, such as "geometry/Flip/0", in a view after its name: "global/0/geometry/Flip/0".
        position: The position in the run, of all hosts together.
    """
    _kept.state["state"]["key"] = np.array([_kept_key(seed, step), position], np.uint64)  # NumPy makes floats of a list
    _kept.philox.state = _kept.state
    return _kept.generator


def mix(value: Words) -> Words:
    """SplitMix64's finaliser."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = value ^ (value >> np.uint64(31))
    return mixed


def subkey(key: Any, number: Any) -> Words:
    """The key of the `number`-th epoch, block, class, ... below `key`: elementwise."""
    return mix(words(key) + (words(number) + np.uint64(1)) * np.uint64(GOLDEN))


def below(value: Words, bound: Words) -> Words:
    """A number in [0, bound) from 64 random bits, for bounds below 2^32: their upper half, scaled."""
    scaled: Words = ((value >> np.uint64(32)) * bound) >> np.uint64(32)
    return scaled


def permute(index: Any, size: Any, key: Any) -> Words:
    """Return where the permutation of [0, size) chosen by `key` sends each index: uint64 [N]."""
    index, size, key = np.broadcast_arrays(words(index), words(size), words(key))
    a, b = sides(size)
    out = _rounds(index, a, b, key)
    while (outside := out >= size).any():
        out[outside] = _rounds(out[outside], a[outside], b[outside], key[outside])
    return out


def sides(size: Words) -> tuple[Words, Words]:
    """(a, b) with a·b >= size, a even: with both odd, only even permutations could be reached."""
    root = np.ceil(np.sqrt(size.astype(np.float64))).astype(np.uint64)
    a = np.maximum(root + (root & np.uint64(1)), np.uint64(2))
    return a, (size + a - np.uint64(1)) // a


def _rounds(index: Words, a: Words, b: Words, key: Words) -> Words:
    left, right = index % a, index // a
    for number in range(ROUNDS):
        round_key = key + np.uint64((number + 1) * GOLDEN % 2**64)
        if number % 2:
            right = (right + below(mix(left + round_key), b)) % b
        else:
            left = (left + below(mix(right + round_key), a)) % a
    joined: Words = right * a + left
    return joined


# --- samplers ---------------------------------------------------------------------------------------------------------

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
class WeightedSampler:
    """Each stratum has a quota of every epoch's items: `quotas[i]` for the `sizes[i]` samples that come i-th in the selection.
    Its samples are drawn in proportion to their weights.

    Systematic sampling (Madow, 'On the theory of systematic sampling', 1949): with an expected count of 2.3, a sample is drawn
    2 or 3 times in every epoch, 2.3 times on average. The start moves by the golden ratio from epoch to epoch, which spreads
    the samples of small weight evenly over the epochs. An order with a period would show in an epoch: shuffle the selection.
    """

    weights: npt.NDArray[np.float64]
    sizes: tuple[int, ...]
    quotas: tuple[int, ...]
    seed: int

    def __post_init__(self) -> None:
        weights = self.weights
        if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
            raise LoaderError("weights are finite numbers from 0 on, not all of them 0")
        for size, quota in zip(self.sizes, self.quotas, strict=True):
            if size == 0 and quota > 0:
                raise LoaderError(f"a stratum of no samples cannot give {quota} an epoch")

    @property
    def size(self) -> int:
        return sum(self.quotas)

    @cached_property
    def stops(self) -> Numbers:
        """For each stratum the first sample after it."""
        return np.cumsum(self.sizes)

    @cached_property
    def begins(self) -> Numbers:
        """For each stratum the first item of an epoch that is of it."""
        quotas: Numbers = np.array(self.quotas, np.int64)
        return np.cumsum(quotas) - quotas

    @cached_property
    def ends(self) -> Words:
        """The expected counts of an epoch in units of 2^-32, added up: at the end of a stratum exactly the sum of the quotas."""
        weights, quotas = self.weights, np.array(self.quotas)
        if not TINY < weights.max() < HUGE / len(weights):  # their sum, or its inverse, would overflow
            weights = weights / weights.max()
        total, first = np.concatenate([[0.0], np.cumsum(weights)]), self.stops - self.sizes
        stratum = np.repeat(np.arange(len(quotas)), self.sizes)
        share = (total[1:] - total[first][stratum]) / (total[self.stops] - total[first])[stratum]
        counts = self.begins[stratum] + share * quotas[stratum]
        return words(np.rint(counts * UNIT))

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
        """Any sample of the same stratum, in proportion to the weights."""
        stratum = np.searchsorted(self.stops, sample.astype(np.int64), "right")
        item = words(self.begins)[stratum] + below(draw, words(self.quotas)[stratum])
        position = item * np.uint64(UNIT) + draw % np.uint64(UNIT)
        chosen: Words = np.searchsorted(self.ends, position, "right").astype(np.uint64)
        return chosen


Sampler: TypeAlias = UniformSampler | WeightedSampler


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
