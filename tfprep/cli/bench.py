"""The commands that measure: `tfprep bench`, `tfprep advise`."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfprep.cli import text
from tfprep.cli.values import FILE, PATH, POSITIVE, byte_count, named, share
from tfprep.errors import LoaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tfprep.bench.advise import Prediction
    from tfprep.bench.rounds import Candidate
    from tfprep.bench.run import BenchOptions

EXIT_WAITING = 4
_NOT_AT_URL = {
    "--model": "model_name", "--map": "map_name", "--report": "report", "--against": "against", "--cold": "cold",
}  # fmt: skip


@click.command("bench")
@click.argument("folder", callback=lambda _context, _parameter, folder: _place(folder))
@click.option("--split", help="Split to load. [default: the first]")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True)
@click.option(
    "--map", "map_name", metavar="MODULE:NAME", help="Function that is applied to the loader with Dataset.map."
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Number of rounds.")
@click.option(
    "--seconds", type=click.FloatRange(0.05), default=1.5, show_default=True, help="Measured seconds per round."
)
@click.option("--cold", is_flag=True, help="Drop the dataset's files from the page cache before each measurement.")
@click.option("--threads", type=click.IntRange(0), help="Loader option threads.")
@click.option("--prefetch", type=click.IntRange(1), help="As the loader's option.")
@click.option("--order", type=click.Choice(["global", "block", "sequential"]), help="Loader option order.")
@click.option("--cache", type=click.Choice(["auto", "decoded", "none"]), help="Loader option cache.")
@click.option("--local", type=click.Path(), help="Loader option local, for a dataset at a URL.")
@click.option("--local-limit", help="Loader option local_limit, for example 500GB.")
@click.option("--step-ms", type=POSITIVE, help="Compare with a training step of this length, in milliseconds.")
@click.option("--images-per-second", type=POSITIVE, help="Compare with a training step that takes images at this rate.")
@click.option(
    "--model",
    "model_name",
    metavar="MODULE:NAME",
    help="Train your model: a function that returns a compiled Keras model.",
)
@click.option("--inputs", help="Loader option inputs, for --model; comma-separated fields are stacked (image,clicks).")
@click.option("--targets", help="Loader option targets, for --model.")
@click.option(
    "--fail-if-waiting",
    type=share,
    metavar="SHARE",
    help="Exit with status 4 if the input wait exceeds SHARE (for example 1%).",
)
@click.option("--memory-budget", help="Loader option memory_budget, for example 2GB.")
@click.option(
    "--report", type=FILE, help="Write an HTML page to this file, and the figures as JSON to one of the same name."
)
@click.option(
    "--against",
    multiple=True,
    metavar="MODULE:NAME",
    help="Compare with your own input pipeline: a function that returns an iterable of batches, of --batch-size samples each. "
    "'on-the-fly' is --recipe computed in every epoch. Repeatable.",
)
@click.option("--recipe", type=PATH, help="Recipe of the dataset, for --against on-the-fly.")
@click.option("--data", type=PATH, help="Folder of the recipe's raw files. [default: as for build]")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def bench_command(folder: Path, as_json: bool, fail_if_waiting: float | None, **given: Any) -> int:
    """Measure how fast the dataset in FOLDER loads, which stage limits the rate, and what would help.

    At a URL: what an epoch fetches, what the link delivers, and whether the link limits.

    Exit status 4: the input wait exceeded the share of --fail-if-waiting.
    """
    from tfprep.storage.urls import is_remote

    step_s = _step_s(given)
    step = given["step_ms"] or given["images_per_second"] or given["model_name"]
    if fail_if_waiting is not None and not step:
        raise click.UsageError("--fail-if-waiting needs a step: --step-ms, --images-per-second or --model")
    if given["report"]:
        given["report"].parent.mkdir(parents=True, exist_ok=True)
    if is_remote(folder):
        return _at_url(folder, as_json, given, step_s, fail_if_waiting)
    if given["local"]:
        raise click.UsageError("--local keeps shards of a dataset at a URL on a disk of this machine")
    from tfprep.bench.page import lines, write_report
    from tfprep.bench.run import BenchOptions, bench
    from tfprep.bench.training import TOLERATED, train_with_model
    from tfprep.cli.quiet import start_tensorflow
    from tfprep.load import open as open_data

    start_tensorflow("tfprep bench")
    function = named(given["map_name"]) if given["map_name"] else None
    if function is not None and not callable(function):
        raise LoaderError(f"{given['map_name']} is of type {type(function).__name__}, not a function")
    options = BenchOptions(
        split=given["split"],
        batch_size=given["batch_size"],
        loader=_loader_options(given),
        map_function=function,
        rounds=given["rounds"],
        seconds=given["seconds"],
        cold=given["cold"],
        tolerated=TOLERATED if fail_if_waiting is None else fail_if_waiting,
    )
    model = _ready_model(folder, given) if given["model_name"] else None
    baselines = [_baseline(name, folder, options, given) for name in given["against"]]
    result = bench(folder, options, baselines=baselines, step_s=step_s)
    trained = None
    if model is not None:
        more = {"seconds": options.training_s, "tolerated": options.tolerated, **_model_options(given)}
        trained = train_with_model(model, open_data(folder), result.split, options.batch_size, **more)
    if given["report"]:
        text.echo(f"wrote {', '.join(map(str, write_report(result, given['report'])))}", err=True)
    if as_json:
        text.print_json({**result.as_json(), **({"model": asdict(trained)} if trained else {})})
    else:
        text.echo("\n".join([*lines(result), *(trained.lines() if trained else [])]))
    waited = max(result.against.share if result.against else 0.0, trained.share if trained else 0.0)
    return EXIT_WAITING if fail_if_waiting is not None and waited > fail_if_waiting else 0


def _at_url(
    folder: Path, as_json: bool, given: dict[str, Any], step_s: float | None, fail_if_waiting: float | None
) -> int:
    from tfprep.bench.link import bench_link
    from tfprep.load import open as open_data

    unknown = [option for option, name in _NOT_AT_URL.items() if given[name]]
    unknown += ["--fail-if-waiting"] if fail_if_waiting is not None else []
    if unknown:
        raise click.UsageError(f"{unknown[0]} needs the dataset on a local disk; copy it to this machine first")
    options = _loader_options(given) | {name: given[name] for name in ("local", "local_limit") if given[name]}
    seconds = given["rounds"] * given["seconds"]
    result = bench_link(open_data(folder), given["split"], given["batch_size"], seconds=seconds, **options)
    if as_json:
        text.print_json(result.as_json())
    else:
        text.echo("\n".join(result.lines(None if step_s is None else given["batch_size"] / step_s)))
    return 0


def _step_s(given: dict[str, Any]) -> float | None:
    """The length of the step to compare with, in seconds; None without such an option."""
    if given["step_ms"] is not None and given["images_per_second"] is not None:
        raise click.UsageError("--step-ms and --images-per-second exclude each other")
    if given["images_per_second"] is not None:
        return float(given["batch_size"] / given["images_per_second"])
    return None if given["step_ms"] is None else float(given["step_ms"] / 1000)


def _loader_options(given: dict[str, Any]) -> dict[str, Any]:
    names = ("threads", "prefetch", "order", "cache", "memory_budget")
    options = {name: given[name] for name in names if given[name] is not None}
    return {name: False if value == "none" else value for name, value in options.items()}


def _place(folder: str) -> Path:
    from tfprep.storage.urls import folder_at

    return folder_at(folder)


def _baseline(name: str, folder: Path, options: BenchOptions, given: dict[str, Any]) -> Candidate:
    """Return the pipeline that the loader is compared with."""
    from tfprep.bench.rounds import Candidate
    from tfprep.bench.trial import on_the_fly
    from tfprep.load import open as open_data
    from tfprep.recipe.file import data_root, load_recipe

    if name != "on-the-fly":
        make = named(name)
        return Candidate(name, lambda: _repeated(name, make))
    if given["recipe"] is None:
        raise click.UsageError("--against on-the-fly computes the recipe in every epoch: name its file with --recipe")
    recipe, root = load_recipe(given["recipe"]), given["data"] or data_root(given["recipe"])
    split = options.split or next(iter(open_data(folder).splits))
    return Candidate(name, lambda: iter(on_the_fly(recipe, root, split, options.batch_size)))


def _repeated(name: str, make: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the batches of one epoch after another, each from a new call."""
    while True:
        batches = iter(make())
        if (first := next(batches, None)) is None:
            raise LoaderError(f"{name} returned an iterable without batches")
        yield first
        yield from batches


