"""The command `tfprep check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfprep.cli import text
from tfprep.cli.values import OLD_FOLDER, PATH

if TYPE_CHECKING:
    from tfprep.inspect.groups import Suspicion
    from tfprep.inspect.leaks import Leaks, Pair

EXIT_LEAKS = 4
_PAIRS_SHOWN = 10


@click.command("check")
@click.argument("folder")
@click.option(
    "--distance",
    type=click.IntRange(0, 12),
    help="Largest number of bits, of 64, in which the perceptual hashes of near duplicates differ; 10 by default, and 8 for more "
    "than 200,000 samples.",
)
@click.option(
    "--exclude",
    type=PATH,
    metavar="FILE",
    help="Write the samples whose removal leaves no pair across splits to FILE, for sources.Without in a recipe.",
)
@click.option(
    "--groups",
    type=PATH,
    metavar="FILE",
    help="Write the groups of samples that are alike to FILE, for group_by=sources.GroupFile in a recipe.",
)
@click.option("--html", type=PATH, metavar="FILE", help="Write a page with pictures to FILE.")
@click.option("--data", type=OLD_FOLDER, help="Folder of the raw files, to read camera and time from their EXIF data.")
@click.option("--pairs", type=click.IntRange(0), default=1000, show_default=True, help="Number of pairs to list.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    folder: str, distance: int | None, exclude: Path | None, groups: Path | None, html: Path | None, data: Path | None,
    pairs: int, as_json: bool,
) -> int:  # fmt: skip
    """Find pictures of the dataset in FOLDER (a path or a URL) that occur twice, above all in two splits or under two labels.

    Equal, nearly equal, mirrored and rotated pictures are found; those that are alike are compared by their details.

    Exit status 4: pictures occur in several splits.
    """
    from tfprep.dataset import open_dataset
    from tfprep.inspect.groups import suspected_groups
    from tfprep.inspect.leaks import find_leaks
    from tfprep.inspect.pages.leaks import leaks_json, leaks_page
    from tfprep.storage.local import write_whole

    dataset = open_dataset(folder)
    with text.progress(" images", desc="comparing pictures") as on_record:
        leaks = find_leaks(dataset, distance=distance, most_pairs=pairs, on_record=on_record)
    suspicions = suspected_groups(dataset, leaks.fingerprints, data)
    written = []
    if exclude:
        count = leaks.write_excluded(exclude)
        written.append(
            f"{exclude}: {text.number(count, 'sample')} to leave out; sources.Without(..., {str(exclude)!r})"
        )
    if groups:
        count = leaks.write_groups(groups)
        written.append(
            f"{groups}: {text.number(count, 'sample')} in groups; group_by=sources.GroupFile({str(groups)!r})"
        )
    if html:
        write_whole(html, leaks_page(dataset, leaks, suspicions))
        written.append(f"Pictures: {html}")
    if as_json:
        text.print_json(leaks_json(leaks, suspicions))
    else:
        text.echo(
            "\n".join(
                [
                    *_lines(folder, leaks),
                    *_suspicion_lines(suspicions),
                    *_advice(folder, leaks, bool(exclude or groups)),
                    *written,
                ]
            )
        )
    return EXIT_LEAKS if leaks.straddle else 0


def _lines(folder: str, leaks: Leaks) -> Iterator[str]:
    from tfprep.inspect.leaks import searched_for

    counts = leaks.counts
    yield f"{folder}: {text.number(sum(leaks.samples.values()), 'sample')} in {', '.join(leaks.samples)}"
    yield text.table(
        [
            ("pairs of images", "across splits", "within a split"),
            ("equal files", counts.exact_across, counts.exact_within),
            ("alike, equal files included", counts.near_across, counts.near_within),
        ]
    )
    yield f"Searched for: {searched_for(leaks)}"
    if leaks.unhashed:
        unhashed = text.number(leaks.unhashed, "sample has", "samples have")
        yield f"{unhashed} no perceptual hash and no stored image: compared by file only"
    if leaks.undigested:
        undigested = text.number(leaks.undigested, "sample has", "samples have")
        yield f"{undigested} no file digest: compared by hash only"
    for split, others in leaks.leaking.items():
        for other, count in others.items():
            yield f"{count:,} of {leaks.samples[split]:,} samples of {split} occur in {other} too"
    for pair in [pair for pair in leaks.pairs if pair.straddles][:_PAIRS_SHOWN]:
        yield _pair_line(pair)
    if leaks.two_labels:
        yield f"The same picture under two labels: {text.number(leaks.two_labels_count, 'sample')}"
        yield from (_pair_line(pair) for pair in leaks.two_labels[:_PAIRS_SHOWN])


def _pair_line(pair: Pair) -> str:
    from tfprep.inspect.leaks import likeness

    labels = [f", label {label}" for label in pair.labels] if pair.labels else ["", ""]
    return (
        f"  {pair.first_split}: {pair.first}{labels[0]}  {pair.second_split}: {pair.second}{labels[1]}  "
        f"({likeness(pair)})"
    )


def _advice(folder: str, leaks: Leaks, has_lists: bool) -> Iterator[str]:
    """Yield the lines that make a recipe keep like pictures together, unless its lists are written."""
    if leaks.straddle and not has_lists:
        yield f"To keep like pictures in one split: tfprep check {folder} --groups groups.csv, and in the recipe"
        yield "  splits=sources.Fractions(train=0.8, val=0.2, group_by=sources.GroupFile(HERE / 'groups.csv'))"


def _suspicion_lines(suspicions: Sequence[Suspicion]) -> Iterator[str]:
    for one in suspicions:
        name, counts = next(iter(one.examples.items()))
        where = ", ".join(f"{count:,} in {split}" for split, count in counts.items())
        yield (
            f"Suspicion: {one.straddling:,} of {text.number(one.groups, 'group')} of one {one.kind} "
            f"({text.number(one.samples, 'sample')}) stand in several splits, such as {name!r} ({where})"
        )
        if one.distance is not None and one.distance_of_others is not None:
            yield f"  median distance of members {one.distance:g} bits, of any two samples {one.distance_of_others:g}"
        if one.group_by:
            yield f'  to keep them together: sources.Fractions(..., group_by=r"{one.group_by}")'
