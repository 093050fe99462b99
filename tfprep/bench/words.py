"""A bench told to people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tfprep.bench.measure import Spread
from tfprep.bench.run import LOADER, Bench
from tfprep.bench.shuffle import Quality, comparison
from tfprep.bench.step import Against

_MOST_RECORDS = 200_000
"""Records that a shuffle is simulated for; larger datasets are taken as if they had so many."""


def lines(bench: Bench) -> list[str]:
    parts = (_head, _ladder, _limit, _baselines, _step, _machine)
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
        f"  {cpu.median:.3g} ms of CPU and {rounds.image_bytes(LOADER) / 1e3:,.0f} kB of memory an image; {cores:.1f} of "
        f"{bench.machine.cores} cores at work",
        f"  the loader adds {rounds.rss_added(LOADER) / 1e6:,.0f} MB to the process's memory, which is "
        f"{rounds.rss_peak(LOADER) / 1e6:,.0f} MB at most",
        *_cache(bench),
    ]


def rounds_of(count: int) -> str:
    return f"medians of {count} rounds" if count > 1 else "one round"


def _cache(bench: Bench) -> list[str]:
    cache = bench.settings.get("cache", {})
    if not isinstance(cache, dict) or cache.get("kind", "none") == "none":
        return []
    held, of = cache.get("capacity"), cache.get("of", 0)
    share = "" if held is None else "all " if held >= of else f"{held / of:.0%} of the "
    line = f"  the loader keeps {share}records {cache['kind']} in memory: the ladder below is that of the first epoch"
    return [line if bench.rounds.settled(LOADER) else f"{line}; it was still filling, later epochs are faster"]


def _ladder(bench: Bench) -> list[str]:
    rows = [
        (
            rung.words,
            f"{rung.images_per_s.median:,.0f}",
            f"{rung.cpu_ms.median:.3g}",
            f"{rung.cores.median:.1f}",
            f"{rung.share:.0%}",
        )
        for rung in bench.ladder.rungs
    ]
    head = ("each stage adds", "images/s", "CPU ms", "cores", "of the time")
    return [f"  {line}" for line in _table([head, *rows])]


def _limit(bench: Bench) -> list[str]:
    first, *rest = bench.limit.lines()
    return [f"  limit: {first}", *(f"    {line}" for line in rest)]


def _baselines(bench: Bench) -> list[str]:
    if not bench.baselines:
        return []
    head = ("against", "images/s", "tfprep is faster by", "")
    rows = [head]
    for name in bench.baselines:
        ratio = bench.rounds.ratio(LOADER, name)
        rate = bench.rounds.images_per_s(name).median
        rows.append((name, f"{rate:,.0f}", f"{ratio.median:.2f} times", f"({ratio.least:.2f} to {ratio.greatest:.2f})"))
    return [f"  {line}" for line in _table(rows)]


def _step(bench: Bench) -> list[str]:
    return [] if bench.against is None else [f"  {line}" for line in step_lines(bench.against)]


def step_lines(against: Against) -> list[str]:
    """The waiting against a step, for people."""
    return [
        f"against a step of {1000 * against.step_s:.1f} ms: the accelerator waits {against.share:.1%} of the time "
        f"(predicted: {against.predicted:.1%})",
        f"  wait for a batch: {1000 * against.p50_s:.2f} ms in the median, {1000 * against.p99_s:.2f} ms at the 99th percentile",
        f"  {against.words()}",
    ]


def shuffle_json(bench: Bench) -> list[dict[str, Any]]:
    """Shuffle quality of this split, with the seconds that a buffer takes to fill at the rate measured."""
    rate = bench.ladder.rung("reading").images_per_s.median
    return [{**asdict(one), "fill_s": one.fill_s(rate)} for one in _qualities(bench)]


def shuffle_lines(bench: Bench) -> list[str]:
    """The same for people."""
    rows = [("shuffled by", "displacement", "company", "memory", "to fill")]
    for one in shuffle_json(bench):
        memory = f"{one['memory_bytes'] / 1e6:,.1f} MB"
        rows.append(
            (one["name"], f"{one['displacement']:.3f}", f"{one['company']:.3f}", memory, f"{one['fill_s']:.2f} s")
        )
    told = (
        "  0 is a uniform permutation, 1 no shuffle: how far records move, how often neighbours on disk meet in a batch"
    )
    return [told, *(f"  {line}" for line in _table(rows))]


def _qualities(bench: Bench) -> list[Quality]:
    reading = bench.ladder.rung("reading")
    record = reading.bytes_per_s.median / reading.images_per_s.median
    return comparison(min(bench.samples, _MOST_RECORDS), bench.options.batch_size, record)


def _machine(bench: Bench) -> list[str]:
    share = "not known" if bench.cached is None else f"{bench.cached:.0%} cached at the start"
    cache = "files forgotten by the system before each stretch" if bench.options.cold else f"file cache {share}"
    told = [f"  on {bench.machine.words}; {cache}"]
    return [*told, f"  note: {bench.rounds.busy}"] if bench.rounds.busy else told


def _whole(spread: Spread) -> str:
    return f"{spread.median:,.0f} ({spread.least:,.0f} to {spread.greatest:,.0f})"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
