"""The command `tfprep show`."""

from __future__ import annotations

from pathlib import Path

import click

from tfprep.cli import text
from tfprep.cli.values import FILE


@click.command("show")
@click.argument("folder")
@click.option(
    "--out",
    type=FILE,
    help="Image file to write. [default: FOLDER-sheet.png next to the folder; for a URL, in the current folder]",
)
@click.option("--split", help="Split to draw. [default: the first]")
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True, help="Number of rows.")
@click.option("--variants", type=click.IntRange(1), help="Number of variants to draw. [default: all]")
@click.option(
    "--panel",
    "panel_px",
    type=click.IntRange(32, 1024),
    default=144,
    show_default=True,
    help="Side of a panel, in pixels.",
)
def command(
    folder: str, out: Path | None, split: str | None, samples: int, variants: int | None, panel_px: int
) -> None:
    """Draw samples of the dataset in FOLDER (a path or a URL): a row per sample, with its variants, masks and maps in columns."""
    from tfprep.dataset import open_dataset
    from tfprep.dataset.sheet import contact_sheet

    data = open_dataset(folder)
    sheet = contact_sheet(data, split, samples=samples, variants=variants, panel_px=panel_px)
    path = out or _default_path(data.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    text.echo(f"{path}: {sheet.width} x {sheet.height} pixels")


def _default_path(folder: Path) -> Path:
    from tfprep.storage.urls import is_remote

    if is_remote(folder):
        return Path(f"{folder.name}-sheet.png")
    return folder.resolve().parent / f"{folder.resolve().name}-sheet.png"
