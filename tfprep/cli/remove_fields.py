"""The command `tfprep remove-fields`."""

from __future__ import annotations

import click

from tfprep.cli import text


@click.command("remove-fields")
@click.argument("dataset")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: str, name: str, as_json: bool) -> None:
    """Remove fields that tfprep add-fields added: all that were added together with NAME."""
    from tfprep.model_fields import remove_fields

    removed = remove_fields(dataset, name)
    if as_json:
        text.print_json({"removed": removed})
    else:
        text.echo(f"{dataset}: removed {', '.join(removed)}")
