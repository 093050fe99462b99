"""The commands that compute: `tfprep build`, `fields add` and `fields remove`. Workers start before NumPy is imported here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal

import click

from tfprep import units
from tfprep.cli import text
from tfprep.cli.options import FILE, PATH, PLACE, POSITIVE, json_option, option, part, quiet_option, share

if TYPE_CHECKING:
    from tfprep.builder import BuildEvent, BuildOptions, BuildProgress, BuildSummary, Part, PartSummary
    from tfprep.model_fields import FieldsSummary


@click.command("build")
@click.argument("recipe", type=PATH)
@option("--out", required=True, type=PLACE,
        help="Folder of the dataset, created if missing, or a URL such as s3://bucket/photos.")  # fmt: skip
@option(
    "--data",
    help="Folder of the raw files; for Records also a URL. [default: DATA of the recipe, else the current folder]",
)
@option("--workers", type=click.IntRange(0),
        help="Number of worker processes; 0 builds in this process. [default: one per core]")  # fmt: skip
@option("--limit", type=click.IntRange(1), help="Build only this many samples, for a first look.")
@option("--on-bad", type=click.Choice(["skip", "fail"]), default="skip",
        help="Leave bad inputs out and list them in rejects.jsonl, or stop at the first one.")  # fmt: skip
@option("--on-warning", type=click.Choice(["keep", "reject"]), default="keep",
        help="Keep samples with warnings (damaged files, dropped annotations) and list them in the report, or treat them as "
        "bad.")  # fmt: skip
@option("--max-bad", type=share, metavar="SHARE", show_default=False, default="100%",
        help="Publish nothing if more than this share of the inputs is rejected (for example 1%).")  # fmt: skip
@option("--sample-timeout", type=POSITIVE, default=300.0,
        help="Longest time for one sample, in seconds; a slower sample is rejected.")  # fmt: skip
@option("--replace", is_flag=True,
        help="Replace a finished dataset in --out, even if it is another one or has more samples.")  # fmt: skip
@option("--hash/--no-hash", show_default=False, default=True,
        help="Keep a perceptual hash of each image in the index, for tfprep check. [default: --hash]")  # fmt: skip
@option("--reshard", is_flag=True,
        help="Change the number of shards to that of a new dataset of this size, and build what has to change.")  # fmt: skip
@option("--accept-code", is_flag=True,
        help="Keep shards for which nothing but your own code has changed, as if the present code had built them.")  # fmt: skip
@option("--keep", type=click.IntRange(0), default=1,
        help="Number of older versions that stay besides the current one; versions that are read stay too.")  # fmt: skip
@option("--verify", is_flag=True,
        help="Read all shards, and build again those whose bytes are not those that were built.")  # fmt: skip
@option("--engine", type=click.Choice(["local", "ray"]), default="local",
        help="Build on this machine, or on all nodes of a Ray cluster; --workers is then the most parts at a time.")  # fmt: skip
@option("--address", help="Address of the Ray cluster. [default: the one that this machine belongs to]")
@option(
    "--part",
    type=part,
    metavar="I/N",
    help="Build only the shards of part I (from 0) of N, and publish nothing; parts may run at once on many machines.",
)
@option("--finish", is_flag=True, help="Publish what the parts built; missing shards are an error.")
@option("--explain", is_flag=True,
        help="Print which shards would be built, and what changed in the recipe, without building.")  # fmt: skip
@option("--dry-run", is_flag=True,
        help="As --explain, with the size and time to expect, from a build of 32 samples in a temporary folder.")  # fmt: skip
@option("--json", "as_json", is_flag=True, help="Print the summary, and events (on standard error), as JSON lines.")
@option("--quiet", is_flag=True, help="Print only warnings and errors.")
def build_command(
    recipe: Path, out: str, data: str | None, workers: int | None, limit: int | None,
    on_bad: Literal["skip", "fail"], on_warning: Literal["keep", "reject"], max_bad: float, sample_timeout: float,
    replace: bool, hash: bool, reshard: bool, accept_code: bool, keep: int, verify: bool, engine: str,
    address: str | None, part: Part | None, finish: bool, explain: bool,
    dry_run: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Build the dataset that the Python file RECIPE defines.

    Shards that are up to date are kept. The same command therefore continues a build that was stopped, and rebuilds only
    what was added or changed.

    Many machines share one build with --part, and one of them publishes it with --finish.
    """
    if workers != 0:  # NumPy, which is not imported yet, starts threads in 60 ms, and this process multiplies no matrix
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from tfprep.builder import BuildOptions, build, build_part, finish_build

    data = data or None
    explain = explain or dry_run
    if finish and (part is not None or explain):
        raise click.UsageError("--finish is a step of its own, without --part and --dry-run")
    if engine == "local" and address is not None:
        raise click.UsageError("--address belongs to --engine ray")
    if engine == "ray" and (part is not None or finish or explain):
        raise click.UsageError("--engine ray builds everything and publishes; --part, --finish and --dry-run do not")
    cluster = None
    if engine == "ray":
        from tfprep.builder import Ray

        cluster = Ray(address or "auto")
    options = BuildOptions(
        workers, limit, on_bad, max_bad, sample_timeout, replace, hash, reshard, accept_code, on_warning, keep, verify
    )
    if explain:
        _explain(recipe, out, data, options, part, as_json, with_size=dry_run)
        return

    is_asked = sys.stdin.isatty() and sys.stderr.isatty() and not as_json
    confirm = (lambda question: click.confirm(f"{question}.\nBuild them again?", err=True)) if is_asked else None

    def report(event: BuildEvent) -> None:
        if as_json:
            click.echo(text.escaped_json(event.to_json()), err=True)
        elif event.name in ("warning", "empty") or (event.name == "code" and confirm is None):
            text.echo(f"Warning: {event.text}", err=True)

    summary: BuildSummary | PartSummary
    try:
        # The standard output is the summary's. Recipes may print, and so does Ray when a node dies, whatever it is told.
        with _progress(quiet or as_json) as on_progress, redirect_stdout(sys.stderr):
            told: dict[str, Any] = {"options": options, "on_progress": on_progress, "on_event": report}
            if part is not None:
                summary = build_part(recipe, out, data, part=part.number, parts=part.parts, **told)
            elif finish:
                summary = finish_build(recipe, out, data, **told)
            else:
                summary = build(recipe, out, data, engine=cluster, confirm=confirm, **told)
    except KeyboardInterrupt:
        text.echo("The build was stopped. Finished shards are kept; the same command continues the build.", err=True)
        raise click.Abort() from None
    if as_json:
        paths = {name: str(path) for name, path in vars(summary).items() if name in ("out", "path")}
        text.print_json({**asdict(summary), **paths})
    elif not quiet:
        text.echo(_part_text(summary) if part is not None else _summary_text(summary, finish))


