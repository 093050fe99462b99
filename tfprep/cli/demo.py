"""The command `tfprep demo`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from tfprep.cli import text
from tfprep.cli.quiet import start_tensorflow
from tfprep.cli.values import PATH
from tfprep.optional import require_package

if TYPE_CHECKING:
    from tfprep.builder import BuildSummary
    from tfprep.demo.train import Learned

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
def command(out: Path, scenes: int, steps: int, only_data: bool, as_json: bool) -> None:
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
