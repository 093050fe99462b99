"""The result of a benchmark as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tfprep.bench.measure.measure import Spread
from tfprep.bench.measure.shuffle import Quality, comparison
from tfprep.bench.measure.step import StepComparison
from tfprep.bench.run import LOADER, Bench

_MOST_RECORDS = 200_000
"""Largest number of records for which a shuffle is simulated; larger datasets are treated as if they had this many."""


def lines(bench: Bench) -> list[str]:
    parts = (_head, _stages, _limit, _baselines, _step, _machine)
    return [line for part in parts for line in part(bench)]


def _head(bench: Bench) -> list[str]:
    rounds, options = bench.rounds, bench.options
    rate, volume = rounds.images_per_s(LOADER), rounds.bytes_per_s(LOADER)
    first, cpu = rounds.first_batch_s(LOADER), rounds.cpu_ms(LOADER)
    cores = rounds.cores(LOADER).median
    return [
        f"{bench.folder}, {bench.split}, batches of {options.batch_size}: {rounds_of(options.rounds)} of "
        f"{options.seconds:g} s (least to greatest)",
        f"  {_whole(rate)} images/s, {volume.median / 1e6:,.0f} MB/s into memory",
        f"  first batch after {first.median:.2f} s ({first.least:.2f} to {first.greatest:.2f})",
        f"  {cpu.median:.3g} ms of CPU and {rounds.image_bytes(LOADER) / 1e3:,.0f} kB of memory per image; {cores:.1f} of "
        f"{bench.machine.cores} cores busy",
        f"  the loader adds {rounds.rss_added(LOADER) / 1e6:,.0f} MB to the memory of the process, which reaches "
        f"{rounds.rss_peak(LOADER) / 1e6:,.0f} MB",
        *_cache(bench),
    ]


def rounds_of(count: int) -> str:
    return f"medians of {count} rounds" if count > 1 else "one round"


def _cache(bench: Bench) -> list[str]:
    cache = bench.settings.get("cache", {})
    if not isinstance(cache, dict) or cache.get("kind", "none") == "none":
        return []
    capacity, records = cache.get("capacity"), cache.get("of", 0)
    share = "" if capacity is None else "all " if capacity >= records else f"{capacity / records:.0%} of the "
    line = f"  the loader keeps {share}records {cache['kind']} in memory; the stages below are those of the first epoch"
    return [
        line if bench.rounds.settled(LOADER) else f"{line}; the cache was still filling, so later epochs are faster"
    ]


def _stages(bench: Bench) -> list[str]:
    rows = [
        (
            stage.words,
            f"{stage.images_per_s.median:,.0f}",
            f"{stage.cpu_ms.median:.3g}",
            f"{stage.cores.median:.1f}",
            f"{stage.share:.0%}",
        )
        for stage in bench.stages.costs
    ]
    head = ("each stage adds", "images/s", "CPU ms", "cores", "of the time")
    return [f"  {line}" for line in _table([head, *rows])]


def _limit(bench: Bench) -> list[str]:
    first, *rest = bench.limit.lines()
    return [f"  limit: {first}", *(f"    {line}" for line in rest)]


def _baselines(bench: Bench) -> list[str]:
    if not bench.baselines:
        return []
    head = ("baseline", "images/s", "tfprep is faster by", "")
    rows = [head]
    for name in bench.baselines:
        ratio = bench.rounds.ratio(LOADER, name)
        rate = bench.rounds.images_per_s(name).median
        rows.append((name, f"{rate:,.0f}", f"{ratio.median:.2f} times", f"({ratio.least:.2f} to {ratio.greatest:.2f})"))
    return [f"  {line}" for line in _table(rows)]


def _step(bench: Bench) -> list[str]:
    return [] if bench.against is None else [f"  {line}" for line in step_lines(bench.against)]


def step_lines(against: StepComparison) -> list[str]:
    """The comparison with a step as lines of text."""
    return [
        f"compared with a step of {1000 * against.step_s:.1f} ms: the accelerator waits {against.share:.1%} of the time "
        f"(predicted: {against.predicted:.1%})",
        f"  wait for a batch: {1000 * against.p50_s:.2f} ms median, {1000 * against.p99_s:.2f} ms at the 99th percentile",
        f"  {against.words()}",
    ]


def shuffle_json(bench: Bench) -> list[dict[str, Any]]:
    """The shuffle quality for this split, with the seconds to fill a buffer at the measured rate."""
    rate = bench.stages.stage("reading").images_per_s.median
    return [{**asdict(one), "fill_s": one.fill_s(rate)} for one in _qualities(bench)]


def shuffle_lines(bench: Bench) -> list[str]:
    """The shuffle quality as lines of text."""
    rows = [("shuffled by", "displacement", "neighbours", "memory", "to fill")]
    for one in shuffle_json(bench):
        memory = f"{one['memory_bytes'] / 1e6:,.1f} MB"
        rows.append(
            (one["name"], f"{one['displacement']:.3f}", f"{one['neighbours']:.3f}", memory, f"{one['fill_s']:.2f} s")
        )
    legend = (
        "  0 is a uniform permutation, 1 no shuffle: how far records move, how often neighbours on disk share a batch"
    )
    return [legend, *(f"  {line}" for line in _table(rows))]


def _qualities(bench: Bench) -> list[Quality]:
    reading = bench.stages.stage("reading")
    record = reading.bytes_per_s.median / reading.images_per_s.median
    return comparison(min(bench.samples, _MOST_RECORDS), bench.options.batch_size, record)


def _machine(bench: Bench) -> list[str]:
    share = "unknown" if bench.cached is None else f"{bench.cached:.0%} in the page cache at the start"
    cache = "files dropped from the page cache before each measurement" if bench.options.cold else f"files: {share}"
    lines = [f"  on {bench.machine.words}; {cache}"]
    return [*lines, f"  note: {bench.rounds.busy}"] if bench.rounds.busy else lines


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
