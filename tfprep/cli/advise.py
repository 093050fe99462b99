"""The command `tfprep advise`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfprep.cli import text
from tfprep.cli.values import PATH, POSITIVE, byte_count

if TYPE_CHECKING:
    from tfprep.bench.advise import Prediction


@click.command("advise")
@click.argument("recipe", type=PATH)
@click.option("--data", help="Folder of the recipe's raw files, or its URL. [default: as for build]")
@click.option("--images-per-second", type=POSITIVE, help="Rate that the loader should reach.")
@click.option("--disk", type=byte_count, metavar="BYTES", help="Largest size of the dataset, for example 200GB.")
@click.option("--hours", type=POSITIVE, help="Longest time of the build, in hours.")
@click.option(
    "--samples", type=click.IntRange(16), default=200, show_default=True, help="Number of samples to measure."
)
@click.option("--split", default="train", show_default=True)
@click.option(
    "--strategy",
    multiple=True,
    metavar="NAME",
    help="Strategy to measure, by its name in the table; repeatable. [default: all]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    recipe: Path, data: str | None, samples: int, split: str, strategy: tuple[str, ...], as_json: bool, **goals: Any
) -> None:
    """Recommend how to store the data of RECIPE.

    Every strategy is built and loaded on a sample; size, rate and build time of the whole dataset are predicted from it.
    """
    from tfprep.bench.advise import Goals, advise
    from tfprep.cli.quiet import start_tensorflow
    from tfprep.recipe.file import data_root, load_recipe
    from tfprep.sources.raw import raw_root

    start_tensorflow("tfprep advise")
    wanted = Goals(goals["images_per_second"], goals["disk"], goals["hours"])
    root = raw_root(data or data_root(recipe))
    with tempfile.TemporaryDirectory(prefix="tfprep-advise-") as scratch:
        tell = None if as_json else lambda line: text.echo(line, err=True)
        found = advise(
            load_recipe(recipe), root, Path(scratch), wanted,
            samples=samples, split=split, only=strategy, on_progress=tell,
        )  # fmt: skip
    if as_json:
        text.print_json(found.as_json())
    else:
        lines = [
            f"{text.number(found.samples, 'sample')}, predicted from a sample of {found.measured_on:,}:",
            text.table([("strategy", "images/s", "disk", "build"), *map(_row, found.predictions)]),
            f"Recommended: {found.chosen} ({found.reason}).",
            *(f"  {line}" for line in found.lines),
            *(f"  {loss.words}" for loss in found.lost),
        ]
        if found.variants:
            lines += ["With more variants:", text.table([_row(one) for one in found.variants])]
        lines += [f"left out: {name}: {why}" for name, why in found.left_out.items()]
        if any(one.estimated for one in found.predictions):
            lines.append("* estimated from the CPU time of the inputs that would be computed during training")
        text.echo("\n".join([*lines, f"note: {found.busy}"] if found.busy else lines))


def _row(one: Prediction) -> tuple[object, ...]:
    rate = f"{one.images_per_s:,.0f}{'*' if one.estimated else ''}"
    return one.strategy, rate, text.size(one.disk_bytes), text.duration(one.build_s)
