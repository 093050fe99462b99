"""Permutations are exact, invertible, and without visible structure."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfprep.load.order.permutation import permute, seed_key, unpermute


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


def test_different_keys_give_different_permutations():
    one, other = (permute(np.arange(10_000), 10_000, seed_key(seed, "order")) for seed in (0, 1))
    assert (one == other).mean() < 0.001


def test_purposes_do_not_share_draws():
    assert seed_key(0, "order") != seed_key(0, "variants")
