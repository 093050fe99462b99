"""`tfprep demo`."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from tfprep.cli import text
from tfprep.cli.quiet import start_tensorflow
from tfprep.errors import MissingDependencyError

if TYPE_CHECKING:
    from tfprep.build import BuildSummary
    from tfprep.demo.train import Learned

Say: TypeAlias = Callable[[str], Any]


@click.command("demo")
@click.option(
    "--out", type=click.Path(path_type=Path), default="tfprep-demo", show_default=True, help="The folder for all of it."
)
@click.option("--scenes", type=click.IntRange(20), default=240, show_default=True, help="Training images to make.")
@click.option("--steps", type=click.IntRange(20), default=400, show_default=True, help="Training steps.")
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON on standard output.")
def command(out: Path, scenes: int, steps: int, as_json: bool) -> None:
    """Make photos with masks, build them with click maps and variants, draw them, train on them, and compare the rates.

    Takes about two minutes on two cores. Everything stays in the folder, to be looked at.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise MissingDependencyError("the demo trains with TensorFlow: pip install 'tfprep[tensorflow]'")
    raw, built, picture = out / "raw", out / "built", out / "sheet.png"
    started = time.monotonic()
    say: Say = (lambda told: None) if as_json else click.echo
    _make(raw, scenes, say)
    summary = _build(raw, built, say)
    _show(built, picture, say)
    start_tensorflow()
    learned = _train(built, steps, say, quiet=as_json)
    rates = _compare(raw, built, say)
    say(f"All of it took {text.duration(time.monotonic() - started)}. Look at {picture}, then: tfprep init YOUR_FOLDER")
    if as_json:
        text.print_json({"build": asdict(summary), "training": asdict(learned), "rates": rates, "sheet": picture})


def _make(raw: Path, scenes: int, say: Say) -> None:
    from tfprep.demo.scenes import write_scenes

    say("1. Making photos (JPEG) and masks (PNG)")
    count = write_scenes(raw, {"train": scenes, "val": max(10, scenes // 4)})
    say(f"   {count} scenes with leaves, stars and stones in {raw}")


def _build(raw: Path, built: Path, say: Say) -> BuildSummary:
    from tfprep.build import build
    from tfprep.demo.recipe import RECIPE

    say(
        "2. Building: decode, warp, click maps, colour, encode; each photo once, four variants of it (no TensorFlow yet)"
    )
    summary = build(RECIPE, built, raw)
    if summary.built_samples:
        how = f"in {text.duration(summary.seconds)}: {summary.records / summary.seconds:,.0f} records a second"
    else:
        how = "were up to date"
    say(f"   {text.number(summary.records, 'record')} ({text.size(summary.bytes)}) {how}")
    return summary


def _show(built: Path, picture: Path, say: Say) -> None:
    from tfprep.dataset import Dataset
    from tfprep.dataset.sheet import contact_sheet

    contact_sheet(Dataset.open(built), samples=8).save(picture)
    say(f"3. Contact sheet: {picture}")


def _train(built: Path, steps: int, say: Say, quiet: bool) -> Learned:
    from tqdm import tqdm

    from tfprep.demo.train import BATCH, train
    from tfprep.load import open as open_data

    say(f"4. Training a small network for {steps} steps of {BATCH}: from RGB and two click maps to the leaves' mask")
    with tqdm(total=steps, unit=" steps", disable=quiet or None, leave=False) as bar:
        learned = train(open_data(built), steps, lambda step, loss: bar.update())
    say(
        f"   loss {learned.first_loss:.3f} at the start, {learned.last_loss:.3f} at the end; "
        f"IoU on scenes held out {learned.held_out_iou:.2f}"
    )
    return learned


def _compare(raw: Path, built: Path, say: Say) -> dict[str, float]:
    """Images a second of the loader and of the same recipe computed while training, in turns."""
    from tfprep.bench.loaders import loader_candidate
    from tfprep.bench.measure import Budget, Candidate, compare
    from tfprep.bench.on_the_fly import on_the_fly
    from tfprep.demo.recipe import RECIPE
    from tfprep.demo.train import BATCH
    from tfprep.load import open as open_data

    say("5. The same batches computed on the fly (tf.data and tf.py_function), and loaded from the built dataset")
    on_fly = Candidate("on_the_fly", lambda: iter(on_the_fly(RECIPE, raw, "train", BATCH)))
    rounds = compare([on_fly, loader_candidate(open_data(built), "train", BATCH, seed=0)], Budget(3, 2.0))
    rates = {name: rounds.images_per_s(name).median for name in ("on_the_fly", "tfprep")}
    ratio = rounds.ratio("tfprep", "on_the_fly").median
    say(f"   on the fly {rates['on_the_fly']:,.0f} images/s, tfprep {rates['tfprep']:,.0f} images/s: {ratio:.0f} times")
    return {**rates, "ratio": ratio}
