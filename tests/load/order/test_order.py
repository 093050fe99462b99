"""Orders and variants compared with brute force."""

from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfprep.load.order.permutation import EpochOrder, permute, seed_key, unpermute
from tfprep.load.order.samplers import Variants, fold_of


def test_positions_are_computed_independently():
    for name in ("global", "block", "sequential"):
        order = EpochOrder(name, 5, 8, 3)
        positions, epochs = np.array([3, 99, 0, 42]), np.array([7, 0, 2**40, 3])
        one_by_one = [order.items(position, epoch, 100)[0] for position, epoch in zip(positions, epochs, strict=True)]
        assert order.items(positions, epochs, 100).tolist() == one_by_one


def test_a_window_reads_few_blocks():
    """Windows of 4 blocks of 8: the items of any 32 consecutive positions are in 4 blocks (8 if they span two windows)."""
    size, block, window = 997, 8, 4
    items = EpochOrder("block", 0, block, window).items(np.arange(size), 0, size) // block
    starts = np.arange(0, size - block * window, 5)
    assert max(len(set(items[start : start + block * window].tolist())) for start in starts) <= 2 * window
    first = items[: block * window]
    assert len(set(first.tolist())) <= window + 1  # One of them may be the short block, which adds a fifth.
    assert len(set(np.diff(first).tolist())) > 2  # The items are mixed, not block after block.


def test_rotation_can_begin_at_any_epoch():
    first = Variants("rotate", seed=1).of(np.arange(3000), 0, 3)
    assert all(abs((first == variant).mean() - 1 / 3) < 0.05 for variant in range(3))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 9, 16, 97, 1000, 65537])
@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_every_position_comes_once(size, key):
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


@settings(max_examples=50)
@given(size=st.integers(1, 2**61), key=st.integers(0, 2**64 - 1), data=st.data())
def test_inverse(size, key, data):
    index = data.draw(st.integers(0, size - 1))
    there = permute(index, size, key)
    assert there[0] < size
    assert unpermute(there, size, key).tolist() == [index]


def test_each_element_can_have_its_own_size_and_key():
    sizes, keys = np.array([5, 50, 500]), np.array([1, 2, 3])
    together = permute(np.array([3, 3, 3]), sizes, keys)
    assert together.tolist() == [permute(3, size, key)[0] for size, key in zip(sizes, keys, strict=True)]


@pytest.mark.parametrize("size", [3, 4, 5])
def test_all_permutations_are_equally_frequent(size):
    """Chi-squared over all size! permutations has the mean size! - 1 and twice that as its variance."""
    keys = np.arange(20_000)
    rows = np.stack([permute(np.full(len(keys), position), size, keys) for position in range(size)], 1)
    counts = Counter(map(tuple, rows.tolist()))
    kinds = list(permutations(range(size)))
    expected = len(keys) / len(kinds)
    chi2 = sum((counts[kind] - expected) ** 2 / expected for kind in kinds)
    assert abs(chi2 - (len(kinds) - 1)) < 6 * (2 * (len(kinds) - 1)) ** 0.5


def test_no_structure_in_a_long_one():
    """A random permutation has a correlation of position and image of 0 ± 1/sqrt(n), one fixed point on average, and distant
    neighbours."""
    size = 100_000
    images = permute(np.arange(size), size, seed_key(7, "test")).astype(np.float64)
    assert abs(np.corrcoef(np.arange(size), images)[0, 1]) < 5 / size**0.5
    assert (images == np.arange(size)).sum() < 10
    steps = np.abs(np.diff(images)) / size
    assert abs(steps.mean() - 1 / 3) < 0.01  # The mean distance of two random points of [0, 1].
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 5 / size**0.5


def test_seeds_and_purposes_share_no_draws():
    keys = [seed_key(0, "order"), seed_key(1, "order"), seed_key(0, "variants")]
    for one, other in combinations([permute(np.arange(10_000), 10_000, key) for key in keys], 2):
        assert (one == other).mean() < 0.001


@settings(max_examples=60)
@given(labels=st.lists(st.integers(0, 4), min_size=6, max_size=200), count=st.integers(2, 5), seed=st.integers(0, 5))
def test_classes_are_as_even_as_they_can_be(labels, count, seed):
    fold = fold_of(range(len(labels)), labels, count, seed)
    sizes = np.bincount(fold, minlength=count)
    assert sizes.max() - sizes.min() <= 1
    for label in set(labels):
        held = np.bincount(fold[np.array(labels) == label], minlength=count)
        assert held.max() - held.min() <= 1


def test_groups_spread_classes():
    """60 patients with five slices each, a third of them ill: about a third of every fold's slices are ill."""
    ill = np.arange(60) % 3 == 0
    fold = fold_of(np.repeat(np.arange(60), 5).tolist(), np.repeat(ill, 5).tolist(), 5, 1)
    shares = [np.repeat(ill, 5)[fold == at].mean() for at in range(5)]
    assert np.abs(np.array(shares) - 1 / 3).max() < 0.05
    assert np.bincount(fold).tolist() == [60] * 5


def test_folds_depend_on_the_seed():
    one, same, other = (fold_of(range(100), None, 5, seed).tolist() for seed in (0, 0, 1))
    assert one == same != other
