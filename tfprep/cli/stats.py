"""The command `tfprep stats`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfprep.cli import text
from tfprep.cli.values import PATH

if TYPE_CHECKING:
    from tfprep.inspect.stats import DatasetStats

_SHOWN, _CLASSES_SHOWN = 3, 20


@click.command("stats")
@click.argument("folder")
@click.option(
    "--samples",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="Number of samples of each split whose records are read.",
)
@click.option("--html", type=PATH, metavar="FILE", help="Write a page with charts and pictures to FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(folder: str, samples: int, html: Path | None, as_json: bool) -> None:
    """Print statistics of the dataset in FOLDER (a path or a URL): classes, sizes, brightness, objects, rejects, duplicates."""
    from tfprep.dataset import open_dataset
    from tfprep.errors import DatasetError
    from tfprep.inspect.leaks import find_leaks
    from tfprep.inspect.pages.report import report_page
    from tfprep.inspect.stats import statistics_of
    from tfprep.storage.local import write_whole

    data = open_dataset(folder)
    with text.progress(" samples") as on_sample:
        stats = statistics_of(data, most_samples=samples, on_sample=on_sample)
    try:
        leaks = find_leaks(data)
    except DatasetError:  # No image has a digest or a hash: the other statistics stand all the same.
        leaks = None
    if html:
        write_whole(html, report_page(data, stats, leaks))
    if as_json:
        text.print_json({**asdict(stats), "duplicates": leaks and asdict(leaks.counts)})
        return
    text.echo("\n".join([f"{data.name} in {folder}", *_lines(stats)]))
    if leaks:
        counts = leaks.counts
        across, within = max(counts.near_across, counts.exact_across), max(counts.near_within, counts.exact_within)
        text.echo(f"Pairs of like pictures: {across:,} across splits, {within:,} within one; tfprep check shows them")
    if html:
        text.echo(f"Charts and pictures: {html}")


def _lines(stats: DatasetStats) -> Iterator[str]:
    from tfprep.dataset.index import MOST_INSPECTED

    read = [f"{split} {stats.measured[split]:,} of {count:,}" for split, count in stats.samples.items()]
    yield f"Samples read: {', '.join(read)}"
    if max(stats.samples.values(), default=0) > MOST_INSPECTED:
        yield f"Sizes are of the first {MOST_INSPECTED:,} samples of each split"
    rows: list[tuple[object, ...]] = [("", "split", "smallest", "median", "largest", "unit")]
    for name, by_split in stats.distributions.items():
        for split, one in by_split.items():
            smallest, _, median, _, largest = (f"{value:.4g}" for value in one.quartiles)
            rows.append((name, split, smallest, median, largest, stats.units[name]))
    yield text.table(rows)
    for field, classes in stats.class_counts.items():
        splits = list(next(iter(classes.values()), {}))
        yield text.table(
            [(field, *splits), *((name, *of.values()) for name, of in list(classes.items())[:_CLASSES_SHOWN])]
        )
        if len(classes) > _CLASSES_SHOWN:
            yield f"  ... and {len(classes) - _CLASSES_SHOWN} more"
    for title, samples in stats.hardest.items():
        yield f"{title.capitalize()}: " + ", ".join(f"{one.key} ({one.value:.3g})" for one in samples[:_SHOWN])
    for group in stats.rejects:
        yield f"Rejected: {group.count:,} at {group.stage}{f' of {group.field}' if group.field else ''}: {group.error}"
