"""`tfprep init`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default="recipe.py",
    show_default=True,
    help="The recipe file.",
)
@click.option("--force", is_flag=True, help="Overwrite a recipe that is there.")
def command(folder: Path, out: Path, force: bool) -> None:
    """Look at FOLDER and write a recipe for what is in it, which builds as it stands."""
    from tfprep.recipe_template import dataset_name, recipe_text
    from tfprep.sources.detect import detect

    if out.exists() and not force:
        raise click.UsageError(f"{out} is there already; --force overwrites it, --out names another file")
    found = detect(folder)
    out.write_text(recipe_text(found, folder, out), encoding="utf-8")
    for line in found.lines():
        click.echo(f"  {line}")
    click.echo(f"Wrote {out}. Next: tfprep build {out} --out out/{dataset_name(folder)}")
