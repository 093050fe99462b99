"""The commands that look for what is wrong in the samples: `tfprep stats`, `tfprep diff`, `tfprep check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfprep.cli import text
from tfprep.cli.values import OLD_FOLDER, PATH

if TYPE_CHECKING:
    from tfprep.inspect.diff import Difference, KeyList
    from tfprep.inspect.groups import Suspicion
    from tfprep.inspect.leaks import Leaks, Pair
    from tfprep.inspect.stats import DatasetStats

_SHOWN, _STATS_CLASSES_SHOWN = 3, 20


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
def stats_command(folder: str, samples: int, html: Path | None, as_json: bool) -> None:
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
    text.echo("\n".join([f"{data.name} in {folder}", *_stats_lines(stats)]))
    if leaks:
        counts = leaks.counts
        across, within = max(counts.near_across, counts.exact_across), max(counts.near_within, counts.exact_within)
        text.echo(f"Pairs of like pictures: {across:,} across splits, {within:,} within one; tfprep check shows them")
    if html:
        text.echo(f"Charts and pictures: {html}")


def _stats_lines(stats: DatasetStats) -> Iterator[str]:
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
            [(field, *splits), *((name, *of.values()) for name, of in list(classes.items())[:_STATS_CLASSES_SHOWN])]
        )
        if len(classes) > _STATS_CLASSES_SHOWN:
            yield f"  ... and {len(classes) - _STATS_CLASSES_SHOWN} more"
    for title, samples in stats.hardest.items():
        yield f"{title.capitalize()}: " + ", ".join(f"{one.key} ({one.value:.3g})" for one in samples[:_SHOWN])
    for group in stats.rejects:
        yield f"Rejected: {group.count:,} at {group.stage}{f' of {group.field}' if group.field else ''}: {group.error}"


EXIT_DIFFERENT = 4
_KEYS_SHOWN, _DIFF_CLASSES_SHOWN = 5, 10


@click.command("diff")
@click.argument("first")
@click.argument("second")
@click.option(
    "--keys", type=click.IntRange(0), default=1000, show_default=True, help="Number of keys to list of each kind."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def diff_command(first: str, second: str, keys: int, as_json: bool) -> int:
    """Compare the datasets in FIRST and SECOND (paths or URLs) by keys and digests, without reading shards.

    Exit status 4: samples, splits, fields or records differ.
    """
    from tfprep.dataset import open_dataset
    from tfprep.inspect.diff import compare

    difference = compare(open_dataset(first), open_dataset(second), keys)
    if as_json:
        text.print_json({"equal": difference.equal, **asdict(difference)})
    else:
        text.echo("\n".join(_diff_lines(difference)))
    return 0 if difference.equal else EXIT_DIFFERENT


def _diff_lines(difference: Difference) -> Iterator[str]:
    yield "Both hold the same samples and records." if difference.equal else "The datasets differ."
    kinds = {
        "added": difference.added,
        "removed": difference.removed,
        "changed, files or values": difference.raw_changed,
    }
    kinds |= {"changed, records alone": difference.recipe_changed}
    kinds |= {f"moved, {where}": keys for where, keys in difference.moved.items()}
    for kind, listed in kinds.items():
        if listed.count:
            yield f"  {kind}: {text.number(listed.count, 'sample')}: {_shown(listed)}"
    if difference.renamed:
        pairs = [f"{old} -> {new}" for old, new in difference.renamed[:_KEYS_SHOWN]]
        yield f"  renamed, of those added and removed: {len(difference.renamed):,}: {', '.join(pairs)}"
    if difference.relabelled:
        shown = [f"{new} ({was} -> {label})" for _, new, was, label in difference.relabelled[:_KEYS_SHOWN]]
        yield f"  relabelled, the same image file: {len(difference.relabelled):,}: {', '.join(shown)}"
    if any(old != new for old, new in difference.samples.values()):
        yield text.table([("split", "before", "after"), *((name, *both) for name, both in difference.samples.items())])
    yield from _facts(difference)


def _facts(difference: Difference) -> Iterator[str]:
    for split, (old, new) in difference.variants.items():
        yield f"  variants of {split}: {old} -> {new}"
    for name, (before, after) in difference.fields.items():
        yield f"  field {name}: {before or 'not stored'} -> {after or 'not stored'}"
    for field, splits in difference.class_counts.items():
        for split, classes in splits.items():
            shown = [f"{name} {old:,} -> {new:,}" for name, (old, new) in list(classes.items())[:_DIFF_CLASSES_SHOWN]]
            more = f" and {len(classes) - _DIFF_CLASSES_SHOWN} more" if len(classes) > _DIFF_CLASSES_SHOWN else ""
            yield f"  {field} in {split}: {', '.join(shown)}{more}"
    for name in difference.statistics:
        yield f"  the statistics of {name} differ"
    if difference.recipe:
        yield f"  recipe: {', '.join(difference.recipe)}"
    for library, (before, after) in difference.versions.items():
        yield f"  {library}: {before} -> {after}"
    if difference.rejects[0] != difference.rejects[1]:
        yield f"  rejects: {difference.rejects[0]:,} -> {difference.rejects[1]:,}"


def _shown(listed: KeyList) -> str:
    more = listed.count - min(_KEYS_SHOWN, len(listed.keys))
    return ", ".join(listed.keys[:_KEYS_SHOWN]) + (f" and {more:,} more" if more else "")


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
def check_command(
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
                    *_check_lines(folder, leaks),
                    *_suspicion_lines(suspicions),
                    *_advice(folder, leaks, bool(exclude or groups)),
                    *written,
                ]
            )
        )
    return EXIT_LEAKS if leaks.straddle else 0


def _check_lines(folder: str, leaks: Leaks) -> Iterator[str]:
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