def _ready_model(folder: Path, given: dict[str, Any]) -> Any:
    from tfprep.bench.training import ready_model
    from tfprep.load import open as open_data

    data = open_data(folder)
    split = given["split"] or next(iter(data.splits))
    return ready_model(named(given["model_name"]), data, split, given["batch_size"], **_model_options(given))


def _model_options(given: dict[str, Any]) -> dict[str, Any]:
    return {**_loader_options(given), "inputs": _fields(given["inputs"]), "targets": _fields(given["targets"])}


def _fields(names: str | None) -> str | list[str] | None:
    return names.split(",") if names and "," in names else names


@click.command("advise")
@click.argument("recipe", type=PATH)
@click.option("--data", help="Folder of the recipe's raw files, or its URL. [default: as for build]")
@click.option("--images-per-second", type=POSITIVE, help="Rate that the loader should reach.")
@click.option("--disk", type=byte_count, metavar="BYTES", help="Largest size of the dataset, for example 200GB.")
@click.option("--hours", type=POSITIVE, help="Longest time of the build, in hours.")
@click.option(
    "--samples", type=click.IntRange(16), default=200, show_default=True, help="Number of samples to measure."
)
@click.option("--split", default="train", show_default=True)
@click.option(
    "--strategy",
    multiple=True,
    metavar="NAME",
    help="Strategy to measure, by its name in the table; repeatable. [default: all]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def advise_command(
    recipe: Path, data: str | None, samples: int, split: str, strategy: tuple[str, ...], as_json: bool, **goals: Any
) -> None:
    """Recommend how to store the data of RECIPE.

    Every strategy is built and loaded on a sample; size, rate and build time of the whole dataset are predicted from it.
    """
    from tfprep.bench.advise import Goals, advise
    from tfprep.cli.quiet import start_tensorflow
    from tfprep.recipe.file import data_root, load_recipe
    from tfprep.sources.raw import raw_root

    start_tensorflow("tfprep advise")
    wanted = Goals(goals["images_per_second"], goals["disk"], goals["hours"])
    root = raw_root(data or data_root(recipe))
    with tempfile.TemporaryDirectory(prefix="tfprep-advise-") as scratch:
        tell = None if as_json else lambda line: text.echo(line, err=True)
        found = advise(
            load_recipe(recipe), root, Path(scratch), wanted,
            samples=samples, split=split, only=strategy, on_progress=tell,
        )  # fmt: skip
    if as_json:
        text.print_json(found.as_json())
    else:
        lines = [
            f"{text.number(found.samples, 'sample')}, predicted from a sample of {found.measured_on:,}:",
            text.table([("strategy", "images/s", "disk", "build"), *map(_row, found.predictions)]),
            f"Recommended: {found.chosen} ({found.reason}).",
            *(f"  {line}" for line in found.lines),
            *(f"  {loss.words}" for loss in found.lost),
        ]
        if found.variants:
            lines += ["With more variants:", text.table([_row(one) for one in found.variants])]
        lines += [f"left out: {name}: {why}" for name, why in found.left_out.items()]
        if any(one.estimated for one in found.predictions):
            lines.append("* estimated from the CPU time of the inputs that would be computed during training")
        text.echo("\n".join([*lines, f"note: {found.busy}"] if found.busy else lines))


def _row(one: Prediction) -> tuple[object, ...]:
    rate = f"{one.images_per_s:,.0f}{'*' if one.estimated else ''}"
    return one.strategy, rate, text.size(one.disk_bytes), text.duration(one.build_s)
