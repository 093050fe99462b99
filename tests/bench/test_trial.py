"""The predicted time of a build: the seconds of a sample by split, and the end of the last shard."""

from itertools import permutations
from typing import Any, cast

import pytest

from tfprep.bench.trial import Built, Sampling, makespan, sample_seconds


def test_seconds_of_a_sample_by_split() -> None:
    shards = [("train", 10, 5.0), ("val", 4, 0.4), ("train", 30, 7.0)]
    assert sample_seconds(shards) == pytest.approx({"train": 0.3, "val": 0.1})
    assert makespan([5.0, 0.4, 7.0], 1) == pytest.approx(12.4)
    assert makespan([5.0, 0.4, 7.0], 2) == pytest.approx(
        7.4
    )  # 5 | 0.4 + 7: the second worker also takes the last shard.


def by_hand(seconds: list[float], workers: int) -> float:
    """A simulation in which the worker that is free first takes the next shard."""
    left, waiting, now = [0.0] * workers, list(seconds), 0
    while waiting or any(left):
        for number, rest in enumerate(left):
            if not rest and waiting:
                left[number] = waiting.pop(0)
        left = [max(0.0, rest - 1) for rest in left]
        now += 1
    return float(now)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_makespan_against_a_simulation(workers: int) -> None:
    for order in permutations([1.0, 2.0, 3.0, 5.0, 8.0]):
        assert makespan(order, workers) == by_hand(list(order), workers)


def test_a_single_shard_uses_one_worker() -> None:
    built = Built(cast(Any, None), cast(Any, None), 0, 0, 2, 1.0, {"train": 0.5, "val": 0.1})
    assert built.build_s([("train", 20)]) == pytest.approx(11)
    assert built.build_s([("train", 10), ("train", 10)]) == pytest.approx(6)
    assert built.build_s([("test", 10)]) == pytest.approx(6)  # A split that is missing in the sample.
    assert built.build_s([]) == 1.0


@pytest.mark.parametrize(("samples", "train", "val"), [(20, 1, 1), (100, 5, 1), (160, 8, 2), (1000, 8, 8)])
def test_shards_of_a_sample_hold_at_least_16(tmp_path: Any, samples: int, train: int, val: int) -> None:
    sampling = Sampling(tmp_path, tmp_path, samples, {"train": 800, "val": 200})
    assert (sampling._shards("train"), sampling._shards("val")) == (train, val)


def test_the_faster_of_two_builds_counts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    none = cast(Any, None)
    builds = [
        Built(none, none, 9, 99, 2, 3.0, {"train": 0.1, "val": 0.2}),
        Built(none, none, 9, 99, 2, 0.5, {"train": 0.3, "val": 0.1}),
    ]
    folders: list[str] = []
    monkeypatch.setattr(
        Sampling, "_build", lambda self, strategy, folder: folders.append(folder) or builds[len(folders) - 1]
    )
    built = Sampling(tmp_path, tmp_path, 10, {"train": 20}).build(none, "raw")
    assert (built.fixed_s, built.sample_s) == (0.5, {"train": 0.1, "val": 0.1})
    assert folders == ["raw", "raw-again"]


def test_a_long_build_is_not_repeated(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Built(cast(Any, None), cast(Any, None), 9, 99, 2, 1.0, {"train": 0.2})
    folders: list[str] = []
    monkeypatch.setattr(Sampling, "_build", lambda self, strategy, folder: folders.append(folder) or built)
    assert Sampling(tmp_path, tmp_path, 200, {"train": 900}).build(cast(Any, None), "raw") is built
    assert folders == ["raw"]
