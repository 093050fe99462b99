"""Tuning: which settings are kept, that the result is never slower than the defaults, and when the file is used. The search
runs on simulated rates, so that the expected result is known.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tfprep.bench.tune as tuning_module
from tfprep.bench.rounds import Budget, Candidate, Measurement, Rounds, Used
from tfprep.bench.tune import MARGIN, _Search, may_gain, tune
from tfprep.load import Data
from tfprep.load.tuning import TUNING, Tuning, find_tuning, machine_key, write_tuning

Rate = Callable[[dict[str, Any]], float]


@pytest.fixture
def search(raw_data: Data, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the search as if the loader had the rate `rate(setting)` with each setting."""

    def run(rate: Rate, final: Rate | None = None, minutes: float | None = None) -> Any:
        checking: list[bool] = []
        check = _Search.check

        def last_check(search: _Search) -> Any:
            checking.append(True)
            return check(search)

        def candidate(data: Data, split: str, batch_size: int, *, name: str, **options: Any) -> Candidate:
            return Candidate(name, lambda: options)  # type: ignore[arg-type,return-value]

        def compare(candidates: Sequence[Candidate], budget: Budget) -> Rounds:
            assert budget.rounds == 1
            settings: dict[str, Any] = {candidate.name: candidate.open() for candidate in candidates}
            used = final if final is not None and checking else rate
            return Rounds({name: [_stretch(used(options))] for name, options in settings.items()})

        monkeypatch.setattr(_Search, "check", last_check)
        monkeypatch.setattr(tuning_module, "loader_candidate", candidate)
        monkeypatch.setattr(tuning_module, "usable_cpus", lambda: 2)
        return tune(raw_data, "train", 4, compare_with=compare, allocator=False, minutes=minutes)

    yield run
    (raw_data.path / TUNING).unlink(missing_ok=True)


def _stretch(rate: float) -> Measurement:
    return Measurement(int(1000 * rate), 0, 1, 0.0, Used(1.0, 1.0, 0, None, ()))


def test_the_best_of_each_setting_is_kept_on_top_of_the_others(search: Any, raw_data: Data) -> None:
    def rate(options: dict[str, Any]) -> float:
        return (2.0 if options.get("threads") == 4 else 1.0) * (1.5 if options.get("prefetch") == 16 else 1.0)

    found = search(rate)
    assert found.tuning.options == {"threads": 4, "prefetch": 16}
    assert found.check.ratio.median == pytest.approx(3.0)
    assert found.tuning.gain == pytest.approx(3.0)
    assert find_tuning(raw_data.path, raw_data.manifest.fingerprint).tuning == found.tuning


def test_a_gain_that_needs_a_full_cache_is_not_kept(search: Any) -> None:
    """One thread copies rows from a full cache as fast as several, but decodes at half the rate in the first epoch."""

    def rate(options: dict[str, Any]) -> float:
        if options.get("threads") != 1:
            return 1.0
        return 0.56 if options.get("cache") is False else 1.2

    found = search(rate)
    assert found.tuning == Tuning()
    (trial,) = [trial for trial in found.trials if trial.change == {"threads": 1}]
    assert trial.ratio.median == pytest.approx(1.2)
    assert trial.uncached.median == pytest.approx(0.56)
    assert not trial.kept


def test_a_gain_without_a_cache_is_kept_if_a_full_cache_is_not_slower(search: Any) -> None:
    found = search(lambda options: 1.4 if options.get("threads") == 4 and options.get("cache") is False else 1.0)
    assert found.tuning.options == {"threads": 4}


def test_a_value_that_lost_a_round_does_not_hide_one_that_gains(search: Any) -> None:
    rounds = iter([1.5, 1.5, 0.98, 0.98])  # of 4 threads: with a full cache and without, in two rounds

    def rate(options: dict[str, Any]) -> float:
        if options.get("threads") == 4:
            return next(rounds)
        return 1.1 if options.get("threads") == 1 else 1.0

    assert search(rate).tuning.options == {"threads": 1}


def test_a_gain_that_the_last_check_does_not_confirm_is_not_written(search: Any) -> None:
    found = search(lambda options: 1.2 if options.get("threads") == 4 else 1.0, lambda options: 1.0)
    assert any(trial.kept for trial in found.trials)
    assert found.tuning == Tuning()


def test_a_change_is_measured_until_it_is_decided(search: Any) -> None:
    """A setting that loses in the first round costs one round of the three, with a full cache and without."""
    threads: list[int] = []

    def rate(options: dict[str, Any]) -> float:
        threads.append(options.get("threads", 0))
        return {1: 0.5, 4: 2.0}.get(threads[-1], 1.0)

    assert search(rate).tuning.options == {"threads": 4}
    assert threads.count(1) == 2


def test_settings_that_the_time_does_not_suffice_for_are_named(search: Any) -> None:
    found = search(lambda options: 2.0 if options.get("threads") == 4 else 1.0, minutes=0)
    assert found.trials == ()
    assert found.tuning == Tuning()
    assert "  not tried for lack of time: cache, threads, prefetch, order" in found.lines()


