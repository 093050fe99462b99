"""Folds are a partition, keep groups together, balance classes, and depend only on the seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfprep.errors import LoaderError
from tfprep.load.order.samplers import fold_of


@settings(max_examples=60)
@given(labels=st.lists(st.integers(0, 4), min_size=6, max_size=200), count=st.integers(2, 5), seed=st.integers(0, 5))
def test_classes_are_as_even_as_they_can_be(labels, count, seed):
    fold = fold_of(range(len(labels)), labels, count, seed)
    sizes = np.bincount(fold, minlength=count)
    assert sizes.max() - sizes.min() <= 1
    for label in set(labels):
        held = np.bincount(fold[np.array(labels) == label], minlength=count)
        assert held.max() - held.min() <= 1


@settings(max_examples=60)
@given(groups=st.lists(st.integers(0, 12), min_size=60, max_size=200), count=st.integers(2, 4), seed=st.integers(0, 5))
def test_groups_stay_together(groups, count, seed):
    if len(set(groups)) < count:
        return
    fold = fold_of(groups, None, count, seed)
    assert all(len(set(fold[np.array(groups) == group])) == 1 for group in set(groups))
    assert set(fold) == set(range(count))


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


@pytest.mark.parametrize("count", [0, 1, 2.5, True])
def test_too_few_folds(count):
    with pytest.raises(LoaderError, match="at least 2 folds"):
        fold_of(range(10), None, count, 0)


def test_too_few_groups():
    with pytest.raises(LoaderError, match="3 groups cannot be split into 4 folds"):
        fold_of([0, 1, 2] * 5, None, 4, 0)
