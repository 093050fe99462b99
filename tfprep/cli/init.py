"""The command `tfprep init`."""

from __future__ import annotations

from pathlib import Path

import click

from tfprep.cli import text
from tfprep.sources.detection.guess import LAYOUTS, Layout


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default="recipe.py",
    show_default=True,
    help="Recipe file to write.",
)
@click.option(
    "--as", "layout", type=click.Choice(LAYOUTS), help="Layout to take, if FOLDER fits several or is refused."
)
@click.option("--force", is_flag=True, help="Overwrite an existing recipe.")
def command(folder: Path, out: Path, layout: Layout | None, force: bool) -> None:
    """Inspect FOLDER and write a recipe for its images. The recipe builds without edits."""
    from tfprep.recipe.template import dataset_name, recipe_text, recognised

    if out.exists() and not force:
        raise click.UsageError(f"{out} already exists; --force overwrites it, --out names another file")
    found = recognised(folder, layout)
    out.write_text(recipe_text(found, folder, out), encoding="utf-8")
    for line in found.lines():
        text.echo(f"  {line}")
    text.echo(f"Wrote {out}. Next: tfprep build {out} --out out/{dataset_name(folder)}")
