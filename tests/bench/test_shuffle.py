"""Shuffle quality compared with closed forms, brute force, and TensorFlow's own buffer."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from tfprep.bench import shuffle
from tfprep.errors import LoaderError
from tfprep.load.order.permutation import EpochOrder


def test_displacement_of_a_uniform_permutation_is_zero_on_average() -> None:
    """Over all permutations of 6, exactly: the expected distance is (n² - 1) / 3n."""
    every = [shuffle.displacement(np.array(order)) for order in permutations(range(6))]
    assert np.mean(every) == pytest.approx(0, abs=1e-12)


def test_without_shuffling_the_measure_is_one() -> None:
    order = np.arange(1000)
    assert shuffle.displacement(order) == 1
    assert shuffle.neighbours(order, 32) == pytest.approx(1)


@pytest.mark.parametrize("batch_size", [2, 5, 32])
def test_neighbours_against_brute_force(batch_size: int) -> None:
    order = np.random.default_rng(3).permutation(97)
    batch_of = {int(record): place // batch_size for place, record in enumerate(order)}

    def share(batch: dict[int, int], pairs: list[tuple[int, int]]) -> float:
        return sum(batch[a] == batch[b] for a, b in pairs) / len(pairs)

    every = list(combinations(range(97), 2))
    near = [(a, b) for a, b in every if b - a <= shuffle.NEAR]
    chance = share(batch_of, every)
    unshuffled = share({n: n // batch_size for n in range(97)}, near)
    expected = (share(batch_of, near) - chance) / (unshuffled - chance)
    assert shuffle.neighbours(order, batch_size) == pytest.approx(expected)


def test_a_global_order_is_as_good_as_a_uniform_one() -> None:
    quality = shuffle.order_quality(EpochOrder("global"), 20_000, 64)
    assert abs(quality.displacement) < 0.02
    assert abs(quality.neighbours) < 0.01
    assert quality.memory_bytes == quality.fill_records == 0


def test_larger_blocks_shuffle_worse_and_larger_windows_better() -> None:
    neighbours = {
        (block, window): shuffle.order_quality(EpochOrder("block", 0, block, window), 20_000, 64).neighbours
        for block, window in ((16, 16), (128, 1), (128, 16))
    }
    assert neighbours[128, 1] > 5 * neighbours[128, 16]
    assert neighbours[16, 16] <= neighbours[128, 1]


@pytest.mark.parametrize("buffer", [1, 2, 10, 300, 1000])
def test_the_buffer_delivers_every_record_once_and_not_before_it_is_read(buffer: int) -> None:
    order = shuffle.buffered(300, buffer, np.random.default_rng(0))
    assert sorted(order) == list(range(300))
    assert (order - np.arange(300) < buffer).all()  # A record cannot come before it was read.


def test_the_buffer_against_that_of_tensorflow() -> None:
    """The same mean displacement and neighbours, within the deviation of 12 epochs of 2,000 records."""
    import tensorflow as tf

    size, buffer, batch = 2000, 100, 32
    mine = [shuffle.buffered(size, buffer, np.random.default_rng(seed)) for seed in range(12)]
    data = tf.data.Dataset.range(size).shuffle(buffer, seed=1)
    theirs = [np.concatenate([part.numpy() for part in data.batch(size)]) for _ in range(12)]
    for measure, close in ((shuffle.displacement, 0.005), (lambda order: shuffle.neighbours(order, batch), 0.01)):
        assert np.mean([measure(o) for o in mine]) == pytest.approx(np.mean([measure(o) for o in theirs]), abs=close)


def test_a_larger_buffer_shuffles_better_and_takes_more_memory() -> None:
    found = shuffle.comparison(5_000, 32, 1e5, (100, 1_000, 10_000, 100_000))
    buffers = [quality for quality in found if quality.name.startswith("shuffle")]
    assert [quality.name for quality in buffers] == ["shuffle(100)", "shuffle(1,000)", "shuffle(10,000)"]
    assert buffers[0].neighbours > buffers[1].neighbours > buffers[2].neighbours - 0.01
    assert buffers[0].displacement > 0.9
    assert abs(buffers[2].displacement) < 0.05
    assert [quality.memory_bytes for quality in buffers] == [1e7, 1e8, 5e8]
    assert buffers[1].fill_s(2_000) == 0.5


def test_an_empty_buffer_is_refused() -> None:
    with pytest.raises(LoaderError, match="at least 1 record"):
        shuffle.buffer_quality(0, 10, 2, 1.0)
