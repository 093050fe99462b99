"""The command `tfprep diff`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tfprep.cli import text

if TYPE_CHECKING:
    from tfprep.inspect.diff import Difference, KeyList

EXIT_DIFFERENT = 4
_KEYS_SHOWN, _CLASSES_SHOWN = 5, 10


@click.command("diff")
@click.argument("first")
@click.argument("second")
@click.option(
    "--keys", type=click.IntRange(0), default=1000, show_default=True, help="Number of keys to list of each kind."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(first: str, second: str, keys: int, as_json: bool) -> int:
    """Compare the datasets in FIRST and SECOND (paths or URLs) by keys and digests, without reading shards.

    Exit status 4: samples, splits, fields or records differ.
    """
    from tfprep.dataset import open_dataset
    from tfprep.inspect.diff import compare

    difference = compare(open_dataset(first), open_dataset(second), keys)
    if as_json:
        text.print_json({"equal": difference.equal, **asdict(difference)})
    else:
        text.echo("\n".join(_lines(difference)))
    return 0 if difference.equal else EXIT_DIFFERENT


def _lines(difference: Difference) -> Iterator[str]:
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
            shown = [f"{name} {old:,} -> {new:,}" for name, (old, new) in list(classes.items())[:_CLASSES_SHOWN]]
            more = f" and {len(classes) - _CLASSES_SHOWN} more" if len(classes) > _CLASSES_SHOWN else ""
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
