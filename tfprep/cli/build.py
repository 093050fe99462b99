"""`tfprep build`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tfprep.cli import text
from tfprep.cli.progress import BuildBar

if TYPE_CHECKING:
    from tfprep.build import BuildEvent


class Share(click.ParamType[float]):
    """`1%` or `0.01`."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            share = float(str(value).removesuffix("%")) / (100 if str(value).endswith("%") else 1)
        except ValueError:
            self.fail(f"expected a share such as 1% or 0.01, not {value!r}", param, ctx)
        return share


@click.command("build")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="The folder of the dataset; made where missing."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Where the recipe's raw files lie on this machine. [default: the recipe's DATA, else here]",
)
@click.option("--workers", type=click.IntRange(0), help="Processes; 0 builds in this one. [default: one a core]")
@click.option("--limit", type=click.IntRange(1), help="Build this many samples only, for a first look.")
@click.option(
    "--on-bad",
    type=click.Choice(["skip", "fail"]),
    default="skip",
    show_default=True,
    help="Leave bad inputs out and list them, or stop at the first.",
)
@click.option(
    "--max-bad", type=Share(), default="100%", help="Publish nothing when more than this share is bad, as 1%."
)
@click.option(
    "--sample-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds a sample may take before it is left out.",
)
@click.option("--dry-run", is_flag=True, help="Say which shards would be built, and why; write nothing.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="The summary as JSON on standard output, events as lines of JSON on standard error.",
)
@click.option(
    "--show-workers", is_flag=True, help="Under the progress, what each worker has in hand, and for how long."
)
@click.option("--quiet", is_flag=True, help="No progress.")
def command(
    recipe: Path, out: Path, data: Path | None, workers: int | None, limit: int | None,
    on_bad: Literal["skip", "fail"], max_bad: float, sample_timeout: float, dry_run: bool, as_json: bool, show_workers: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Build the dataset that RECIPE describes, a Python file that defines RECIPE.

    What is there and up to date is kept, so the same command continues a build that was stopped, and takes up what was
    added or changed.
    """
    from tfprep.build import BuildOptions, build
    from tfprep.recipe_file import data_root

    root = data or data_root(recipe)
    if dry_run:
        _dry_run(recipe, out, root, limit, as_json)
        return
    options = BuildOptions(workers, limit, on_bad, max_bad, sample_timeout)
    with BuildBar(quiet or as_json, show_workers) as bar:
        try:
            told = _tell_json if as_json else None
            summary = build(recipe, out, root, options=options, on_progress=bar.update, on_event=told)
        except KeyboardInterrupt:
            raise _interrupted(bar) from None
    if as_json:
        text.print_json(asdict(summary))
    else:
        click.echo(_told(summary))


def _tell_json(event: BuildEvent) -> None:
    click.echo(event.to_json(), err=True)


def _interrupted(bar: BuildBar) -> click.Abort:
    bar.close()
    click.echo("The build was stopped. What is done is kept: the same command continues it.", err=True)
    return click.Abort()


def _told(summary: Any) -> str:
    rows = [("split", "samples", "variants", "shards", "size")]
    rows += [
        (name, split["samples"], split["variants"], split["shards"], text.size(split["bytes"]))
        for name, split in summary.splits.items()
    ]
    built = summary.built_samples
    rate = f" ({built / summary.seconds:,.0f} a second)" if built else ""
    lines = [
        f"{summary.out}: {text.number(summary.samples, 'sample')}, {text.number(summary.records, 'record')}, "
        f"{text.number(summary.shards, 'shard')} a variant, {text.size(summary.bytes)}",
        text.table(rows),
        f"Built {text.number(built, 'sample')} in {text.duration(summary.seconds)}{rate}."
        if built
        else f"Nothing to do: all of it was up to date ({text.duration(summary.seconds)}).",
    ]
    if summary.rejects:
        lines.append(
            f"{text.number(summary.rejects, 'input was', 'inputs were')} rejected; see {summary.out / 'rejects.jsonl'}"
        )
    if built:
        lines.append(f"What it came to, with samples: {summary.out / 'report.html'}")
    return "\n".join(lines)


def _dry_run(recipe: Path, out: Path, root: Path, limit: int | None, as_json: bool) -> None:
    from tfprep.build import explain, plan_build

    states = plan_build(recipe, out, root, limit=limit)
    if as_json:
        text.print_json([asdict(state) for state in states])
        return
    samples = sum(state.samples for state in states if not state.up_to_date)
    click.echo(explain(states) + (f" ({text.number(samples, 'sample')} would be built)" if samples else ""))