def _part_text(summary: Any) -> str:
    built, done = summary.built_samples, "nothing to do"
    if built:
        rate = f"{built / summary.seconds:,.0f} samples/s"
        done = f"built {units.number(built, 'sample')} in {units.duration(summary.seconds)} ({rate})"
    rejected = f", {summary.rejected} rejected" if summary.rejected else ""
    return (
        f"{summary.out}, part {summary.part} of {summary.parts}: {done}; complete with "
        f"{units.number(summary.shards, 'shard')} of {units.number(summary.samples, 'sample')}{rejected}.\n"
        "When all parts are complete, publish them: tfprep build RECIPE --out OUT --finish"
    )


def _summary_text(summary: Any, finish: bool) -> str:
    from tfprep.cli.content import mixed_sizes
    from tfprep.dataset import open_dataset

    data = open_dataset(summary.out)
    built, duration = summary.built_samples, units.duration(summary.seconds)
    if built:
        done = f"Built {units.number(built, 'sample')} in {duration} ({built / summary.seconds:,.0f} samples/s)."
    else:
        done = f"Published in {duration}." if finish else f"Nothing to do: the dataset is up to date ({duration})."
    lines = [
        f"{summary.out}: {units.number(summary.samples, 'sample')}, {units.number(summary.records, 'record')}, "
        f"{units.number(summary.shards, 'shard')} per variant, {units.size(summary.bytes)}",
        indent(repr(data.splits), "  "),
        done,
    ]
    if summary.rejected:
        rejected = units.number(summary.rejected, "input was", "inputs were")
        lines.append(f"{rejected} rejected, such as {summary.first_rejected}; see {summary.path / 'rejects.jsonl'}")
    if summary.passed_over:
        counts = (f"{reason} ({count:,})" for reason, count in summary.passed_over.items())
        lines.append(f"Left out or missing: {', '.join(counts)}")
    if built:
        lines.append(f"Report: {summary.path / 'report.html'}")
    if sizes := mixed_sizes(data.manifest):
        lines.append(sizes)
    return "\n".join(lines)


def _explain(
    recipe: Path, out: str, data: str | None, options: BuildOptions, part: Part | None, as_json: bool, *, with_size: bool
) -> None:  # fmt: skip
    from tfprep.builder import explain, plan_build

    states = plan_build(recipe, out, data, options=options, part=part)
    samples = sum(state.samples for state in states if not state.up_to_date)
    changed = any(state.changed for state in states)  # by size or time; the content is known to a build only
    most, later = ("up to ", "; files that changed are compared by content first") if changed else ("", "")
    built = f" ({most}{units.number(samples, 'sample')} would be built{later})" if samples else ""
    expected, line = _expected(recipe, data, samples, options.workers) if samples and with_size else (None, "")
    shards = [asdict(state) for state in states]
    lines = [explain(states) + built, *([line] if line else [])]
    text.print_result(as_json, {"shards": shards, "expected": expected} if with_size else shards, lines)


