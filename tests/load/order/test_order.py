"""Orders and variants compared with brute force."""

import numpy as np
import pytest

from tfprep.errors import LoaderError
from tfprep.load.order.permutation import EpochOrder
from tfprep.load.order.samplers import Variants

SIZES = [1, 5, 63, 64, 65, 130, 1037]


@pytest.mark.parametrize("name", ["global", "block", "sequential"])
@pytest.mark.parametrize("size", SIZES)
def test_each_item_comes_once_per_epoch(name, size):
    order = EpochOrder(name, seed=3, block=8, window=3)
    for epoch in range(3):
        assert sorted(order.items(np.arange(size), epoch, size).tolist()) == list(range(size))


@pytest.mark.parametrize(("block", "window"), [(1, 1), (4, 3), (64, 16), (7, 2), (2000, 3)])
@pytest.mark.parametrize("size", SIZES)
def test_blocks_cover_every_item_once(size, block, window):
    items = EpochOrder("block", 0, block, window).items(np.arange(size), 1, size)
    assert sorted(items.tolist()) == list(range(size))


@pytest.mark.parametrize("name", ["global", "block"])
def test_epochs_and_seeds_differ(name):
    def items(seed, epoch):
        return EpochOrder(name, seed, block=8, window=4).items(np.arange(500), epoch, 500).tolist()

    assert items(0, 0) == items(0, 0)
    assert len({tuple(items(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


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


@pytest.mark.parametrize(
    ("options", "rule"), [({"name": "shuffled"}, "'global', 'block' or 'sequential'"), ({"block": 0}, "at least 1")]
)
def test_wrong_options_raise(options, rule):
    with pytest.raises(LoaderError, match=rule):
        EpochOrder(**options)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_rotation_shows_every_variant_once_in_as_many_epochs(count):
    variants = Variants("rotate", seed=1)
    seen = np.stack([variants.of(np.arange(200), epoch, count) for epoch in range(5, 5 + count)])
    assert all(sorted(column.tolist()) == list(range(count)) for column in seen.T)


def test_rotation_can_begin_at_any_epoch():
    first = Variants("rotate", seed=1).of(np.arange(3000), 0, 3)
    assert all(abs((first == variant).mean() - 1 / 3) < 0.05 for variant in range(3))


def test_random_variants_differ_between_epochs():
    draws = np.stack([Variants("random", seed=1).of(np.arange(3000), epoch, 4) for epoch in range(2)])
    assert all(abs((draws == variant).mean() - 1 / 4) < 0.03 for variant in range(4))
    assert abs((draws[0] == draws[1]).mean() - 1 / 4) < 0.05


def test_a_number_selects_its_variant():
    assert set(Variants(2).of(np.arange(10), 3, 5).tolist()) == {2}
    assert Variants(2).used(3) == (2,)
    assert Variants("all").used(3) == (0, 1, 2)
    with pytest.raises(LoaderError, match="variants 0 to 2; there is no variant 3"):
        Variants(3).used(3)


@pytest.mark.parametrize("choice", ["each", True, 1.5, None])
def test_an_unknown_choice_raises(choice):
    with pytest.raises(LoaderError, match="'rotate', 'random', 'all' or a number"):
        Variants(choice)
