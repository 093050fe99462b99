"""The page of `tfprep bench`: the rates of the loader and of what it is compared with, as bars on one axis, and the text."""

from __future__ import annotations

from dataclasses import dataclass

from tfprep.bench.run import FIRST_EPOCH, LOADER, Bench, lines
from tfprep.inspect.pages import render


@dataclass(frozen=True)
class Bar:
    """A bar from 0 to the median rate, and its range over the rounds, in percent of the axis."""

    name: str
    value: str
    length: float
    least: float
    greatest: float


def bench_page(bench: Bench) -> str:
    """Return one offline page of HTML."""
    cached = " from its cache" if bench.uncached == FIRST_EPOCH else ""
    rates = {f"tfprep{cached}": bench.rounds.images_per_s(LOADER)}
    if cached:
        rates["tfprep in the first epoch"] = bench.rounds.images_per_s(FIRST_EPOCH)
    rates |= {name: bench.rounds.images_per_s(name) for name in bench.baselines}
    percent = 100 / max(rate.greatest for rate in rates.values())
    bars = [
        Bar(name, f"{rate.median:,.0f}", rate.median * percent, rate.least * percent, rate.greatest * percent)
        for name, rate in rates.items()
    ]
    axis = [f"{mark / percent:,.0f}" for mark in (0, 25, 50, 75, 100)]
    title = f"Bench of {bench.folder}, {bench.split}"
    return render("bench/page.html.j2", title=title, axis=axis, bars=bars, text="\n".join(lines(bench)))
