"""The command `tfprep remove-fields`."""

from __future__ import annotations

import click

from tfprep.cli import text


@click.command("remove-fields")
@click.argument("dataset")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: str, name: str, as_json: bool) -> None:
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
