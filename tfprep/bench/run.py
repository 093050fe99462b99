"""`bench()`, the function behind `tfprep bench`: the rate of the loader, each stage and the bottleneck, as text and as a page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tfprep.bench.bottleneck import Bottleneck, LoaderFacts, changes_of, explain
from tfprep.bench.loaders import Map, check_map, loader_candidate, opened
from tfprep.bench.machine import Machine, cached_share, drop_cache, this_machine
from tfprep.bench.rounds import Budget, Candidate, Rounds, Spread, compare
from tfprep.bench.stages import StageCosts, stage_candidates, stage_costs
from tfprep.bench.training import TOLERATED, Training, train_with_step
from tfprep.errors import DatasetError, LoaderError
from tfprep.inspect.pages import render
from tfprep.load import Data
from tfprep.storage.urls import is_remote

LOADER = "loader"
UNMAPPED = "unmapped"
"""The loader without the user's `.map`, which is measured beside it where the loader's cache holds all records."""


@dataclass(frozen=True)
class BenchOptions:
    """The work of a benchmark, and its time.

    Args:
        split: The split to load. None takes the first one.
        batch_size: Samples per batch.
        loader: Other options of the loader, as a trainer passes them.
        map_function: A function that is applied to the loader with `Dataset.map`.
        rounds: Number of rounds. Every candidate runs once per round.
        seconds: Measured seconds per candidate and round.
        cold: Drop the dataset's files from the page cache before every measurement.
        changes: Also measure other storage forms of the fields.
        tolerated: The share of waiting (0 to 1) up to which a training step, and not the loader, is what limits.

    Raises:
        LoaderError: If `rounds` or `seconds` is not positive.
    """

    split: str | None = None
    batch_size: int = 32
    loader: Mapping[str, Any] = field(default_factory=dict)
    map_function: Map | None = None
    rounds: int = 3
    seconds: float = 1.5
    cold: bool = False
    changes: bool = True
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

    `cached` is the share of the split's files in the page cache at the start, or None where the system does not tell.
    `settings` is the loader's own report of what it chose. `baselines` are the names of the other candidates.
    """

    folder: Path
    split: str
    samples: int
    options: BenchOptions
    machine: Machine
    cached: float | None
    settings: Mapping[str, Any]
    rounds: Rounds
    stages: StageCosts
    limit: Bottleneck
    baselines: tuple[str, ...] = ()
    against: Training | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.folder),
            "split": self.split,
            "samples": self.samples,
            "batch_size": self.options.batch_size,
            "budget": asdict(self.options.budget),
            "machine": asdict(self.machine),
            "file_cache": "cold" if self.options.cold else "warm",
            "cached_share": self.cached,
            "other_programs": self.rounds.others,
            "warning": self.rounds.busy,
            "settings": dict(self.settings),
            "loader": self.rounds.as_json()[LOADER],
            "stages": self.stages.as_json(),
            "limit": {**asdict(self.limit), "lines": self.limit.lines()},
            "against": {
                name: {**self.rounds.as_json()[name], "ratio": asdict(self.rounds.ratio(LOADER, name))}
                for name in self.baselines
            },
            "step": None if self.against is None else asdict(self.against),
        }


def bench(
    data: Data | str | os.PathLike[str],
    options: BenchOptions | None = None,
    *,
    baselines: Sequence[Candidate] = (),
    step_s: float | None = None,
) -> Bench:
    """Measure the loader, its stages and the baselines in turns. Imports TensorFlow.

    Args:
        data: An opened dataset, or its folder.
        options: What to measure, and for how long.
        baselines: Other candidates to measure in the same rounds.
        step_s: Length of a training step to compare with, in seconds.

    Returns:
        All measurements, the cost of each stage and the bottleneck.

    Raises:
        DatasetError: If the dataset is missing, incomplete or has no sample in the split.
        LoaderError: If an option cannot be met, or the dataset is at a URL.
    """
    options = options or BenchOptions()
    data = opened(data)
    split = options.split or next(iter(data.splits))
    files = files_of(data, split)
    cached, machine = cached_share(files), this_machine(data.path)
    size, function = options.batch_size, options.map_function
    loader = loader_candidate(data, split, size, name=LOADER, map_function=function, **options.loader)
    if function is not None:
        check_map(loader)
    settings, python, floats = settings_of(loader)
    cache = settings.get("cache", {})
    keeps_all = cache.get("kind") == "decoded" and cache.get("capacity", 0) >= cache.get("of", 1)
    candidates = [*stage_candidates(data, split, size, function, **options.loader), loader, *baselines]
    if function is not None and keeps_all:
        candidates.append(loader_candidate(data, split, size, name=UNMAPPED, **options.loader))
    if options.cold:
        candidates = [_colder(candidate, files) for candidate in candidates]
    rounds = compare(candidates, options.budget)
    stages = stage_costs(rounds)
    others = rounds.others or 0.0
    full = keeps_all and rounds.settled(LOADER)
    mapped = full and UNMAPPED in rounds.measurements
    facts = LoaderFacts(
        batch_size=size,
        prefetch=None
        if options.loader.get("prefetch") or cache.get("kind") == "decoded"
        else settings.get("memory", {}).get("prefetch"),
        cache="full" if full else "filling" if keeps_all else "",
        map_share=max(0.0, 1 - rounds.ratio(LOADER, UNMAPPED).median) if mapped else 0.0,
        python=python,
        floats=floats,
        images_per_s=rounds.images_per_s(LOADER).median,
        cores=rounds.of(LOADER, "cores").median,
        starved=rounds.of(LOADER, "starved").median or None,
    )
    # No recipe stores what an index refers to in another form.
    rebuilt = options.changes and data.manifest.imported is None and not full
    changes = changes_of(data, split, stages, machine.cores * (1 - others)) if rebuilt else []
    limit = explain(stages, machine.cores, changes, others, facts)
    names = tuple(candidate.name for candidate in baselines)
    result = Bench(
        data.path, split, data.split(split).samples, options, machine, cached, settings, rounds, stages, limit, names
    )
    if step_s is None:
        return result
    return replace(
        result, against=train_with_step(loader, step_s, seconds=options.training_s, tolerated=options.tolerated)
    )


