"""The commands about what a dataset holds: `tfprep info`, `show`, `stats`, `check` and `diff`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from shlex import quote
from textwrap import indent
from typing import TYPE_CHECKING

import click

from tfprep import units
from tfprep.cli import text
from tfprep.cli.options import EXIT_CHECK_FAILED, FILE, html_option, in_folder, json_option, option

if TYPE_CHECKING:
    from tfprep.dataset import Manifest
    from tfprep.inspect.diff import Difference, KeyList
    from tfprep.inspect.fingerprints import Suspicion
    from tfprep.inspect.leaks import Leaks, Pair
    from tfprep.inspect.stats import DatasetStats


_MOST_CLASSES = 20


@click.command("info")
@click.argument("folder")
@option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def info_command(folder: str, as_json: bool) -> None:
    """Print the fields, splits, classes and statistics of the dataset in FOLDER (a path or a URL)."""
    from tfprep.dataset import open_dataset

    data = open_dataset(folder)
    manifest = data.manifest
    if as_json:
        text.print_json(asdict(manifest))
        return
    text.echo(f"{manifest.name} in {folder}")
    text.echo(indent(repr(data.splits), "  "))
    text.echo(_fields(manifest))
    if manifest.class_counts:
        text.echo(_classes(manifest))
    statistics = []
    for name, values in manifest.statistics.items():
        mean, std = (" ".join(f"{number:.2f}" for number in numbers) for numbers in (values.mean, values.std))
        statistics.append((f"{name} mean {mean}", f"std {std}"))
    if statistics:
        text.echo(text.table(statistics))
    if data.version is not None and data.version.number:
        text.echo(f"  version {data.version.number}; tfprep clean lists older ones")
    text.echo("  built with " + ", ".join(f"{name} {version}" for name, version in manifest.versions.items()))
    if sizes := mixed_sizes(manifest):
        text.echo(sizes)
    imported = manifest.imported
    if imported is not None and imported.left_out:
        text.echo(text.table([("left out", "because"), *imported.left_out.items()]))
    if manifest.rejected:
        rejected = units.number(manifest.rejected, "input was", "inputs were")
        text.echo(f"{rejected} rejected; see {data.path / 'rejects.jsonl'}")


def mixed_sizes(manifest: Manifest) -> str:
    """Which images differ in size, and the lines that make them equal; "" if none does."""
    from tfprep.fields import RASTER_KINDS

    names = [
        name for name, info in manifest.fields.items() if info.spec.kind in RASTER_KINDS and None in info.spec.shape[:2]
    ]
    if not names:
        return ""
    return (
        f"Sizes differ: {', '.join(names)}. One array per batch, as most models take it, needs geometry= in the recipe or the "
        "loader: [augment.Resize(shorter=256), augment.CenterCrop(224, 224)] crops, [augment.Resize(224, 224, pad=True)] pads"
    )


def _fields(manifest: Manifest) -> str:
    added = manifest.groups
    rows = [("field", "kind", "shape", "dtype", "stored as", *(["added for"] if added else []))]
    fields = [(name, info, "") for name, info in manifest.fields.items()]
    for group, entry in added.items():
        splits = ", ".join(f"{split} x {variants}" for split, variants in entry.variants.items())
        fields += [(name, info, f"{splits} (by {group})") for name, info in entry.fields.items()]
    for name, info, where in fields:
        options = [f"{key} {value}" for key, value in info.codec.items() if key != "codec" and value is not None]
        stored = ", ".join([info.codec["codec"], *options])
        rows.append((name, info.spec.kind, info.spec.sides, info.spec.dtype, stored, *([where] if added else [])))
    return text.table(rows)


def _classes(manifest: Manifest) -> str:
    """The counts of each class of labels and masks."""
    from tfprep.inspect.stats import counted

    tables = []
    for name, counts in manifest.class_counts.items():
        rows: list[tuple[object, ...]] = [(f"{name} ({counted(manifest.fields[name].spec)})", *counts)]
        classes = manifest.classes[name]
        rows += [(label, *(of_split[n] for of_split in counts.values())) for n, label in enumerate(classes)]
        more = f"\n  ... and {len(classes) - _MOST_CLASSES} more" if len(classes) > _MOST_CLASSES else ""
        tables.append(text.table(rows[: _MOST_CLASSES + 1]) + more)
    return "\n".join(tables)


_PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}


@click.command("show")
@click.argument("folder")
@option("--out", type=FILE,
        help="Image file to write. [default: FOLDER-sheet.png next to the folder; for a URL, in the current folder]")  # fmt: skip
@option("--split", help="Split to draw. [default: the first]")
@option("--samples", type=click.IntRange(1), default=8, help="Number of rows.")
@option("--variants", type=click.IntRange(1), help="Number of variants to draw. [default: all]")
@option("--panel", "panel_px", type=click.IntRange(32, 1024), default=144, help="Side of a panel, in pixels.")
def show_command(
    folder: str, out: Path | None, split: str | None, samples: int, variants: int | None, panel_px: int
) -> None:
    """Draw samples of the dataset in FOLDER (a path or a URL): a row per sample, with its variants, masks and maps in columns."""
    from tfprep.dataset import open_dataset
    from tfprep.inspect.sheet import contact_sheet
    from tfprep.storage.urls import durable_write, is_remote

    if out is not None and out.suffix.lower() not in _PICTURES:
        raise click.BadParameter(f"a sheet is a .png or a .jpg, not {out.name!r} (--out)")
    data = open_dataset(folder)
    sheet = contact_sheet(data, split, samples=samples, variants=variants, panel_px=panel_px)
    if out is None and is_remote(data.path):
        out = Path(f"{data.path.name}-sheet.png")
    here = Path(folder.removeprefix("file://")).resolve()  # not `data.path`: an index is a folder beside its shards
    path, content = out or here.parent / f"{here.name}-sheet.png", io.BytesIO()
    try:
        sheet.save(content, _PICTURES[path.suffix.lower()])
    except OSError as error:
        raise click.BadParameter(f"{path.name} would have more than 65,500 pixels a side; name a .png") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    durable_write(path, content.getvalue())
    text.echo(f"{path}: {sheet.width} x {sheet.height} pixels")


@click.command("stats")
@click.argument("folder")
@option(
    "--samples", type=click.IntRange(0), default=1000, help="Number of samples of each split whose records are read."
)
@html_option
@json_option
def stats_command(folder: str, samples: int, html: Path | None, as_json: bool) -> None:
    """Print statistics of the dataset in FOLDER (a path or a URL): classes, sizes, objects, rejected samples, duplicates."""
    from tfprep.dataset import open_dataset
    from tfprep.errors import NothingToCompareError
    from tfprep.inspect.leaks import find_leaks
    from tfprep.inspect.report import report_page
    from tfprep.inspect.stats import UNITS, statistics_of
    from tfprep.storage.urls import durable_write

    data = open_dataset(folder)
    counts = data.manifest.class_counts
    with text.progress(" samples") as on_sample:
        stats = statistics_of(data, most_samples=samples, on_sample=on_sample)
    try:
        leaks = find_leaks(data)
    except NothingToCompareError:  # the other statistics stand all the same
        leaks = None
    if html:
        durable_write(html, report_page(data, stats, leaks))
    if as_json:
        known = {"units": UNITS, "class_counts": counts, "duplicates": leaks and asdict(leaks.counts)}
        text.print_json({**asdict(stats), **known})
        return
    text.echo("\n".join([f"{data.name} in {folder}", *_stats_lines(data.manifest, stats)]))
    if leaks:
        pairs = leaks.counts
        across, within = max(pairs.near_across, pairs.exact_across), max(pairs.near_within, pairs.exact_within)
        text.echo(f"Pairs of like pictures: {across:,} across splits, {within:,} within one; tfprep check shows them")
    if html:
        text.echo(f"Charts and pictures: {html}")


def _stats_lines(manifest: Manifest, stats: DatasetStats) -> Iterator[str]:
    from tfprep.inspect.stats import MOST_INSPECTED, UNITS

    read = [f"{split} {stats.measured[split]:,} of {count:,}" for split, count in stats.samples.items()]
    yield f"Samples read: {', '.join(read)}"
    if max(stats.samples.values(), default=0) > MOST_INSPECTED:
        yield f"Sizes are of the first {MOST_INSPECTED:,} samples of each split"
    rows: list[tuple[object, ...]] = [("", "split", "smallest", "median", "largest", "unit")]
    for name, by_split in stats.distributions.items():
        for split, statistics in by_split.items():
            smallest, _, median, _, largest = (f"{value:.4g}" for value in statistics.quartiles)
            rows.append((name, split, smallest, median, largest, UNITS[name]))
    yield text.table(rows)
    if manifest.class_counts:
        yield _classes(manifest)
    for group in stats.rejected:
        yield f"Rejected: {group.count:,} at {group.stage}{f' of {group.field}' if group.field else ''}: {group.error}"


_PAIRS_SHOWN = 10


@click.command("check")
@click.argument("folder")
@option(
    "--exclude", type=FILE, metavar="FILE", callback=in_folder,
    help="Write the samples whose removal leaves no pair across splits to FILE, for sources.Without in a recipe.",
)  # fmt: skip
@option("--groups", type=FILE, metavar="FILE", callback=in_folder,
        help="Write the groups of samples that are alike to FILE, for group_by=sources.GroupFile in a recipe.")  # fmt: skip
@html_option
@json_option
def check_command(folder: str, exclude: Path | None, groups: Path | None, html: Path | None, as_json: bool) -> int:
    """Find pictures of the dataset in FOLDER (a path or a URL) that occur twice, above all in two splits or under two labels.

    Equal, nearly equal, mirrored and rotated pictures are found; those that are alike are compared by their details.

    Exit status 4: pictures occur in several splits.
    """
    from tfprep.dataset import open_dataset
    from tfprep.inspect.fingerprints import suspected_groups
    from tfprep.inspect.leaks import find_leaks
    from tfprep.inspect.report import leaks_json, leaks_page
    from tfprep.storage.urls import durable_write

    dataset = open_dataset(folder)
    with text.progress(" images", desc="comparing pictures") as on_record:
        leaks = find_leaks(dataset, on_record=on_record)
    suspicions = suspected_groups(dataset, leaks.fingerprints)
    written = []
    if exclude:
        count = leaks.write_excluded(exclude)
        written.append(
            f"{exclude}: {units.number(count, 'sample')} to leave out; sources.Without(..., {str(exclude)!r})"
        )
    if groups:
        count = leaks.write_groups(groups)
        written.append(
            f"{groups}: {units.number(count, 'sample')} in groups; group_by=sources.GroupFile({str(groups)!r})"
        )
    if html:
        durable_write(html, leaks_page(dataset, leaks, suspicions))
        written.append(f"Pictures: {html}")
    lines = chain(_check_lines(folder, leaks), _suspicion_lines(suspicions))
    if leaks.straddle and not (exclude or groups):
        written = [
            f"To keep like pictures in one split: tfprep check {quote(folder)} --groups groups.csv, and in the recipe",
            "  splits=sources.Fractions(train=0.8, val=0.2, group_by=sources.GroupFile(HERE / 'groups.csv'))",
            *written,
        ]
    text.print_result(as_json, leaks_json(leaks, suspicions), chain(lines, written))
    return EXIT_CHECK_FAILED if leaks.straddle else 0


def _check_lines(folder: str, leaks: Leaks) -> Iterator[str]:
    from tfprep.inspect.leaks import searched_for

    counts = leaks.counts
    yield f"{folder}: {units.number(sum(leaks.samples.values()), 'sample')} in {', '.join(leaks.samples)}"
    yield text.table(
        [
            ("pairs of images", "across splits", "within a split"),
            ("equal files", counts.exact_across, counts.exact_within),
            ("alike, equal files included", counts.near_across, counts.near_within),
        ]
    )
    yield f"Searched for: {searched_for(leaks)}"
    if leaks.unhashed:
        unhashed = units.number(leaks.unhashed, "sample has", "samples have")
        yield f"{unhashed} no perceptual hash and no stored image: compared by file only"
    if leaks.undigested:
        undigested = units.number(leaks.undigested, "sample has", "samples have")
        yield f"{undigested} no file digest: compared by hash only"
    for split, pairs_by_split in leaks.leaking.items():
        for other, count in pairs_by_split.items():
            yield f"{count:,} of {leaks.samples[split]:,} samples of {split} occur in {other} too"
    for pair in [pair for pair in leaks.pairs if pair.straddles][:_PAIRS_SHOWN]:
        yield _pair_line(pair)
    if leaks.two_labels:
        yield f"The same picture under two labels: {units.number(leaks.two_labels_count, 'sample')}"
        yield from (_pair_line(pair) for pair in leaks.two_labels[:_PAIRS_SHOWN])


def _pair_line(pair: Pair) -> str:
    from tfprep.inspect.leaks import likeness

    labels = [f", label {label}" for label in pair.labels] if pair.labels else ["", ""]
    return (
        f"  {pair.first_split}: {pair.first}{labels[0]}  {pair.second_split}: {pair.second}{labels[1]}  "
        f"({likeness(pair)})"
    )


def _suspicion_lines(suspicions: Sequence[Suspicion]) -> Iterator[str]:
    for suspicion in suspicions:
        name, counts = next(iter(suspicion.examples.items()))
        where = ", ".join(f"{count:,} in {split}" for split, count in counts.items())
        yield (
            f"Suspicion: {suspicion.straddling:,} of {units.number(suspicion.groups, 'group')} of one {suspicion.kind} "
            f"({units.number(suspicion.samples, 'sample')}) are in several splits, such as {name!r} ({where})"
        )
        if suspicion.group_by:
            yield f'  to keep them together: sources.Fractions(..., group_by=r"{suspicion.group_by}")'


_KEYS_SHOWN = 5


@click.command("diff")
@click.argument("first")
@click.argument("second")
@json_option
def diff_command(first: str, second: str, as_json: bool) -> int:
    """Compare the datasets in FIRST and SECOND (paths or URLs) by keys and digests, without reading shards.

    Exit status 4: samples, splits, fields or records differ.
    """
    from tfprep.dataset import open_dataset
    from tfprep.inspect.diff import compare

    difference = compare(open_dataset(first), open_dataset(second))
    text.print_result(as_json, {"equal": difference.equal, **asdict(difference)}, _diff_lines(difference))
    return 0 if difference.equal else EXIT_CHECK_FAILED


def _diff_lines(difference: Difference) -> Iterator[str]:
    yield "Both hold the same samples and records." if difference.equal else "The datasets differ."
    kinds = {
        "added": difference.added,
        "removed": difference.removed,
        "changed, files or values": difference.raw_changed,
    }
    kinds |= {"changed, only records": difference.recipe_changed}
    kinds |= {f"moved, {where}": keys for where, keys in difference.moved.items()}
    for kind, listed in kinds.items():
        if listed.count:
            yield f"  {kind}: {units.number(listed.count, 'sample')}: {_shown(listed)}"
    if any(old != new for old, new in difference.samples.values()):
        yield text.table([("split", "before", "after"), *((name, *both) for name, both in difference.samples.items())])
    for split, (old, new) in difference.variants.items():
        yield f"  variants of {split}: {old} -> {new}"
    for name, (before, after) in difference.fields.items():
        yield f"  field {name}: {before or 'not stored'} -> {after or 'not stored'}"
    if difference.recipe:
        yield f"  recipe: {', '.join(difference.recipe)}"
    yield from (f"  {library}: {before} -> {after}" for library, (before, after) in difference.versions.items())
    if difference.rejected[0] != difference.rejected[1]:
        yield f"  rejected: {difference.rejected[0]:,} -> {difference.rejected[1]:,}"


def _shown(listed: KeyList) -> str:
    more = listed.count - min(_KEYS_SHOWN, len(listed.keys))
    return ", ".join(listed.keys[:_KEYS_SHOWN]) + (f" and {more:,} more" if more else "")
