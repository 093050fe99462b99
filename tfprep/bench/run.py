"""`bench()`, the function of `tfprep bench`: the rate of a loader, what limits it and what to do about it.

The loader and its baselines take turns (`rounds`), which gives rates that can be compared. Then an `InputMonitor` watches
a training whose step takes no time, and names what limits the loader, in the first epoch and with its cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfprep.bench.machine import Machine, this_machine
from tfprep.bench.rounds import Budget, Candidate, Rounds, Spread, compare
from tfprep.bench.training import TOLERATED, loader_candidate, train_with_step
from tfprep.errors import DatasetError, LoaderError
from tfprep.inspect.report import render
from tfprep.load import Data
from tfprep.load import open as open_data
from tfprep.units import aligned, size

if TYPE_CHECKING:
    from tfprep.train.monitor.causes import Verdict

LOADER = "loader"
FIRST_EPOCH = "first epoch"
"""The loader without its cache, which is measured beside it where it has one."""


@dataclass(frozen=True)
class BenchOptions:
    """The work of a benchmark, and its time.

    Args:
        split: The split to load. None takes the first one.
        batch_size: Samples per batch.
        loader: Other options of the loader, as a trainer passes them.
        rounds: Number of rounds. Every candidate runs once per round.
        seconds: Measured seconds per candidate and round.
        tolerated: The share of waiting (0 to 1) up to which a training step, and not the loader, is what limits.

    Raises:
        LoaderError: If `rounds` or `seconds` is not positive.
    """

    split: str | None = None
    batch_size: int = 32
    loader: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 3
    seconds: float = 1.5
    tolerated: float = TOLERATED

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.seconds <= 0:
            raise LoaderError(
                f"at least one round of more than 0 seconds, not rounds={self.rounds}, seconds={self.seconds}"
            )

    @property
    def budget(self) -> Budget:
        return Budget(self.rounds, self.seconds, min(1.0, self.seconds / 2))

    @property
    def training_s(self) -> float:
        """Seconds of a training beside the loader."""
        return max(1.0, self.rounds * self.seconds)


@dataclass(frozen=True)
class Bench:
    """The result of a benchmark.

    Attributes:
        folder, split, samples, options, machine: What was measured, and where.
        settings: The loader's own report of what it chose.
        rounds: The rates of all candidates.
        limit: The loader as fast as it can: what limits it.
        first_epoch: The same without its cache; equal to `limit` where it has none.
        baselines: The names of the other candidates.
        step_s: Length of the step that the loader was compared with, in seconds; None without one.
        against: The loader beside that step.
    """

    folder: Path
    split: str
    samples: int
    options: BenchOptions
    machine: Machine
    settings: Mapping[str, Any]
    rounds: Rounds
    limit: Verdict
    first_epoch: Verdict
    baselines: tuple[str, ...] = ()
    step_s: float | None = None
    against: Verdict | None = None

    @property
    def uncached(self) -> str:
        """The candidate that reads and decodes each record."""
        return FIRST_EPOCH if FIRST_EPOCH in self.rounds.measurements else LOADER

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        rates = self.rounds.as_json()
        return {
            "dataset": str(self.folder),
            "split": self.split,
            "samples": self.samples,
            "batch_size": self.options.batch_size,
            "budget": asdict(self.options.budget),
            "machine": asdict(self.machine),
            "other_programs": self.rounds.others,
            "warning": self.rounds.busy,
            "settings": dict(self.settings),
            "loader": rates[LOADER],
            "limit": self.limit.as_json(),
            "first_epoch": {**rates[self.uncached], "limit": self.first_epoch.as_json()},
            "against": {
                name: {**rates[name], "ratio": asdict(self.rounds.ratio(LOADER, name))} for name in self.baselines
            },
            "step": None if self.against is None else {"step_s": self.step_s, **self.against.as_json()},
        }


def bench(
    data: Data | str | os.PathLike[str],
    options: BenchOptions | None = None,
    *,
    baselines: Sequence[Candidate] = (),
    step_s: float | None = None,
) -> Bench:
    """Measure the loader and the baselines in turns, and what limits the loader. Imports TensorFlow.

    Args:
        data: An opened dataset, or its folder.
        options: What to measure, and for how long.
        baselines: Other candidates to measure in the same rounds.
        step_s: Length of a training step to compare with, in seconds.

    Returns:
        All measurements, and what limits.

    Raises:
        DatasetError: If the dataset is missing, incomplete or has no sample in the split.
        LoaderError: If an option of the loader is wrong.
    """
    options = options or BenchOptions()
    data = data if isinstance(data, Data) else open_data(data)
    split = options.split or next(iter(data.splits))
    if not data.split(split).samples:
        filled = ", ".join(name for name, info in data.splits.items() if info.samples) or "no split with samples"
        raise DatasetError(f"{data.path}: split {split!r} has no sample; available: {filled} (option --split)")
    machine = this_machine(data.path)

    def candidate(name: str, **changed: Any) -> Candidate:
        return loader_candidate(data, split, options.batch_size, name=name, **{**options.loader, **changed})

    loader = candidate(LOADER)
    iteration: Any = loader.open()
    with closing(iteration):
        settings = {name: value for name, value in iteration.report().items() if name != "stats"}
    settings["cache"] = {name: value for name, value in settings["cache"].items() if name not in ("records", "bytes")}
    keeps = settings["cache"]["kind"] != "none"
    uncached = candidate(FIRST_EPOCH, cache=False) if keeps else loader
    rounds = compare([loader, *([uncached] if keeps else []), *baselines], options.budget)

    limit = train_with_step(loader, 0.0, seconds=options.seconds, tolerated=0.0)
    first = train_with_step(uncached, 0.0, seconds=options.seconds, tolerated=0.0) if keeps else limit
    against = None
    if step_s is not None:
        against = train_with_step(loader, step_s, seconds=options.training_s, tolerated=options.tolerated)
    return Bench(
        data.path, split, data.split(split).samples, options, machine, settings, rounds, limit, first,
        tuple(baseline.name for baseline in baselines), step_s, against,
    )  # fmt: skip


# --- the result as text


def lines(bench: Bench) -> list[str]:
    """Return the result as lines of text."""
    return [*_head(bench), *(f"  {line}" for line in _body(bench))]


def _head(bench: Bench) -> Iterator[str]:
    rounds, options = bench.rounds, bench.options
    first = rounds.of(LOADER, "first_batch_s")
    memory, cores = rounds.memory_bytes(LOADER), rounds.of(LOADER, "cores").median
    medians = f"medians of {options.rounds} rounds" if options.rounds > 1 else "one round"
    yield (
        f"{bench.folder}, {bench.split}, batches of {options.batch_size}: {medians} of {options.seconds:g} s (least to greatest)"
    )
    delivered_mb = rounds.of(LOADER, "bytes_per_s").median / 1e6
    yield f"  {_whole(rounds.images_per_s(LOADER))} images/s, {delivered_mb:,.0f} MB/s into memory"
    yield f"  first batch after {first.median:.2f} s ({first.least:.2f} to {first.greatest:.2f})"
    yield (
        f"  {rounds.of(LOADER, 'cpu_ms').median:.3g} ms of CPU and {size(memory['image'])} of memory per image; "
        f"{cores:.1f} of {bench.machine.cores} cores busy"
    )
    yield (
        f"  the loader adds {memory['added'] / 1e6:,.0f} MB to the memory of the process, which reaches "
        f"{memory['peak'] / 1e6:,.0f} MB"
    )
    cache = bench.settings["cache"]
    if cache["kind"] != "none":
        capacity, records = cache.get("capacity", 0), cache.get("of", 0)
        share = "all " if capacity >= records else f"{capacity / records:.0%} of the "
        settled = all(measurement.settled for measurement in rounds.measurements[LOADER])
        filling = "" if settled else "; it was still filling, so later epochs are faster"
        yield (
            f"  the cache keeps {share}records {cache['kind']} in memory{filling}; the first epoch reaches "
            f"{_whole(rounds.images_per_s(FIRST_EPOCH))} images/s"
        )


def _body(bench: Bench) -> Iterator[str]:
    yield f"limit: {bench.limit.limit}"
    if bench.uncached == FIRST_EPOCH:
        yield f"limit of the first epoch: {bench.first_epoch.limit}"
    if bench.baselines:
        compared = []
        for name in bench.baselines:
            ratio, rate = bench.rounds.ratio(LOADER, name), bench.rounds.images_per_s(name).median
            times = f"{ratio.median:.2f} times"
            compared.append((name, f"{rate:,.0f}", times, f"({ratio.least:.2f} to {ratio.greatest:.2f})"))
        yield from aligned([("baseline", "images/s", "tfprep is faster by", ""), *compared])
    if bench.against is not None and bench.step_s is not None:
        waits = bench.against.waits
        took_s = (waits.window_s - waits.waited_s) / waits.batches
        what = f"a step of {1000 * bench.step_s:.1f} ms (which took {1000 * took_s:.1f} ms here)"
        yield from training_lines(what, bench.against)
    yield f"on {bench.machine.words}"
    if bench.rounds.busy:
        yield f"note: {bench.rounds.busy}"


def training_lines(what: str, training: Verdict) -> list[str]:
    """Return what a training with `what` waited for, as lines of text."""
    return [f"with {what}: {training.waits.in_words()}", f"  {training.limit}"]


def _whole(spread: Spread) -> str:
    return f"{spread.median:,.0f} ({spread.least:,.0f} to {spread.greatest:,.0f})"


# --- the result as a page


def bench_page(bench: Bench) -> str:
    """Return one offline page of HTML."""
    cached = " from its cache" if bench.uncached == FIRST_EPOCH else ""
    rates = {f"tfprep{cached}": bench.rounds.images_per_s(LOADER)}
    if cached:
        rates["tfprep in the first epoch"] = bench.rounds.images_per_s(FIRST_EPOCH)
    rates |= {name: bench.rounds.images_per_s(name) for name in bench.baselines}
    most, title = max(rate.greatest for rate in rates.values()), f"Bench of {bench.folder}, {bench.split}"
    return render("bench/page.html.j2", title=title, rates=rates, percent=100 / most, text="\n".join(lines(bench)))
