"""The memory budget, and the caches within it."""

from __future__ import annotations

import numpy as np
import pytest

from tfprep.errors import LoaderError
from tfprep.read.cache import DecodedCache, EncodedCache
from tfprep.read.memory import parse_bytes, plan_memory
from tfprep.read.outputs import Output


@pytest.mark.parametrize(
    ("text", "number"),
    [(5, 5), ("800M", 800 << 20), ("2GB", 2 << 30), ("1.5 GiB", 3 << 29), ("64k", 64 << 10), ("100", 100)],
)
def test_bytes_in_words(text, number):
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", [0, -1, True, "much", "2 Gx", "", "1.2.3G", None])
def test_no_bytes(text):
    with pytest.raises(LoaderError, match="such as '2GB'"):
        parse_bytes(text)


def test_the_budget_says_how_far_ahead():
    assert plan_memory("1GB", 1 << 20, None).ahead == 8
    assert plan_memory(20 << 20, 1 << 20, None).ahead == 6
    assert plan_memory(5 << 20, 1 << 20, None).ahead == 1
    assert plan_memory("1GB", 1 << 20, 3).ahead == 3


def test_batches_that_do_not_fit():
    with pytest.raises(LoaderError, match="cannot hold 5 batches of 1,048,576"):
        plan_memory(4 << 20, 1 << 20, None)


def test_what_batches_leave_is_for_the_cache():
    plan = plan_memory(100 << 20, 1 << 20, 6)
    assert plan.cache_bytes == (100 - 10) << 20


OUTPUTS = (Output("x", ("x",), (4, 3), "uint8"), Output("t", ("t",), (), "string"))


def batch(rows):
    return {"x": np.zeros((rows, 4, 3), np.uint8), "t": np.empty(rows, object)}


def filled(record):
    return np.full((4, 3), record, np.uint8), b"%d" % record


@pytest.mark.parametrize("wanted", [[3, 1, 2], [3, 9, 1], [9, 8]])
def test_rows_come_back(wanted):
    cache = DecodedCache(OUTPUTS, records=20, budget=1 << 20)
    values = batch(1)
    for record in (1, 2, 3):
        values["x"][0], values["t"][0] = filled(record)
        cache.store(values, 0, record)
    assert cache.records == 3
    into = batch(5)
    held = cache.fetch(into, 1, np.array(wanted))
    assert held.tolist() == [record in (1, 2, 3) for record in wanted]
    for row, record in enumerate(wanted, 1):
        if record in (1, 2, 3):
            assert (into["x"][row] == record).all()
            assert into["t"][row] == b"%d" % record
        else:
            assert not into["x"][row].any()
    assert not into["x"][0].any()


def test_a_cache_ends_with_its_budget():
    cache = DecodedCache(OUTPUTS, records=100, budget=128 * 10)
    assert cache.capacity == 10
    values = batch(1)
    for record in range(100):
        values["x"][0], values["t"][0] = filled(record)
        cache.store(values, 0, record)
    assert cache.records == 10
    assert cache.nbytes <= 128 * 10


def test_no_room_at_all():
    cache = DecodedCache(OUTPUTS, records=100, budget=10)
    assert not cache.fetch(batch(2), 0, np.array([0, 1])).any()
    cache.store(batch(1), 0, 0)
    assert cache.records == 0


def test_encoded_bytes_end_with_their_budget():
    cache = EncodedCache(budget=2 * (100 + EncodedCache.OVERHEAD))
    for record in range(5):
        cache.store(record, {"x": np.full(100, record, np.uint8)})
    assert cache.records == 2
    assert cache.fetch(1)["x"].tolist() == [1] * 100
    assert cache.fetch(4) is None


def test_more_ahead_than_the_budget_holds():
    with pytest.raises(LoaderError, match=r"ahead=97 takes 105,906,176 bytes .* ahead=96 fits"):
        plan_memory(100 << 20, 1 << 20, 97)
    assert plan_memory(100 << 20, 1 << 20, 96).ahead == 96
    assert plan_memory(100 << 20, 1 << 20, None, 16).ahead == 16
    assert plan_memory(20 << 20, 1 << 20, None, 16).ahead == 6
