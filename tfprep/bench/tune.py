"""`tfprep bench --tune`: a search for the loader settings that suit this machine and this dataset.

The search changes one setting after another, and the values of a setting take turns with the best settings so far. A change is
judged twice: with the cache full, as in later epochs, and without a cache, as in the first epoch, in evaluation and for data that
does not fit. It is kept if it gains a margin in one of the two and loses less in the other, and is measured no longer once the
rounds that are left cannot make it gain. At the end the best settings are compared with the defaults once more, and are written
only if this confirms the gain.

An order other than the global permutation changes what an epoch delivers. It is tried too, but only suggested, never written.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfprep.bench.loaders import loader_candidate, opened
from tfprep.bench.rounds import Budget, Candidate, Spread, compare, measure
from tfprep.errors import DatasetError, LoaderError
from tfprep.limits import usable_cpus
from tfprep.load import Data
from tfprep.load.tuning import Tuning, set_allocator, write_tuning
from tfprep.storage.urls import is_remote

_LOG = logging.getLogger("tfprep.bench")

MARGIN = 1.03
"""A change is kept only if its median ratio is at least this: smaller gains are within the noise of a shared machine."""
ORDER_MARGIN = 1.1
"""Another order shuffles less well than the global permutation, so it must gain more to be suggested."""
BLOCKS = (64, 256)
BASE = "settings so far"
"""Name of the candidate that the others are compared with."""

Compare = Callable[[Sequence[Candidate], Budget], Any]


@dataclass(frozen=True)
class Trial:
    """One change on top of the best settings so far: its ratio with a full cache, and without a cache where that differs."""

    change: Mapping[str, Any]
    ratio: Spread
    kept: bool
    uncached: Spread | None = None

    @property
    def gains(self) -> bool:
        """Whether one of the ratios gains the margin in the median and loses in no round, and the other loses less than that."""
        ratios = [self.ratio] if self.uncached is None else [self.ratio, self.uncached]
        gain = any(ratio.median >= MARGIN and ratio.least >= 1.0 for ratio in ratios)
        return gain and all(ratio.median > 1 / MARGIN for ratio in ratios)

    @property
    def score(self) -> float:
        """The product of the ratios, by which changes of one setting are ranked."""
        return self.ratio.median * (1.0 if self.uncached is None else self.uncached.median)

    def line(self) -> str:
        uncached = "" if self.uncached is None else f"; without a cache {_spread_text(self.uncached)}"
        return (
            f"  {'kept ' if self.kept else 'tried'} {_settings_text(self.change)}: {_spread_text(self.ratio)}{uncached}"
        )


@dataclass(frozen=True)
class Tuned:
    """The trials, what was written, and the final comparison of the best settings with the defaults.

    `suggestion` names an order that would be faster, or is empty. `untried` are the settings that the time did not suffice for.
    """

    trials: tuple[Trial, ...]
    tuning: Tuning
    path: Path
    check: Trial
    suggestion: str = ""
    untried: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """What was found and written, without the trials."""
        settings = _settings_text({**self.tuning.options, **({"allocator": True} if self.tuning.allocator else {})})
        uncached = "" if self.check.uncached is None else f", {self.check.uncached.median:.2f} times without a cache"
        verdict = f"compared with the defaults at the end: {self.check.ratio.median:.2f} times{uncached}"
        return [
            f"  {settings or 'the defaults are best'}; {verdict}",
            *([f"  {self.suggestion}"] if self.suggestion else []),
            *([f"  not tried for lack of time: {', '.join(self.untried)}"] if self.untried else []),
            f"  written to {self.path}",
        ]


def tune(
    data: Data | str | os.PathLike[str],
    split: str,
    batch_size: int,
    *,
    budget: Budget | None = None,
    memory_budget: str | int | None = None,
    compare_with: Compare = compare,
    allocator: bool = True,
    minutes: float | None = None,
    on_trial: Callable[[Trial], None] | None = None,
) -> Tuned:
    """Search for settings, check them, and write `tuning.json` to the dataset. Imports TensorFlow.

    Args:
        data: An opened dataset, or its folder.
        split: The split to load.
        batch_size: Samples per batch.
        budget: Rounds and seconds of each comparison.
        memory_budget: The loader's option `memory_budget`.
        compare_with: The function that compares candidates.
        allocator: Also try the allocator's thresholds, in fresh processes.
        minutes: Begin no other setting after this time; the last check follows. None tries all.
        on_trial: Called with each trial once it is decided.

    Raises:
        DatasetError: If the dataset's folder is not writable.
        LoaderError: If the dataset is at a URL.
    """
    data, budget = opened(data), budget or Budget(3, 1.0, 0.5, 2)
    if is_remote(data.shards_folder):
        raise LoaderError(
            f"{data.shards_folder}: bench measures datasets on a local disk; copy the dataset to this machine first"
        )
    if not os.access(data.path, os.W_OK):
        raise DatasetError(f"{data.path} is not writable, and tuning.json belongs there; tune a copy, or ask its owner")
    search = _Search(data, split, batch_size, budget, memory_budget, compare_with, on_trial or (lambda trial: None))
    end = None if minutes is None else time.monotonic() + 60 * minutes
    untried = search.try_all(allocator, end)
    check = search.check()
    tuning = Tuning(search.best, search.allocator, search.gain, check.ratio.median) if check.gains else Tuning()
    path = write_tuning(data.path, data.manifest.fingerprint, tuning)
    return Tuned(tuple(search.trials), tuning, path, check, search.suggestion, untried)


def grid(count: int) -> list[list[dict[str, Any]]]:
    """The changes to try on `count` cores, grouped by setting."""
    threads = sorted({max(1, count // 2), count + 1, 2 * count} - {count})
    return [
        [{"cache": "decoded"}, {"cache": "encoded"}, {"cache": False}],
        [{"threads": number} for number in threads],
        [{"prefetch": number} for number in (2, 4, 16)],
    ]


class _Search:
    """The best settings so far, and all trials."""

    def __init__(
        self,
        data: Data,
        split: str,
        batch_size: int,
        budget: Budget,
        memory: str | int | None,
        compare_with: Compare,
        on_trial: Callable[[Trial], None],
    ) -> None:
        self._data, self._split, self._batch_size, self._budget = data, split, batch_size, budget
        # With tuning, the settings that an earlier search wrote would be taken for the defaults.
        self._fixed: dict[str, Any] = {"tuning": False}
        self._fixed |= {} if memory is None else {"memory_budget": memory}
        self._compare, self._on_trial = compare_with, on_trial
        self.best: dict[str, Any] = {}
        self.allocator = False
        self.suggestion = ""
        self.gain = 1.0
        self.trials: list[Trial] = []

    def try_all(self, allocator: bool, end: float | None) -> tuple[str, ...]:
        """Try one setting after another until `end` of the monotonic clock, and return the names of those that are left."""
        settings: dict[str, Callable[[], None]] = {
            ", ".join(changes[0]): functools.partial(self.try_each, changes) for changes in grid(usable_cpus())
        }
        settings |= {"order": self.try_orders, **({"allocator": self.try_allocator} if allocator else {})}
        untried = []
        for name, try_setting in settings.items():
            if end is not None and time.monotonic() > end:
                untried.append(name)
            else:
                try_setting()
        return tuple(untried)

    def try_each(self, changes: Sequence[Mapping[str, Any]]) -> None:
        """Try each change on top of the best settings so far, and keep the best one if it gains."""
        uncached = not any("cache" in change for change in changes)
        trials = self._compared(changes, self.best, uncached=uncached)
        best, *others = sorted(trials, key=lambda trial: (not trial.gains, -trial.score))
        self._record([replace(best, kept=best.gains), *others])
        if best.gains:
            self.best = {**self.best, **best.change}
            self.gain *= best.ratio.median

    def try_allocator(self) -> None:
        """Try the allocator's thresholds in fresh processes, as they cannot be reset."""
        ratios: list[float] = []
        try:
            while len(ratios) < self._budget.rounds and may_gain(ratios, self._budget.rounds):
                plain = self._in_process(False)
                ratios.append(self._in_process(True) / plain)
        except LoaderError as error:
            _LOG.warning("the allocator was not tried: %s", error)
            return
        trial = Trial({"allocator": True}, Spread.of(ratios), False)
        self._record([replace(trial, kept=trial.gains)])
        self.gain *= trial.ratio.median if trial.gains else 1.0
        self.allocator = trial.gains

    def try_orders(self) -> None:
        """Try block orders on top of the best settings, and suggest the fastest if it gains much."""
        orders = [{"order": "block", "block": block} for block in BLOCKS]
        ranked = sorted(self._compared(orders, self.best, uncached=False), key=lambda trial: -trial.ratio.median)
        self._record(ranked)
        fastest = ranked[0]
        if fastest.ratio.median >= ORDER_MARGIN and fastest.ratio.least >= 1.0:
            self.suggestion = (
                f"{_settings_text(fastest.change)} would read {fastest.ratio.median:.1f} times faster here: pass it to "
                "loader() yourself, as it changes what an epoch delivers"
            )

    def check(self) -> Trial:
        """Compare the best settings with the defaults again, with a full cache and without a cache."""
        if not self.best and not self.allocator:
            return Trial({}, Spread(1.0, 1.0, 1.0), False)
        if not self.allocator:
            return replace(self._compared([self.best], {}, uncached=True)[0], kept=True)
        pairs = [(self._in_process(True), self._in_process(False, defaults=True)) for _ in range(self._budget.rounds)]
        uncached = self._compared([self.best], {}, uncached=True)[0].uncached if self.best else None
        return Trial(self.best, Spread.of([one / other for one, other in pairs]), True, uncached)

    def _record(self, trials: Sequence[Trial]) -> None:
        self.trials += trials
        for trial in trials:
            self._on_trial(trial)

    def _compared(
        self, changes: Sequence[Mapping[str, Any]], base: Mapping[str, Any], *, uncached: bool
    ) -> list[Trial]:
        """Compare `base` and each change on top of it in turns, round by round, until every change is decided."""
        caches: list[dict[str, Any]] = [{}, {"cache": False}] if uncached else [{}]
        ratios: list[list[list[float]]] = [[[] for _ in caches] for _ in changes]
        rounds = self._budget.rounds
        for number in range(rounds):
            undecided = [place for place, of_one in enumerate(ratios) if any(may_gain(few, rounds) for few in of_one)]
            for which, cache in enumerate(caches):
                settings = [{**base, **changes[place], **cache} for place in undecided]
                measured = self._round(settings, {**base, **cache}, number) if undecided else []
                for place, ratio in zip(undecided, measured, strict=True):
                    ratios[place][which].append(ratio)
        return [
            Trial(change, Spread.of(of_one[0]), False, Spread.of(of_one[1]) if uncached else None)
            for change, of_one in zip(changes, ratios, strict=True)
        ]

    def _round(self, settings: Sequence[Mapping[str, Any]], base: Mapping[str, Any], number: int) -> list[float]:
        """The rates of `settings` as multiples of that of `base`, measured one after another."""
        named = {BASE: base, **{str(place): options for place, options in enumerate(settings)}}
        candidates = [
            loader_candidate(self._data, self._split, self._batch_size, name=name, **{**self._fixed, **options})
            for name, options in named.items()
        ]
        turn = number % len(candidates)
        measured = self._compare([*candidates[turn:], *candidates[:turn]], replace(self._budget, rounds=1))
        return [measured.ratio(str(place), BASE).median for place in range(len(settings))]

    def _in_process(self, allocator: bool, *, defaults: bool = False) -> float:
        """Images per second of the best settings, or of the defaults, in a fresh process."""
        work = {
            "folder": str(self._data.path), "split": self._split, "batch_size": self._batch_size,
            "options": {**self._fixed, **({} if defaults else self.best)}, "allocator": allocator,
            "seconds": self._budget.seconds, "warm_up_s": self._budget.warm_up_s,
        }  # fmt: skip
        command = [sys.executable, "-m", "tfprep.bench.tune", json.dumps(work)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            last = "".join(ran.stderr.strip().splitlines()[-1:])
            raise LoaderError(f"the process that measures the allocator ended with status {ran.returncode}: {last}")
        return float(ran.stdout.strip().splitlines()[-1])


def may_gain(ratios: Sequence[float], rounds: int) -> bool:
    """Whether a change with these ratios can still reach the margin in the median of all rounds, and lose in none."""
    return min(ratios, default=1.0) >= 1.0 and 2 * sum(ratio < MARGIN for ratio in ratios) <= rounds


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def _spread_text(ratio: Spread) -> str:
    return f"{ratio.median:.2f} times ({ratio.least:.2f} to {ratio.greatest:.2f})"


def _one_process(work: Mapping[str, Any]) -> float:
    if work["allocator"]:
        set_allocator()
    candidate = loader_candidate(opened(work["folder"]), work["split"], work["batch_size"], **work["options"])
    return measure(candidate, Budget(1, work["seconds"], work["warm_up_s"])).images_per_s


if __name__ == "__main__":
    print(_one_process(json.loads(sys.argv[1])))