@pytest.mark.parametrize(
    ("ratios", "rounds"), [([], 3), ([1.1], 3), ([1.0], 3), ([1.1, 1.0], 3), ([0.99], 3), ([1.01, 1.02], 3), ([1.0], 1)]
)
def test_no_round_that_is_left_could_have_decided_otherwise(ratios: list[float], rounds: int) -> None:
    """By trying values for the rounds that are left."""
    ways = itertools.product([0.5, 0.999, 1.0, MARGIN, 9.0], repeat=rounds - len(ratios))
    possible = [[*ratios, *rest] for rest in ways]
    assert may_gain(ratios, rounds) == any(
        statistics.median(values) >= MARGIN and min(values) >= 1.0 for values in possible
    )


def test_small_gains_are_not_kept(search: Any) -> None:
    assert search(lambda options: 1.02 if options.get("threads") == 4 else 1.0).tuning == Tuning()


@pytest.mark.parametrize(
    ("rate", "suggestion"), [(1.05, ""), (1.3, "order='block', block=64 would read 1.3 times faster")]
)
def test_an_order_is_reported_and_never_written(search: Any, raw_data: Data, rate: float, suggestion: str) -> None:
    found = search(lambda options: rate if options.get("block") == 64 else 1.0)
    assert found.suggestion.startswith(suggestion)
    assert bool(found.suggestion) is bool(suggestion)
    assert found.tuning == Tuning()
    assert "order" not in (raw_data.path / TUNING).read_text()
    assert [trial.change.get("block") for trial in found.trials if "order" in trial.change] in ([64, 256], [256, 64])
    assert any("it changes what an epoch delivers" in line for line in found.lines()) is bool(suggestion)


def test_settings_of_an_earlier_search_are_not_used_as_defaults(search: Any, raw_data: Data) -> None:
    """Both sides of every ratio run with tuning=False."""
    write_tuning(raw_data.path, raw_data.manifest.fingerprint, Tuning({"threads": 4}))
    seen: list[dict[str, Any]] = []
    search(lambda options: seen.append(options) or 1.0)
    assert seen
    assert all(options["tuning"] is False for options in seen)
    assert find_tuning(raw_data.path, raw_data.manifest.fingerprint).tuning == Tuning()


def test_a_gain_by_noise_is_discarded_by_the_last_check(search: Any, raw_data: Data) -> None:
    found = search(
        lambda options: 1.5 if options.get("threads") else 1.0, lambda options: 0.8 if "threads" in options else 1.0
    )
    assert any(trial.kept for trial in found.trials)
    assert found.tuning == Tuning()
    assert found.check.ratio.median == pytest.approx(0.8)
    assert find_tuning(raw_data.path, raw_data.manifest.fingerprint).tuning == Tuning()


# --- the file -------------------------------------------------------------------------------------------------------


def test_the_file_holds_only_for_this_machine_and_this_build(tmp_path: Path) -> None:
    tuning = Tuning({"threads": 3, "cache": False}, True, 1.2, 1.1)
    write_tuning(tmp_path, "f1", tuning)
    assert find_tuning(tmp_path, "f1").tuning == tuning
    assert find_tuning(tmp_path, "another build").tuning is None
    document = json.loads((tmp_path / TUNING).read_text())
    assert list(document["machines"]) == [machine_key(tmp_path)]
    document["machines"] = {"128 cores, 512 GiB, nfs4": document["machines"][machine_key(tmp_path)]}
    (tmp_path / TUNING).write_text(json.dumps(document))
    assert find_tuning(tmp_path, "f1").tuning is None


def test_entries_of_other_machines_are_kept(tmp_path: Path) -> None:
    write_tuning(tmp_path, "f1", Tuning())
    document = json.loads((tmp_path / TUNING).read_text())
    document["machines"]["another machine"] = {}
    (tmp_path / TUNING).write_text(json.dumps(document))
    write_tuning(tmp_path, "f1", Tuning({"prefetch": 4}))
    assert set(json.loads((tmp_path / TUNING).read_text())["machines"]) == {machine_key(tmp_path), "another machine"}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format_version": 1, "fingerprint": "f1", "machines": 3}'])
def test_a_damaged_file_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / TUNING).write_text(content)
    assert find_tuning(tmp_path, "f1").tuning is None
    write_tuning(tmp_path, "f1", Tuning())
    assert find_tuning(tmp_path, "f1").tuning == Tuning()


def test_options_that_a_tuning_may_not_set_are_dropped(tmp_path: Path) -> None:
    write_tuning(tmp_path, "f1", Tuning({"threads": 2, "seed": 9, "fields": []}))
    found = find_tuning(tmp_path, "f1").tuning
    assert found is not None
    assert found.options == {"threads": 2}


def test_the_allocator_accepts_the_thresholds() -> None:
    import subprocess
    import sys

    ran = subprocess.run(
        [sys.executable, "-c", "from tfprep.load.tuning import set_allocator; print(set_allocator())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == "True"
