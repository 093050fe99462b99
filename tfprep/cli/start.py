"""The commands of the first hour: `tfprep init`, `tfprep demo`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from tfprep.cli import text
from tfprep.cli.quiet import start_tensorflow
from tfprep.cli.values import FILE, OLD_FOLDER, PATH
from tfprep.errors import TfprepError
from tfprep.optional import require_package
from tfprep.sources.detection import LAYOUTS, Layout

if TYPE_CHECKING:
    from tfprep.builder import BuildSummary
    from tfprep.demo.train import Learned

_SAMPLES_BUILT, _SAMPLES_DRAWN = 6, 3


@click.command("init")
@click.argument("folder", type=OLD_FOLDER)
@click.option("--out", type=FILE, default="recipe.py", show_default=True, help="Recipe file to write.")
@click.option(
    "--as", "layout", type=click.Choice(LAYOUTS), help="Layout to take, if FOLDER fits several or is refused."
)
@click.option("--force", is_flag=True, help="Overwrite an existing recipe.")
def init_command(folder: Path, out: Path, layout: Layout | None, force: bool) -> None:
    """Inspect FOLDER and write a recipe for its images. The recipe builds without edits."""
    from tfprep.recipe.template import dataset_name, recipe_text, recognised

    if out.exists() and not force:
        raise click.UsageError(f"{out} already exists; --force overwrites it, --out names another file")
    found = recognised(folder, layout)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(recipe_text(found, folder, out), encoding="utf-8")
    for line in found.lines():
        text.echo(f"  {line}")
    picture = out.with_name(f"{out.stem}-preview.png")
    text.echo(f"  {_draw_samples(out, folder, picture)}")
    text.echo(f"Wrote {out}. Next: tfprep build {out} --out out/{dataset_name(folder)}")


def _draw_samples(recipe: Path, folder: Path, picture: Path) -> str:
    """Build a few samples with the recipe and draw three of them. Return what the picture is, or why there is none."""
    picture.unlink(missing_ok=True)
    try:
        import tfprep
        from tfprep.builder import BuildOptions
        from tfprep.dataset.sheet import contact_sheet

        with tempfile.TemporaryDirectory() as temporary:
            options = BuildOptions(workers=0, limit=_SAMPLES_BUILT)
            # Its warnings would count within these few samples; the build itself counts in all.
            built = tfprep.build(recipe, Path(temporary) / "few", folder, options=options, on_event=lambda event: None)
            split = max(built.splits, key=lambda name: built.splits[name]["samples"])
            contact_sheet(tfprep.open(built.out), split, samples=_SAMPLES_DRAWN, panel_px=256).save(picture)
    except TfprepError as error:
        return f"unsure: no picture of samples could be drawn: {error}"
    return f"{picture} shows {_SAMPLES_DRAWN} samples as this recipe builds them"


Say: TypeAlias = Callable[[str], Any]


@click.command("demo")
@click.option(
    "--out", type=PATH, default="tfprep-demo", show_default=True, help="Folder for everything that the demo makes."
)
@click.option(
    "--scenes", type=click.IntRange(20), default=240, show_default=True, help="Number of training images to make."
)
@click.option("--steps", type=click.IntRange(20), default=400, show_default=True, help="Number of training steps.")
@click.option("--only-data", is_flag=True, help="Make photos with masks, and photos in class folders, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def demo_command(out: Path, scenes: int, steps: int, only_data: bool, as_json: bool) -> None:
    """Make photos with masks, build a dataset with click maps and variants, draw it, train on it, and compare loading rates.

    The demo takes about two minutes on two cores. All files stay in the output folder.
    """
    raw, built, picture = out / "raw", out / "built", out / "sheet.png"
    started = time.monotonic()
    say: Say = (lambda line: None) if as_json else text.echo
    if only_data:
        _only_data(out, scenes, say, as_json)
        return
    require_package("tensorflow", "tfprep demo")
    _make(raw, scenes, say)
    summary = _build(raw, built, say)
    _show(built, picture, say)
    start_tensorflow()
    learned = _train(built, steps, say, quiet=as_json)
    rates = _compare(raw, built, say)
    say(f"The demo took {text.duration(time.monotonic() - started)}. See {picture}. Next: tfprep init YOUR_FOLDER")
    if as_json:
        text.print_json({"build": asdict(summary), "training": asdict(learned), "rates": rates, "sheet": picture})


def _only_data(out: Path, scenes: int, say: Say, as_json: bool) -> None:
    from tfprep.demo.scenes import write_objects

    raw, objects = out / "raw", out / "objects"
    counts = {"scenes": _make(raw, scenes, say), "objects": write_objects(objects, scenes)}
    say(f"   {counts['objects']} photos of one object, in a folder for each class, in {objects}")
    if as_json:
        text.print_json({**counts, "scenes_folder": raw, "objects_folder": objects})


def _make(raw: Path, scenes: int, say: Say) -> int:
    from tfprep.demo.scenes import write_scenes

    say("1. Making photos (JPEG) and masks (PNG)")
    count = write_scenes(raw, {"train": scenes, "val": max(10, scenes // 4)})
    say(f"   {count} scenes with leaves, stars and stones in {raw}")
    return count


def _build(raw: Path, built: Path, say: Say) -> BuildSummary:
    from tfprep.builder import build
    from tfprep.demo.recipe import RECIPE

    say("2. Building: each photo is decoded once and becomes four variants with click maps (without TensorFlow)")
    summary = build(RECIPE, built, raw)
    if summary.built_samples:
        how = f"in {text.duration(summary.seconds)}: {summary.records / summary.seconds:,.0f} records/s"
    else:
        how = "were up to date"
    say(f"   {text.number(summary.records, 'record')} ({text.size(summary.bytes)}) {how}")
    return summary


def _show(built: Path, picture: Path, say: Say) -> None:
    from tfprep.dataset import open_dataset
    from tfprep.dataset.sheet import contact_sheet

    contact_sheet(open_dataset(built), samples=8).save(picture)
    say(f"3. Contact sheet: {picture}")


def _train(built: Path, steps: int, say: Say, quiet: bool) -> Learned:
    from tqdm import tqdm

    from tfprep.demo.train import BATCH, train
    from tfprep.load import open as open_data

    say(
        f"4. Training a small network for {steps} steps, batch size {BATCH}: RGB and two click maps to the mask of leaves"
    )
    with tqdm(total=steps, unit=" steps", disable=quiet or None, leave=False) as bar:
        learned = train(open_data(built), steps, lambda step, loss: bar.update())
    say(
        f"   loss {learned.first_loss:.3f} at the start, {learned.last_loss:.3f} at the end; "
        f"IoU on validation scenes {learned.held_out_iou:.2f}"
    )
    return learned


def _compare(raw: Path, built: Path, say: Say) -> dict[str, float]:
    """Images per second of the loader, and of the same recipe computed during training, measured in turns."""
    from tfprep.bench.loaders import loader_candidate
    from tfprep.bench.rounds import Budget, Candidate, compare
    from tfprep.bench.trial import on_the_fly
    from tfprep.demo.recipe import RECIPE
    from tfprep.demo.train import BATCH
    from tfprep.load import open as open_data

    say("5. Comparing: the same batches computed on the fly (tf.data and tf.py_function), and loaded from the dataset")
    on_fly = Candidate("on_the_fly", lambda: iter(on_the_fly(RECIPE, raw, "train", BATCH)))
    rounds = compare([on_fly, loader_candidate(open_data(built), "train", BATCH, seed=0)], Budget(3, 2.0))
    rates = {name: rounds.images_per_s(name).median for name in ("on_the_fly", "tfprep")}
    ratio = rounds.ratio("tfprep", "on_the_fly").median
    say(f"   on the fly {rates['on_the_fly']:,.0f} images/s, tfprep {rates['tfprep']:,.0f} images/s: {ratio:.0f} times")
    return {**rates, "ratio": ratio}
