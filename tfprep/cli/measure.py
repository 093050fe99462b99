"""The commands that measure: `tfprep bench`, `doctor` and `demo`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tfprep import units
from tfprep.cli import text
from tfprep.cli.options import EXIT_CHECK_FAILED, PATH, POSITIVE, html_option, json_option, named, option, share
from tfprep.errors import LoaderError
from tfprep.limits import memory_limit
from tfprep.optional import require_package

if TYPE_CHECKING:
    from tfprep.bench.forms import FormTable


@click.command("bench")
@click.argument("folder")
@option("--split", help="Split to load. [default: the first; with --forms, train]")
@option("--batch-size", type=click.IntRange(1), default=32, help="Samples per batch.")
@option("--rounds", type=click.IntRange(1), default=3, help="Number of rounds.")
@option("--seconds", type=click.FloatRange(0.05), default=1.5, help="Measured seconds per round.")
@option("--threads", type=click.IntRange(0), help="Loader option threads.")
@option("--order", type=click.Choice(["global", "sequential"]), help="Loader option order.")
@option("--cache", type=click.Choice(["auto", "decoded", "none"]), help="Loader option cache.")
@option("--step-ms", type=POSITIVE, help="Compare with a training step of this length, in milliseconds.")
@option("--model", "model_name", metavar="FILE:NAME",
        help="Train your model: a function that returns a compiled Keras model.")  # fmt: skip
@option("--inputs", help="Loader option inputs, for --model; comma-separated fields are stacked (image,clicks).")
@option("--targets", help="Loader option targets, for --model.")
@option("--fail-if-waiting", type=share, metavar="SHARE",
        help="Exit with status 4 if the input wait exceeds SHARE (for example 1%).")  # fmt: skip
@option("--memory-budget", help="Loader option memory_budget, for example 2GB.")
@option(
    "--against",
    multiple=True,
    metavar="FILE:NAME",
    help="Compare with your own input pipeline: a function that returns an iterable of batches, of --batch-size samples each. "
    "Repeatable.",
)
@option(
    "--forms",
    is_flag=True,
    help="Compare storage forms: FOLDER is a recipe's file; a sample is built in each form.",
)
@option("--data", help="With --forms, the folder of the recipe's raw files. [default: as for build]")
@option("--samples", type=click.IntRange(16), default=200, help="With --forms, the number of samples to build.")
@html_option
@json_option
def bench_command(folder: str, as_json: bool, html: Path | None, fail_if_waiting: float | None, **flags: Any) -> int:
    """Measure how fast the dataset in FOLDER loads, what limits the rate, and what to do about it.

    With --forms: size, rate and build time of the whole dataset in each storage form,
    predicted from a sample.

    Exit status 4: the input wait exceeded the share of --fail-if-waiting.
    """
    from tfprep.storage.urls import durable_write, folder_at

    _check_given(flags)
    if flags["forms"]:
        return _forms(Path(folder), as_json, flags)
    place = folder_at(folder)
    step_s = None if flags["step_ms"] is None else flags["step_ms"] / 1000
    if fail_if_waiting is not None and step_s is None and not flags["model_name"]:
        raise click.UsageError("--fail-if-waiting needs a step: --step-ms or --model")
    from tfprep.bench.rounds import Candidate
    from tfprep.bench.run import BenchOptions, bench, bench_page, lines, training_lines
    from tfprep.bench.training import TOLERATED, ready_model, train_with_model
    from tfprep.load import open as open_data

    text.start_tensorflow("tfprep bench")
    loader = {name: flags[name] for name in ("threads", "order", "cache", "memory_budget")}
    options = BenchOptions(
        split=flags["split"],
        batch_size=flags["batch_size"],
        loader={name: False if value == "none" else value for name, value in loader.items() if value is not None},
        rounds=flags["rounds"],
        seconds=flags["seconds"],
        tolerated=TOLERATED if fail_if_waiting is None else fail_if_waiting,
    )
    model = None
    if flags["model_name"]:
        inputs, targets = (
            names.split(",") if names and "," in names else names for names in (flags["inputs"], flags["targets"])
        )
        model_options = {**options.loader, "inputs": inputs, "targets": targets}
        data = open_data(place)
        split, make = flags["split"] or next(iter(data.splits)), named(flags["model_name"])
        model = ready_model(make, data, split, flags["batch_size"], **model_options)
    baselines = [
        Candidate(name, partial(_repeated, name, named(name), options.batch_size))
        for name in dict.fromkeys(flags["against"])
    ]
    result = bench(place, options, baselines=baselines, step_s=step_s)
    trained = None
    if model is not None:
        more = {"seconds": options.training_s, "tolerated": options.tolerated, **model_options}
        trained = train_with_model(model, open_data(place), result.split, options.batch_size, **more)
    document = {**result.as_json(), **({"model": trained.as_json()} if trained else {})}
    if html:
        durable_write(html, bench_page(result))
    text.print_result(as_json, document, [*lines(result), *(training_lines("your model", trained) if trained else [])])
    waited = max((training.waits.share or 0.0 for training in (result.against, trained) if training), default=0.0)
    return EXIT_CHECK_FAILED if fail_if_waiting is not None and waited > fail_if_waiting else 0


_OF_FORMS = ("folder", "as_json", "forms", "split", "rounds", "seconds", "data", "samples")


def _check_given(flags: dict[str, Any]) -> None:
    """Raise UsageError for an option that would do nothing beside the others."""
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    for name in given:
        option_name = f"--{name.removesuffix('_name').replace('_', '-')}"
        if flags["forms"] and name not in _OF_FORMS:
            raise click.UsageError(f"{option_name} does nothing with --forms")
        for needed, others in (("forms", ("data", "samples")), ("model_name", ("inputs", "targets"))):
            if name in others and not flags[needed]:
                raise click.UsageError(f"{option_name} belongs to --{needed.removesuffix('_name')}")


def _repeated(name: str, make: Callable[[], Iterable[Any]], batch_size: int) -> Iterator[Any]:
    """Yield the batches of one epoch after another, each from a new call."""
    from tfprep.fields import batch_size_of

    while True:
        made = make() if callable(make) else None
        batches: Iterator[Any] = iter(() if made is None else made)
        if (first := next(batches, None)) is None:
            raise LoaderError(
                f"{name} gave no batch: it has to be a function that returns an iterable of them, a new one in each call "
                "(is `return` missing?)"
            )
        if (count := batch_size_of(first)) != batch_size:  # a single image would count as an image for each of its rows
            raise LoaderError(
                f"{name} gave a first batch of {count}, and the loader has batches of {batch_size} (--batch-size)"
            )
        yield first
        yield from batches


def _forms(recipe: Path, as_json: bool, flags: dict[str, Any]) -> int:
    from tfprep.bench.forms import compare_forms
    from tfprep.bench.rounds import Budget
    from tfprep.recipe.file import data_root, load_recipe

    text.start_tensorflow("tfprep bench")
    root = data_root(recipe, flags["data"])
    with tempfile.TemporaryDirectory(prefix="tfprep-forms-") as scratch:
        forms = compare_forms(
            load_recipe(recipe), root, Path(scratch), samples=flags["samples"], split=flags["split"] or "train",
            budget=Budget(flags["rounds"], flags["seconds"], 0.5, 2), on_progress=lambda line: text.echo(line, err=True),
        )  # fmt: skip
    text.print_result(as_json, asdict(forms), _form_lines(forms))
    return 0


def _form_lines(forms: FormTable) -> Iterator[str]:
    yield f"{units.number(forms.samples, 'sample')}, predicted from a sample of {forms.measured_on:,}:"
    rows = [("form", "images/s", "disk", "build")]
    for form in forms.predictions:
        rows.append((form.form, f"{form.images_per_s:,.0f}", units.size(form.disk_bytes), units.duration(form.build_s)))
    yield text.table(rows)
    yield "The smallest form that is faster than your training step is the one to store."
    yield from (f"left out: {name}: {why}" for name, why in forms.left_out.items())
    if any(form.disk_bytes > memory_limit() for form in forms.predictions):
        yield "note: a form that is larger than the memory is read at most at the rate of the disk"
    if forms.busy:
        yield f"note: {forms.busy}"


@click.command("doctor")
@click.argument("folder", default=".", type=click.Path(file_okay=False))
@option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor_command(folder: str, as_json: bool) -> int:
    """Print what is installed, what this machine offers and what to change.

    FOLDER is where datasets are to be. The exit status is 1 if there is a problem.
    """
    from tfprep.bench.machine import examine

    findings, marks = [], {"ok": "     ", "note": "note ", "problem": "FAIL "}
    for finding in examine(folder):
        findings.append(finding)
        if not as_json:
            text.echo(f"{marks[finding.status]}{finding.name:<11} {finding.value}")
            if finding.advice:
                text.echo(f"{'':16} {finding.advice}")
    problems = sum(finding.status == "problem" for finding in findings)
    if as_json:
        text.print_json({"problems": problems, "findings": [asdict(finding) for finding in findings]})
    return int(problems > 0)


@click.command("demo")
@option("--out", type=PATH, default="tfprep-demo", help="Folder for everything that the demo makes.")
@option("--scenes", type=click.IntRange(20), default=240, help="Number of training images to make.")
@option("--steps", type=click.IntRange(20), default=400, help="Number of training steps.")
@option("--only-data", is_flag=True, help="Make photos with masks, and photos in class folders, and stop.")
def demo_command(out: Path, scenes: int, steps: int, only_data: bool) -> None:
    """Make photos with masks, build a dataset with click maps and variants, draw it, train on it, and compare loading rates.

    The demo takes about two minutes on two cores. All files stay in the output folder.
    """
    from tfprep.dataset import open_dataset
    from tfprep.demo.scenes import write_objects
    from tfprep.inspect.sheet import contact_sheet

    raw, built, picture = out / "raw", out / "built", out / "sheet.png"
    started = time.monotonic()
    if only_data:
        objects = out / "objects"
        _make(raw, scenes)
        text.echo(f"   {write_objects(objects, scenes)} photos of one object, in a folder for each class, in {objects}")
        return
    require_package("tensorflow", "tfprep demo")
    _make(raw, scenes)
    _build(raw, built)
    contact_sheet(open_dataset(built), samples=8).save(picture)
    text.echo(f"3. Contact sheet: {picture}")
    text.start_tensorflow()
    _train(built, steps)
    _compare(raw, built)
    text.echo(
        f"The demo took {units.duration(time.monotonic() - started)}. See {picture}. Next: tfprep init YOUR_FOLDER"
    )


def _make(raw: Path, scenes: int) -> None:
    from tfprep.demo.scenes import write_scenes

    text.echo("1. Making photos (JPEG) and masks (PNG)")
    count = write_scenes(raw, {"train": scenes, "val": max(10, scenes // 4)})
    text.echo(f"   {count} scenes with leaves, stars and stones in {raw}")


def _build(raw: Path, built: Path) -> None:
    from tfprep.builder import build
    from tfprep.demo.recipe import RECIPE

    text.echo("2. Building: each photo is decoded once and becomes four variants with click maps (without TensorFlow)")
    summary = build(RECIPE, built, raw)
    if summary.built_samples:
        how = f"in {units.duration(summary.seconds)}: {summary.records / summary.seconds:,.0f} records/s"
    else:
        how = "were up to date"
    text.echo(f"   {units.number(summary.records, 'record')} ({units.size(summary.bytes)}) {how}")


def _train(built: Path, steps: int) -> None:
    from tqdm import tqdm

    from tfprep.demo.train import BATCH, train
    from tfprep.load import open as open_data

    text.echo(
        f"4. Training a small network for {steps} steps, batch size {BATCH}: RGB and two click maps to the mask of leaves"
    )
    with tqdm(total=steps, unit=" steps", disable=None, leave=False) as bar:
        learned = train(open_data(built), steps, lambda step, loss: bar.update())
    text.echo(
        f"   loss {learned['first_loss']:.3f} at the start, {learned['last_loss']:.3f} at the end; "
        f"IoU on validation scenes {learned['held_out_iou']:.2f}"
    )


def _compare(raw: Path, built: Path) -> None:
    """Print images per second of the loader, and of the same recipe computed during training, measured in turns."""
    from tfprep.bench.rounds import Budget, Candidate, compare
    from tfprep.bench.training import loader_candidate, on_the_fly
    from tfprep.demo.recipe import RECIPE
    from tfprep.demo.train import BATCH
    from tfprep.load import open as open_data

    text.echo(
        "5. Comparing: the same batches computed on the fly (tf.data and tf.py_function), and loaded from the dataset"
    )
    on_fly = Candidate("on_the_fly", lambda: iter(on_the_fly(RECIPE, raw, "train", BATCH)))
    rounds = compare([on_fly, loader_candidate(open_data(built), "train", BATCH, seed=0)], Budget(3, 2.0))
    rates = {name: rounds.images_per_s(name).median for name in ("on_the_fly", "tfprep")}
    ratio = rounds.ratio("tfprep", "on_the_fly").median
    text.echo(
        f"   on the fly {rates['on_the_fly']:,.0f} images/s, tfprep {rates['tfprep']:,.0f} images/s: {ratio:.0f} times"
    )
