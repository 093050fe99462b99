"""The result of a benchmark as text, and as one offline HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfprep.bench.rounds import Spread
from tfprep.bench.run import LOADER, Bench
from tfprep.pages import render


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
