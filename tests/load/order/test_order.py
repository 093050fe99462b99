"""Orders and variants compared with brute force."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfprep.load.order.samplers import fold_of, permute


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 9, 16, 97, 1000, 65537])
@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_every_position_comes_once(size, key):
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


@settings(max_examples=50)
@given(size=st.integers(1, 2**61), key=st.integers(0, 2**64 - 1), data=st.data())
def test_large_permutations_stay_inside_and_apart(size, key, data):
    index = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True))
    images = permute(index, size, key).tolist()
    assert len(set(images)) == len(index)
    assert max(images) < size


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