def _expected(recipe: Path, data: str | None, samples: int, workers: int | None) -> tuple[dict[str, float] | None, str]:
    """Return the size and the time to expect, None where a sample cannot be built, and a line that says it."""
    from tfprep.bench.forms import expected_build
    from tfprep.errors import TfprepError
    from tfprep.recipe.file import data_root, load_recipe

    try:
        root = data_root(recipe, data)  # before load_recipe: functions of the last run can be pickled
        nbytes, seconds = expected_build(load_recipe(recipe), root, samples, workers)
    except TfprepError as error:  # what is due is known nevertheless
        return None, f"Size and time are not known: a sample cannot be built: {error}"
    line = f"Expected, from a sample: {units.size(nbytes)} in {units.duration(seconds)} on this machine"
    return {"bytes": nbytes, "seconds": seconds}, line


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[BuildProgress], None] | None]:
    """A bar on standard error that terminals show after two seconds; elsewhere a line every 30 seconds."""
    lines, bar, printed_s = not sys.stderr.isatty(), None, 0.0
    with ExitStack() as stack:

        def update(progress: BuildProgress) -> None:
            nonlocal bar, printed_s
            from tqdm import tqdm  # in 20 ms, while the workers are busy

            if bar is None:
                options: Any = {"delay": 2, "dynamic_ncols": True, "smoothing": 0.1, "disable": lines}
                bar = stack.enter_context(tqdm(unit=" images", **options))
            state = f"shard {progress.shards_done}/{progress.shards}, {progress.rejected} rejected"
            bar.total = progress.samples
            bar.set_postfix_str(state, refresh=False)
            bar.update(progress.samples_done - bar.n)
            if lines and progress.seconds - printed_s >= 30:
                printed_s = progress.seconds
                done = progress.samples_done, progress.samples, progress.seconds
                text.echo(tqdm.format_meter(*done, ncols=0, unit=" images", postfix=state), err=True)

        yield None if quiet else update


@click.group("fields")
def fields_command() -> None:
    """Add fields that a model computes to a dataset, or remove them."""


@fields_command.command("add")
@click.argument("dataset")
@click.argument("fields", type=FILE)
@option(
    "--part", type=part, metavar="NUMBER/PARTS", help="Compute one part of the shards, from 0, and publish nothing."
)
@option("--replace", is_flag=True, help="Allow fields of the same name by another model to be replaced.")
@option("--verify", is_flag=True, help="Read all computed shards, and compute again those that are damaged.")
@json_option
@quiet_option
def add_command(
    dataset: str, fields: Path, part: Part | None, replace: bool, verify: bool, as_json: bool, quiet: bool
) -> None:
    """Compute the FIELDS of a Python file with a model, for the dataset in DATASET (a path or a URL), and store them beside it.

    The file defines FIELDS = tfprep.ModelFields(...). The dataset's own shards do not change. The same command again computes
    only what is missing, or of a changed model or shard.
    """
    from tfprep.model_fields import add_fields

    with text.progress("sample", quiet=quiet or as_json) as on_progress:
        summary = add_fields(
            dataset, fields, part=(part.number, part.parts) if part else None, replace=replace, verify=verify,
            on_progress=on_progress,
        )  # fmt: skip
    if as_json or not quiet:
        text.print_result(as_json, asdict(summary), [_fields_text(summary)])


def _fields_text(summary: FieldsSummary) -> str:
    names = ", ".join(summary.fields)
    rate = f", {summary.samples / max(summary.seconds, 1e-9):,.0f} samples/s" if summary.samples else ""
    share = f"; the model took {100 * summary.model_s / max(summary.seconds, 1e-9):.0f}%" if summary.samples else ""
    done = (
        f"computed {units.number(summary.samples, 'sample')} in {units.number(summary.shards, 'shard')}, "
        f"{units.duration(summary.seconds)}{rate}{share}; {summary.kept} shards were up to date"
    )
    end = ""
    if not summary.published:
        end = "\nNothing is published yet: when all parts are computed, run the command without --part."
    return f"{summary.path}: {names}: {done}{end}"


@fields_command.command("remove")
@click.argument("dataset")
@click.argument("name")
@json_option
def remove_command(dataset: str, name: str, as_json: bool) -> None:
    """Remove fields that tfprep fields add added: all that were added together with NAME, or what it computed of them so far."""
    from tfprep.model_fields import remove_fields

    removed = remove_fields(dataset, name)
    given_up = f"gave up the shards of {name} that were computed and not published; their files are removed"
    line = f"{dataset}: {'removed ' + ', '.join(removed) if removed else given_up}"
    text.print_result(as_json, {"removed": removed}, [line])
