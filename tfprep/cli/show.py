"""`tfprep show`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("show")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The picture. [default: FOLDER-sheet.png beside the folder]",
)
@click.option("--split", help="Which split. [default: the first]")
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True, help="Rows.")
@click.option("--variants", type=click.IntRange(1), help="Only so many variants. [default: all]")
@click.option(
    "--panel", "panel_px", type=click.IntRange(32, 1024), default=144, show_default=True, help="Pixels a panel."
)
def command(
    folder: Path, out: Path | None, split: str | None, samples: int, variants: int | None, panel_px: int
) -> None:
    """Draw samples of the dataset in FOLDER: rows are samples, columns their variants, masks and maps."""
    from tfprep.dataset import Dataset
    from tfprep.dataset.sheet import contact_sheet

    sheet = contact_sheet(Dataset.open(folder), split, samples=samples, variants=variants, panel_px=panel_px)
    path = out or folder.resolve().parent / f"{folder.resolve().name}-sheet.png"
    sheet.save(path)
    click.echo(f"{path}: {sheet.width} x {sheet.height} pixels")
