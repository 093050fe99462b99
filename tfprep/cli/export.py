"""The command `tfprep export`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfprep.cli import text
from tfprep.cli.values import PATH

if TYPE_CHECKING:
    from tfprep.export.export import Format


@click.command("export")
@click.argument("folder")
@click.option("--to", required=True, type=click.Choice(["webdataset", "folder", "coco", "parquet"]), help="The format.")
@click.option("--out", required=True, type=PATH, help="An empty or new folder.")
@click.option("--variant", type=click.IntRange(0), default=0, show_default=True, help="The variant to export.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(folder: str, to: Format, out: Path, variant: int, as_json: bool) -> None:
    """Write the dataset in FOLDER (a path or a URL) in another format, with the same keys."""
    from tfprep.dataset import open_dataset
    from tfprep.export import export

    summary = export(open_dataset(folder), out, to, variant=variant)
    if as_json:
        text.print_json(asdict(summary))
        return
    counts = ", ".join(f"{text.number(count, 'sample')} of {split}" for split, count in summary.samples.items())
    text.echo("\n".join([f"{out}: {counts}", *(f"Left out: {what}" for what in summary.left_out)]))
