"""Measurements: what is counted, in which order candidates run, and how ratios are taken. No test depends on a rate."""

import os
import subprocess
import time

import numpy as np
import psutil
import pytest

from tfprep.bench import machine
from tfprep.bench import rounds as measuring
from tfprep.bench.rounds import (
    Budget,
    Candidate,
    Measurement,
    Rounds,
    Spread,
    Used,
    compare,
    measure,
    measured_size,
)
from tfprep.errors import LoaderError

SHORT = Budget(rounds=3, seconds=0.05, warm_up_s=0.0, least_batches=2)


def measurement(images, seconds, others=None):
    return Measurement(images, 10 * images, 1, 0.5, Used(seconds, seconds / 2, 7, others))


def endless(sleep_s=0.001, rows=4):
    def batches():
        while True:
            time.sleep(sleep_s)
            yield {"image": np.zeros((rows, 2, 2, 3), np.uint8), "label": np.zeros(rows, np.int64)}

    return batches


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"image": np.zeros((4, 2, 2), np.uint8), "label": np.zeros(4, np.int64)}, (4, 16 + 32)),
        ((np.zeros((3, 5), np.float32), np.zeros(3, np.int64)), (3, 60 + 24)),
        (({"a": np.zeros((2, 1), np.uint8)}, np.zeros(2, np.uint8)), (2, 4)),
        (np.zeros((6, 2), np.uint8), (6, 12)),
        ([np.zeros((2, 3), np.uint8), np.zeros((4, 5), np.uint8)], (2, 26)),
        ([np.zeros((4, 3), np.uint8), np.zeros(4, np.uint8)], (4, 16)),  # as PyTorch's DataLoader gives it
        ([{"a": np.zeros((4, 3), np.uint8)}, [np.zeros(4, np.uint8)]], (4, 16)),
        ({"a": [np.zeros((4, 2), np.uint8), np.zeros((4, 3), np.uint8)], "b": ["one", "two"]}, (2, 20)),
    ],
)
def test_size_of_a_batch(batch, expected):
    assert measured_size(batch) == expected


def test_size_of_a_ragged_batch():
    tf = pytest.importorskip("tensorflow")
    assert measured_size({"image": tf.ragged.constant([[[1], [2]], [[3]], []], dtype=tf.float32)}) == (3, 12)


def test_a_measurement_counts_every_batch_once():
    seen = []

    def batches():
        while True:
            time.sleep(0.002)
            seen.append(1)
            yield np.zeros((4, 3), np.uint8)

    result = measure(Candidate("a", batches), SHORT)
    assert result.batches == len(seen) - 1  # The first batch belongs to the wait, not to the rate.
    assert result.images == 4 * result.batches
    assert result.bytes == 12 * result.batches
    assert result.used.seconds >= SHORT.seconds


@pytest.mark.parametrize("count", [0, 2])
def test_a_candidate_that_ends_raises_with_its_name(count):
    with pytest.raises(LoaderError, match="short has ended"):
        measure(Candidate("short", lambda: iter([np.zeros((2, 1), np.uint8)] * count)), Budget(1, 0.0, 0.0, 5))


def test_iterators_are_closed():
    closed = []

    class Batches:
        def __iter__(self):
            return self

        def __next__(self):
            return np.zeros((1, 1), np.uint8)

        def close(self):
            closed.append(1)

    measure(Candidate("a", Batches), Budget(1, 0.0, 0.0, 1))
    assert len(closed) == 1


def test_candidates_take_turns_in_changing_order():
    order = []
    candidates = [Candidate(name, lambda name=name: order.append(name) or endless()()) for name in "ab"]
    compare(candidates, Budget(2, 0.0, 0.0, 1))
    assert "".join(order) == "abba"


def test_a_ratio_is_the_median_of_the_ratios_within_rounds():
    a = [measurement(100, 1.0), measurement(10, 1.0), measurement(300, 1.0)]
    b = [measurement(50, 1.0), measurement(5, 1.0), measurement(50, 1.0)]
    rounds = Rounds({"a": a, "b": b})
    assert rounds.ratio("a", "b") == Spread(2.0, 2.0, 6.0)
    assert rounds.images_per_s("a") == Spread(100, 10, 300)
    assert rounds.of("b", "cpu_ms") == Spread(10.0, 10.0, 100.0)


@pytest.mark.parametrize(("others", "warned"), [(0.02, False), (0.4, True), (None, False)])
def test_a_busy_machine_is_reported(others, warned):
    busy = Rounds({"a": [measurement(1, 1.0, others)]}).busy
    assert ("40%" in busy) is warned
    assert bool(busy) is warned


def test_memory_that_a_candidate_adds_and_of_an_image():
    """One candidate allocates 48 MB and the other none, as counted by the system."""
    added = []

    def heavy():
        before = psutil.Process().memory_info().rss
        kept = np.ones(48 << 20, np.uint8)
        added.append(psutil.Process().memory_info().rss - before)
        while True:
            time.sleep(0.001)
            yield {"image": kept[:600].reshape(2, 10, 10, 3), "label": np.zeros(2, np.int64)}

    rounds = compare([Candidate("heavy", heavy), Candidate("light", endless())], Budget(1, 0.2, 0.0, 2))
    heavy, light = (rounds.memory_bytes(name) for name in ("heavy", "light"))
    assert heavy["added"] == pytest.approx(max(added), abs=8e6)
    assert heavy["added"] > 45e6
    assert light["added"] < 8e6
    assert heavy["image"] == 10 * 10 * 3 + 8
    assert rounds.as_json()["heavy"]["memory_bytes"] == heavy


class Filling:
    """Batches that take 2 ms until a cache contains `most` of them, and no time afterwards."""

    def __init__(self, most):
        self.held, self.most = 0.0, most

    def __iter__(self):
        return self

    def __next__(self):
        if self.held < self.most:
            time.sleep(0.002)
            self.held += 1
        return np.zeros((4, 2), np.uint8)

    def cache_bytes(self):
        return self.held


@pytest.mark.parametrize(("most", "settled"), [(300, True), (float("inf"), False)])
def test_the_measurement_begins_when_the_cache_is_full(monkeypatch, most, settled):
    monkeypatch.setattr(measuring, "MOST_SETTLE_S", 30 if settled else 0.3)
    filling = Filling(most)
    assert measure(Candidate("cached", lambda: filling), SHORT).settled == settled
    assert filling.held == 300 or not settled


def test_this_machine(tmp_path):
    here = machine.this_machine(tmp_path)
    assert here.cores == len(os.sched_getaffinity(0))
    assert 2**28 < here.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    named = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True).stdout
    assert here.file_system.startswith(named.strip().split("/")[0][:3])
    assert f"{here.cores} cores" in here.words
