"""The command `tfprep repair`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfprep.cli import text
from tfprep.cli.values import PATH

if TYPE_CHECKING:
    from tfprep.builder.repair import RepairSummary

EXIT_LOST = 1
_KEYS_SHOWN = 10


@click.command("repair")
@click.argument("folder", callback=lambda _context, _parameter, folder: _local(folder))
@click.argument("recipe", type=PATH, required=False)
@click.option("--data", type=PATH, help="Folder of the raw files. [default: as for tfprep build]")
@click.option("--workers", type=click.IntRange(0), help="Number of worker processes, as for tfprep build.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(folder: Path, recipe: Path | None, data: Path | None, workers: int | None, as_json: bool) -> int:
    """Mend the damaged and missing files of the dataset in FOLDER; leave all others alone.

    Shards are built again from the raw files with RECIPE, the file that the dataset was built with, and take their place only if
    they have the same bytes as before. Without RECIPE, what follows from other files is mended.

    Exit status 1: something could not be mended; it is named.
    """
    from tfprep.builder.repair import repair

    summary = repair(folder, recipe, data, workers=workers, tell=lambda line: text.echo(line, err=True))
    if as_json:
        text.print_json(asdict(summary))
    else:
        text.echo("\n".join(_lines(folder, summary)))
    return EXIT_LOST if summary.lost else 0


def _local(folder: str) -> Path:
    if "://" in folder:
        raise click.UsageError(
            f"{folder} is at a store, where no file can be mended; delete what tfprep verify names, then build again: that "
            "builds the shards that are missing"
        )
    return Path(folder)


def _lines(folder: Path, summary: RepairSummary) -> Iterator[str]:
    if not summary.faults:
        yield f"{folder}: no fault found"
    if summary.mended:
        yield f"Mended: {', '.join(summary.mended)}"
    for name, reason in summary.lost.items():
        yield f"Not mended: {name}: {reason}"
    if summary.lost_samples:
        shown = ", ".join(summary.lost_samples[:_KEYS_SHOWN])
        more = len(summary.lost_samples) - _KEYS_SHOWN
        yield f"Lost samples: {shown}{f' and {more:,} more' if more > 0 else ''}"
        yield (
            "If the raw files are gone: tfprep index 'DIR/NAME-SPLIT.tfrecord-*-of-?????' --split SPLIT --verify --on-bad skip "
            "opens all records that are intact"
        )