def files_of(data: Data, split: str) -> list[Path]:
    """The files of a split. Raises DatasetError if one is missing or the split is empty, and LoaderError if they are at a URL."""
    if is_remote(data.shards_folder):
        raise LoaderError(
            f"{data.shards_folder}: bench measures datasets on a local disk; copy the dataset to this machine first, or "
            "measure the link with tfprep bench URL"
        )
    if not data.split(split).samples:
        there = ", ".join(name for name, info in data.splits.items() if info.samples) or "no split with samples"
        raise DatasetError(f"{data.path}: split {split!r} has no sample; available: {there} (option --split)")
    files = [data.shard_path(file) for files in data.split(split).files for file in files]
    for path in files:
        if not path.is_file():
            raise DatasetError(f"{path} is missing; run the command of the build again, it rebuilds what is missing")
    return files


def settings_of(candidate: Candidate) -> tuple[dict[str, Any], bool, int]:
    """A loader's report before it reads, without counters; whether its `.map` calls Python; how many of its arrays are cast."""
    from tfprep.load.tensorflow.private import datasets_behind, python_functions
    from tfprep.train.monitor.pipeline import float_arrays

    iteration: Any = candidate.open()
    try:
        report = dict(iteration.loader.report())
        python = any(python_functions(dataset) for dataset in datasets_behind(iteration.batches))
        floats = float_arrays(iteration.loader, iteration.loader)
    finally:
        iteration.close()
    report.pop("stats", None)
    report["cache"] = {name: value for name, value in report["cache"].items() if name not in ("records", "bytes")}
    return report, python, floats


def _colder(candidate: Candidate, files: Sequence[Path]) -> Candidate:
    def begin() -> Any:
        drop_cache(files)
        return candidate.open()

    return Candidate(candidate.name, begin)


# --- the result as text, and as one offline page


def lines(bench: Bench) -> list[str]:
    """The result as lines of text."""
    return [*_head(bench), *(f"  {line}" for line in _body(bench))]


def _head(bench: Bench) -> Iterator[str]:
    rounds, options = bench.rounds, bench.options
    rate, first = rounds.images_per_s(LOADER), rounds.of(LOADER, "first_batch_s")
    memory, cores = rounds.memory_bytes(LOADER), rounds.of(LOADER, "cores").median
    medians = f"medians of {options.rounds} rounds" if options.rounds > 1 else "one round"
    yield (
        f"{bench.folder}, {bench.split}, batches of {options.batch_size}: {medians} of {options.seconds:g} s (least to greatest)"
    )
    yield f"  {_whole(rate)} images/s, {rounds.of(LOADER, 'bytes_per_s').median / 1e6:,.0f} MB/s into memory"
    yield f"  first batch after {first.median:.2f} s ({first.least:.2f} to {first.greatest:.2f})"
    yield (
        f"  {rounds.of(LOADER, 'cpu_ms').median:.3g} ms of CPU and {memory['image'] / 1e3:,.0f} kB of memory per image; "
        f"{cores:.1f} of {bench.machine.cores} cores busy"
    )
    yield (
        f"  the loader adds {memory['added'] / 1e6:,.0f} MB to the memory of the process, which reaches "
        f"{memory['peak'] / 1e6:,.0f} MB"
    )
    cache = bench.settings.get("cache", {})
    if cache.get("kind", "none") != "none":
        capacity, records = cache.get("capacity"), cache.get("of", 0)
        share = "" if capacity is None else "all " if capacity >= records else f"{capacity / records:.0%} of the "
        filling = "" if rounds.settled(LOADER) else "; the cache was still filling, so later epochs are faster"
        yield (
            f"  the loader keeps {share}records {cache['kind']} in memory; the stages below are those of the first epoch{filling}"
        )


