"""`tfprep init`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from shlex import quote

import click

from tfprep.cli import text
from tfprep.cli.options import FILE, OLD_FOLDER, option
from tfprep.errors import TfprepError
from tfprep.sources.detection import LAYOUTS

_SAMPLES_BUILT, _SAMPLES_DRAWN = 6, 3


@click.command("init")
@click.argument("folder", type=OLD_FOLDER)
@option("--out", type=FILE, default="recipe.py", help="Recipe file to write.")
@option("--as", "layout", type=click.Choice(LAYOUTS), help="Layout to take, if FOLDER fits several or is doubtful.")
@option(
    "--ignore", multiple=True, help="Leave out files whose path in FOLDER fits this pattern; * stands for any text."
)
@option("--force", is_flag=True, help="Overwrite an existing recipe.")
def init_command(folder: Path, out: Path, layout: str | None, ignore: tuple[str, ...], force: bool) -> None:
    """Inspect FOLDER and write a recipe for its images. The recipe builds without edits."""
    from tfprep.recipe.template import dataset_name, recipe_text, recognized

    if out.exists() and not force:
        raise click.UsageError(f"{out} already exists; --force overwrites it, --out names another file")
    detected = recognized(folder, layout, ignore)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(recipe_text(detected, folder, out), encoding="utf-8")
    for line in detected.lines():
        text.echo(f"  {line}")
    picture = out.with_name(f"{out.stem}-preview.png")
    text.echo(f"  {_draw_samples(out, folder, picture)}")
    text.echo(f"Wrote {out}. Next: tfprep build {quote(str(out))} --out out/{dataset_name(folder)}")


def _draw_samples(recipe: Path, folder: Path, picture: Path) -> str:
    """Build a few samples with the recipe and draw three of them. Return what the picture is, or why there is none."""
    picture.unlink(missing_ok=True)
    try:
        import tfprep
        from tfprep.builder import BuildOptions
        from tfprep.inspect.sheet import contact_sheet

        with tempfile.TemporaryDirectory() as temporary:
            options = BuildOptions(workers=0, limit=_SAMPLES_BUILT)
            # Its warnings would count within these few samples; the build itself counts in all.
            built = tfprep.build(recipe, Path(temporary) / "few", folder, options=options, on_event=lambda event: None)
            split = max(built.splits, key=lambda name: built.splits[name]["samples"])
            drawn = min(_SAMPLES_DRAWN, built.splits[split]["samples"])
            contact_sheet(tfprep.open(built.out), split, samples=drawn, panel_px=256).save(picture)
    except TfprepError as error:
        return f"check: no picture of samples could be drawn: {error}"
    return f"{picture} shows {drawn} sample{'s' * (drawn > 1)} as this recipe builds them"
