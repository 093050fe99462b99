"""The command `tfprep verify`."""

from __future__ import annotations

from dataclasses import asdict

import click

from tfprep.cli import text


@click.command("verify")
@click.argument("folder")
@click.option("--json", "as_json", is_flag=True, help="Print the faults as JSON.")
def command(folder: str, as_json: bool) -> int:
    """Check every file and record of the dataset in FOLDER (a path or a URL) against its checksums.

    Exit status 1: a file or record is damaged or missing.
    """
    from tfprep.dataset.verify import verify

    checked = 0
    with text.progress("B", unit_scale=True) as show:

        def on_bytes(done: int, total: int) -> None:
            nonlocal checked
            checked = done
            show(done, total)

        faults = list(verify(folder, on_bytes))
    if as_json:
        text.print_json([asdict(fault) for fault in faults])
    else:
        for fault in faults:
            where = fault.file if fault.offset is None else f"{fault.file}, byte {fault.offset}"
            text.echo(f"{where}: {fault.reason}")
        text.echo(_verdict(len(faults), checked, folder))
    return 1 if faults else 0


def _verdict(faults: int, checked: int, folder: str) -> str:
    if not faults:
        return f"{folder}: no fault found ({text.size(checked)} checked)"
    count = text.number(faults, "fault")
    if "://" in folder:
        return f"{count}. Delete the damaged objects, then run the build again: it builds the shards that are missing."
    return (
        f"{count}. tfprep repair {folder} builds the damaged files again, and no others. Files that only an index refers to: "
        "write them again, then run tfprep index."
    )
