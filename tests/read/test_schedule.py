"""Steps, hosts and epochs against a list that is written out."""

from __future__ import annotations

import numpy as np
import pytest

from tfprep.errors import LoaderError
from tfprep.read.draws import Each, Strata, Weighted
from tfprep.read.order import Order
from tfprep.read.schedule import Hosts, Schedule
from tfprep.read.variants import Variants


def schedule(samples=50, batch_size=8, **options):
    options = {"order": Order(seed=2), "variants": Variants("rotate", 2), "counts": 3} | options
    return Schedule(draw=Each(samples), batch_size=batch_size, **options)


def run(made: Schedule, steps):
    """(row, variant) of every sample of these steps, one list a step."""
    return [list(zip(p.row.tolist(), p.variant.tolist(), strict=True)) for p in made.picks(list(steps))]


def flat(steps):
    return [sample for step in steps for sample in step]


@pytest.mark.parametrize("samples", [48, 50])
@pytest.mark.parametrize("order", ["global", "block", "sequential"])
def test_wrapped_batches_hold_each_sample_once_an_epoch(samples, order):
    stream = flat(run(schedule(samples, order=Order(order, 2, 8, 2)), range(100)))
    assert len(stream) == 800
    for epoch in range(800 // samples):
        rows = [row for row, _ in stream[epoch * samples : (epoch + 1) * samples]]
        assert sorted(rows) == list(range(samples))


def test_all_variants_over_as_many_epochs():
    stream = flat(run(schedule(50), range(75)))
    for start in (0, 150, 300):
        assert len(set(stream[start : start + 150])) == 150


def test_all_variants_in_one_epoch():
    made = schedule(50, variants=Variants("all"))
    assert made.size == 150
    assert sorted(flat(run(made, range(made.steps_per_epoch)))[:150]) == [(r, v) for r in range(50) for v in range(3)]


@pytest.mark.parametrize(("remainder", "sizes"), [("keep", [8] * 6 + [2]), ("drop", [8] * 6)])
def test_epochs_that_end_on_a_batch(remainder, sizes):
    made = schedule(remainder=remainder)
    assert made.steps_per_epoch == len(sizes)
    for epoch in range(3):
        first = epoch * len(sizes)
        steps = run(made, range(first, first + len(sizes)))
        assert [len(step) for step in steps] == sizes
        assert len({row for row, _ in flat(steps)}) == sum(sizes)


@pytest.mark.parametrize("remainder", ["wrap", "keep", "drop"])
def test_any_step_alone_is_the_step_of_the_whole_run(remainder):
    made = schedule(remainder=remainder)
    whole = run(made, range(20))
    assert [run(made, [step])[0] for step in range(20)] == whole


def test_a_far_step_costs_no_more():
    far = schedule(1_000_000, batch_size=64)
    assert len(run(far, [10_000_000])[0]) == 64


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("remainder", ["wrap", "keep"])
def test_hosts_together_are_one(count, remainder):
    whole = run(schedule(remainder=remainder), range(15))
    parts = [run(schedule(remainder=remainder, hosts=Hosts(i, count)), range(15)) for i in range(count)]
    assert [flat(part[step] for part in parts) for step in range(15)] == whole


def test_the_number_of_hosts_may_change_in_the_middle():
    before = [run(schedule(hosts=Hosts(i, 4)), range(9)) for i in range(4)]
    after = [run(schedule(hosts=Hosts(i, 2)), range(9, 20)) for i in range(2)]
    steps = [flat(part[step] for part in before) for step in range(9)]
    steps += [flat(part[step] for part in after) for step in range(11)]
    assert steps == run(schedule(), range(20))


def test_uneven_ends_give_all_hosts_as_many_steps():
    made = [schedule(50, 8, remainder="keep", epochs=1, hosts=Hosts(i, 3)) for i in range(3)]
    assert {host.steps for host in made} == {7}
    assert [len(run(host, [6])[0]) for host in made] == [0, 1, 1]


def test_one_epoch_ends():
    made = schedule(50, remainder="keep", epochs=1, order=Order("sequential"), variants=Variants(0))
    assert made.steps == 7
    assert flat(run(made, range(7))) == [(row, 0) for row in range(50)]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"batch_size": 0}, "batch_size is at least 1, not 0"),
        ({"samples": 0}, "no sample is left"),
        ({"samples": 5, "remainder": "drop"}, "5 samples are fewer than batch_size=8"),
        ({"remainder": "cut"}, "'wrap', 'keep' or 'drop'"),
    ],
)
def test_mistakes(options, rule):
    with pytest.raises(LoaderError, match=rule):
        schedule(**options)


@pytest.mark.parametrize("hosts", [(2, 2), (-1, 2), (0, 0)])
def test_no_such_host(hosts):
    with pytest.raises(LoaderError, match="0 <= index < count"):
        Hosts(*hosts)


# --- strata and weights -------------------------------------------------------------------------------------------------


def drawn(draw, epochs):
    """The samples of each epoch."""
    return [draw.samples(np.arange(draw.size, dtype=np.uint64), np.full(draw.size, e, np.uint64))[0] for e in epochs]


def test_strata_give_their_quota_every_epoch():
    draw = Strata(sizes=(3, 40, 7), quotas=(10, 10, 10), seed=4)
    for samples in drawn(draw, range(5)):
        assert np.histogram(samples, [0, 3, 43, 50])[0].tolist() == [10, 10, 10]


def test_strata_show_their_samples_equally_often():
    draw = Strata(sizes=(3, 40, 7), quotas=(10, 10, 10), seed=4)
    seen = np.bincount(np.concatenate(drawn(draw, range(7))).astype(int), minlength=50)
    assert set(seen[:3]) <= {23, 24}  # 70 / 3
    assert set(seen[3:43]) <= {1, 2}  # 70 / 40
    assert set(seen[43:]) == {10}  # 70 / 7


def test_visits_count_up():
    """The n-th time that a sample comes is its visit n: so rotation shows it another variant, even within an epoch."""
    draw = Strata(sizes=(3, 10), quotas=(8, 5), seed=4)
    visits: dict[int, list[int]] = {}
    for epoch in range(4):
        samples, times = draw.samples(np.arange(13, dtype=np.uint64), np.full(13, epoch, np.uint64))
        for sample, visit in zip(samples.tolist(), times.tolist(), strict=True):
            visits.setdefault(sample, []).append(visit)
    assert all(sorted(seen) == list(range(len(seen))) for seen in visits.values())


def test_weights_are_met_in_every_epoch():
    weights = np.array([1, 2, 0, 5, 0.5, 0.1] * 20)
    draw = Weighted(weights, seed=9)
    expected = weights * len(weights) / weights.sum()
    for samples in drawn(draw, range(30)):
        counts = np.bincount(samples.astype(int), minlength=120)
        assert counts.sum() == 120
        assert (counts >= np.floor(expected)).all()
        assert (counts <= np.ceil(expected)).all()


def test_weights_are_met_over_many_epochs():
    weights = np.array([1, 2, 0, 5, 0.5, 0.1] * 20)
    counts = np.bincount(np.concatenate(drawn(Weighted(weights, 9), range(300))).astype(int), minlength=120)
    expected = weights * 120 / weights.sum() * 300
    assert counts[2::6].tolist() == [0] * 20
    assert np.abs(counts - expected).max() < 4  # the golden ratio's discrepancy; random draws would be off by 25


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [1, float("nan")], [float("inf"), 1]])
def test_weights_that_are_none(weights):
    with pytest.raises(LoaderError, match="finite numbers from 0 on"):
        Weighted(np.array(weights, np.float64), 0)
