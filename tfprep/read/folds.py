"""Splitting samples into folds: fixed by the seed, groups kept together, classes spread evenly."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError
from tfprep.read.permute import mix, seed_key, subkey, words

Numbers = npt.NDArray[np.int64]


def fold_of(groups: Sequence[Hashable], strata: Sequence[Any] | None, count: int, seed: int) -> Numbers:
    """The fold, from 0, of every sample; all samples of a group are in one.

    Groups are dealt out in a random order fixed by the seed, each to the fold that has most room left: for the classes that
    the group holds where there are `strata`, then for samples.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise LoaderError(f"there are at least 2 folds, not {count!r}")
    names, member = _numbered(groups)
    if names < count:
        raise LoaderError(f"{names} groups cannot be split into {count} folds")
    classes, stratum = _numbered([0] * len(groups) if strata is None else strata)
    if names == len(groups):
        return _dealt(stratum, count, seed)
    return _greedy(member, names, stratum, classes, count, seed)


def _dealt(stratum: Numbers, count: int, seed: int) -> Numbers:
    """Single samples: class after class, in random order, to the folds in turn. Sizes differ by one at most."""
    shuffled = np.argsort(mix(subkey(seed_key(seed, "folds"), np.arange(len(stratum)))), kind="stable")
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    fold = np.empty(len(stratum), np.int64)
    fold[order] = np.arange(len(stratum)) % count
    return fold


def _greedy(member: Numbers, groups: int, stratum: Numbers, classes: int, count: int, seed: int) -> Numbers:
    """Groups, the largest first: each to the fold where it leaves classes and sizes most even."""
    held = np.zeros((groups, classes))
    np.add.at(held, (member, stratum), 1)
    share = held / np.maximum(held.sum(axis=0), 1)  # each class counts the same, however rare
    shuffled = np.argsort(mix(subkey(seed_key(seed, "folds"), words(np.arange(groups)))), kind="stable")
    order = shuffled[np.argsort(-held.sum(axis=1)[shuffled], kind="stable")]
    filled, sizes = np.zeros((count, classes)), np.zeros(count)
    fold = np.empty(groups, np.int64)
    for group in order:
        after = ((filled + share[group]) ** 2 - filled**2).sum(axis=1)
        best = min(range(count), key=lambda at: (round(float(after[at]), 12), sizes[at]))
        fold[group] = best
        filled[best] += share[group]
        sizes[best] += held[group].sum()
    return fold[member]


def _numbered(values: Sequence[Hashable]) -> tuple[int, Numbers]:
    """How many different values there are, and each value's number among them, by first appearance."""
    seen: dict[Hashable, int] = {}
    numbers = np.array([seen.setdefault(value, len(seen)) for value in values], np.int64)
    return len(seen), numbers
