"""`tfprep bench`."""

from __future__ import annotations

from pathlib import Path

import click

from tfprep.cli import text


@click.command("bench")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--split", help="Which split. [default: the first]")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds of measurement.")
@click.option(
    "--seconds", type=click.FloatRange(0.05), default=2.0, show_default=True, help="Seconds that a round measures."
)
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON on standard output.")
def command(folder: Path, split: str | None, batch_size: int, rounds: int, seconds: float, as_json: bool) -> None:
    """How fast the dataset in FOLDER loads, as `training=True` would read it."""
    from tfprep.bench.run import bench
    from tfprep.cli.quiet import start_tensorflow

    start_tensorflow()
    result = bench(folder, split, batch_size=batch_size, rounds=rounds, seconds=seconds)
    if as_json:
        text.print_json(result.as_json())
    else:
        click.echo("\n".join(result.lines()))
