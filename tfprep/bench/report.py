"""A bench as one HTML page that opens offline, in light and dark; the same charts as PNG, the same figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tfprep.bench import charts
from tfprep.bench.charts import Bar, Chart, Series
from tfprep.bench.run import LOADER, Bench
from tfprep.bench.words import lines, rounds_of
from tfprep.units import size

_STYLE = """
:root { --paper: #ffffff; --ink: #1c2430; --muted: #5d6878; --grid: #d8dde6; --bar: #5b8def; --accent: #e07a2f;
  --line: #3b6fd4; --card: #f5f7fa; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e6eaf0; --muted: #9aa5b5; --grid: #2d3542;
  --bar: #5b8def; --accent: #f0944d; --line: #7aa5f7; --card: #1c222c; } }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.05rem; margin: 2.25rem 0 .75rem; }
.verdict { background: var(--card); border-left: 4px solid var(--accent); padding: .8rem 1rem; border-radius: 4px; }
.verdict p { margin: .2rem 0; } .muted, footer { color: var(--muted); }
svg { width: 100%; height: auto; display: block; font: 13px system-ui, sans-serif; }
svg .bar { fill: var(--bar); } svg .accent { fill: var(--accent); } svg rect.line { fill: var(--line); }
svg rect.second { fill: var(--accent); } svg .stroke { fill: none; stroke-width: 1.8; }
svg .stroke.line { stroke: var(--line); } svg .stroke.second { stroke: var(--accent); }
svg .stroke.grid { stroke: var(--grid); stroke-width: 1; } svg .stroke.text { stroke: var(--ink); }
svg text.text { fill: var(--ink); } svg text.muted { fill: var(--muted); }
table { border-collapse: collapse; } td { padding: .15rem 1.5rem .15rem 0; vertical-align: top; }
td:first-child { color: var(--muted); white-space: nowrap; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card); padding: 1rem; border-radius: 4px; }
"""


def write_report(bench: Bench, path: Path) -> list[Path]:
    """Write `path` (HTML) and beside it the same name with `.png` and `.json`; returns the three."""
    drawn = list(charts_of(bench))
    picture, figures = path.with_suffix(".png"), path.with_suffix(".json")
    path.write_text(page(bench, drawn), encoding="utf-8")
    charts.png(drawn).save(picture)
    figures.write_text(json.dumps(bench.as_json(), indent=1, default=str), encoding="utf-8")
    return [path, picture, figures]


def charts_of(bench: Bench) -> Iterator[Chart]:
    """The ladder, the comparison, and with a step: waits, buffers and memory over time."""
    yield _ladder(bench)
    if bench.baselines:
        yield _comparison(bench)
    if bench.against is not None:
        moments = bench.against.moments
        waits = tuple((moment.seconds, 1000 * wait) for moment, wait in zip(moments, bench.against.waits, strict=True))
        yield charts.lines("Wait for each batch", [Series("wait", waits)], "ms")
        if any(moment.ready for moment in moments):
            series = [
                Series(name, tuple((m.seconds, m.ready.get(key, 0.0)) for m in moments))
                for name, key in (("ready", "ready"), ("being filled", "in_flight"))
            ]
            yield charts.lines("Batches in the reader", series)
        memory = tuple((seconds, rss / 1e6) for seconds, rss in bench.against.used.memory)
        yield charts.lines("Memory of the process", [Series("rss", memory)], "MB")


def page(bench: Bench, drawn: Sequence[Chart]) -> str:
    figures = "\n".join(f"<h2>{escape(chart.title)}</h2>\n{charts.svg(chart)}" for chart in drawn)
    verdict = "\n".join(f"<p>{escape(line)}</p>" for line in _verdict(bench))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tfprep bench: {escape(bench.folder.name)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(bench.folder.name)}, {escape(bench.split)}</h1>
<p class="muted">{bench.samples:,} samples, batches of {bench.options.batch_size}; {rounds_of(bench.options.rounds)}
of {bench.options.seconds:g} s, the whisker from least to greatest</p>
<div class="verdict">
{verdict}
</div>
{figures}
<h2>Settings and machine</h2>
{_table(bench)}
<h2>In words</h2>
<pre>{escape(chr(10).join(lines(bench)))}</pre>
</body>
</html>
"""


def _verdict(bench: Bench) -> list[str]:
    rate = bench.rounds.images_per_s(LOADER)
    told = [f"{rate.median:,.0f} images/s ({rate.least:,.0f} to {rate.greatest:,.0f})", f"limit: {bench.limit.words}"]
    told += [change.words for change in bench.limit.changes]
    if bench.against is not None:
        against = bench.against
        step = f"Against a step of {1000 * against.step_s:.1f} ms the accelerator waits {against.share:.1%} of the time"
        told.append(f"{step} (predicted: {against.predicted:.1%}): {against.words()}.")
    return [*told, f"Note: {bench.rounds.busy}."] if bench.rounds.busy else told


def _ladder(bench: Bench) -> Chart:
    limit = bench.ladder.limit.name
    rows = [
        Bar(
            rung.words,
            rung.images_per_s.median,
            f"{rung.images_per_s.median:,.0f}  ({rung.share:.0%})",
            rung.images_per_s.least,
            rung.images_per_s.greatest,
            rung.name == limit,
        )
        for rung in bench.ladder.rungs
    ]
    return charts.bars("What each stage leaves, images a second (and its share of the time)", rows)


def _comparison(bench: Bench) -> Chart:
    rows = []
    for name in (LOADER, *bench.baselines):
        rate = bench.rounds.images_per_s(name)
        times = "" if name == LOADER else f"  (tfprep: {bench.rounds.ratio(LOADER, name).median:.2f} times)"
        told = "tfprep" if name == LOADER else name
        rows.append(Bar(told, rate.median, f"{rate.median:,.0f}{times}", rate.least, rate.greatest, name == LOADER))
    return charts.bars("Against what people use, images a second", rows)


def _table(bench: Bench) -> str:
    cached = "not known" if bench.cached is None else f"{bench.cached:.0%} of the files cached at the start"
    rows: list[tuple[str, object]] = [
        ("machine", bench.machine.words),
        ("file cache", "dropped before each stretch" if bench.options.cold else cached),
        ("other programs", "not known" if bench.rounds.others is None else f"{bench.rounds.others:.0%} of the cores"),
        ("Python", bench.machine.python),
        *((f"loader: {name.replace('_', ' ')}", value) for name, value in bench.settings.items()),
    ]
    cells = "\n".join(f"<tr><td>{escape(name)}</td><td>{escape(_plain(value))}</td></tr>" for name, value in rows)
    return f"<table>\n{cells}\n</table>"


def _named(name: str, value: object) -> str:
    """As `batches 670 kB`, `capacity 96`."""
    if name.endswith("bytes") and isinstance(value, int):
        return f"{name.removesuffix('bytes').rstrip('_') or 'size'} {size(value)}"
    return f"{name.replace('_', ' ')} {_plain(value)}"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(_named(str(name), item) for name, item in value.items() if item not in ("", {}))
    if value in ([], ()):
        return "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
