"""Folds for cross-validation: determined by the seed, with groups kept together and classes spread evenly."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError
from tfprep.load.order.permutation import mix, seed_key, subkey, words

Numbers = npt.NDArray[np.int64]


def fold_of(groups: Sequence[Hashable], strata: Sequence[Any] | None, count: int, seed: int) -> Numbers:
    """The fold, from 0, of every sample; all samples of a group are in one.

    Groups are assigned in a random order that the seed determines, each to the fold with most room left: for the classes of
    the group where there are `strata`, then for samples.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise LoaderError(f"there are at least 2 folds, not {count!r}")
    names, member = _numbered(groups)
    if names < count:
        raise LoaderError(f"{names} groups cannot be split into {count} folds")
    classes, stratum = _numbered([0] * len(groups) if strata is None else strata)
    if names == len(groups):
        return _in_turn(stratum, count, seed)
    return _greedy(member, names, stratum, classes, count, seed)


def _in_turn(stratum: Numbers, count: int, seed: int) -> Numbers:
    """Assigns single samples to the folds in turn, class after class, each in random order. Sizes differ by at most one."""
    shuffled = np.argsort(mix(subkey(seed_key(seed, "folds"), np.arange(len(stratum)))), kind="stable")
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    fold = np.empty(len(stratum), np.int64)
    fold[order] = np.arange(len(stratum)) % count
    return fold


def _greedy(member: Numbers, groups: int, stratum: Numbers, classes: int, count: int, seed: int) -> Numbers:
    """Assigns groups, the largest first, each to the fold where classes and sizes stay most even."""
    counts = np.zeros((groups, classes))
    np.add.at(counts, (member, stratum), 1)
    share = counts / np.maximum(counts.sum(axis=0), 1)  # each class counts the same, however rare
    shuffled = np.argsort(mix(subkey(seed_key(seed, "folds"), words(np.arange(groups)))), kind="stable")
    order = shuffled[np.argsort(-counts.sum(axis=1)[shuffled], kind="stable")]
    filled, sizes = np.zeros((count, classes)), np.zeros(count)
    fold = np.empty(groups, np.int64)
    for group in order:
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