def _body(bench: Bench) -> Iterator[str]:
    rows = [
        (
            one.words,
            f"{one.images_per_s.median:,.0f}",
            f"{one.cpu_ms.median:.3g}",
            f"{one.cores.median:.1f}",
            f"{one.share:.0%}",
        )
        for one in bench.stages.costs
    ]
    yield from _table([("each stage adds", "images/s", "CPU ms", "cores", "of the time"), *rows])
    first, *rest = bench.limit.lines()
    yield f"limit: {first}"
    yield from (f"  {line}" for line in rest)
    if bench.baselines:
        compared = []
        for name in bench.baselines:
            ratio, rate = bench.rounds.ratio(LOADER, name), bench.rounds.images_per_s(name).median
            times = f"{ratio.median:.2f} times"
            compared.append((name, f"{rate:,.0f}", times, f"({ratio.least:.2f} to {ratio.greatest:.2f})"))
        yield from _table([("baseline", "images/s", "tfprep is faster by", ""), *compared])
    if bench.against is not None:
        yield from bench.against.lines()
    share = "unknown" if bench.cached is None else f"{bench.cached:.0%} in the page cache at the start"
    cache = "files dropped from the page cache before each measurement" if bench.options.cold else f"files: {share}"
    yield f"on {bench.machine.words}; {cache}"
    if bench.rounds.busy:
        yield f"note: {bench.rounds.busy}"


def _whole(spread: Spread) -> str:
    return f"{spread.median:,.0f} ({spread.least:,.0f} to {spread.greatest:,.0f})"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned columns: the first one to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


# --- the page


def write_report(bench: Bench, path: Path) -> list[Path]:
    """Write the page to `path`, and the figures as JSON to a file of the same name. Returns both paths."""
    figures = path.with_suffix(".json")
    text = lines(bench)
    kind = bench.settings.get("cache", {}).get("kind", "none")
    where = "" if kind == "none" else " from its cache" if bench.rounds.settled(LOADER) else " while its cache fills"
    page_bars = [_stage_bars(bench), _rate_bars(bench, where)]
    page = render(
        "bench/report.html.j2",
        title=f"{bench.folder.name}, {bench.split}: bench",
        verdict=[f"{_whole(bench.rounds.images_per_s(LOADER))} images/s{where}", *bench.limit.lines()]
        + (bench.against.lines() if bench.against else []),
        bars=page_bars,
        text="\n".join(text),
    )
    path.write_text(page, encoding="utf-8")
    figures.write_text(json.dumps(bench.as_json(), indent=1, default=str), encoding="utf-8")
    return [path, figures]


Bars = tuple[str, list[tuple[str, str, float, str]]]
"""A title, and rows of a name, a value in words, the length of the bar in percent, and a note."""


def _stage_bars(bench: Bench) -> Bars:
    """The time that each stage adds to an image: a rate would make the slowest stage the shortest bar."""
    image_ms = 1000 / bench.stages.top.images_per_s.median
    largest = max(one.share for one in bench.stages.costs)
    rows = [
        (
            one.words,
            f"{one.share * image_ms:.3g} ms",
            100 * one.share / largest,
            f"{one.share:.0%} of the time; {_whole(one.images_per_s)} images/s up to here",
        )
        for one in bench.stages.costs
    ]
    return f"Milliseconds an image that each stage adds, without the loader's cache: {image_ms:.3g} in all", rows


def _rate_bars(bench: Bench, where: str) -> Bars:
    rates = {f"tfprep{where}": bench.rounds.images_per_s(LOADER)}
    if where:
        rates["tfprep in the first epoch"] = bench.stages.top.images_per_s
    notes = {}
    for name in bench.baselines:
        rates[name] = bench.rounds.images_per_s(name)
        notes[name] = f"; tfprep is {bench.rounds.ratio(LOADER, name).median:.2f} times as fast"
    largest = max(rate.greatest for rate in rates.values())
    rows = [
        (
            name,
            f"{rate.median:,.0f} images/s",
            100 * rate.median / largest,
            f"({rate.least:,.0f} to {rate.greatest:,.0f}){notes.get(name, '')}",
        )
        for name, rate in rates.items()
    ]
    return "Images per second", rows
