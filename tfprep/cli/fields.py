"""The commands for fields that a model computes: `tfprep add-fields`, `tfprep remove-fields`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfprep.cli import text
from tfprep.cli.values import FILE

if TYPE_CHECKING:
    from tfprep.model_fields import FieldsSummary


@click.command("add-fields")
@click.argument("dataset")
@click.argument("fields", type=FILE)
@click.option("--devices", help="Number of GPUs, or their numbers as 0,2: a process for each. [default: this process]")
@click.option("--part", metavar="NUMBER/PARTS", help="Compute one part of the shards, from 0, and publish nothing.")
@click.option("--replace", is_flag=True, help="Allow fields of the same name by another model to be replaced.")
@click.option("--explain", is_flag=True, help="Print why each shard would be computed, and compute nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="Print errors alone.")
def add_fields_command(
    dataset: str, fields: Path, devices: str | None, part: str | None, replace: bool, explain: bool, as_json: bool, quiet: bool
) -> None:  # fmt: skip
    """Compute the FIELDS of a Python file with a model, for the dataset in DATASET (a path or a URL), and store them beside it.

    The file defines FIELDS = tfprep.ModelFields(...). The dataset's own shards do not change. The same command again computes
    only what is missing, or of a changed model or shard.
    """
    from tfprep.builder.options import parse_part
    from tfprep.model_fields import add_fields, explain_fields

    if explain:
        _explain(explain_fields(dataset, fields), as_json)
        return
    chosen = parse_part(part) if part else None
    with text.progress("sample", quiet=quiet or as_json) as on_progress:
        summary = add_fields(
            dataset, fields, devices=_devices(devices), part=(chosen.number, chosen.parts) if chosen else None,
            replace=replace, on_progress=on_progress,
        )  # fmt: skip
    if as_json:
        text.print_json(asdict(summary))
    elif not quiet:
        text.echo(fields_text(summary))


def _devices(value: str | None) -> int | list[str] | None:
    if value is None:
        return None
    if value.isdecimal():
        return int(value)
    return [name.strip() for name in value.split(",")]


def _explain(reasons: dict[str, str], as_json: bool) -> None:
    if as_json:
        text.print_json(reasons)
        return
    due = {shard: reason for shard, reason in reasons.items() if reason}
    for shard, reason in due.items():
        text.echo(f"{shard}: {reason}")
    text.echo(f"{text.number(len(due), 'shard')} of {len(reasons)} to compute")


def fields_text(summary: FieldsSummary) -> str:
    """Return what was computed, in words."""
    names = ", ".join(summary.fields)
    rate = f", {summary.samples / max(summary.seconds, 1e-9):,.0f} samples/s" if summary.samples else ""
    share = f"; the model took {100 * summary.model_s / max(summary.seconds, 1e-9):.0f}%" if summary.samples else ""
    done = (
        f"computed {text.number(summary.samples, 'sample')} in {text.number(summary.shards, 'shard')}, "
        f"{text.duration(summary.seconds)}{rate}{share}; {summary.kept} shards were up to date"
    )
    end = (
        ""
        if summary.published
        else "\nNothing is published yet: when all parts are computed, run the command without --part."
    )
    if summary.withdrawn:
        end += (
            f"\n{', '.join(summary.withdrawn)}: computed from fields that changed, so that the dataset has them no longer; run "
            "tfprep add-fields for them again"
        )
    return f"{summary.path}: {names}: {done}{end}"


@click.command("remove-fields")
@click.argument("dataset")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def remove_fields_command(dataset: str, name: str, as_json: bool) -> None:
    """Remove fields that tfprep add-fields added: all that were added together with NAME, or what it computed of them so far."""
    from tfprep.model_fields import remove_fields

    removed = remove_fields(dataset, name)
    if as_json:
        text.print_json({"removed": removed})
    else:
        given_up = (
            f"gave up the shards of {name} that were computed and not published; tfprep clean removes their files"
        )
        text.echo(f"{dataset}: {'removed ' + ', '.join(removed) if removed else given_up}")
