"""The result of a benchmark as one offline HTML page, with the charts as PNG and the figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from tfprep.bench import charts
from tfprep.bench.charts import Bar, Chart, Series
from tfprep.bench.run import LOADER, Bench
from tfprep.bench.text_report import lines, rounds_of
from tfprep.pages import render
from tfprep.units import size


def write_report(bench: Bench, path: Path) -> list[Path]:
    """Write the page to `path`, and files of the same name with the suffixes `.png` and `.json`. Returns the three paths."""
    drawn = list(charts_of(bench))
    picture, figures = path.with_suffix(".png"), path.with_suffix(".json")
    path.write_text(page(bench, drawn), encoding="utf-8")
    charts.png(drawn).save(picture)
    figures.write_text(json.dumps(bench.as_json(), indent=1, default=str), encoding="utf-8")
    return [path, picture, figures]


def charts_of(bench: Bench) -> Iterator[Chart]:
    """Charts of the stages and baselines and, with a step, of waits, buffers and memory over time."""
    yield _stages(bench)
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
    """The HTML page. It needs no other file and no network."""
    options = bench.options
    return render(
        "bench/report.html.j2",
        name=bench.folder.name,
        split=bench.split,
        subtitle=f"{bench.samples:,} samples, batches of {options.batch_size}; {rounds_of(options.rounds)} of "
        f"{options.seconds:g} s, whiskers from minimum to maximum",
        verdict=_verdict(bench),
        charts=drawn,
        svg=lambda chart: Markup(charts.svg(chart)),  # `svg` escapes the texts of a chart
        settings=_settings(bench),
        text="\n".join(lines(bench)),
    )


def _verdict(bench: Bench) -> list[str]:
    rate = bench.rounds.images_per_s(LOADER)
    verdict = [
        f"{rate.median:,.0f} images/s ({rate.least:,.0f} to {rate.greatest:,.0f})",
        f"limit: {bench.limit.words}",
    ]
    verdict += [change.words for change in bench.limit.changes]
    if bench.against is not None:
        against = bench.against
        step = f"Compared with a step of {1000 * against.step_s:.1f} ms the accelerator waits {against.share:.1%} of the time"
        verdict.append(f"{step} (predicted: {against.predicted:.1%}): {against.words()}.")
    return [*verdict, f"Note: {bench.rounds.busy}."] if bench.rounds.busy else verdict


def _stages(bench: Bench) -> Chart:
    limit = bench.stages.limit.name
    rows = [
        Bar(
            stage.words,
            stage.images_per_s.median,
            f"{stage.images_per_s.median:,.0f}  ({stage.share:.0%})",
            stage.images_per_s.least,
            stage.images_per_s.greatest,
            stage.name == limit,
        )
        for stage in bench.stages.costs
    ]
    return charts.bars("Images per second up to each stage (and its share of the time)", rows)


def _comparison(bench: Bench) -> Chart:
    rows = []
    for name in (LOADER, *bench.baselines):
        rate = bench.rounds.images_per_s(name)
        times = "" if name == LOADER else f"  (tfprep: {bench.rounds.ratio(LOADER, name).median:.2f} times)"
        label = "tfprep" if name == LOADER else name
        rows.append(Bar(label, rate.median, f"{rate.median:,.0f}{times}", rate.least, rate.greatest, name == LOADER))
    return charts.bars("Compared with baselines, images per second", rows)


def _settings(bench: Bench) -> list[tuple[str, str]]:
    cached = "unknown" if bench.cached is None else f"{bench.cached:.0%} of the files in the page cache at the start"
    others = "unknown" if bench.rounds.others is None else f"{bench.rounds.others:.0%} of the cores"
    return [
        ("machine", bench.machine.words),
        ("page cache", "dropped before each measurement" if bench.options.cold else cached),
        ("other programs", others),
        ("Python", bench.machine.python),
        *((f"loader: {name.replace('_', ' ')}", _plain(value)) for name, value in bench.settings.items()),
    ]


def _named(name: str, value: object) -> str:
    """A named value, such as `batches 670 kB` or `capacity 96`."""
    if name.endswith("bytes") and isinstance(value, int):
        return f"{name.removesuffix('bytes').rstrip('_') or 'size'} {size(value)}"
    return f"{name.replace('_', ' ')} {_plain(value)}"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(_named(str(name), item) for name, item in value.items() if item not in ("", {}))
    if value in ([], ()):
        return "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
