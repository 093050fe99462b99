"""Samplers of strata and weights, compared with lists that are written out; tests/fidelity has what loaders deliver."""

import numpy as np
import pytest

from tfprep.load.order.samplers import (
    STEP,
    UNIT,
    UniformSampler,
    WeightedSampler,
    floor_sums,
)
from tfprep.load.order.schedule import BatchSchedule

# --- strata and weights -------------------------------------------------------------------------------------------------


WEIGHTS = np.array([1, 2, 0, 5, 0.5, 0.1, 1.5, 2.3] * 10)
SAMPLERS = {
    "weights": WeightedSampler(WEIGHTS, (80,), (80,), 9),
    "strata": WeightedSampler(WEIGHTS, (10, 50, 20), (30, 30, 20), seed=4),
}


@pytest.mark.parametrize("variants", [2, 3, 4])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samples_show_their_variants_equally_often(sampler, variants):
    """The n-th time that a sample is drawn is its pass n, so rotation shows all variants equally often, even in an epoch."""
    schedule = BatchSchedule(SAMPLERS[sampler], seed=2, batch_size=16, counts=variants)
    seen = np.zeros((80, variants), int)
    for positions in schedule.positions(range(5 * 60)):  # 60 epochs.
        samples = schedule.at(positions)
        np.add.at(seen, (samples.row, samples.variant), 1)
    assert seen.sum() == 60 * 80
    assert (seen.max(axis=1) - seen.min(axis=1) <= 1).all()


def test_strata_have_their_quotas_in_every_epoch():
    """Within a stratum, the counts are proportional to the weights, as nearly as whole numbers are."""
    sampler, seen = SAMPLERS["strata"], np.zeros((60, 80), int)
    for epoch in range(60):
        samples, _ = sampler.samples(np.arange(80, dtype=np.uint64), np.full(80, epoch, np.uint64))
        np.add.at(seen[epoch], samples.astype(int), 1)
    first = 0
    for size, quota in zip(sampler.sizes, sampler.quotas, strict=True):
        counts, weights = seen[:, first : first + size], WEIGHTS[first : first + size]
        assert (counts.sum(axis=1) == quota).all()
        assert (abs(counts - quota * weights / weights.sum()) < 1).all()
        np.testing.assert_allclose(counts.mean(axis=0), quota * weights / weights.sum(), atol=0.05)
        first += size


@pytest.mark.parametrize("count", [0, 1, 2, 17, 200])
@pytest.mark.parametrize("factor", [1, STEP, UNIT - STEP, UNIT - 1])
def test_floor_sums(count, factor):
    """Compared with the sum of all terms."""
    offset = 123_456_789_012
    expected = sum((factor * i + offset) // UNIT for i in range(count))
    made = floor_sums(np.array([count], np.uint64), UNIT, factor, np.array([offset], np.uint64))
    assert made.tolist() == [expected]


def substitutes(sampler, sample):
    draws = np.random.default_rng(0).integers(0, 2**64, 4000, np.uint64)
    return sampler.substitute(np.full(4000, sample, np.uint64), draws).astype(int)


def test_substitutes_are_drawn_like_their_sample():
    assert set(substitutes(UniformSampler(7), 3)) == set(range(7))
    strata = WeightedSampler(np.ones(50), sizes=(3, 40, 7), quotas=(10, 10, 10), seed=4)
    assert set(substitutes(strata, 1)) == {0, 1, 2}
    assert set(substitutes(strata, 49)) == set(range(43, 50))
    counts = np.bincount(substitutes(WeightedSampler(np.array([1.0, 0, 3]), (3,), (3,), 9), 0), minlength=3)
    assert counts[1] == 0
    assert abs(counts[2] / 4000 - 0.75) < 0.03
